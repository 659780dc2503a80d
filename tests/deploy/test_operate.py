"""The figures of the worked configuration are those of its costs."""

from __future__ import annotations

import json
import re

import pytest

from adasd.core.costs import stated_profile
from tests.deploy.manifests import ROOT

TEXT = (ROOT / "docs" / "operate.md").read_text()
ROW = re.compile(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \|(.*)\|$", re.MULTILINE)
ACCEPTANCE = (0.6, 0.7, 0.8)


def test_rounds_and_tokens_are_those_of_the_stated_costs() -> None:
    (stated,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    rounds = stated_profile(json.loads(stated)).rounds
    rows = ROW.findall(TEXT)
    assert len(rows) == 5
    for length, milliseconds, pace, speeds in rows:
        seconds = rounds[int(length)]
        assert seconds * 1e3 == pytest.approx(float(milliseconds), abs=0.051)
        assert 1 / seconds == pytest.approx(float(pace), abs=0.051)
        for a, told in zip(ACCEPTANCE, speeds.split("|"), strict=True):
            tokens = (1 - a ** (int(length) + 1)) / (1 - a) / seconds
            assert tokens == pytest.approx(float(told.split()[0]), abs=0.51)
