"""`python -m services.gateway`: the gateway as a program."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import uvicorn
import uvloop

from adasd.core.errors import AdasdError, InvalidRequest, ServiceUnavailable
from adasd.core.messages import ModelInfo
from adasd.core.stopping import stopping_rule
from adasd.core.verification import verification
from adasd.state.limits import ClientLimits
from adasd.state.redis_store import RedisStore
from services.environment import read_settings
from services.gateway.admission import Admission
from services.gateway.app import GatewayServices, create_app
from services.gateway.costs import LiveCosts, load_profile
from services.gateway.engine import Engine
from services.gateway.garbage import collect_seldom
from services.gateway.handshake import Handshake
from services.gateway.metrics import GatewayMetrics
from services.gateway.middleware import CURRENT_REQUEST
from services.gateway.readiness import Capacity, Readiness
from services.gateway.remote_drafter import DrafterClient, RemoteDrafter
from services.gateway.remote_verifier import RemoteVerifier, VerifierClient
from services.gateway.request import GenerationRequest
from services.gateway.runs import RunLength
from services.gateway.security import Edge
from services.gateway.server import CLOSE_SECONDS, DrainingServer, https_options
from services.gateway.settings import GatewaySettings, is_loopback
from services.gateway.text import ChatText
from services.gateway.traces import script_spans
from services.tracing import OFF, Tracing, mark_logs, start_tracing

logger = logging.getLogger("services.gateway")

LINE = "%(asctime)s %(levelname)s %(name)s [{}] %(message)s"


@dataclass(frozen=True, slots=True)
class RemotePeers:
    """`services.gateway.peers.Peers` over gRPC."""

    drafters: DrafterClient
    verifiers: VerifierClient
    handshake: Handshake
    vocabulary: int

    @property
    def target(self) -> ModelInfo | None:
        return self.handshake.verifier

    @property
    def draft(self) -> ModelInfo | None:
        return self.handshake.drafter

    def drafter(self, request: GenerationRequest) -> RemoteDrafter:
        weights = self.draft.weights_fingerprint if self.draft else None
        return self.drafters.open(request.session, request.sampling, request.seeded, weights)

    def verifier(self, request: GenerationRequest) -> RemoteVerifier:
        weights = self.target.weights_fingerprint if self.target else None
        asked = request.session, request.sampling, request.acceptance, weights, request.top_logprobs
        return self.verifiers.open(*asked, request.next_round, request.in_parts, self._beside)

    @property
    def _beside(self) -> str | None:
        """Weights of the drafter that may be asked where it is beside a verifier."""
        return self.draft.weights_fingerprint if self.draft and self.drafters.refusal is None else None

    async def verifier_fits(self) -> None:
        """Raises ServiceUnavailable if no verifier answers, or one whose peers or tokenizer are of another kind."""
        problem = self.handshake.problem()
        if problem is None and self.target is not None and self.vocabulary > self.target.vocabulary:
            problem = f"the tokenizer has {self.vocabulary} ids, {self.target.name!r} {self.target.vocabulary}"
        if problem is not None:
            raise ServiceUnavailable(problem)

    async def drafter_answers(self) -> None:
        """Raises ServiceUnavailable unless a drafter that fits answers."""
        if self.drafters.refusal is not None:
            raise ServiceUnavailable(self.drafters.refusal)
        deadline, replicas = self.drafters.options.info_deadline, self.drafters.replicas.replicas
        asked = (replica.connection.info(deadline) for replica in replicas)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if all(isinstance(answer, AdasdError) for answer in answers):
            raise ServiceUnavailable(f"no drafter answers: {answers[0] if answers else 'none is known'}")


async def serve(settings: GatewaySettings, metrics: GatewayMetrics, tracing: Tracing = OFF) -> None:
    """Run until SIGTERM or SIGINT."""
    _check(settings)
    keys = settings.key_ring
    if not keys.required and not is_loopback(settings.host):
        logger.warning("no API keys are set and %s is not a loopback address: anybody may use this", settings.host)
    runs = RunLength(settings.rounds_at_once)
    costs = LiveCosts(load_profile(settings.cost_profile), settings.shared_cores, runs)
    metrics.watch_runs(runs.plain)
    text = await asyncio.to_thread(ChatText.load, settings.tokenizer, settings.chat_template, settings.tool_parser)
    metrics.describe({"model": settings.names[0], "stopping": settings.stopping, "acceptance": settings.acceptance})
    async with AsyncExitStack() as stack:
        store = _store(settings, metrics, tracing)
        stack.push_async_callback(store.close)
        limits = ClientLimits(settings.redis_url.get_secret_value(), settings.store)
        stack.push_async_callback(limits.close)
        drafters = DrafterClient(settings.remote, metrics.drafter_failed, tracing)
        stack.push_async_callback(drafters.close)
        verifiers = VerifierClient(settings.remote, metrics.verifier_failed, tracing)
        stack.push_async_callback(verifiers.close)
        for service, replicas in (("drafter", drafters.replicas), ("verifier", verifiers.replicas)):
            metrics.watch_replicas(service, replicas.known, replicas.healthy)
        handshake = Handshake(verifiers, drafters, costs.told)
        handshake.start()
        stack.push_async_callback(handshake.close)
        peers = RemotePeers(drafters, verifiers, handshake, text.vocabulary)
        probes = {"verifier": peers.verifier_fits, "drafter": peers.drafter_answers, "redis": store.ping}
        owner = f"{socket.gethostname()}:{secrets.token_hex(4)}"
        engine = Engine(text, peers, store, metrics, owner, costs, tracing=tracing)
        edge = Edge(keys, limits, settings.origins, settings.metrics_need_key, settings.allowed_hosts)
        await _listen(settings, _services(settings, engine, Readiness(probes), edge))
    logger.info("costs of late, as a cost_profile: %s", costs.figures())


def _store(settings: GatewaySettings, metrics: GatewayMetrics, tracing: Tracing) -> RedisStore:
    """Raises InvalidRequest for a URL that names no Redis."""
    try:
        url = settings.redis_url.get_secret_value()
        return RedisStore(url, settings.store, metrics.store_was_away, script_spans(tracing))
    except ValueError as error:
        raise InvalidRequest(f"redis_url: {error}", "redis_url") from None


def _services(settings: GatewaySettings, engine: Engine, readiness: Readiness, edge: Edge) -> GatewayServices:
    return GatewayServices(
        engine=engine,
        admission=Admission(
            engine.text,
            settings.names,
            settings.rules,
            settings.default_max_tokens,
            settings.prompt_limits,
            costs=engine.costs,
        ),
        readiness=readiness,
        capacity=Capacity(settings.max_requests),
        bodies=settings.bodies,
        edge=edge,
        probe_seconds=settings.probe_seconds,
        resume_wait=settings.resume_wait,
    )


def _check(settings: GatewaySettings) -> None:
    """What can be found out before anything is loaded. Raises InvalidRequest."""
    stopping_rule(settings.stopping, settings.max_candidates)
    verification(settings.acceptance)
    settings.tls.credentials()
    https_options(settings.https)


async def _listen(settings: GatewaySettings, services: GatewayServices) -> None:
    app = create_app(services)
    collect_seldom()
    config = uvicorn.Config(
        app,
        settings.host,
        settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
        **https_options(settings.https),
    )
    await DrainingServer(config, services.readiness, services.capacity, settings.grace_seconds).serve()


def _log_to_stderr(level: str) -> None:
    handler = logging.StreamHandler()
    handler.addFilter(_with_request)
    handler.setFormatter(logging.Formatter(LINE.format("%(request)s")))
    logging.basicConfig(level=level, handlers=[handler])


def _with_request(record: logging.LogRecord) -> bool:
    record.request = CURRENT_REQUEST.get()
    return True


def main() -> None:
    """Ends the process with a message for what cannot be served."""
    try:
        settings = read_settings(GatewaySettings)
        _log_to_stderr(settings.log_level)
        logger.info("gateway settings: %s", settings.model_dump_json())
        metrics = GatewayMetrics()
        tracing = start_tracing(settings.tracing, "gateway", metrics.spans)
        if tracing is not OFF:
            mark_logs(tracing, LINE.format("%(request)s %(trace)s"))
        try:
            uvloop.run(serve(settings, metrics, tracing))
        finally:
            tracing.close()
    except AdasdError as error:
        sys.exit(f"gateway: {error}")


if __name__ == "__main__":
    main()
