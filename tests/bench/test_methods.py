from __future__ import annotations

import pytest

from adasd.bench.methods import NAMED, parse_methods
from adasd.core.errors import InvalidRequest


def test_names_rules_and_spans_of_lengths() -> None:
    alone, plain, *fixed = parse_methods("alone, adasd:coupled,fixed:exact:2-4")
    assert alone == NAMED["alone"]
    assert plain.speculation == {"stopping": "adasd", "acceptance": "coupled"}
    assert [method.speculation["max_candidates"] for method in fixed] == [2, 3, 4]
    assert [method.name for method in fixed] == ["fixed:exact:2", "fixed:exact:3", "fixed:exact:4"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "no method 'fast': give one of alone, "),
        ("never:exact", "unknown stopping rule 'never'"),
        ("fixed:sometimes:3", "unknown acceptance rule 'sometimes'"),
        ("fixed:exact:0", "at least 1"),
        ("fixed:exact:3-2", "must rise"),
        ("fixed:exact:x", "no method"),
        ("alone,alone", "'target alone' is named twice"),
    ],
)
def test_what_no_gateway_would_run_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_methods(text)
