"""The target answers prompts: many rows in flight, a finished one replaced at once, final hidden states kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from adasd.distill.attention import SLOT_ATTENTION
from adasd.distill.construct import head_weight
from adasd.distill.packed import pack_linears
from adasd.distill.sampling import sample
from adasd.distill.slots import SlotCache, SlotClock


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to be written. prompt: token ids of the whole prompt. seed: of the draws, with `key` and `number`.

    number: which of the answers to the prompt named `key` it is.
    """

    source: str
    key: str
    number: int
    prompt: tuple[int, ...]
    temperature: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.key}#{self.number}"

    def uniforms(self, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The question's own random numbers, so that its answer does not depend on what else is in flight."""
        digest = blake2b(f"{self.seed}/{self.name}".encode(), digest_size=16).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little"))).random(count)


@dataclass(frozen=True, slots=True)
class Answer:
    """ids: int32 [n], the end token included. hidden: float16 [n, width], the final hidden state behind each id.

    log_normalizers: float32 [n], log-sum-exp of the logits at temperature 1.
    """

    question: Question
    ids: torch.Tensor
    hidden: torch.Tensor
    log_normalizers: torch.Tensor


class Generator:
    """Batched sampling from one target at fixed shapes: `slots` rows a step, busy or not.

    limit: tokens of an answer. length: positions of a slot; a prompt may have at most `length - limit`.
    dtype: of the products below the head, on the CPU; logits, and what is kept of them, stay float32.
    The model's linear layers are packed, so the model serves nothing else afterwards.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_ids: Iterable[int],
        slots: int = 128,
        limit: int = 256,
        length: int = 512,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._width = head_weight(model).shape[1]
        untyped: Any = model
        pack_linears(untyped.base_model, dtype)
        pack_linears(model)
        model.set_attn_implementation(SLOT_ATTENTION)
        self._body, self._head = untyped.base_model, untyped.get_output_embeddings()
        self._layers = model.config.get_text_config(decoder=True).num_hidden_layers
        self._eos, self._device = frozenset(eos_ids), model.device
        self.slots, self.limit, self.longest_prompt = slots, limit, length - limit
        self._length = length

    @torch.inference_mode()
    def answers(self, questions: Iterable[Question], stopped: Callable[[], bool] = lambda: False) -> Iterator[Answer]:
        """Answers in the order they are finished, until `stopped`, asked before every step, says so.

        Questions with the same prompt should follow one another.
        """
        pending = self._read(iter(questions))
        flight = Flight(self.slots, self.limit, self._width, self._device)
        cache = SlotCache(self._layers, SlotClock(self.slots, self._length, self._device))
        while not stopped() and flight.refill(cache, pending):
            self._step(flight, cache)
            yield from flight.finished(self._eos, cache.clock)

    def _read(self, questions: Iterator[Question]) -> Iterator[tuple[Question, DynamicCache]]:
        """Each question with the KV of its prompt, all but the last token; read once for questions in a row."""
        ids: tuple[int, ...] = ()
        cache = DynamicCache()
        for question in questions:
            if question.prompt != ids:
                ids, cache = question.prompt, DynamicCache()
                if len(ids) > 1:
                    self._body(input_ids=torch.tensor([ids[:-1]], device=self._device), cache=cache, use_cache=True)
            yield question, cache

    def _step(self, flight: Flight, cache: SlotCache) -> None:
        mask, positions = cache.clock.mask(), cache.clock.positions
        read = self._body(
            input_ids=flight.tokens[:, None],
            attention_mask=mask,
            position_ids=positions[:, None],
            cache=cache,
            use_cache=True,
        )
        hidden = read.last_hidden_state[:, 0]
        flight.advance(hidden, self._head(hidden))


class Flight:
    """What is being written in each slot: the question, its next token, and what has come of it so far."""

    def __init__(self, slots: int, limit: int, width: int, device: torch.device) -> None:
        self.questions: list[Question | None] = [None] * slots
        self.tokens = torch.zeros(slots, dtype=torch.int64, device=device)
        self._limit = limit
        self._rows = torch.arange(slots, device=device)
        self._counts = torch.zeros(slots, dtype=torch.int64, device=device)
        self._temperatures = torch.zeros(slots, device=device)
        self._uniforms = torch.zeros((slots, limit), dtype=torch.float64, device=device)
        self._ids = torch.zeros((slots, limit), dtype=torch.int32, device=device)
        self._normalizers = torch.zeros((slots, limit), device=device)
        self._hidden = torch.zeros((slots, limit, width), dtype=torch.float16, device=device)

    def refill(self, cache: SlotCache, pending: Iterator[tuple[Question, DynamicCache]]) -> bool:
        """Give every free slot a question while there are any; whether any slot is busy."""
        for slot, question in enumerate(self.questions):
            if question is None and (following := next(pending, None)) is not None:
                self._begin(slot, *following, cache)
        return any(question is not None for question in self.questions)

    def _begin(self, slot: int, question: Question, prompt: DynamicCache, cache: SlotCache) -> None:
        self.questions[slot] = question
        self.tokens[slot] = question.prompt[-1]
        self._counts[slot] = 0
        self._temperatures[slot] = question.temperature
        self._uniforms[slot] = torch.from_numpy(question.uniforms(self._limit))
        if len(question.prompt) > 1:
            cache.begin(slot, prompt, len(question.prompt) - 1)
        else:
            cache.clock.positions[slot] = 0

    def advance(self, hidden: torch.Tensor, logits: torch.Tensor) -> None:
        """One more token in each slot. hidden: [slots, width]. logits: [slots, vocabulary]."""
        at = (self._rows, self._counts)
        self._hidden[at] = hidden.half()
        self._normalizers[at] = torch.logsumexp(logits, dim=-1)
        self.tokens = sample(logits, self._temperatures, self._uniforms[at])
        self._ids[at] = self.tokens.int()
        self._counts += 1

    def finished(self, eos_ids: frozenset[int], clock: SlotClock) -> Iterator[Answer]:
        """Answers that ended with this step; their slots are free. The clock moves on by one for the others."""
        tokens, counts = self.tokens.tolist(), self._counts.tolist()
        clock.positions += 1
        for slot, question in enumerate(self.questions):
            if question is None or (tokens[slot] in eos_ids or counts[slot] == self._limit):
                self.tokens[slot] = self._counts[slot] = clock.positions[slot] = 0
                self.questions[slot] = None
                if question is not None:
                    yield self._answer(slot, question, counts[slot])

    def _answer(self, slot: int, question: Question, count: int) -> Answer:
        kept = (self._ids, self._hidden, self._normalizers)
        return Answer(question, *(tensor[slot, :count].cpu().clone() for tensor in kept))
