"""How the gateway reaches drafters and verifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from adasd.rpc.options import MessageLimits
from adasd.rpc.tls import ClientTls
from services.gateway.replicas import HealthOptions


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Where the services are and how long they may take, in seconds.

    drafter, verifier: addresses `host:port`, or `dns:///name:port` for all that a name leads to.
    limits: must be those of the services. health: of replicas, and what retries may cost.
    verify_deadline: for one round, retries included. verify_attempt: for one of these, where another replica is there.
    verifier_retry: how long verifiers that cannot be reached are tried again.
    draft_deadline: for one round; later rounds do not wait for a drafter that is still busy with an earlier one.
    drafter_wait: how long a seeded request waits for a drafter before a round without candidates.
    drafter_backoff: rounds without candidates after a failure, before the drafter is tried again.
    drafter_prefill: whether the drafter reads a prompt while the verifier does, not only when candidates are wanted.
    info_deadline: for an answer to Info. tls: with all services alike.
    """

    drafter: Sequence[str]
    verifier: Sequence[str]
    limits: MessageLimits = field(default_factory=MessageLimits)
    health: HealthOptions = field(default_factory=HealthOptions)
    verify_deadline: float = 60.0
    verify_attempt: float = 30.0
    verifier_retry: float = 10.0
    draft_deadline: float = 2.0
    drafter_wait: float = 10.0
    drafter_backoff: float = 0.5
    drafter_prefill: bool = True
    info_deadline: float = 5.0
    tls: ClientTls = field(default_factory=ClientTls)
