"""What the chaos run calls a difference, and how its client keeps its place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from adasd.cli.findings import Case, Findings, differences
from adasd.cli.resuming import Told

USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
SESSION = {"speculation": {"rounds": 2}, "epoch": 2, "usage": USAGE}


def event(tokens: int, **fields: Any) -> list[str]:
    return [f"id: {tokens}-00", f"data: {json.dumps(fields)}", ""]


def text(tokens: int, content: str, finish: str | None = None) -> list[str]:
    return event(tokens, choices=[{"delta": {"content": content}, "finish_reason": finish}])


def heard(*events: list[str], connections: int = 1) -> Told:
    told = Told(connections=connections)
    for lines in events:
        for line in lines:
            told.hear(line)
    return told


WHOLE = [text(0, ""), text(1, "a"), text(3, "bc"), text(3, "", "stop"), event(3, usage=USAGE), ["data: [DONE]"]]
CASE = Case("greedy", {}, heard(*WHOLE))


def test_the_answer_as_it_was_has_no_differences() -> None:
    told = heard(*WHOLE)
    assert (told.text, told.finish, told.tokens, told.done) == ("abc", "stop", 3, True)
    assert list(differences(CASE, told)) == []


@pytest.mark.parametrize(
    ("told", "named"),
    [
        (heard(*WHOLE[:3], *WHOLE[2:]), "told again"),
        (heard(*WHOLE[:2], *WHOLE[3:]), "text"),
        (heard(*WHOLE[:-2]), "usage"),
        (replace(heard(*WHOLE), finish="length"), "finish"),
        (replace(heard(*WHOLE), position="2-00"), "2 tokens told"),
    ],
)
def test_differences_are_named(told: Told, named: str) -> None:
    assert any(named in difference for difference in differences(CASE, told))


def test_an_event_that_was_cut_in_two_has_not_been_heard() -> None:
    told = heard(text(1, "a"), ["id: 3-00"])
    assert told.position == "1-00"


def test_time_without_text_counts_as_lost_only_where_the_connection_was() -> None:
    told = heard(*WHOLE[:2])
    assert told.gaps == []
    told.connections += 2
    told.hear(WHOLE[2][0])
    told.hear(WHOLE[2][1])
    assert len(told.gaps) == 1


def test_a_run_adds_up_what_clients_and_sessions_tell() -> None:
    findings = Findings()
    findings.add(CASE, heard(*WHOLE, connections=3), SESSION)
    findings.add(CASE, heard(*WHOLE), {**SESSION, "usage": None, "epoch": 1})
    assert (findings.tokens, findings.rounds, findings.resumes, findings.hand_overs) == (6, 4, 2, 1)
    assert findings.differences == ["greedy, session : usage of the session None"]
    assert "| texts finished | 2 (greedy 2) |" in findings.markdown()
