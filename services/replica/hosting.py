"""The model of a service on its device thread, and the generations that hold sessions on it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from adasd.core.errors import DeadlineExceeded, InvalidRequest, Overloaded, ServiceUnavailable
from adasd.core.grammar import Grammars
from adasd.core.messages import ModelInfo, Timing
from adasd.core.types import Processing
from adasd.runtime.batching import Schedule
from adasd.runtime.cores import SharedCores
from adasd.runtime.device import DeviceThread
from adasd.runtime.engine import Engine, Work
from adasd.runtime.loading import Loaded
from adasd.runtime.options import Role
from adasd.runtime.replica import Replica
from services.replica.metrics import ReplicaMetrics

logger = logging.getLogger(__name__)

T = TypeVar("T")

RELEASE_PAUSE_SECONDS = 0.05


class ReplicaHost:
    """A replica, once it is loaded, and who holds which of its sessions.

    work_seconds: bound on the work for one message, the wait for the device included.
    max_streams: generations at a time; one more is refused with Overloaded. schedule: of the batches.
    grammars: over the model's vocabulary.
    """

    def __init__(
        self,
        device: DeviceThread,
        metrics: ReplicaMetrics,
        work_seconds: float,
        max_streams: int,
        schedule: Schedule | None = None,
        grammars: Grammars | None = None,
        cores: SharedCores | None = None,
    ) -> None:
        self._device = device
        self.metrics = metrics
        self._work_seconds = work_seconds
        self._max_streams = max_streams
        self._schedule = schedule
        self._grammars, self._cores = grammars, cores or SharedCores()
        self._replica: Replica[Any] | None = None
        self._engine: Engine | None = None
        self._info: ModelInfo | None = None
        self._streams = 0
        self._holders: dict[bytes, Generation] = {}
        self._releases: set[asyncio.Task[None]] = set()

    async def load(
        self,
        loader: Callable[[], Loaded],
        role: Role,
        max_vocabulary: int,
        beside: ReplicaHost | None = None,
    ) -> None:
        """Load the model on the device thread and see what its passes take. Raises what `loader` raises.

        beside: of the target, loaded before, whose engine is to do this draft model's work too.
        """
        began = time.monotonic()
        replica = await self._device.run(self._loaded, loader)
        info = replica.info()
        if info.vocabulary > max_vocabulary:
            raise InvalidRequest(
                f"{info.name} has {info.vocabulary} ids, messages are sized for {max_vocabulary}", "max_vocabulary"
            )
        info = replace(info, passes=await self._device.run(replica.pace, role, self._cores))
        self._engine = self._joined(replica, beside) if beside else self._engine_of(replica, self._stepped)
        self._replica, self._info = replica, info
        logger.info("loaded in %.1f s: %s", time.monotonic() - began, info)
        logger.info("passes over 1, 2, 4, ... rows, ms: %s", " ".join(f"{1e3 * one:.1f}" for one in info.passes))

    def _loaded(self, loader: Callable[[], Loaded]) -> Replica[Any]:
        with self._cores.loading():
            return Replica(*loader(), self._schedule, self._grammars)

    def _engine_of(self, replica: Replica[Any], stepped: Callable[[int], None]) -> Engine:
        return Engine(self._device, replica, self._max_streams, stepped, self._cores)

    def _joined(self, draft: Replica[Any], target: ReplicaHost) -> Engine:
        """One engine for both, once both are known."""
        replica = target._replica
        assert replica is not None, "the target is loaded first"
        pair = replica.join(draft)

        def stepped(messages: int) -> None:
            (self if pair.side == "draft" else target)._stepped(messages)

        target._engine = self._engine_of(replica, stepped)
        return target._engine

    def _stepped(self, messages: int) -> None:
        assert self._replica is not None
        self.metrics.stepped(messages, self._replica.allocated)

    def info(self) -> ModelInfo:
        """Raises ServiceUnavailable while the model loads."""
        if self._info is None:
            raise ServiceUnavailable("the model is being loaded")
        return self._info

    @asynccontextmanager
    async def generation(self) -> AsyncIterator[Generation]:
        """One stream's stay. Whatever ends it, its work stops before the next forward and its session is released."""
        with self.metrics.stream():
            self.info()
            if self._streams >= self._max_streams:
                raise Overloaded(f"{self._streams} generations are in hand")
            generation = Generation(self)
            self._streams += 1
            try:
                yield generation
            finally:
                self._streams -= 1
                self._leave(generation)

    def hold(self, session: bytes, generation: Generation) -> None:
        """The session is this generation's from now on; a stream that held it before no longer releases it."""
        self._holders[session] = generation

    def _leave(self, generation: Generation) -> None:
        generation.cancel()
        session = generation.session
        if session is not None and self._holders.get(session) is generation:
            del self._holders[session]
            release = asyncio.create_task(self._release(session))
            self._releases.add(release)
            release.add_done_callback(self._releases.discard)

    async def _release(self, session: bytes) -> None:
        assert self._replica is not None
        with suppress(ServiceUnavailable):  # once the device is shut down the session is gone anyway
            while session not in self._holders:
                try:
                    await self._device.run(self._replica.release, session)
                    break
                except Overloaded:
                    await asyncio.sleep(RELEASE_PAUSE_SECONDS)

    async def prepare(self, processing: Processing) -> None:
        """Have what a grammar takes at first behind it, away from the device thread. Raises InvalidRequest."""
        if processing.grammar is not None and self._grammars is not None:
            await asyncio.to_thread(self._grammars.start, processing.grammar, processing.eos_ids)

    async def answered(self, ask: Callable[[], Awaitable[tuple[T, Timing]]]) -> tuple[T, Timing]:
        """The result, and where the time went. Raises DeadlineExceeded, Overloaded, and what the work raises."""
        try:
            async with asyncio.timeout(self._work_seconds):
                result, timing = await ask()
        except TimeoutError:
            raise DeadlineExceeded(f"not done within {self._work_seconds:g} s") from None
        self.metrics.took(timing)
        return result, timing

    @property
    def engine(self) -> Engine:
        """Once the model is loaded."""
        assert self._engine is not None
        return self._engine


class Generation:
    """One stream's hold on its session."""

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host
        self._cancelled = threading.Event()
        self._prepared: Processing | None = None
        self.session: bytes | None = None

    def cancel(self) -> None:
        """Nobody waits for the running work any more."""
        self._cancelled.set()

    @property
    def cancelled(self) -> Callable[[], bool]:
        """Whether it has been; asked on any thread."""
        return self._cancelled.is_set

    async def prepare(self, processing: Processing) -> None:
        """Before the first message that is processed so. Raises InvalidRequest for a grammar that is none."""
        if processing != self._prepared:
            await self._host.prepare(processing)
            self._prepared = processing

    async def run(self, session: bytes, work: Work[T]) -> tuple[T, Timing]:
        """The result, and where the time went. Raises what `ask` raises."""
        return await self.ask(session, lambda: self._host.engine.run(work, self.cancelled))

    async def ask(self, session: bytes, ask: Callable[[], Awaitable[tuple[T, Timing]]]) -> tuple[T, Timing]:
        """What the engine answers to `ask`, within the time for one message.

        Raises DeadlineExceeded, InvalidRequest for a second session on one stream.
        """
        if self.session not in (None, session):
            raise InvalidRequest("one stream serves one session", "context.session")
        self.session = session
        self._host.hold(session, self)
        return await self._host.answered(ask)
