"""Methods by name: a stopping rule, an acceptance rule, and how many candidates at most."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from adasd.core.errors import InvalidRequest
from adasd.core.stopping import stopping_rule
from adasd.core.verification import verification


@dataclass(frozen=True, slots=True)
class Method:
    """max_candidates: None leaves it to the stopping rule. copying: None leaves it to the server."""

    name: str
    stopping: str
    acceptance: str
    max_candidates: int | None = None
    copying: bool | None = None

    @property
    def seeded(self) -> bool:
        """Not for a rule that follows the costs measured here, which a seeded text must not depend on."""
        return self.stopping != "marginal"

    @property
    def speculation(self) -> dict[str, str | int]:
        """The request's `speculation`."""
        given = {"max_candidates": self.max_candidates, "copying": self.copying}
        rules: dict[str, str | int] = {"stopping": self.stopping, "acceptance": self.acceptance}
        return rules | {name: value for name, value in given.items() if value is not None}


NAMED = {
    "alone": Method("target alone", "off", "exact"),
    "vanilla": Method("vanilla (fixed 5)", "fixed", "exact"),
    "gen-only": Method("Gen-Only", "adasd", "exact"),
    "verify-only": Method("Verify-Only (fixed 5)", "fixed", "adasd"),
    "adasd": Method("AdaSD", "adasd", "adasd"),
    "anchored": Method("AdaSD anchored", "adasd", "adasd-anchored"),
    "marginal": Method("marginal", "marginal", "exact"),
    "marginal-drafted": Method("marginal, drafted only", "marginal", "exact", copying=False),
    "marginal-anchored": Method("marginal, anchored", "marginal", "adasd-anchored"),
}
"""The combinations that the paper names, and the default of this project."""
LENGTHS = re.compile(r"(\d+)(?:-(\d+))?")


def parse_methods(text: str) -> tuple[Method, ...]:
    """Methods of a list with commas: names, or STOPPING:ACCEPTANCE[:N], where N may be a span like 1-8.

    Raises InvalidRequest for what no gateway would run, and for a method that is named twice.
    """
    methods = tuple(method for part in text.split(",") for method in _parse(part.strip()))
    names = [method.name for method in methods]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequest(f"method {twice!r} is named twice", "methods")
    return methods


def _parse(text: str) -> Iterator[Method]:
    if text in NAMED:
        yield NAMED[text]
        return
    match text.split(":"):
        case [stopping, acceptance]:
            yield _checked(Method(text, stopping, acceptance))
        case [stopping, acceptance, span] if found := LENGTHS.fullmatch(span):
            first, last = int(found[1]), int(found[2] or found[1])
            if first > last:
                raise InvalidRequest(f"a span of lengths must rise, got {span!r}", "methods")
            for length in range(first, last + 1):
                yield _checked(Method(f"{stopping}:{acceptance}:{length}", stopping, acceptance, length))
        case _:
            known = ", ".join(NAMED)
            raise InvalidRequest(f"no method {text!r}: give one of {known}, or STOPPING:ACCEPTANCE[:N]", "methods")


def _checked(method: Method) -> Method:
    stopping_rule(method.stopping, method.max_candidates)
    verification(method.acceptance)
    return method
