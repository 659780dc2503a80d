"""Many coroutines, one device thread: messages join the batch that is running, wherever it stands."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from adasd.core.errors import AdasdError, Overloaded, ServiceUnavailable
from adasd.core.messages import Timing
from adasd.runtime.cores import SharedCores
from adasd.runtime.device import DeviceThread
from adasd.runtime.gathering import Gathering
from adasd.runtime.passes import Job, Steps
from adasd.runtime.replica import Replica

logger = logging.getLogger(__name__)

T = TypeVar("T")

Work = Callable[[Replica[Any]], Steps[T]]
Done = Callable[[Any, Timing], None]
"""Told the result or the error, on the device thread."""


def _nothing(replica: Replica[Any], result: Any, timing: Timing) -> None:
    pass


def _not_known(result: Any) -> bool:
    return False


class Engine:
    """Steps a replica's batcher on the device thread while there are jobs; other calls come between two steps.

    capacity: jobs in hand at once; one more is refused with Overloaded. stepped: told how many took part in a step.
    cores: taken for every step. eos_ids: the model's.
    """

    def __init__(
        self,
        device: DeviceThread,
        replica: Replica[Any],
        capacity: int,
        stepped: Callable[[int], None] = lambda _: None,
        cores: SharedCores | None = None,
    ) -> None:
        self._device, self._replica, self._capacity, self._stepped = device, replica, capacity, stepped
        self._answers: list[tuple[asyncio.Future[Any], Any]] = []
        self._arrived: deque[tuple[Work[Any], Done, Callable[[], bool], float]] = deque()
        self._lock = threading.Lock()
        self._gathering, self._cores = Gathering(), cores or SharedCores()
        self._stepping = False
        self._in_hand = 0
        self.eos_ids = replica.info().eos_ids

    async def run(
        self,
        work: Work[T],
        cancelled: Callable[[], bool],
        then: Callable[[Replica[Any], T, Timing], None] = _nothing,
        last: Callable[[T], bool] = _not_known,
    ) -> tuple[T, Timing]:
        """The job's result. Raises its error, Overloaded, ServiceUnavailable once the device is shut down.

        Cancelling the awaiting task drops the job before its next pass; so does `cancelled`. then: what else to do with
        the result, on the device thread, before it is told. last: whether it is the last that its session asks for.
        """
        if self._in_hand >= self._capacity:
            raise Overloaded(f"{self._in_hand} messages are in hand")
        answer: asyncio.Future[tuple[T, Timing]] = asyncio.get_running_loop().create_future()

        def done(result: T | BaseException, timing: Timing) -> None:
            if isinstance(result, BaseException):
                self.answer(answer, result)
            else:
                self.answer(answer, (result, timing), last(result))
                then(self._replica, result, timing)

        self._in_hand += 1
        try:
            self.submit(work, done, lambda: answer.cancelled() or cancelled())
            return await answer
        finally:
            self._in_hand -= 1

    def submit(self, work: Work[Any], done: Done, cancelled: Callable[[], bool]) -> None:
        """Have the next step take a job in hand, unless it is cancelled by then; from whichever thread."""
        with self._lock:
            self._arrived.append((work, done, cancelled, time.perf_counter()))
            self._replica.batcher.disturb(True)
            idle, self._stepping = not self._stepping, True
        self._gathering.arrived(first=idle)
        if idle:
            self._again()

    def answer(self, waiting: asyncio.Future[Any], answer: Any, last: bool = False) -> None:
        """Tell who waits for a job, once the step that is under way has ended; on the device thread. last: nobody will
        ask again, so that no pass waits for it.
        """
        if not last:
            self.expect()
        self._answers.append((waiting, answer))

    def expect(self) -> None:
        """A session's job has ended: it may be back before the next pass."""
        self._gathering.answered()

    def _again(self) -> None:
        """Have the device thread go on, after whatever else waits for it."""
        try:
            self._device.post(self._steps, self._dropped)
        except ServiceUnavailable:
            self._dropped()

    def _steps(self) -> None:
        """Step while there are jobs, unless something else waits for the device."""
        while self._step():
            if not self._device.undisturbed:
                self._again()
                return

    def _step(self) -> bool:
        """Whether another one is needed."""
        free = time.perf_counter()
        self._gathering.wait(self._replica.batcher.jobs)
        self._begin(free)
        began = time.perf_counter()
        try:
            with self._cores.taken():
                began = time.perf_counter()
                took_part = self._replica.batcher.step()
            self._tell()  # before anything is counted: somebody waits
            self._stepped(took_part)
        except Exception:
            logger.exception("a step failed")
            self._replica.batcher.fail(AdasdError("internal error"))
        self._tell()
        if self._replica.batcher.gathers:
            self._gathering.ended(time.perf_counter() - began)
        with self._lock:
            self._stepping = bool(self._replica.batcher.jobs or self._arrived)
            return self._stepping

    def _begin(self, free: float) -> None:
        """Take what has arrived in hand. free: since when the device is: what others are waited for is no queue."""
        self._replica.batcher.disturb(False)
        while self._arrived:
            work, done, cancelled, came = self._arrived.popleft()
            if cancelled():  # its session may have been released, and must not come back
                done(ServiceUnavailable("nobody waits for this any more"), Timing())
            else:
                self._replica.batcher.add(Job(work(self._replica), done, cancelled), max(0.0, free - came))

    def _dropped(self) -> None:
        """The device was shut down: nobody is left waiting, whoever asks meanwhile included."""
        going_on = True
        while going_on:
            self._begin(time.perf_counter())
            self._replica.batcher.fail(ServiceUnavailable("the device is shut down"))
            with self._lock:
                self._stepping = going_on = bool(self._arrived)
        self._tell()

    def _tell(self) -> None:
        """Wake whoever waits, once for all that a step has answered: the loop and this thread take turns at Python."""
        answers, self._answers = self._answers, []
        if answers:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                answers[0][0].get_loop().call_soon_threadsafe(_settle, answers)


def _settle(answers: Sequence[tuple[asyncio.Future[Any], Any]]) -> None:
    for waiting, answer in answers:
        if waiting.done():  # given up on
            continue
        if isinstance(answer, BaseException):
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)
