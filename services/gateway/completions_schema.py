"""POST /v1/completions as types: the older of OpenAI's two interfaces, a text that goes on."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from adasd.core.errors import InvalidRequest
from adasd.core.types import MAX_TOKEN_ID
from services.gateway.fields import Count
from services.gateway.neutral import COMPLETIONS_FIELDS
from services.gateway.schema import Asked, json_object, parse

MAX_LOGPROBS = 5
MAX_TEXTS = 32
"""Choices of one request, of all of its prompts together."""
DEFAULT_MAX_TOKENS = 16

Prompt = str | tuple[int, ...]
"""A text, or token ids."""

_Id = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
_Ids = Annotated[list[_Id], Field(min_length=1)]
_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)]
_Lists = Annotated[list[_Ids], Field(min_length=1, max_length=MAX_TEXTS)]


def _prompts(given: object) -> object:
    """One text or list of ids, or a list of either, as a tuple of them."""
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list) or not given:
        raise ValueError("must be a string, a list of strings, a list of token ids or a list of such lists")
    many = given if isinstance(given[0], str | list) else [given]
    if len(many) > MAX_TEXTS:
        raise ValueError(f"at most {MAX_TEXTS} prompts are taken, got {len(many)}")
    if isinstance(many[0], str):
        if not all(isinstance(text, str) for text in many):
            raise ValueError("texts and token ids do not mix")
        return tuple(many)
    return tuple(_ids(ids) for ids in many)


def _ids(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or not given or not all(type(token) is int for token in given):
        raise ValueError("token ids must be a list of integers, at least one")
    if not all(0 <= token <= MAX_TOKEN_ID for token in given):
        raise ValueError("token ids must not be negative, nor larger than the vocabulary")
    return tuple(given)


class CompletionRequest(Asked):
    """A completion whose every field is honoured. echo: the answer begins with the prompt."""

    prompt: Annotated[
        tuple[Prompt, ...], BeforeValidator(_prompts, json_schema_input_type=str | _Texts | _Ids | _Lists)
    ]
    echo: bool = False
    logprobs: Count | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @property
    def asked_tokens(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs


def parse_completion_request(body: bytes) -> CompletionRequest:
    """The request in a JSON body. Raises InvalidRequest naming the first parameter at fault."""
    request = parse(CompletionRequest, json_object(body), COMPLETIONS_FIELDS)
    if request.echo and request.logprobs is not None:
        raise InvalidRequest("echo is not supported with logprobs: prompts have none here", "echo")
    if len(request.prompt) * request.n > MAX_TEXTS:
        raise InvalidRequest(f"at most {MAX_TEXTS} choices are made at once, {request.n} of each prompt", "n")
    return request
