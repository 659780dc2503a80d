"""Whether the services fit together: asked when a connection comes up, and again whenever it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from adasd.core.errors import AdasdError
from adasd.core.messages import ModelInfo
from adasd.rpc.info import PROTOCOL, PeerInfo
from services.gateway.remote_drafter import DrafterClient
from services.gateway.remote_verifier import VerifierClient
from services.gateway.replicas import Replica

RETRY_SECONDS = 0.5
RECHECK_SECONDS = 30.0
"""A name with several addresses may change hands without the channel ever being down."""


def mismatch(verifier: PeerInfo, peer: PeerInfo) -> str | None:
    """Why a peer cannot work with a verifier; None if it can. Padded vocabularies may differ in width."""
    target, model = verifier.model, peer.model
    if peer.protocol != PROTOCOL:
        return f"{model.name!r} speaks {peer.protocol or 'no protocol version'}, this gateway {PROTOCOL}"
    if model.vocabulary_fingerprint != target.vocabulary_fingerprint:
        return (
            f"{model.name!r} has another vocabulary than {target.name!r}: "
            f"fingerprint {model.vocabulary_fingerprint}, not {target.vocabulary_fingerprint}"
        )
    if set(model.eos_ids) != set(target.eos_ids):
        return f"{model.name!r} ends at ids {sorted(model.eos_ids)}, {target.name!r} at {sorted(target.eos_ids)}"
    return None


class Handshake:
    """Follows the connections of both clients, and keeps a drafter that does not fit from being asked.

    introduced: called with the first verifier's and the first drafter's model whenever a replica has told of its own.
    """

    def __init__(
        self,
        verifier: VerifierClient,
        drafter: DrafterClient,
        introduced: Callable[[ModelInfo | None, ModelInfo | None], None] = lambda *_: None,
    ) -> None:
        self._verifier = verifier
        self._drafter = drafter
        self._introduced = introduced
        self._seen: dict[Replica[Any], PeerInfo] = {}
        self._away: dict[Replica[Any], str] = {}
        self._tasks: dict[Replica[Any], asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to find replicas and to follow their connections; needs a running loop."""
        for client in (self._verifier, self._drafter):
            client.replicas.on_change = self._update
            client.replicas.start()
        self._update()

    @property
    def verifier(self) -> ModelInfo | None:
        """The verifier's model as last heard of."""
        return next((peer.model for _, peer in self._heard(self._verifier.replicas.replicas)), None)

    @property
    def drafter(self) -> ModelInfo | None:
        """The drafter's model as last heard of."""
        return next((peer.model for _, peer in self._heard(self._drafter.replicas.replicas)), None)

    def problem(self) -> str | None:
        """Why requests cannot be served as they should. A drafter that is merely away is no such reason."""
        verifiers = self._verifier.replicas.replicas
        if all(replica in self._away for replica in verifiers):
            reasons = (f"{replica.address} ({self._away[replica]})" for replica in verifiers)
            return f"no verifier answers: {', '.join(reasons) or 'none is known'}"
        return next(self._too_wide(), None) or next(self._misfits(verifiers), None) or self._drafter.refusal

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _update(self) -> None:
        """Follow the replicas there are."""
        replicas = self._replicas()
        for gone in self._tasks.keys() - set(replicas):
            self._tasks.pop(gone).cancel()
            self._seen.pop(gone, None)
            self._away.pop(gone, None)
        for replica in replicas:
            if replica not in self._tasks:
                self._away[replica] = "not asked yet"
                self._tasks[replica] = asyncio.create_task(self._follow(replica))

    async def _follow(self, replica: Replica[Any]) -> None:
        while True:
            await self._introduce(replica)
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await replica.connection.lost()
                    replica.away = True  # who comes back there may be another

    async def _introduce(self, replica: Replica[Any]) -> None:
        """Ask until there is an answer."""
        while True:
            try:
                peer = await replica.connection.info(self._verifier.options.info_deadline)
                break
            except AdasdError as error:
                self._away[replica], replica.away = str(error), True
                await asyncio.sleep(RETRY_SECONDS)
        self._seen[replica] = peer
        self._away.pop(replica, None)
        replica.away, replica.weights, replica.drafts = False, peer.model.weights_fingerprint, peer.model.drafts
        self._drafter.refusal = next(self._misfits(self._drafter.replicas.replicas), None)
        self._introduced(self.verifier, self.drafter)

    def _replicas(self) -> tuple[Replica[Any], ...]:
        return (*self._verifier.replicas.replicas, *self._drafter.replicas.replicas)

    def _heard(self, replicas: Iterable[Replica[Any]]) -> Iterator[tuple[Replica[Any], PeerInfo]]:
        return ((replica, self._seen[replica]) for replica in replicas if replica in self._seen)

    def _misfits(self, replicas: Iterable[Replica[Any]]) -> Iterator[str]:
        """Which of these peers do not fit the first verifier, and why."""
        for _, verifier in islice(self._heard(self._verifier.replicas.replicas), 1):
            for replica, peer in self._heard(replicas):
                if (reason := mismatch(verifier, peer)) is not None:
                    yield f"{replica.address} does not fit: {reason}"

    def _too_wide(self) -> Iterator[str]:
        """Messages are sized before a model is known."""
        limit = self._verifier.options.limits.vocabulary
        for _, peer in self._heard(self._replicas()):
            if peer.model.vocabulary > limit:
                yield f"{peer.model.name!r} has {peer.model.vocabulary} ids, messages here are sized for {limit}"
