"""What passes cost here, found out before the first request: what a gateway knows it need not try on its clients."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np

from adasd.core.backend import Kernels
from adasd.core.draws import CounterDraws, DrawKey, Purpose
from adasd.core.errors import AdasdError
from adasd.core.rows import sparse_row
from adasd.core.types import Draft, SamplingParams
from adasd.runtime.base import CausalRuntime, Segment
from adasd.runtime.cores import SharedCores
from adasd.runtime.options import Role

logger = logging.getLogger(__name__)

SESSION = b"before the first"
"""That no gateway has: theirs are random."""
MOST_ROWS = 64
TIMES, SECONDS = 10, 2.0
"""Every number of rows is tried so often, but no further time once so long has passed."""
CANDIDATE = Draft((0,), (0.0,), (sparse_row(np.array([0, 1]), np.array([0.5, 0.5])),))
SAMPLING, KEY = SamplingParams(), DrawKey(0, 0, Purpose.EMIT)


def rehearse(runtime: CausalRuntime[Any], kernels: Kernels[Any, CounterDraws]) -> None:
    """One token through model and sampling, and a candidate judged, so that nobody's first answer waits for what is
    compiled when first used.

    What is wrong with it a request will tell.
    """
    with suppress(AdasdError):
        for role in ("draft", "target"):
            _pass(runtime, kernels, role, 1)
        (logits,) = runtime.forward([Segment(SESSION, 0, (0, 0), 2)])
        target = kernels.target(logits, SAMPLING)
        list(target.evidence(CANDIDATE))
        target.emit(0, CANDIDATE.rows[0], KEY, CounterDraws(0))
    runtime.release(SESSION)


def pace(
    runtime: CausalRuntime[Any], kernels: Kernels[Any, CounterDraws], role: Role, cores: SharedCores
) -> tuple[float, ...]:
    """Seconds of a pass over 1, 2, 4, ... MOST_ROWS rows of a session, as far as the context goes: the least of TIMES.

    They take turns, so that whatever else goes on is nobody's in particular, and wait until nobody loads a model on
    these cores. Empty where one fails, of which requests will tell: for a model that is no good, or too little memory.
    """
    room = min(MOST_ROWS, runtime.info().context_length)
    least = {1 << power: float("inf") for power in range(room.bit_length())}
    try:
        with cores.quiet():
            began = time.perf_counter()
            for again, rows in product(range(TIMES), least):
                if again and time.perf_counter() - began > SECONDS:
                    break
                with cores.taken():
                    least[rows] = min(least[rows], _pass(runtime, kernels, role, rows))
    except Exception as error:
        logger.warning("passes could not be timed: %s", error)
        return ()
    finally:
        runtime.release(SESSION)
    return tuple(least.values())


def _pass(runtime: CausalRuntime[Any], kernels: Kernels[Any, CounterDraws], role: Role, rows: int) -> float:
    began = time.perf_counter()
    (logits,) = runtime.forward([Segment(SESSION, 0, (0,) * rows, rows if role == "target" else 1)])
    if role == "target":
        kernels.target(logits, SAMPLING).emit(rows - 1, None, KEY, CounterDraws(0))
    else:
        kernels.propose(logits[0], SAMPLING)
    return time.perf_counter() - began
