from __future__ import annotations

from collections import Counter

import pytest

from adasd.bench.schedule import Load, parse_counts, parse_loads, turns
from adasd.core.errors import InvalidRequest

ONE, TWO = Load(streams=1), Load(streams=2)


def test_every_variant_has_a_batch_before_the_next_comes_and_every_place_equally_often() -> None:
    variants = ["a", "b", "c"]
    planned = list(turns(variants, ["x", "y"], [ONE], [None], repeat=1, prompts=3))
    blocks = [planned[start : start + 3] for start in range(0, len(planned), 3)]
    assert len(blocks) == 6
    for block in blocks:
        assert {turn.variant for turn in block} == set(variants)
        assert len({(turn.data, turn.batch, turn.prompts) for turn in block}) == 1
    places = Counter((turn.variant, place) for block in blocks for place, turn in enumerate(block))
    assert set(places.values()) == {2}


def test_all_variants_are_given_the_same_seeds_and_a_repeat_has_others() -> None:
    planned = list(turns(["a", "b"], ["x"], [TWO], [None], repeat=2, prompts=4))
    by_variant = {v: [(t.seed, t.request_seed(3)) for t in planned if t.variant == v] for v in "ab"}
    assert by_variant["a"] == by_variant["b"]
    assert len(set(by_variant["a"])) == 2


def test_variants_that_answer_one_at_a_time_sit_out_other_loads() -> None:
    planned = list(turns(["a", "b"], ["x"], [ONE, TWO], [None], 1, 2, alone=frozenset("b")))
    assert {(turn.variant, turn.load) for turn in planned} == {("a", ONE), ("b", ONE), ("a", TWO)}


@pytest.mark.parametrize(("streams", "prompts", "sizes"), [
    (1, 3, [1, 1, 1]), (2, 20, [10, 10]), (2, 7, [7]), (4, 33, [16, 17]), (8, 9, [9])
])  # fmt: skip
def test_batches_hold_every_prompt_once_and_are_long_enough(streams: int, prompts: int, sizes: list[int]) -> None:
    batches = Load(streams=streams).batches(prompts)
    assert [len(batch) for batch in batches] == sizes
    assert [prompt for batch in batches for prompt in batch] == list(range(prompts))


def test_more_streams_than_prompts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="32 streams need at least as many prompts, got 20"):
        Load(streams=32).batches(20)


def test_open_loads_arrive_at_their_rate_and_alike_each_time() -> None:
    load = Load(rate=4.0)
    arrivals = load.arrivals(4001, seed=1)
    assert arrivals[0] == 0.0
    assert arrivals == sorted(arrivals) == load.arrivals(4001, seed=1) != load.arrivals(4001, seed=2)
    assert arrivals[-1] == pytest.approx(1000, rel=0.05)
    assert Load(streams=3).arrivals(2, seed=1) == [0.0, 0.0]


def test_loads_by_name() -> None:
    assert [load.name for load in parse_loads("1,8", "closed")] == ["1 stream", "8 streams"]
    assert [load.name for load in parse_loads("1", "poisson:0.5,2")] == ["0.5 requests/s", "2 requests/s"]
    for concurrency, arrival, name in (("0", "closed", "concurrency"), ("x", "closed", "concurrency"),
                                       ("1.5", "closed", "concurrency"), ("1", "poisson", "arrival"),
                                       ("1", "poisson:-1", "arrival"), ("1", "often:3", "arrival")):  # fmt: skip
        with pytest.raises(InvalidRequest) as refused:
            parse_loads(concurrency, arrival)
        assert refused.value.param == name
    with pytest.raises(InvalidRequest, match="context_lengths"):
        parse_counts("128,many", "context_lengths")
