"""What a traced stream tells of where its time went."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from adasd.core.messages import Timing
from services.gateway.round_times import RoundTimes
from tests.services.gateway.conftest import Gateway, events

TOLD = Timing(forwards=1, queue=0.25, forward=0.5, rules=0.125)


async def rounds(gateway: Gateway, **speculation: Any) -> list[dict[str, Any]]:
    speculation = {"stopping": "fixed", "max_candidates": 3, **speculation}
    chunks = events(await gateway.post(stream=True, seed=2, max_tokens=40, speculation=speculation))
    return [chunk["adasd"] for chunk in chunks if "adasd" in chunk]


async def test_every_round_tells_its_steps_in_the_order_of_time(gateway: Gateway) -> None:
    gateway.peers.timing = TOLD
    told = await rounds(gateway, trace=True)
    assert len(told) > 2
    before = 0.0
    for number, one in enumerate(told):
        timing, drafts = one["timing"], ["draft"] if one["drafted"] else []
        names = ["create", "verify", "commit"] if number == 0 else [*drafts, "verify", "commit"]
        assert [step["step"] for step in timing["steps"]] == names
        stamps = [before, timing["begin"]]
        for step in timing["steps"]:
            stamps += [step["begin"], step["begin"] + step["seconds"]]
        assert stamps == sorted(stamps)
        assert stamps[-1] <= timing["end"]
        (verify,) = (step for step in timing["steps"] if step["step"] == "verify")
        before = verify["begin"] + verify["seconds"]  # the next block begins before this one is committed
        assert {name: verify[name] for name in ("forwards", "queue", "forward", "rules")} == {
            "forwards": 1, "queue": 0.25, "forward": 0.5, "rules": 0.125
        }  # fmt: skip
        assert timing["steps"][-1]["bytes"] >= 4 * one["tokens"]


async def test_nothing_of_it_without_a_trace(gateway: Gateway) -> None:
    assert await rounds(gateway) == []


def test_a_step_that_fails_is_not_told() -> None:
    times = RoundTimes(arrived=0.0)
    with pytest.raises(ZeroDivisionError), times.step("verify", 0):
        raise ZeroDivisionError
    assert times.as_dict()["steps"] == []


def test_what_an_earlier_run_left_under_way_is_not_told_with_what_comes_after() -> None:
    """The session was lost to another gateway while round 3 was under way here, and taken back before its commit."""
    times = RoundTimes(arrived=0.0)
    with times.step("create"):
        pass
    times.anew(replayed=False)
    with times.step("verify", 3):
        pass
    times.anew(replayed=True)
    for name in ("verify", "commit"):
        with times.step(name, 3):  # type: ignore[arg-type]
            pass
    times.committed(SimpleNamespace(number=3))  # type: ignore[arg-type]
    assert [step["step"] for step in times.as_dict()["steps"]] == ["verify", "commit"]
