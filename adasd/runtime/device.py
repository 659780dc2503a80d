"""One thread owns the device: no model call runs in a coroutine, and KV needs no locks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from adasd.core.errors import InvalidRequest, Overloaded, ServiceUnavailable

P = ParamSpec("P")
T = TypeVar("T")


class DeviceThread:
    """Runs calls one after the other on its own thread, in the order they came.

    capacity: calls that may be in hand at once, the running one included; one more is refused with Overloaded.
    Everything that touches the model, loading and release included, goes through the same instance.
    """

    def __init__(self, capacity: int = 64, name: str = "device") -> None:
        if capacity < 1:
            raise InvalidRequest(f"capacity must be at least 1, got {capacity}", "capacity")
        self._capacity = capacity
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._pending = 0
        self._closed = False

    @property
    def pending(self) -> int:
        """Calls accepted and not finished: queued and running."""
        return self._pending

    @property
    def undisturbed(self) -> bool:
        """Whether what it runs may go on: no other call waits, and nobody closes it."""
        return self._pending == 0 and not self._closed

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `call(*args, **kwargs)`; its exception is raised here.

        Cancelling the awaiting task drops a call that has not begun and lets a running one finish unheard.
        Raises Overloaded if the queue is full, ServiceUnavailable after `close`.
        """
        future = self._submit(call, *args, **kwargs)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and future.cancelled() and not (task and task.cancelling()):
                raise ServiceUnavailable("the device was shut down before this call began") from None
            raise

    def post(self, call: Callable[[], object], dropped: Callable[[], object]) -> None:
        """Have `call` run after those that wait, whatever the capacity; `dropped` is called if it never will be.

        Raises ServiceUnavailable after `close`.
        """
        with self._lock:
            if self._closed:
                raise ServiceUnavailable("the device is shut down")
            future = self._executor.submit(call)
        future.add_done_callback(lambda ended: dropped() if ended.cancelled() else None)

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._lock:
            if self._closed:
                raise ServiceUnavailable("the device is shut down")
            if self._pending >= self._capacity:
                raise Overloaded(f"{self._pending} calls are waiting for the device")
            future = self._executor.submit(call, *args, **kwargs)
            self._pending += 1
        future.add_done_callback(self._finished)
        return future

    def _finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._pending -= 1

    async def close(self) -> None:
        """Refuse new calls, drop those that have not begun, wait for the running one. Closing twice is fine."""
        with self._lock:
            self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._executor.shutdown)

    async def __aenter__(self) -> DeviceThread:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
