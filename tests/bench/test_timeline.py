from __future__ import annotations

import json
from typing import Any

import pytest

from adasd.bench.answers import Answer, Reply
from adasd.bench.timeline import LANES, beside, chrome_trace, commit_table, shares_table, spent
from tests.bench.answers import step, told, traced_round

FIRST = traced_round(
    0.0, 1.0, step("create", 0.1, 0.1), step("verify", 0.2, 0.6, **told(0.0, 0.5, 0.05)),
    step("commit", 0.8, 0.1, bytes=4), tokens=1,
)  # fmt: skip
SILENT = dict.fromkeys(("forwards", "queue", "forward", "rules"), 0)
SECOND = traced_round(
    0.85, 2.0, step("draft", 0.85, 0.3, **told(0.05, 0.1, 0.05)), step("verify", 1.2, 0.4, **SILENT),
    step("commit", 1.65, 0.2, bytes=20),
)  # fmt: skip
"""Begins while the first is being committed."""


def traced(begin: float, seconds: float = 2.0, variant: str = "v") -> Answer:
    reply = Reply(3, (1.0, 2.0), prompt_tokens=98, rounds=(FIRST, SECOND))
    return Answer(variant=variant, data="d", load="2 streams", begin=begin, seconds=seconds, reply=reply)


def test_every_second_of_a_round_is_spent_somewhere() -> None:
    first, second = spent([FIRST, SECOND])
    assert sum(first.values()) == pytest.approx(0.85), "up to the next round's begin"
    assert sum(second.values()) == pytest.approx(0.8), "up to its commit"
    assert first["verifier network"] == pytest.approx(0.05)
    assert first["create"] == pytest.approx(0.1)
    assert first["gateway"] == pytest.approx(0.15)
    assert second["drafter network"] == pytest.approx(0.1)
    assert second["verifier, not told"] == pytest.approx(0.4)
    assert second["verifier forward"] == second["verifier network"] == 0.0


def test_what_was_done_ahead_of_a_round_is_not_among_its_seconds() -> None:
    """Its pass took half a second, of which the round saw a fifth."""
    verified = step("verify", 1.2, 0.2, **told(0.0, 0.5, 0.05), ahead=0.4)
    rounds = [FIRST, traced_round(0.85, 2.0, verified, step("commit", 1.4, 0.2, bytes=4))]
    _, second = spent(rounds)
    assert sum(second.values()) == pytest.approx(0.55)
    assert second["verifier forward"] == pytest.approx(0.1)
    assert second["verifier network"] == pytest.approx(0.05)
    reply = Reply(2, (1.0, 2.0), prompt_tokens=98, rounds=tuple(rounds))
    trace = chrome_trace([Answer(variant="v", data="d", load="l", begin=0.0, seconds=2.0, reply=reply)])
    first, ahead = (event for event in slices(trace) if event["name"] == "forward")
    assert (ahead["ts"], ahead["dur"]) == (pytest.approx(1e6 * (1.2 - 0.4 + 0.025)), pytest.approx(5e5))
    assert first["ts"] + first["dur"] <= ahead["ts"]


def test_what_goes_on_beside_the_next_block_is_told_apart() -> None:
    assert beside(FIRST) == pytest.approx({"commit": 0.1, "telling": 0.1})
    assert beside(SECOND) == pytest.approx({"commit": 0.2, "telling": 0.15})


def test_shares_of_first_and_later_rounds() -> None:
    lines = shares_table([[FIRST, SECOND], [FIRST, SECOND]]).splitlines()
    assert "| verifier forward | 500.00 | 58.8% | 0.00 | 0.0% |" in lines
    assert "| drafter forward | 0.00 | 0.0% | 100.00 | 12.5% |" in lines
    assert lines[-4:] == [
        "| all | 850.00 | 100.0% | 800.00 | 100.0% |",
        "| beside the next block: commit | 100.00 | - | 200.00 | - |",
        "| beside the next block: telling | 100.00 | - | 150.00 | - |",
        "| rounds a message | 1 | - | 1.00 | - |",
    ]
    assert not any(line.startswith("| drafter, not told") for line in lines), "what never comes has no row"


def test_what_one_message_brought_is_told_a_round() -> None:
    lines = shares_table([[FIRST, {**SECOND, "rounds": 4}]]).splitlines()
    assert "| all | 850.00 | 100.0% | 200.00 | 100.0% |" in lines
    assert "| drafter forward | 0.00 | 0.0% | 25.00 | 12.5% |" in lines
    assert "| beside the next block: commit | 100.00 | - | 50.00 | - |" in lines
    assert "| rounds a message | 1 | - | 4.00 | - |" in lines


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    assert json.loads(json.dumps(trace)) == trace
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_a_trace_has_a_lane_a_service_and_slices_that_nest() -> None:
    trace = chrome_trace([traced(begin=5.0)])
    names = {e["args"]["name"]: e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == LANES
    found = {(event["pid"], event["name"]): event for event in slices(trace)}
    assert found[LANES["gateway"], "v"]["ts"] == 5e6
    forward = found[LANES["drafter"], "forward"]
    assert forward["ts"] == pytest.approx(1e6 * (5 + 0.85 + 0.05 + 0.05)), "in the middle of the wait, after the queue"
    assert forward["dur"] == pytest.approx(1e5)
    assert found[LANES["verifier"], "verify"]["dur"] == pytest.approx(4e5), "what is not told is one slice"
    for process in LANES.values():
        lane = [(event["ts"], event["ts"] + event["dur"]) for event in slices(trace) if event["pid"] == process]
        for begin, end in lane:
            assert all(end <= b + 1 or e <= begin + 1 or (b <= begin + 1 and end <= e + 1) or
                       (begin <= b + 1 and e <= end + 1) for b, e in lane)  # fmt: skip


def test_answers_at_a_time_have_lanes_of_their_own() -> None:
    events = slices(chrome_trace([traced(4.0, variant="after"), traced(0.0), traced(1.0, variant="beside")]))
    lanes = {event["name"]: event["tid"] for event in events if event["pid"] == LANES["gateway"]}
    assert (lanes["v"], lanes["beside"], lanes["after"]) == (0, 1, 0)


def test_commits_by_how_much_a_session_holds() -> None:
    assert commit_table([traced(0.0)]).splitlines()[2:] == [
        "| from 0 | 1 | 4 | 100.00 | 100.00 |",
        "| from 100 | 1 | 20 | 200.00 | 200.00 |",
    ]
