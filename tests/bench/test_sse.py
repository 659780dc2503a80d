from __future__ import annotations

from typing import Any

import httpx
import pytest

from adasd.bench.sse import ChatError, stream_chat

TEXT = 'data: {"choices": [{"delta": {"content": "hi"}}]}'
USAGE = 'data: {"choices": [], "usage": {"completion_tokens": 1}}'


def chunks(*events: str, status: int = 200) -> list[dict[str, Any]]:
    body = "\n\n".join([*events, ""])
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    return list(stream_chat(httpx.Client(transport=transport, base_url="http://server"), {}))


def test_a_stream_is_whole_with_its_end_mark_or_after_its_usage() -> None:
    assert len(chunks(TEXT, "data: [DONE]")) == 1
    assert chunks(": keep-alive", TEXT, USAGE)[-1]["usage"] == {"completion_tokens": 1}
    with pytest.raises(ChatError, match="without an end mark"):
        chunks(TEXT)
    with pytest.raises(ChatError, match="without an end mark"):
        chunks(USAGE, TEXT)


@pytest.mark.parametrize("error", ['{"message": "no room"}', '"no room"'])
def test_errors_are_told_in_either_form_before_and_within_the_stream(error: str) -> None:
    with pytest.raises(ChatError, match=r"^no room$"):
        chunks(TEXT, f'data: {{"error": {error}}}')
    with pytest.raises(ChatError, match=r"^no room$"):
        chunks(f'{{"error": {error}}}', status=503)


def test_whoever_asks_may_leave_out_the_stream_options() -> None:
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        return httpx.Response(200, text="data: [DONE]\n\n")

    client = httpx.Client(transport=httpx.MockTransport(answer), base_url="http://server")
    for request in ({}, {"stream_options": None}):
        list(stream_chat(client, request))
    assert [b'"include_usage":true' in body for body in asked] == [True, False]
