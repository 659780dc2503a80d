"""Chat templates as model folders carry them: messages in, prompt text out. Renders what transformers renders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from adasd.core.errors import InvalidRequest


class GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's part for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it an instance attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)  # jinja2's own filter escapes HTML


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _marked(value: Any, mark: Callable[[str], str]) -> Any:
    """Whatever may be in JSON, with all its texts marked, those of keys too."""
    match value:
        case str():
            return mark(value)
        case Mapping():
            return {mark(name): _marked(inner, mark) for name, inner in value.items()}
        case list() | tuple():
            return [_marked(inner, mark) for inner in value]
    return value


def _as_written(text: str) -> str:
    return text


class ChatTemplate:
    """A compiled chat template. variables: what it may read besides the messages, such as `bos_token`."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        environment = _environment()
        self._template = environment.from_string(source)
        self._variables = dict(variables)
        self.literals = _literals(environment, source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        mark: Callable[[str], str] = _as_written,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt up to where the assistant begins. `mark` is applied to every text but the roles of messages.

        Raises InvalidRequest with the template's own message where it refuses the messages.
        """
        marked = [{**_marked(message, mark), "role": message["role"]} for message in messages]
        offered = _marked(tools, mark)
        try:
            return self._template.render(
                messages=marked, tools=offered, documents=None, add_generation_prompt=True, **self._variables
            )
        except jinja2.TemplateError as error:
            reason = error.message or type(error).__name__
            raise InvalidRequest(f"the model's chat template refuses these messages: {reason}", "messages") from error
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InvalidRequest(
                f"the model's chat template fails on these messages with {type(error).__name__}", "messages"
            ) from error


def _literals(environment: ImmutableSandboxedEnvironment, source: str) -> tuple[str, ...]:
    """All text the template itself can write."""
    tree = environment.parse(source)
    written = [node.data for node in tree.find_all(nodes.TemplateData)]
    constants = [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return (*written, *constants)
