"""`python -m adasd.bench.structured URL`: fifty answers that must follow a JSON schema, greedy and sampled, checked.

What is counted needs no library of schemas: the schema is this one, and its meaning is written out again below.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

PLACES = (
    "Lima", "Cusco", "Paris", "Lyon", "Rome", "Turin", "Oslo", "Bergen", "Cairo", "Luxor", "Delhi", "Agra",
    "Tokyo", "Kyoto", "Osaka", "Seoul", "Busan", "Hanoi", "Perth", "Sydney", "Auckland", "Toronto", "Montreal",
    "Boston", "Chicago", "Denver", "Austin", "Havana", "Quito", "Bogota", "Santiago", "Accra", "Lagos",
    "Nairobi", "Tunis", "Athens", "Sofia", "Vienna", "Graz", "Prague", "Warsaw", "Berlin", "Bonn", "Munich",
    "Zurich", "Geneva", "Madrid", "Seville", "Lisbon", "Porto",
)  # fmt: skip
STREAMS = 8

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 24},
        "country": {"type": "string", "minLength": 1, "maxLength": 24},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
        "coastal": {"type": "boolean"},
    },
    "required": ["city", "country", "continent", "coastal"],
    "additionalProperties": False,
}


def follows(text: str) -> bool:
    """Whether this is JSON, and what `SCHEMA` says."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and found.keys() == SCHEMA["properties"].keys()
        and all(isinstance(found[name], str) and 1 <= len(found[name]) <= 24 for name in ("city", "country"))
        and found["continent"] in SCHEMA["properties"]["continent"]["enum"]
        and isinstance(found["coastal"], bool)
    )


def asked(model: str, place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A request about one place."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Describe the city of {place} as a JSON object."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
        "max_tokens": 60,
        "speculation": {"acceptance": "exact"},
        **fields,
    }


def counted(client: httpx.Client, model: str, fields: Mapping[str, Any]) -> Counter[str]:
    """Of all answers together, how many of what."""

    def counts(seed: int) -> Counter[str]:
        reply = client.post("/v1/chat/completions", json=asked(model, PLACES[seed], {"seed": seed, **fields}))
        reply.raise_for_status()
        return _counts(reply.json())

    with ThreadPoolExecutor(STREAMS) as pool:
        return sum(pool.map(counts, range(len(PLACES))), Counter())


def _counts(answer: Mapping[str, Any]) -> Counter[str]:
    (choice,) = answer["choices"]
    stopped = choice["finish_reason"] == "stop"
    kept = ("rounds", "drafted", "accepted")
    return Counter(
        stopped=stopped,
        followed=stopped and follows(choice["message"]["content"]),
        tokens=answer["usage"]["completion_tokens"],
        **{name: answer["speculation"][name] for name in kept},
    )


def main() -> None:
    """Prints a row a temperature, and one of answers that may be anything."""
    with httpx.Client(base_url=sys.argv[1], timeout=600) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for fields in ({"temperature": 0}, {"temperature": 1}, {"temperature": 1, "response_format": None}):
            sums = counted(client, model, fields)
            rate = sums["accepted"] / max(1, sums["drafted"])
            print(f"{fields}: {dict(sums)}, of {len(PLACES)}; acceptance rate {rate:.3f}", flush=True)


if __name__ == "__main__":
    main()
