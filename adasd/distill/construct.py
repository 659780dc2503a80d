"""A student of a Llama target: some of its layers, its embedding, and its head's rows of the most frequent ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from adasd.core.errors import InvalidRequest
from adasd.runtime.student import TrimmedLlamaConfig, TrimmedLlamaForCausalLM


def frequent_ids(
    texts: Iterable[Sequence[int]],
    size: int,
    always: Collection[int],
    vocabulary: int,
    preferred: Collection[int] = frozenset(),
) -> torch.Tensor:
    """The `size` ids most frequent in the texts, `always` among them, ascending; int32 [size].

    Ties, and places left over, go to `preferred` ids, then to the smaller: tokenizers number their merges by frequency.
    """
    counts, known = Counter(token for text in texts for token in text), frozenset(preferred)

    def rank(token: int) -> tuple[bool, int, bool, int]:
        return token not in always, -counts[token], token not in known, token

    ranked = sorted(range(vocabulary), key=rank)
    return torch.tensor(sorted(ranked[:size]), dtype=torch.int32)


def check_layers(target: PreTrainedModel, layers: Sequence[int]) -> None:
    """Refuse a target that is no Llama, and layers it lacks. Raises InvalidRequest."""
    if not isinstance(target, LlamaForCausalLM):
        raise InvalidRequest(f"students are made of Llama targets, not of {target.config.model_type}", "target")
    count = target.config.num_hidden_layers
    if not layers or min(layers) < 0 or max(layers) >= count:
        raise InvalidRequest(f"layers must name some of the target's {count}, got {list(layers)}", "layers")


def student_of(target: PreTrainedModel, layers: Sequence[int], vocab_ids: torch.Tensor) -> TrimmedLlamaForCausalLM:
    """A student that begins as the named layers of the target. Raises InvalidRequest for layers it lacks.

    vocab_ids: int32 [head], ascending. Embedding and head are the target's own and stay frozen.
    """
    check_layers(target, layers)
    assert isinstance(target, LlamaForCausalLM)
    student = TrimmedLlamaForCausalLM(_config(target, len(layers), len(vocab_ids)))
    for own, chosen in zip(student.model.layers, layers, strict=True):
        own.load_state_dict(target.model.layers[chosen].state_dict())
    student.model.norm.load_state_dict(target.model.norm.state_dict())
    return _with_matrices(student, target, vocab_ids)


@torch.no_grad()
def student_from(
    earlier: TrimmedLlamaForCausalLM,
    target: PreTrainedModel,
    vocab_ids: torch.Tensor,
    begun: Sequence[int] = (),
    layers: Sequence[int] = (),
) -> TrimmedLlamaForCausalLM:
    """A student that begins as an earlier one of the same target; its head is trimmed anew to `vocab_ids`.

    layers: of the target that it is to have, where the earlier one has those `begun`; the same if not given. One that
    is new begins as the target's with nothing to say (its outputs are zero), so the student begins as the earlier one.
    Raises InvalidRequest if the earlier one has another number of layers than `begun`, or the target lacks one.
    """
    count = earlier.config.num_hidden_layers
    begun, layers = begun or range(count), layers or begun or range(count)
    if len(begun) != count:
        raise InvalidRequest(f"the earlier student began as {count} layers, not as {list(begun)}", "layers")
    check_layers(target, layers)
    assert isinstance(target, LlamaForCausalLM)
    student = TrimmedLlamaForCausalLM(_config(target, len(layers), len(vocab_ids)))
    for own, chosen in zip(student.model.layers, layers, strict=True):
        if chosen in begun:
            own.load_state_dict(earlier.model.layers[list(begun).index(chosen)].state_dict())
        else:
            own.load_state_dict(target.model.layers[chosen].state_dict())
            for said in (own.self_attn.o_proj, own.mlp.down_proj):
                said.weight.zero_()
    student.model.norm.load_state_dict(earlier.model.norm.state_dict())
    return _with_matrices(student, target, vocab_ids)


def _config(target: PreTrainedModel, layers: int, head: int) -> TrimmedLlamaConfig:
    inherited: dict[str, Any] = target.config.to_diff_dict()
    for own in ("model_type", "architectures", "tie_word_embeddings", "num_hidden_layers", "_name_or_path"):
        inherited.pop(own, None)
    return TrimmedLlamaConfig(**inherited, num_hidden_layers=layers, head_size=head, tie_word_embeddings=False)


def head_weight(model: PreTrainedModel) -> torch.Tensor:
    """The weight of the output layer, [vocabulary, width], frozen."""
    untyped: Any = model
    weight: torch.Tensor = untyped.get_output_embeddings().weight.detach()
    return weight


@torch.no_grad()
def _with_matrices(
    student: TrimmedLlamaForCausalLM, target: PreTrainedModel, vocab_ids: torch.Tensor
) -> TrimmedLlamaForCausalLM:
    embedding, head = target.get_input_embeddings(), head_weight(target)
    assert isinstance(embedding, torch.nn.Embedding)
    student.model.embed_tokens.weight = torch.nn.Parameter(embedding.weight.detach(), requires_grad=False)
    student.lm_head.weight = torch.nn.Parameter(head[vocab_ids.long()].clone(), requires_grad=False)
    student.lm_head.vocab_ids.copy_(vocab_ids)
    student.generation_config = target.generation_config
    return student
