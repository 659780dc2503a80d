"""What an answer must be: `response_format` as OpenAI has it, `structured_outputs` as vLLM has it, as one grammar."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from adasd.core.errors import InvalidRequest
from adasd.core.grammar import Grammar, GrammarKind
from services.gateway.fields import Strict

MAX_CHOICES = 256
MAX_CHOICE_CHARACTERS = 1024
OPTIONS = "x-guidance"
"""A schema's own say in how it is compiled, which is not the client's to have."""

_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class Wanted:
    """A grammar that a request asks for, and the parameter that says so, for refusals."""

    grammar: Grammar
    param: str

    @classmethod
    def of(cls, kind: GrammarKind, source: str, param: str) -> Wanted:
        """Raises InvalidRequest, naming `param`, for one that is too long."""
        try:
            return cls(Grammar(kind, source), param)
        except InvalidRequest as error:
            raise InvalidRequest(f"{param}: {error}", param) from None


class NamedSchema(Strict):
    """`response_format.json_schema`. The answer follows the schema whether it is called strict or not.

    name, description: labels without an effect.
    """

    name: str = Field(pattern="^[a-zA-Z0-9_-]{1,64}$")
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """json_schema: with the type of that name."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    def wanted(self) -> Wanted | None:
        """None for any text. Raises InvalidRequest."""
        path = "response_format.json_schema"
        if (self.json_schema is None) == (self.type == "json_schema"):
            raise InvalidRequest(f"{path} is there if the type is 'json_schema', and only then", path)
        if self.json_schema is not None:
            return _of_schema(self.json_schema.schema_, f"{path}.schema")
        return Wanted.of("json_schema", _ANY_OBJECT, "response_format") if self.type == "json_object" else None


Choices = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARACTERS)]],
    Field(min_length=1, max_length=MAX_CHOICES),
]


class StructuredOutputs(Strict):
    """Exactly one of: a JSON schema, any JSON object, a regular expression, one of some texts, a grammar in Lark."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None

    def wanted(self) -> Wanted:
        """Raises InvalidRequest."""
        name = "structured_outputs"
        found: list[Wanted] = []
        if self.json_ is not None:
            found.append(_of_schema(self.json_, f"{name}.json"))
        if self.json_object:
            found.append(Wanted.of("json_schema", _ANY_OBJECT, f"{name}.json_object"))
        if self.regex is not None:
            found.append(Wanted.of("regex", self.regex, f"{name}.regex"))
        if self.choice is not None:
            found.append(Wanted.of("lark", _one_of(self.choice), f"{name}.choice"))
        if self.grammar is not None:
            found.append(Wanted.of("lark", self.grammar, f"{name}.grammar"))
        if len(found) != 1:
            raise InvalidRequest(f"{name} must have exactly one of json, json_object, regex, choice and grammar", name)
        return found[0]


def _of_schema(schema: dict[str, Any] | str, param: str) -> Wanted:
    """Its properties come in the order in which they are written."""
    given = _parsed(schema, param) if isinstance(schema, str) else schema
    if OPTIONS in given:
        raise InvalidRequest(f"{param}: {OPTIONS!r} is not supported", param)
    try:
        return Wanted.of("json_schema", orjson.dumps(given).decode(), param)
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"{param}: {error}", param) from None


def _parsed(schema: str, param: str) -> dict[str, Any]:
    try:
        parsed = orjson.loads(schema)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{param} is not valid JSON: {error}", param) from None
    if not isinstance(parsed, dict):
        raise InvalidRequest(f"{param} must be a JSON object", param)
    return parsed


def _one_of(texts: list[str]) -> str:
    """A grammar of exactly these texts."""
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
