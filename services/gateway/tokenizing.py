"""POST /tokenize and /detokenize, in the shapes that vLLM gave them: what a text costs, and what ids stand for."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from adasd.core.errors import InvalidRequest
from services.gateway.admission import Admission
from services.gateway.body import Bodies
from services.gateway.documentation import OF_TEXT, body_of, replies
from services.gateway.errors import json_response
from services.gateway.messages import check_messages
from services.gateway.neutral import TOKENIZE_FIELDS, without_neutral
from services.gateway.peers import Peers
from services.gateway.replies import Text, Tokens
from services.gateway.schema import (
    DetokenizeRequest,
    TokenizeRequest,
    json_object,
    messages_without_neutral,
    validated,
)
from services.gateway.tools import check_tools

TOKENIZER_PATHS = ("/tokenize", "/detokenize")


def add_tokenizer(app: FastAPI, admission: Admission, bodies: Bodies, peers: Peers) -> None:
    """Both work on the text side alone: no service need be there."""

    tokens, text = replies(Tokens, OF_TEXT), replies(Text, OF_TEXT)
    asked_tokens, asked_text = body_of(TokenizeRequest, admission.names), body_of(DetokenizeRequest, admission.names)

    @app.post("/tokenize", openapi_extra=asked_tokens, responses=tokens, response_model=None)
    async def tokenize(request: Request) -> Response:
        length = peers.target.context_length if peers.target else None
        return await bodies.work(_tokenized, admission, await bodies.read(request), length)

    @app.post("/detokenize", openapi_extra=asked_text, responses=text, response_model=None)
    async def detokenize(request: Request) -> Response:
        return await bodies.work(_detokenized, admission, await bodies.read(request))


def _tokenized(admission: Admission, body: bytes, max_model_len: int | None) -> Response:
    given = without_neutral(json_object(body), set(TokenizeRequest.model_fields), TOKENIZE_FIELDS)
    asked = validated(TokenizeRequest, given | messages_without_neutral(given))
    if asked.model is not None:
        admission.require_model(asked.model)
    ids = _ids(admission, asked)
    return json_response({"count": len(ids), "max_model_len": max_model_len, "tokens": ids})


def _ids(admission: Admission, asked: TokenizeRequest) -> tuple[int, ...]:
    if (asked.prompt is None) == (asked.messages is None):
        raise InvalidRequest("give one of prompt and messages", "prompt")
    if asked.messages is not None:
        check_messages(asked.messages)
        check_tools(asked.tools, "auto")
        return admission.prompt(asked.messages, asked.tools)
    assert asked.prompt is not None
    admission.limits.check([asked.prompt], "prompt", "")
    return admission.text.encode_text(asked.prompt)


def _detokenized(admission: Admission, body: bytes) -> Response:
    given = without_neutral(json_object(body), set(DetokenizeRequest.model_fields), {})
    asked = validated(DetokenizeRequest, given)
    if asked.model is not None:
        admission.require_model(asked.model)
    vocabulary = admission.text.vocabulary
    for place, token in enumerate(asked.tokens):
        if token >= vocabulary:
            raise InvalidRequest(f"the tokenizer has {vocabulary} ids, from 0; got {token}", f"tokens[{place}]")
    return json_response({"prompt": admission.text.decode(asked.tokens)})
