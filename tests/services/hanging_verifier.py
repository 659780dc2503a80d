"""The verifier, whose rank 1 hangs in the middle of its next pass once SIGUSR1 has reached it, and stamps on."""

from __future__ import annotations

import os
import runpy
import signal
import threading
from collections.abc import Callable
from typing import Any

from adasd.runtime import shard

told = threading.Event()
count_steps = shard.count_steps


def count_and_hang(model: Any, begin: Callable[[], None]) -> None:
    count_steps(model, begin)
    model.model.layers[1].mlp.register_forward_pre_hook(lambda *_: hang() if told.is_set() else None)


def hang() -> None:
    threading.Event().wait()


if os.environ["RANK"] == "1":
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    shard.count_steps = count_and_hang
runpy.run_module("services.verifier", run_name="__main__")
