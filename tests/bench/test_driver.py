from __future__ import annotations

import threading

import pytest

from adasd.bench.answers import Reply
from adasd.bench.driver import Messages, run, warm_up
from adasd.bench.schedule import Load, Turn, turns
from adasd.core.errors import AdasdError, ServiceUnavailable

PROMPTS: dict[tuple[str, int | None], list[Messages]] = {
    ("x", None): [({"role": "user", "content": str(number)},) for number in range(8)]
}


def test_as_many_at_a_time_as_the_load_says() -> None:
    together = threading.Barrier(4, timeout=30)
    asked: list[tuple[str, int]] = []

    def ask(messages: Messages, seed: int) -> Reply:
        together.wait()  # breaks unless four are asked at a time
        asked.append((messages[0]["content"], seed))
        return Reply(1, (0.0,))

    planned = turns(["a"], ["x"], [Load(streams=4)], [None], 1, 8)
    (answers,) = run(planned, {"a": ask}, PROMPTS)
    assert sorted(asked) == [(str(number), number) for number in range(8)]
    assert [answer.prompt for answer in answers] == list(range(8))
    assert all(answer.error is None and answer.tokens == 1 for answer in answers)


def test_a_failure_is_an_answer_and_the_run_goes_on() -> None:
    def ask(messages: Messages, seed: int) -> Reply:
        if seed % 2:
            raise ServiceUnavailable("gone")
        return Reply(3, ())

    planned = [Turn("a", "x", Load(rate=1e6), None, 0, 0, range(4))]
    (answers,) = run(planned, {"a": ask}, PROMPTS)
    assert [answer.error for answer in answers] == [None, "ServiceUnavailable: gone"] * 2


def test_a_variant_that_does_not_answer_is_named_before_anything_is_measured() -> None:
    def ask(messages: Messages, seed: int) -> Reply:
        raise ServiceUnavailable("gone")

    with pytest.raises(AdasdError, match="peer does not answer: gone"):
        list(warm_up({"peer": ask}))
