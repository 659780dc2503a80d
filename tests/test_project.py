"""The form of the code: types, style, arrows, and stubs that match their protos."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]],
    ids=lambda command: " ".join(command),
)
def test_form(command: list[str]) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_generated_stubs_match_their_protos(tmp_path: Path) -> None:
    protos = sorted((ROOT / "proto").rglob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ROOT / "proto", *outputs, *protos], check=True)
    generated = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*"))
    assert len(generated) == 3 * len(protos)
    for path in generated:
        assert (ROOT / path).read_text() == (tmp_path / path).read_text(), f"{path}: run `make proto`"


def test_every_setting_is_documented() -> None:
    from services.drafter.settings import DrafterSettings
    from services.environment import known_variables
    from services.gateway.settings import GatewaySettings
    from services.verifier.settings import VerifierSettings

    text = (ROOT / "docs" / "settings.md").read_text()
    groups = ("_STORE", "_RUNTIME", "_TLS", "_HTTPS", "_TRACING")
    for kind, service in ((GatewaySettings, ""), (DrafterSettings, "DRAFTER"), (VerifierSettings, "VERIFIER")):
        grouped = (name.replace("_DRAFT_RUNTIME__", "_RUNTIME__") for name in known_variables(kind))
        names = [name for name in grouped if not name.endswith(groups)]
        shown = [name.replace(f"ADASD_{service}_", "ADASD_{SERVICE}_") if service else name for name in names]
        assert [name for name in shown if f"`{name}`" not in text] == []


def test_documented_defaults_are_those_of_the_code() -> None:
    from adasd.rpc.tls import ClientTls, ServerTls
    from adasd.runtime.options import RuntimeOptions
    from adasd.state.connection import StoreSettings
    from services.gateway.settings import GatewaySettings
    from services.replica.settings import ReplicaSettings
    from services.tracing import TracingSettings

    rows = [line.split("|") for line in (ROOT / "docs" / "settings.md").read_text().splitlines() if "ADASD_" in line]
    documented = {cells[1].strip(" `"): cells[3].strip(" `") for cells in rows if len(cells) == 5}

    def check(prefix: str, defaults: dict[str, object]) -> None:
        for name, value in defaults.items():
            expected = "none" if value in (None, "") else str(value)
            assert documented[f"{prefix}{name.upper()}"] == expected, name

    check("ADASD_GATEWAY_STORE__", dataclasses.asdict(StoreSettings()))
    check("ADASD_{SERVICE}_RUNTIME__", dataclasses.asdict(RuntimeOptions()))
    check("ADASD_GATEWAY_TLS__", dataclasses.asdict(ClientTls()))
    check("ADASD_GATEWAY_HTTPS__", dataclasses.asdict(ServerTls()))
    check("ADASD_{SERVICE}_TLS__", dataclasses.asdict(ServerTls()))
    check("ADASD_GATEWAY_TRACING__", dataclasses.asdict(TracingSettings()))
    check("ADASD_{SERVICE}_TRACING__", dataclasses.asdict(TracingSettings()))
    nested = ("store", "runtime", "tls", "https", "tracing")
    for prefix, kind in (("ADASD_GATEWAY_", GatewaySettings), ("ADASD_{SERVICE}_", ReplicaSettings)):
        fields = kind.model_fields.items()
        check(prefix, {n: f.default for n, f in fields if not f.is_required() and n not in nested})


def test_every_page_is_linked_from_the_readme_and_every_link_leads_somewhere() -> None:
    pages = {path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    anchors = {
        path: {_anchor(title) for title in re.findall("^#+ (.*)$", text, re.MULTILINE)} for path, text in pages.items()
    }
    linked = set()
    for path, text in pages.items():
        for target, fragment in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text):
            page = (path.parent / target).resolve() if target else path
            assert page.exists(), f"{path.name}: {target}"
            assert not fragment or fragment in anchors[page], f"{path.name}: {target}#{fragment}"
            linked |= {page} if path.name == "README.md" else set()
    assert linked >= pages.keys() - {ROOT / "README.md"}


def _anchor(title: str) -> str:
    """As GitHub makes one of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
