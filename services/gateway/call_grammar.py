"""Answers whose calls must be well-formed, as one grammar: for calls that are required, and for strict functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from services.gateway.call_formats import CallFormat
from services.gateway.structured import OPTIONS
from services.gateway.tools import Function

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

Literal = Callable[[str], str]
"""A marker as the grammar names it: a text, or a control token by its id."""


def schema_of(function: Function) -> dict[str, Any]:
    """Of its arguments, always an object."""
    given = _NO_PARAMETERS if function.parameters is None else {"type": "object", **function.parameters}
    return {**given, OPTIONS: _STYLE}


def grammar_of(form: CallFormat, functions: Sequence[Function], literal: Literal, required: bool, several: bool) -> str:
    """In llguidance's Lark. Calls name one of the functions, and their arguments follow its schema.

    required: the answer is calls; else it may be, or have before them, any text. several: there may be more than one.
    """
    rules = _calls(form, functions)
    rules += _FORMS[form.name](form, literal, required, several)
    return "\n".join(rules)


def _calls(form: CallFormat, functions: Sequence[Function]) -> list[str]:
    names = " | ".join(f"call_{place}" for place in range(len(functions)))
    rules = [f"call: {names}"]
    for place, function in enumerate(functions):
        head = f'{{"name": {json.dumps(function.name)}, "{form.arguments}": '
        rules.append(f'call_{place}: {json.dumps(head)} arguments_{place} "}}"')
        rules.append(f"arguments_{place}: %json {json.dumps(schema_of(function))}")
    return rules


def _hermes(form: CallFormat, literal: Literal, required: bool, several: bool) -> list[str]:
    """Each in its tags; a line's end beside a tag, as some templates have it."""
    body = f"LINE? call LINE? {literal(form.closing)}"
    lines = ['LINE: "\\n"']
    if required:
        more = f" (LINE? {literal(form.opening)} {body})*" if several else ""
        return [*lines, f"start: {literal(form.opening)} {body}{more}"]
    tagged = f"opened: text {literal(form.opening)}" if literal(form.opening).startswith("<") else _lazily(form.opening)
    return [*lines, *_TEXT, f"start: (opened {body}){'*' if several else '?'} text", tagged]


def _mistral(form: CallFormat, literal: Literal, required: bool, several: bool) -> list[str]:
    """An array of them, which ends the answer."""
    body = '" "? "[" call (", " call)* "]"' if several else '" "? "[" call "]"'
    if required:
        return [f"start: {literal(form.opening)} {body}"]
    if literal(form.opening).startswith("<"):
        return [*_TEXT, f"start: text ({literal(form.opening)} {body})?"]
    return [*_TEXT, f"start: opened {body} | text", _lazily(form.opening)]


def _llama(form: CallFormat, literal: Literal, required: bool, several: bool) -> list[str]:
    """The answer is calls or text, which its first character decides."""
    calls = 'calls: call ("; " call)*' if several else "calls: call"
    if required:
        return [calls, "start: calls"]
    return [calls, "start: calls | other", "other: /([^{ \\t\\r\\n][\\s\\S]*)?/"]


_FORMS = {"hermes": _hermes, "mistral": _mistral, "llama": _llama}
_TEXT = ["text: TEXT", "TEXT: /(.|\\n)*/"]


def _lazily(opening: str) -> str:
    """Text up to the first opening."""
    return f"opened[lazy]: TEXT {json.dumps(opening)}"
