"""Sampling parameters to messages and back."""

from __future__ import annotations

from typing import cast

from adasd.core.errors import InvalidRequest
from adasd.core.grammar import Grammar, GrammarKind
from adasd.core.types import PLAIN, Processing, SamplingParams
from adasd.rpc.v1 import common_pb2


def encode_sampling(sampling: SamplingParams) -> common_pb2.Sampling:
    return common_pb2.Sampling(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        choice=sampling.choice,
        processing=None if sampling.processing == PLAIN else _encode_processing(sampling.processing),
        ignore_eos=sampling.ignore_eos,
    )


def decode_sampling(message: common_pb2.Sampling) -> SamplingParams:
    """Raises InvalidRequest, naming the parameter."""
    return SamplingParams(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        seed=message.seed,
        choice=message.choice,
        processing=_decode_processing(message.processing) if message.HasField("processing") else PLAIN,
        ignore_eos=message.ignore_eos,
    )


def _encode_processing(processing: Processing) -> common_pb2.Processing:
    grammar = processing.grammar
    return common_pb2.Processing(
        bias_ids=[token for token, _ in processing.logit_bias],
        biases=[bias for _, bias in processing.logit_bias],
        repetition_penalty=processing.repetition_penalty,
        frequency_penalty=processing.frequency_penalty,
        presence_penalty=processing.presence_penalty,
        min_tokens=processing.min_tokens,
        eos_ids=processing.eos_ids,
        grammar=None if grammar is None else common_pb2.Grammar(kind=grammar.kind, source=grammar.source),
    )


def _decode_processing(message: common_pb2.Processing) -> Processing:
    if len(message.bias_ids) != len(message.biases):
        raise InvalidRequest(f"{len(message.bias_ids)} ids with {len(message.biases)} biases", "logit_bias")
    return Processing(
        logit_bias=tuple(zip(message.bias_ids, message.biases, strict=True)),
        repetition_penalty=message.repetition_penalty,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        min_tokens=message.min_tokens,
        eos_ids=tuple(message.eos_ids),
        grammar=_decode_grammar(message.grammar) if message.HasField("grammar") else None,
    )


def _decode_grammar(message: common_pb2.Grammar) -> Grammar:
    return Grammar(cast(GrammarKind, message.kind), message.source)
