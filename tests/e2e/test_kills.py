"""Any process may die, pause or stop in mid-answer: the client, who comes back, has the text it would have had."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from adasd.cli.chaos import cases, run
from adasd.cli.fleet import Fleet, FleetOptions
from adasd.cli.resuming import ResumingClient, Told
from tests.e2e.conftest import DRAFTS, TOY

SLOW = ",delay_ms=3"
RULES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "coupled": {"seed": 11, "speculation": {"acceptance": "coupled"}},
    "sampled": {"seed": 13, "speculation": {"acceptance": "adasd", "stopping": "adasd"}},
}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, toy_tokenizer: Path) -> Iterator[Fleet]:
    """Two of each service; Redis keeps its data."""
    folder = tmp_path_factory.mktemp("fleet")
    options = FleetOptions(DRAFTS["between"] + SLOW, TOY + SLOW, toy_tokenizer, folder, data=folder)
    with Fleet(options) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def client(many: Fleet) -> ResumingClient:
    return ResumingClient(many.urls)


def body(**fields: Any) -> dict[str, Any]:
    return {
        "model": "test",
        "messages": [{"role": "user", "content": "go on"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 200,
        **fields,
    }


def at(*places: int) -> Callable[[Callable[[int], None]], Callable[[Told], None]]:
    """Do something once the client has so many characters, for each of the numbers in turn."""
    left = sorted(places)

    def when(act: Callable[[int], None]) -> Callable[[Told], None]:
        def listen(told: Told) -> None:
            if left and len(told.text) >= left[0]:
                act(len(places) - len(left))
                left.pop(0)

        return listen

    return when


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fields", RULES.values(), ids=RULES)
def test_kills_at_random_points_change_nothing(
    many: Fleet, client: ResumingClient, fields: dict[str, Any], seed: int
) -> None:
    long = body(**fields, max_tokens=400)  # still on its way when the last of them is struck
    expected = client.converse(long)
    random, killed = Random(f"{seed} {fields}"), list[str]()
    length = len(expected.text)
    victims = ["drafter", "verifier", "gateway"]
    random.shuffle(victims)

    def kill(n: int) -> None:
        """One of the two, at once: the text goes on meanwhile."""
        name = f"{victims[n]}-{0 if victims[n] == 'gateway' else random.randrange(2)}"
        many.kill(name)
        killed.append(name)

    places = sorted(random.sample(range(1, max(4, length // 4)), 3))  # a round may bring as many as 21 tokens
    told = client.converse(long, at(*places)(kill))
    for name in killed:
        many.children[name].start()
    assert len(killed) == 3
    assert (told.text, told.finish, told.usage) == (expected.text, expected.finish, expected.usage)
    assert told.connections > 1, "the gateway was among the victims"
    many.wait_ready()


@pytest.mark.slow
def test_a_paused_gateway_finds_its_session_taken_over_and_follows(many: Fleet, client: ResumingClient) -> None:
    expected, paused, moved = client.converse(body(temperature=0)), Told(), Told()
    stopped = threading.Event()

    def pause(_: int) -> None:
        many.children["gateway-0"].send(signal.SIGSTOP)
        stopped.set()

    reading = threading.Thread(target=client.tell, args=(body(temperature=0), paused, 0, at(40)(pause)))
    reading.start()
    assert stopped.wait(60)
    moved.session, moved.position = paused.session, paused.position
    before = paused.text
    client.tell({}, moved, 1)
    assert before + moved.text == expected.text
    many.children["gateway-0"].send(signal.SIGCONT)
    reading.join(60)
    assert (paused.text, paused.finish, paused.usage) == (expected.text, expected.finish, expected.usage)
    seen = httpx.get(f"{many.urls[1]}/v1/sessions/{paused.session}", timeout=10).json()
    assert seen["usage"] == expected.usage
    assert seen["epoch"] == 2


@pytest.mark.slow
def test_a_stopping_gateway_hands_over_within_its_grace(many: Fleet, client: ResumingClient) -> None:
    long = body(temperature=0, max_tokens=600, speculation={"stopping": "off"})  # 1.8 s at least, longer than its grace
    expected, gateway = client.converse(long), many.children["gateway-0"]
    unready: list[int] = []

    def stop(_: int) -> None:
        gateway.send(signal.SIGTERM)
        time.sleep(0.05)
        unready.append(httpx.get(f"{many.urls[0]}/readyz", timeout=5).status_code)

    told = client.converse(long, at(30)(stop))
    assert unready == [503]
    assert (told.text, told.usage, told.connections) == (expected.text, expected.usage, 2)
    assert gateway.wait(10) == 0
    gateway.start()
    many.wait_ready()


@pytest.mark.slow
def test_redis_restarts_with_its_data_and_nothing_is_lost(many: Fleet, client: ResumingClient) -> None:
    expected = client.converse(body(temperature=0))

    def restart(_: int) -> None:
        many.redis.stop()
        many.redis.start()

    told = client.converse(body(temperature=0), at(40, 90)(restart))
    assert (told.text, told.finish, told.usage) == (expected.text, expected.finish, expected.usage)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "paused"])
def test_redis_goes_away_for_seconds_and_comes_back_with_its_data(
    many: Fleet, client: ResumingClient, how: str
) -> None:
    expected = client.converse(body(temperature=0))

    def strike(_: int) -> None:
        if how == "killed":
            many.redis.kill()
            time.sleep(3)
            many.redis.start()
        else:
            with many.redis.paused():
                time.sleep(3)

    told = client.converse(body(temperature=0), at(40)(strike))
    assert (told.text, told.finish, told.usage) == (expected.text, expected.finish, expected.usage)
    assert told.repeated == 0


@pytest.mark.slow
def test_the_last_drafter_dies_and_the_targets_own_texts_stay(many: Fleet, client: ResumingClient) -> None:
    """Longer than seeded requests wait for one: both rules go on without candidates."""
    asked = [body(**RULES[rule]) for rule in ("greedy", "coupled")]
    expected = [client.converse(one) for one in asked]
    drafters = ("drafter-0", "drafter-1")
    with ThreadPoolExecutor() as pool:
        struck = threading.Barrier(3)
        answers = [pool.submit(client.converse, one, at(20)(lambda _: struck.wait(60) and None)) for one in asked]
        struck.wait(60)
        for drafter in drafters:
            many.kill(drafter)
        told = [answer.result() for answer in answers]
    for drafter in drafters:
        many.children[drafter].start()
    assert [(one.text, one.finish, one.usage) for one in told] == [
        (one.text, one.finish, one.usage) for one in expected
    ]
    many.wait_ready()


@pytest.mark.slow
def test_chaos_in_short_changes_nothing(many: Fleet, client: ResumingClient) -> None:
    known = cases(client, "test", max_tokens=150, limit=4)
    findings = run(many, known, seconds=12, streams=3, seed=5)
    assert findings.differences == []
    assert findings.strikes.total() > 1
    assert findings.texts.total() > 1


@pytest.mark.slow
def test_redis_restarts_without_its_data_and_says_so(tmp_path: Path, toy_tokenizer: Path) -> None:
    options = FleetOptions(DRAFTS["between"] + SLOW, TOY + SLOW, toy_tokenizer, tmp_path, count=1)
    with Fleet(options) as forgetful:
        forgetful.wait_ready()
        client = ResumingClient(forgetful.urls)
        expected = client.converse(body(temperature=0))

        def restart(_: int) -> None:
            forgetful.redis.stop()
            forgetful.redis.start()

        told = client.converse(body(temperature=0), at(40)(restart))
        assert told.error["code"] == "session_not_found"
        assert not told.done
        assert 40 <= len(told.text) < len(expected.text)
        assert expected.text.startswith(told.text)
        assert client.converse(body(temperature=0)).text == expected.text
