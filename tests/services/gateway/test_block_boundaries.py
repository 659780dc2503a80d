"""Where a text ends, over HTTP: whatever a block holds, the answer is the target's alone, on both interfaces."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from adasd.runtime.toy import ToySpec, write_toy_model
from services.gateway.text import ChatText
from tests.services.gateway.conftest import Gateway, events, gateway_of
from tests.services.gateway.local_peers import replica

BYTES = "toy:seed=5,vocab=257,sharpness=1.5,eos_bias=-4,context=200"
"""One token a byte."""
EMOJI = {str(1 + byte): 100.0 for byte in "😀".encode()}
SIZES = [1, 2, 5, 20]
Told = tuple[str, str, Any, list[Any]]
"""Text, finish reason, usage, and one entry a token."""


@pytest.fixture
async def bytewise(redis_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway whose model writes bytes."""
    write_toy_model(tmp_path, ToySpec.parse(BYTES))
    async with gateway_of(redis_url, ChatText.load(tmp_path), spec=BYTES) as gateway:
        gateway.peers.draft_replica = replica(BYTES + ",mix=0.3,stranger=2")
        yield gateway


def entries(choice: Any) -> list[Any]:
    """Chats and completions alike: one object a token."""
    logprobs = choice["logprobs"] or {}
    if "content" in logprobs or not logprobs:
        return list(logprobs.get("content", ()))
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"], strict=True))


async def whole(gateway: Gateway, chat: bool, fields: dict[str, Any]) -> Told:
    body = (await (gateway.post if chat else gateway.complete)(**fields)).json()
    (choice,) = body["choices"]
    text = choice["message"]["content"] if chat else choice["text"]
    return text, choice["finish_reason"], body["usage"], entries(choice)


async def streamed(gateway: Gateway, chat: bool, fields: dict[str, Any]) -> Told:
    asked = {"stream": True, "stream_options": {"include_usage": True}, **fields}
    *chunks, last, _ = events(await (gateway.post if chat else gateway.complete)(**asked))
    choices = [chunk["choices"][0] for chunk in chunks]
    texts = [(choice["delta"].get("content") or "") if chat else choice["text"] for choice in choices]
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    told = [entry for choice in choices for entry in entries(choice)]
    return "".join(texts), reasons[-1], last["usage"], told


async def agree(gateway: Gateway, size: int, case: dict[str, Any]) -> list[Told]:
    """What both interfaces answer, having checked it against the target alone."""
    answers = []
    for chat in (True, False):
        fields = {"max_tokens": 24, "logprobs": True if chat else 0, **case}
        alone = await whole(gateway, chat, fields | {"speculation": {"stopping": "off", "acceptance": "coupled"}})
        rules = {"stopping": "fixed", "acceptance": "coupled", "max_candidates": size}
        for way in (whole, streamed):
            assert await way(gateway, chat, fields | {"speculation": rules}) == alone
        text, _, usage, told = alone
        assert len(told) == usage["completion_tokens"]
        if not chat:
            assert all(offset <= len(text) + 3 for *_, offset in told)
        answers.append(alone)
    return answers


@pytest.mark.parametrize("size", SIZES)
async def test_limits_stops_and_ends_of_text(gateway: Gateway, size: int) -> None:
    text, *_ = await whole(gateway, True, {"temperature": 0, "max_tokens": 24})
    cases: list[dict[str, Any]] = [{"temperature": 0, "max_tokens": limit} for limit in (1, 2, 5, 6, 8)]
    cases += [{"temperature": 0, "stop": text[at : at + 3]} for at in (0, 1, 4, 5)]
    cases += [{"seed": seed, "logit_bias": {"0": 4}} for seed in range(4)]
    reasons = [reason for case in cases for _, reason, *_ in await agree(gateway, size, case)]
    assert set(reasons) == {"stop", "length"}


@pytest.mark.parametrize("size", SIZES)
async def test_the_end_of_the_context(gateway: Gateway, size: int) -> None:
    for room in (1, 2, 6):
        prompt = "a" * (200 - room)
        fields = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "logprobs": 0, "max_tokens": 99}
        alone = await whole(gateway, False, fields | {"speculation": {"stopping": "off"}})
        rules = {"stopping": "fixed", "acceptance": "exact", "max_candidates": size}
        assert await streamed(gateway, False, fields | {"speculation": rules}) == alone
        assert (alone[1], alone[2]["completion_tokens"]) == ("length", room)


@pytest.mark.parametrize("size", SIZES)
async def test_characters_of_several_tokens(bytewise: Gateway, size: int) -> None:
    for seed in range(4):
        for limit in (7, 24):
            case = {"seed": seed, "temperature": 2, "logit_bias": EMOJI, "max_tokens": limit, "stop": "\ufffd" * 30}
            chat, _ = await agree(bytewise, size, case)
            text, *_, told = chat
            raw = b"".join(bytes(entry["bytes"] or ()) for entry in told)
            assert text == raw.decode(errors="replace")
            assert any(entry["token"].startswith("bytes:") for entry in told)
