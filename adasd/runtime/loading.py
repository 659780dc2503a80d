"""From a model's name on the command line to a runtime and the kernels that go with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adasd.core.backend import Kernels
from adasd.core.draws import CounterDraws
from adasd.core.errors import InvalidRequest
from adasd.core.host import HostKernels
from adasd.grammars.engine import VocabularyGrammars
from adasd.runtime.base import CausalRuntime
from adasd.runtime.options import Dtype, Role, RuntimeOptions
from adasd.runtime.pace import rehearse
from adasd.runtime.ranks import Ranks
from adasd.runtime.toy import ToyRuntime, ToySpec, is_toy
from adasd.runtime.toy_tokenizer import toy_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from adasd.runtime.tensor_parallel import Member

__all__ = ["Dtype", "Loaded", "Role", "RuntimeOptions", "join_ranks", "load_grammars", "load_model"]

Loaded = tuple[CausalRuntime[Any], Kernels[Any, CounterDraws]]


def load_model(spec: str, role: Role, options: RuntimeOptions) -> Loaded:
    """The runtime and the kernels of a model: `toy:...` (see `ToySpec`) or a folder with config.json.

    Torch is imported for folders only. Raises InvalidRequest for what cannot be served, with the reason.
    """
    if is_toy(spec):
        toy = ToySpec.parse(spec)
        return ToyRuntime(replace(toy, context=options.served(toy.context))), HostKernels(options.support)
    return _load_folder(Path(spec), role, options)


def load_grammars(spec: str, options: RuntimeOptions) -> VocabularyGrammars:
    """Grammars over a model's vocabulary, which is read when the first of them comes."""

    def read() -> Tokenizer:
        if is_toy(spec):
            return toy_tokenizer(ToySpec.parse(spec).vocab)
        from adasd.runtime.checkpoint import tokenizer_of

        return tokenizer_of([Path(spec), *([options.target] if options.target else [])])

    return VocabularyGrammars(read)


def join_ranks(spec: str, role: Role, options: RuntimeOptions, ranks: Ranks) -> Member:
    """This process's part in a model that several hold together. Raises InvalidRequest for what cannot be divided."""
    if role == "draft" or is_toy(spec):
        what = "a toy" if is_toy(spec) else "a draft model"
        raise InvalidRequest(f"{what} runs in one process, torchrun started {ranks.size}", "model")
    from adasd.runtime.tensor_parallel import Member

    return Member(Path(spec), options, ranks)


def _load_folder(folder: Path, role: Role, options: RuntimeOptions) -> Loaded:
    from adasd.kernels.device import DeviceKernels
    from adasd.kernels.positions import Columns
    from adasd.runtime.checkpoint import load_checkpoint
    from adasd.runtime.ragged import RaggedRuntime

    runtime = load_checkpoint(folder, role, options)
    ids, vocabulary = runtime.columns, runtime.info().vocabulary
    kernels = DeviceKernels(options.support, None if ids is None else Columns(ids.numpy(), vocabulary))
    if isinstance(runtime, RaggedRuntime):
        runtime.equip(role, kernels)
    rehearse(runtime, kernels)
    return runtime, kernels
