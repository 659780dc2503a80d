"""A service from its settings to its end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import uvloop
from prometheus_client import CollectorRegistry, start_http_server

from adasd.core.errors import AdasdError
from adasd.rpc.server import Server, Service, serve
from adasd.runtime.batching import Schedule
from adasd.runtime.cores import SharedCores
from adasd.runtime.device import DeviceThread
from adasd.runtime.loading import Loaded, join_ranks, load_grammars, load_model
from adasd.runtime.options import Role, RuntimeOptions
from adasd.runtime.ranks import Ranks
from services.environment import read_settings
from services.replica.hosting import ReplicaHost
from services.replica.metrics import ReplicaMetrics, ServiceName
from services.replica.settings import ReplicaSettings
from services.replica.traces import StreamSpans
from services.tracing import OFF, Tracing, mark_logs, start_tracing

logger = logging.getLogger(__name__)

SPINS = "20000"
"""How long torch's threads spin for the next kernel, as libgomp counts; read when torch is imported. Its own default
keeps a core busy for milliseconds after a pass, which on one machine is the other model's; none at all wakes too late.
"""

SWITCH_SECONDS = 0.0005
"""For which one of two threads may keep Python while the other waits for it, a tenth of Python's own: with many streams
the passes of the device thread and the loop that brings their messages wait for each other dozens of times a pass."""

LINE = "%(asctime)s %(levelname)s %(name)s{}: %(message)s"

ROLES: dict[ServiceName, Role] = {"drafter": "draft", "verifier": "target"}

SettingsT = TypeVar("SettingsT", bound=ReplicaSettings)


@dataclass(frozen=True, slots=True)
class Program:
    """What a service is made of: the host of its model, and where its metrics and spans go."""

    host: ReplicaHost
    device: DeviceThread
    registry: CollectorRegistry
    tracing: Tracing


@dataclass(frozen=True, slots=True)
class Offer:
    """services: at one address. load: what is to be loaded for them once the program's own model is."""

    services: Sequence[Service]
    load: Sequence[Callable[[], Awaitable[None]]] = ()


Offering = Callable[[Program, SettingsT], Offer]


def run(kind: type[SettingsT], name: ServiceName, offering: Offering[SettingsT]) -> None:
    """Read the settings and serve until SIGTERM. Ends the process with a message for what cannot be served."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        settings = read_settings(kind)
        logging.basicConfig(level=settings.log_level, format=LINE.format(""))
        logger.info("%s settings: %s", name, settings.model_dump_json())
        _serve_or_follow(settings, name, offering)
    except AdasdError as error:
        sys.exit(f"{name}: {error}")


def _serve_or_follow(settings: SettingsT, name: ServiceName, offering: Offering[SettingsT]) -> None:
    """Serve, alone or on rank 0 of several; the other ranks do as they are told."""
    ranks, role = Ranks.read(os.environ), ROLES[name]
    if ranks.size == 1:
        loader = partial(load_model, settings.model, role, settings.runtime)
        uvloop.run(_serve(settings, name, offering, loader))
        return
    member = join_ranks(settings.model, role, settings.runtime, ranks)
    if ranks.rank > 0:
        member.follow()
        return
    try:
        uvloop.run(_serve(settings, name, offering, member.lead))
    finally:
        member.end()


async def _serve(
    settings: SettingsT, name: ServiceName, offering: Offering[SettingsT], loader: Callable[[], Loaded]
) -> None:
    registry = CollectorRegistry()
    metrics = ReplicaMetrics(name, registry)
    tracing = start_tracing(settings.tracing, name, metrics.spans)
    if tracing is not OFF:
        mark_logs(tracing, LINE.format(" [%(trace)s]"))
    if settings.metrics_port is not None:
        http, _ = start_http_server(settings.metrics_port, settings.host, registry)
        logger.info("metrics on %s:%d", settings.host, http.server_port)
    try:
        # A stream has one message in hand at a time, and leaves one release behind.
        async with DeviceThread(capacity=2 * settings.max_streams) as device:
            host = hosting(device, settings, settings.model, settings.runtime, metrics)
            offer = offering(Program(host, device, registry, tracing), settings)
            load = partial(host.load, loader, ROLES[name], settings.max_vocabulary)
            await _listen(settings, tracing, offer.services, (load, *offer.load))
    finally:
        tracing.close()


def hosting(
    device: DeviceThread, settings: ReplicaSettings, model: str, runtime: RuntimeOptions, metrics: ReplicaMetrics
) -> ReplicaHost:
    """The host of a model that is yet to be loaded."""
    schedule = Schedule(runtime.prefill_chunk, runtime.running_chunk, idle_sessions=runtime.idle_sessions)
    grammars, cores = load_grammars(model, runtime), SharedCores(runtime.shared_cores)
    return ReplicaHost(device, metrics, settings.work_seconds, settings.max_streams, schedule, grammars, cores)


async def _listen(
    settings: ReplicaSettings,
    tracing: Tracing,
    services: Sequence[Service],
    loads: Sequence[Callable[[], Awaitable[None]]],
) -> None:
    async def load() -> None:
        for one in loads:
            await one()

    interceptors = [] if tracing is OFF else [StreamSpans(tracing)]
    server = Server(services, settings.limits, interceptors, settings.tls)
    await serve(server, load, settings.host, settings.port, settings.grace_seconds)
