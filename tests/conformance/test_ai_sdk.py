"""Vercel's AI SDK under node: `@ai-sdk/openai-compatible` and `@ai-sdk/openai`, versions as the lock file has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import KEY, MODEL, Ask
from tests.conformance.recorder import Recorder, recording, unasked
from tests.e2e.conftest import Served

SOURCES = Path(__file__).parent / "ai_sdk"
FILES = ("package.json", "package-lock.json", "generate.mjs")
NODE = 18
CHATS, TEXTS = ("compatible", "openai"), ("compatibleText", "openaiText")
SCENARIOS = 7  # requests of each model, in the order of generate.mjs
GENERATED, STREAMED = 1, 2

pytestmark = pytest.mark.slow


def node_version() -> int:
    """The major version; 0 without node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return 0
    return int(subprocess.run(["node", "--version"], capture_output=True, text=True).stdout.lstrip("v").split(".")[0])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages of the lock file, installed for this run alone."""
    if node_version() < NODE:
        pytest.skip(f"the AI SDK needs node {NODE} and npm")
    folder = tmp_path_factory.mktemp("ai-sdk")
    for name in FILES:
        shutil.copy(SOURCES / name, folder)
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1"]
    try:
        installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer in time")
    if installed.returncode:
        assert "EUSAGE" not in installed.stderr, installed.stderr  # package.json and the lock file differ
        pytest.skip(f"npm ci failed, is the registry there? {installed.stderr[-300:]}")
    return folder


@pytest.fixture(scope="module")
def run(served: Served, packages: Path) -> Iterator[tuple[Recorder, dict[str, Any]]]:
    """All scenarios, once: starting node takes longer than they do."""
    with recording(served.stack.url) as recorder:
        command = ["node", "generate.mjs", f"{recorder.url}/v1", KEY, MODEL]
        environment = {**os.environ, "AI_SDK_LOG_WARNINGS": "false"}
        ran = subprocess.run(command, cwd=packages, env=environment, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        yield recorder, json.loads(ran.stdout)


@pytest.fixture
def recorder(run: tuple[Recorder, dict[str, Any]]) -> Recorder:
    return run[0]


@pytest.fixture
def results(run: tuple[Recorder, dict[str, Any]]) -> dict[str, Any]:
    return run[1]


def first_of(kind: str) -> int:
    """Place of the first request of a model: its turn in generate.mjs."""
    return SCENARIOS * ("compatible", "compatibleText", "openai", "openaiText").index(kind)


def test_what_is_sent_unasked(recorder: Recorder) -> None:
    set_by_the_user = ("model", "messages", "prompt", "temperature", "seed", "max_tokens", "stop", "logit_bias")
    for kind in (*CHATS, *TEXTS):
        bodies = recorder.bodies[first_of(kind) :]
        assert unasked(bodies[0], *set_by_the_user) == {}
        with_usage = {"stream": True, "stream_options": {"include_usage": True}}
        assert unasked(bodies[STREAMED], *set_by_the_user) == with_usage
    assert all(recorder.bodies[first_of(kind)]["stop"] == ["\nuser:"] for kind in TEXTS)
    turns = recorder.bodies[-2]["messages"]
    assert [{*turn} for turn in turns] == [{"role", "content"}] * 4


@pytest.mark.parametrize("kind", [*CHATS, *TEXTS])
def test_generate_and_stream(results: dict[str, Any], again: Ask, kind: str) -> None:
    plain = again(first_of(kind) + GENERATED)
    choice, usage = plain["choices"][0], plain["usage"]
    text = choice["message"]["content"] if kind in CHATS else choice["text"]
    assert text
    for way in ("generated", "streamed"):
        result = results[kind][way]
        assert (result["text"], result["finishReason"]) == (text, choice["finish_reason"])
        counted = (result["usage"]["inputTokens"], result["usage"]["outputTokens"], result["usage"]["totalTokens"])
        assert counted == (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    assert results[kind]["streamed"]["errors"] == results[kind]["generated"]["warnings"] == []
    assert results[kind]["streamed"]["deltas"] > 1


@pytest.mark.parametrize("kind", [*CHATS, *TEXTS])
def test_limits_stops_errors_and_aborts(results: dict[str, Any], kind: str) -> None:
    result = results[kind]
    assert result["stopped"]["finishReason"] == "stop"
    assert not {*result["stopped"]["text"]} & {*"aeo"}
    assert result["sampled"]["usage"]["outputTokens"] <= 8
    refused = result["refused"]
    assert (refused["name"], refused["statusCode"], refused["isRetryable"]) == ("AI_APICallError", 400, False)
    assert "temperature" in refused["message"]
    assert result["aborted"]["kinds"][-2:] == ["text-delta", "abort"]


def test_conversations_and_unknown_models(results: dict[str, Any]) -> None:
    assert all(results[kind]["conversation"]["usage"]["outputTokens"] == 8 for kind in CHATS)
    assert results["unknown"]["statusCode"] == 404


def test_aborted_streams_are_stopped(results: dict[str, Any], served: Served) -> None:
    assert not any(served.wait_idle().values())
