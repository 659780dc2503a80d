"""A service from its settings to its end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
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
from adasd.runtime.options import Role
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


def run(
    kind: type[SettingsT], name: ServiceName, service: Callable[[ReplicaHost, SettingsT, Tracing], Service]
) -> None:
    """The whole program: settings, logging, serving. Ends the process with a message for what cannot be served."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        settings = read_settings(kind)
        logging.basicConfig(level=settings.log_level, format=LINE.format(""))
        logger.info("%s settings: %s", name, settings.model_dump_json())
        _serve_or_follow(settings, name, service)
    except AdasdError as error:
        sys.exit(f"{name}: {error}")


def _serve_or_follow(
    settings: SettingsT, name: ServiceName, service: Callable[[ReplicaHost, SettingsT, Tracing], Service]
) -> None:
    """Serve, alone or on rank 0 of several; the other ranks do as they are told."""
    ranks, role = Ranks.read(os.environ), ROLES[name]
    if ranks.size == 1:
        loader = partial(load_model, settings.model, role, settings.runtime)
        uvloop.run(_serve(settings, name, service, loader))
        return
    member = join_ranks(settings.model, role, settings.runtime, ranks)
    if ranks.rank > 0:
        member.follow()
        return
    try:
        uvloop.run(_serve(settings, name, service, member.lead))
    finally:
        member.end()


async def _serve(
    settings: SettingsT,
    name: ServiceName,
    service: Callable[[ReplicaHost, SettingsT, Tracing], Service],
    loader: Callable[[], Loaded],
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
        await _host(settings, ROLES[name], service, loader, metrics, tracing)
    finally:
        tracing.close()


async def _host(
    settings: SettingsT,
    role: Role,
    service: Callable[[ReplicaHost, SettingsT, Tracing], Service],
    loader: Callable[[], Loaded],
    metrics: ReplicaMetrics,
    tracing: Tracing,
) -> None:
    # A stream has one message in hand at a time, and leaves one release behind.
    async with DeviceThread(capacity=2 * settings.max_streams) as device:
        runtime = settings.runtime
        schedule = Schedule(runtime.prefill_chunk, runtime.running_chunk, idle_sessions=runtime.idle_sessions)
        grammars = load_grammars(settings.model, runtime)
        cores = SharedCores(runtime.shared_cores)
        host = ReplicaHost(device, metrics, settings.work_seconds, settings.max_streams, schedule, grammars, cores)
        interceptors = [] if tracing is OFF else [StreamSpans(tracing)]
        server = Server(service(host, settings, tracing), settings.limits, interceptors, settings.tls)
        load = partial(host.load, loader, role, settings.max_vocabulary)
        await serve(server, load, settings.host, settings.port, settings.grace_seconds)
