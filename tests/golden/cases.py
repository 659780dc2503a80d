"""The golden files as test parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).parent


def golden(name: str) -> list[Any]:
    """The cases of `<name>.json`, one pytest parameter each."""
    cases = json.loads((GOLDEN / f"{name}.json").read_text())
    return [pytest.param(case, id=str(index)) for index, case in enumerate(cases)]
