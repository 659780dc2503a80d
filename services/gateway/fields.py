"""Kinds of request fields: what a client may write, checked, as what the gateway works with."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from adasd.core.types import MAX_BIASES

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 1024
MAX_NAME_CHARACTERS = 256
MAX_BIAS = 100.0
_ID = r"^(0|[1-9][0-9]{0,9})$"


class Strict(BaseModel):
    """What a client sends: of exactly these types, nothing more."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class TextPart(Strict):
    """A content part as a client writes it."""

    type: Literal["text"]
    text: str


def _joined_parts(content: object) -> object:
    """Text parts as one text, a line each."""
    if not isinstance(content, list):
        return content
    if not content:
        raise ValueError("a list of content parts must not be empty")
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise ValueError("only content parts of type 'text' are supported")
    if part.keys() != {"type", "text"} or not isinstance(part["text"], str):
        raise ValueError("a content part of type 'text' has one more field, the string 'text'")
    return part["text"]


def _checked_stop(stop: object) -> object:
    """One string, or a list of them, as a tuple."""
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(text, str) for text in stops):
        raise ValueError("must be a string or a list of strings")
    if not 1 <= len(stops) <= MAX_STOP_STRINGS:
        raise ValueError(f"must be 1 to {MAX_STOP_STRINGS} strings, got {len(stops)}")
    if not all(1 <= len(text) <= MAX_STOP_CHARACTERS for text in stops):
        raise ValueError(f"every stop string must have 1 to {MAX_STOP_CHARACTERS} characters")
    return tuple(stops)


def _checked_biases(biases: object) -> object:
    """A map of id strings to biases as pairs by ascending id."""
    if not isinstance(biases, dict):
        raise ValueError("must be an object of token ids and biases")
    if len(biases) > MAX_BIASES:
        raise ValueError(f"must have at most {MAX_BIASES} entries, got {len(biases)}")
    return tuple(sorted((_id(token), _bias(bias)) for token, bias in biases.items()))


def _id(token: str) -> int:
    if not re.fullmatch(_ID, token):
        raise ValueError("its keys must be token ids")
    return int(token)


def _bias(bias: object) -> float:
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not -MAX_BIAS <= bias <= MAX_BIAS:
        raise ValueError(f"every bias must be a number within [-{MAX_BIAS:g}, {MAX_BIAS:g}]")
    return float(bias)


def _whole(number: object) -> object:
    """JSON knows one kind of numbers: 1.0 is 1."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopTexts = Annotated[list[StopText], Field(min_length=1, max_length=MAX_STOP_STRINGS)]
Stop = Annotated[tuple[str, ...], BeforeValidator(_checked_stop, json_schema_input_type=StopText | StopTexts)]

_BiasMap = Annotated[
    dict[Annotated[str, Field(pattern=_ID)], Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]],
    Field(max_length=MAX_BIASES),
]
Biases = Annotated[tuple[tuple[int, float], ...], BeforeValidator(_checked_biases, json_schema_input_type=_BiasMap)]

TextParts = Annotated[list[TextPart], Field(min_length=1)]
Content = Annotated[str, BeforeValidator(_joined_parts, json_schema_input_type=str | TextParts)]
Count = Annotated[int, BeforeValidator(_whole)]
ModelName = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]
