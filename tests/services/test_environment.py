"""Settings from the environment: nothing misspelt is ignored."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adasd.core.errors import InvalidRequest
from adasd.rpc.options import MessageLimits
from services.drafter.settings import DrafterSettings
from services.environment import known_variables, read_settings
from services.verifier import settings
from services.verifier.settings import VerifierSettings


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADASD_DRAFTER_MODEL", "toy:")


def test_defaults_serve_on_this_machine_only() -> None:
    settings = read_settings(DrafterSettings)
    assert (settings.model, settings.host, settings.port, settings.metrics_port) == ("toy:", "127.0.0.1", 50051, None)
    assert settings.limits == MessageLimits()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1


def test_nested_groups_and_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADASD_DRAFTER_RUNTIME__THREADS", "2")
    monkeypatch.setenv("ADASD_DRAFTER_RUNTIME__SUPPORT", "none")
    monkeypatch.setenv("ADASD_DRAFTER_MAX_CANDIDATES", "8")
    settings = read_settings(DrafterSettings)
    assert (settings.runtime.threads, settings.runtime.support) == (2, None)
    assert settings.limits.candidates == 8


@pytest.mark.parametrize("name", ["ADASD_DRAFTER_MODLE", "ADASD_DRAFTER_RUNTIME__THREAD", "adasd_drafter_prt"])
def test_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(InvalidRequest, match=name):
        read_settings(DrafterSettings)


def test_other_prefixes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTER_PORT", "tcp://10.0.0.1:50051")
    monkeypatch.setenv("ADASD_VERIFIER_MODLE", "1")
    assert read_settings(DrafterSettings).port == 50051


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "70000"), ("PORT", "http"), ("GRACE_SECONDS", "-1"), ("LOG_LEVEL", "LOUD"), ("MAX_STREAMS", "0")],
)
def test_bad_values_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ADASD_DRAFTER_{name}", value)
    with pytest.raises(InvalidRequest, match=f"ADASD_DRAFTER_{name}"):
        read_settings(DrafterSettings)


def test_a_missing_model_is_named() -> None:
    with pytest.raises(InvalidRequest, match="ADASD_VERIFIER_MODEL"):
        read_settings(VerifierSettings)


def test_known_variables_are_all_there_are() -> None:
    known = known_variables(VerifierSettings)
    assert {"ADASD_VERIFIER_MODEL", "ADASD_VERIFIER_RUNTIME__DEVICE", "ADASD_VERIFIER_WORK_SECONDS"} <= set(known)
    assert len(known) == len(set(known))


@pytest.mark.parametrize(
    ("changes", "ahead"),
    [
        ({"MODEL": "toy:"}, True),
        ({"MODEL": "folder"}, False),
        ({"MODEL": "folder", "RUNTIME__DEVICE": "cuda"}, True),
        ({"MODEL": "folder", "RUNTIME__THREADS": "3"}, True),
        ({"MODEL": "folder", "RUNTIME__THREADS": "4"}, False),
        ({"MODEL": "folder", "RUNTIME__THREADS": "3", "RUNTIME__DEVICE": "cpu:0"}, True),
        ({"MODEL": "folder", "RUNTIME__THREADS": "3", "RUNTIME__SHARED_CORES": "cores.lock"}, False),
        ({"MODEL": "folder", "RUN_AHEAD": "true"}, True),
        ({"MODEL": "toy:", "RUN_AHEAD": "false"}, False),
    ],
)
def test_rounds_are_begun_ahead_unless_the_model_needs_every_core(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], ahead: bool
) -> None:
    monkeypatch.setattr(settings, "cores", lambda: 4)
    for name, value in changes.items():
        monkeypatch.setenv(f"ADASD_VERIFIER_{name}", value)
    assert read_settings(VerifierSettings).runs_ahead is ahead


@pytest.mark.parametrize(("ranks", "ahead"), [("3", True), ("4", False)])
def test_all_ranks_on_a_machine_count(monkeypatch: pytest.MonkeyPatch, ranks: str, ahead: bool) -> None:
    monkeypatch.setattr(settings, "cores", lambda: 4)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ADASD_VERIFIER_MODEL", "folder")
    monkeypatch.setenv("ADASD_VERIFIER_RUNTIME__THREADS", "1")
    assert read_settings(VerifierSettings).runs_ahead is ahead
