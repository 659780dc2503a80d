"""Two models on one device: a session's candidates are drafted and judged without a word to anybody in between."""

from __future__ import annotations

import time
from typing import Any

from adasd.runtime.batching import Batcher
from adasd.runtime.options import Role
from adasd.runtime.passes import Job


class PairBatcher:
    """Steps the jobs of a draft and a target model in turn, each job's passes with the model that they are for.

    Drafts go first, so that all blocks of the moment are judged in one pass; but where a draft model reads a long piece
    of a prompt, the target has a pass after each. side: whose the last step was.
    """

    def __init__(self, draft: Batcher[Any], target: Batcher[Any], long: int) -> None:
        """long: more tokens in a pass are a piece of a prompt."""
        self._draft, self._target, self._long = draft, target, long
        self.side: Role = "target"
        draft.elsewhere = target.elsewhere = self._moved

    @property
    def jobs(self) -> int:
        """In hand."""
        return self._draft.jobs + self._target.jobs

    @property
    def gathers(self) -> bool:
        """As of `Batcher`."""
        return self.side == "target"

    @property
    def passes(self) -> int:
        """Of the target, so far."""
        return self._target.passes

    def add(self, job: Job[Any], waited: float = 0.0) -> None:
        """As `Batcher.add`."""
        since = time.perf_counter() - waited
        if job.advance(None):
            self._place(job, since)

    def step(self) -> int:
        """As `Batcher.step`, of either."""
        reads = self.side == "draft" and self._draft.tokens > self._long
        first = self._draft.jobs and not (reads and self._target.jobs)
        self.side = "draft" if first else "target"
        return (self._draft if first else self._target).step()

    def disturb(self, waiting: bool) -> None:
        """As `Batcher.disturb`."""
        self._draft.disturb(waiting)
        self._target.disturb(waiting)

    def fail(self, error: Exception) -> None:
        """End every job with this."""
        self._draft.fail(error)
        self._target.fail(error)

    def _place(self, job: Job[Any], since: float) -> None:
        assert job.next is not None
        (self._draft if job.next.side == "draft" else self._target).take(job, since)

    def _moved(self, job: Job[Any], since: float) -> bool:
        assert job.next is not None
        if job.next.side == self.side:
            return False
        job.move()
        self._place(job, since)
        return True
