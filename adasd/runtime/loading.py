"""From a model's name on the command line to a runtime and the kernels that go with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from adasd.core.backend import Kernels
from adasd.core.draws import CounterDraws
from adasd.core.host import HostKernels
from adasd.runtime.base import CausalRuntime
from adasd.runtime.options import Dtype, Role, RuntimeOptions
from adasd.runtime.toy import ToyRuntime, ToySpec, is_toy

__all__ = ["Dtype", "Loaded", "Role", "RuntimeOptions", "load_model"]

Loaded = tuple[CausalRuntime[Any], Kernels[Any, CounterDraws]]


def load_model(spec: str, role: Role, options: RuntimeOptions) -> Loaded:
    """The runtime and the kernels of a model: `toy:...` (see `ToySpec`) or a folder with config.json.

    Torch is imported for folders only. Raises InvalidRequest for what cannot be served, with the reason.
    """
    if is_toy(spec):
        toy = ToySpec.parse(spec)
        return ToyRuntime(replace(toy, context=options.served(toy.context))), HostKernels(options.support)
    return _load_folder(Path(spec), role, options)


def _load_folder(folder: Path, role: Role, options: RuntimeOptions) -> Loaded:
    from adasd.kernels.device import DeviceKernels
    from adasd.kernels.positions import Columns
    from adasd.runtime.checkpoint import load_checkpoint

    runtime = load_checkpoint(folder, role, options)
    ids, vocabulary = runtime.columns, runtime.info().vocabulary
    return runtime, DeviceKernels(options.support, None if ids is None else Columns(ids.numpy(), vocabulary))
