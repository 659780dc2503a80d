"""A pretended accelerator: its tensors are computed on the host, but as on a real one they do not mix with the host's,
and the host reads them only by a copy.

What works here names the right device for every tensor it makes; kernels, streams and graphs it does not try.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves, tree_map

NAME = "lazy"
"""A device type that torch knows and nothing stands behind in a plain build."""
HOST_HELPS = {"copy_", "_to_copy", "to", "index", "index_put_", "_index_put_impl_"}
"""Operations that take tensors of the host beside those of an accelerator: copies, and indices."""


class Elsewhere(Tensor):
    """A tensor of the pretended device. held: what it stands for, on the host."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.held.tolist()

    def data_ptr(self) -> int:
        raise RuntimeError(f"memory of {NAME} has no address on the host")


def _compute(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """On the host what is asked of the device. Raises RuntimeError where tensors of both come together."""
    name, leaves = operation.overloadpacket.__name__, tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    far = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if (
        far
        and name not in HOST_HELPS
        and not all(isinstance(tensor, Elsewhere) or not tensor.dim() for tensor in tensors)
    ):
        raise RuntimeError(f"{name}: expected all tensors to be on one device, found {NAME} and the host's")
    if devices:
        far = devices[0].type == NAME
    with torch._C._DisableTorchDispatch():
        found = operation(*tree_map(_held, args), **tree_map(_held, kwargs))
    if name.endswith("_") and not name.startswith("__"):
        return args[0]
    return tree_map(_placed, found) if far else found


def _held(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf.held if isinstance(leaf, Elsewhere) else leaf


def _placed(leaf: Any) -> Any:
    return Elsewhere(leaf) if isinstance(leaf, Tensor) else leaf


@cache
def _registered() -> torch.library.Library:
    library = torch.library.Library("_", "IMPL")
    library.fallback(_compute, "Lazy")
    return library


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device. torch makes a tensor of numbers in one step, in which a device written in Python has no part."""
    _registered()
    _device_constructors()  # torch keeps them at the first call, and these are to be torch's own
    for name in ("tensor", "as_tensor"):
        monkeypatch.setattr(torch, name, _in_two_steps(getattr(torch, name)))
    return torch.device(NAME, 0)


def _in_two_steps(make: Any) -> Any:
    def made(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        tensor: Tensor = make(data, **kwargs)
        return tensor if device is None else tensor.to(device)

    return made
