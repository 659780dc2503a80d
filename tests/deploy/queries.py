"""What dashboards and rules ask of Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"

_NAME = re.compile(r"(?<![\w:$])(?:adasd|redis)[_:][\w:]*|(?<![\w:])up(?=\{)")
_MATCHED = re.compile(r"[{,]\s*(\w+)\s*(?:=|!=|=~|!~)")
_GROUPING = re.compile(r"(?:by|on|group_left) \(([^)]*)\)")


def panels() -> Iterator[tuple[str, str]]:
    """A panel's name and each of its queries, from the JSON that Grafana is given."""
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}", target["expr"]


def rules() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> Iterator[tuple[str, str]]:
    return ((rule["alert"], rule["expr"]) for rule in rules() if "alert" in rule)


def records() -> Iterator[tuple[str, str]]:
    return ((rule["record"], rule["expr"]) for rule in rules() if "record" in rule)


def names(query: str) -> set[str]:
    """The series that a query reads."""
    return set(_NAME.findall(query))


def labels(query: str) -> set[str]:
    """The labels that a query matches or groups by."""
    matched = _MATCHED.findall(query)
    grouped = (label.strip() for inner in _GROUPING.findall(query) for label in inner.split(","))
    return {label for label in (*matched, *grouped) if label}
