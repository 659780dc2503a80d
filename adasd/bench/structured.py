"""`python -m adasd.bench.structured URL`: fifty answers that must follow a JSON schema, greedy and sampled, checked.

What is counted needs no library of schemas: the schema is this one, and its meaning is written out again below.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

PLACES = (
    "Lima Cusco Paris Lyon Rome Turin Oslo Bergen Cairo Luxor Delhi Agra Tokyo Kyoto Osaka Seoul Busan Hanoi Perth Sydney "
    "Auckland Toronto Montreal Boston Chicago Denver Austin Havana Quito Bogota Santiago Accra Lagos Nairobi Tunis Athens "
    "Sofia Vienna Graz Prague Warsaw Berlin Bonn Munich Zurich Geneva Madrid Seville Lisbon Porto"
).split()

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 24},
        "country": {"type": "string", "minLength": 1, "maxLength": 24},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
        "coastal": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2},
    },
    "required": ["city", "country", "continent", "coastal", "tags"],
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
        and isinstance(found["tags"], list)
        and len(found["tags"]) <= 2
        and all(isinstance(tag, str) and len(tag) <= 12 for tag in found["tags"])
    )


def asked(model: str, place: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A request about one place."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"Describe the city of {place} as a JSON object."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
        "max_tokens": 120,
        "speculation": {"acceptance": "exact"},
        **fields,
    }


def counted(client: httpx.Client, model: str, fields: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Of one answer after the other, what there was of what."""
    for seed, place in enumerate(PLACES):
        reply = client.post("/v1/chat/completions", json=asked(model, place, {"seed": seed, **fields}))
        reply.raise_for_status()
        answer = reply.json()
        (choice,) = answer["choices"]
        if choice["finish_reason"] == "stop":
            yield from (("stopped", 1), ("followed", int(follows(choice["message"]["content"]))))
        yield "tokens", answer["usage"]["completion_tokens"]
        yield from ((name, answer["speculation"][name]) for name in ("rounds", "drafted", "accepted"))


def main() -> None:
    """Prints a row a temperature, and one of answers that may be anything."""
    with httpx.Client(base_url=sys.argv[1], timeout=600) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for fields in ({"temperature": 0}, {"temperature": 1}, {"temperature": 1, "response_format": None, "max_tokens": 60}):
            sums: Counter[str] = Counter()
            for name, count in counted(client, model, fields):
                sums[name] += count
            rate = sums["accepted"] / max(1, sums["drafted"])
            print(f"{fields}: {dict(sums)}, of {len(PLACES)}; acceptance rate {rate:.3f}", flush=True)


if __name__ == "__main__":
    main()
