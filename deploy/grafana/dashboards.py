"""The Grafana dashboards: `python deploy/grafana/dashboards.py` writes their JSON beside this file, for provisioning.

A panel is a title, a unit and queries with their legends. Grafana puts the scrape interval's multiple for
`$__rate_interval`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${source}"}
COLUMNS = 24
SPEC, GATEWAY = "adasd_spec_decode", "adasd_gateway"
ACCEPTED, DRAFTED, RELAXED, ROUNDS = (
    f"{SPEC}_num_{what}_total" for what in ("accepted_tokens", "draft_tokens", "relaxed_tokens", "rounds")
)


@dataclass(frozen=True, slots=True)
class Panel:
    """queries: legend and PromQL. width: of 24 columns. kind: Grafana's name of the visualization."""

    title: str
    unit: str
    queries: Mapping[str, str]
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    note: str = ""
    stacked: bool = False


def rate(metric: str, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}[$__rate_interval]))"


def ratio(above: str, below: str, by: str = "") -> str:
    return f"{rate(above, by)} / {rate(below, by)}"


def by_method(above: str, below: str, prefix: str = "") -> dict[str, str]:
    return {"{{stopping}} / {{acceptance}}": prefix + ratio(above, below, "stopping, acceptance")}


def quantiles(histogram: str, *shares: float) -> dict[str, str]:
    buckets = rate(f"{histogram}_bucket", "le")
    return {f"p{share * 100:g}": f"histogram_quantile({share}, {buckets})" for share in shares}


def stat(title: str, unit: str, query: str, note: str = "") -> Panel:
    return Panel(title, unit, {"": query}, "stat", width=6, height=4, note=note)


ACCEPTANCE = [
    stat("Acceptance rate", "percentunit", "adasd:acceptance_rate:5m", "Accepted candidates of drafted ones."),
    stat("Mean acceptance length", "none", "adasd:mean_acceptance_length:5m", "Tokens a pass of the target yields."),
    stat("Speculation gain", "none", "adasd:speculation_gain:5m", "Over no drafting; below 1 speculation is slower."),
    stat("Only by relaxation", "percentunit", ratio(RELAXED, ACCEPTED)),
    Panel("Acceptance rate by method", "percentunit", by_method(ACCEPTED, DRAFTED)),
    Panel("Mean acceptance length by method", "none", by_method(ACCEPTED, ROUNDS, "1 + ")),
    Panel(
        "Acceptance by place in the block",
        "percentunit",
        {
            "{{position}}": f"{rate(f'{SPEC}_num_accepted_tokens_per_pos_total', 'position')}"
            f" / on () group_left () {rate(f'{SPEC}_num_drafts_total')}"
        },
        note="Share of drafted blocks whose candidate at this place (from 0) stands.",
    ),
    Panel(
        "Block length chosen",
        "none",
        {"mean": ratio(f"{SPEC}_block_length_sum", f"{SPEC}_block_length_count")}
        | quantiles(f"{SPEC}_block_length", 0.5, 0.9),
    ),
    Panel("Accepted only by relaxation, by method", "percentunit", by_method(RELAXED, ACCEPTED)),
    Panel(
        "Refused because the target gives them 0",
        "percentunit",
        {"of candidates": ratio(f"{SPEC}_num_floored_tokens_total", DRAFTED)},
    ),
    Panel(
        "Entropy threshold at the end of a text",
        "none",
        quantiles(f"{SPEC}_entropy_threshold_bits", 0.1, 0.5, 0.9),
        note="Bits. The mean entropy of the candidates whose rejection ended a round.",
    ),
    Panel(
        "P(A) at the end of a text",
        "percentunit",
        quantiles(f"{SPEC}_acceptance_prior", 0.1, 0.5, 0.9),
        note="The accepted share of the samples that the estimate P(A | d) is built from.",
    ),
    Panel(
        "Drift",
        "percentunit",
        {"five minutes": "adasd:acceptance_rate:5m", "a day": "adasd:acceptance_rate:1d"},
        width=24,
        note="Acceptance now and in the last day; lasting distance means other traffic or another model.",
    ),
    Panel(
        "Rounds by what was planned",
        "none",
        {"{{decision}}": rate(f"{SPEC}_num_decisions_total", "decision")},
        note="Rounds a second: off drafts nothing, probe drafts to learn, draft drafts because it pays.",
    ),
    Panel(
        "What a candidate has to beat",
        "none",
        quantiles(f"{SPEC}_going_rate_tokens_per_second", 0.1, 0.5, 0.9),
        note="Tokens a second that the session makes, as the marginal rule counts.",
    ),
    Panel(
        "Costs that candidates are weighed against",
        "s",
        {"{{part}}": f"max by (part) ({SPEC}_cost_seconds)"},
        width=24,
        note="fixed: involving the drafter. draft: one candidate. verify: a pass over one row. commit: every round.",
    ),
]

SERVING = [
    stat("Tokens a second", "none", rate(f"{GATEWAY}_generated_tokens_total")),
    stat("In hand", "none", f"sum ({GATEWAY}_inflight_requests)", "Chat requests that are being answered."),
    stat("Failing", "percentunit", "adasd:error_ratio:5m", "Of requests; the client's own faults do not count."),
    stat("Rounds that lost their draft", "percentunit", "adasd:lost_drafts:5m"),
    Panel("Time to first token", "s", quantiles(f"{GATEWAY}_time_to_first_token_seconds", 0.5, 0.95, 0.99)),
    Panel("Time between tokens", "s", quantiles(f"{GATEWAY}_inter_token_seconds", 0.5, 0.95, 0.99)),
    Panel(
        "Throughput, tokens a second",
        "none",
        {
            "generated": rate(f"{GATEWAY}_generated_tokens_total"),
            "prompt": rate(f"{GATEWAY}_prompt_tokens_total"),
        },
    ),
    Panel("Requests by outcome", "reqps", {"{{outcome}}": rate(f"{GATEWAY}_requests_total", "outcome")}),
    Panel(
        "Where a round's time goes",
        "s",
        {
            step: f"clamp_min(({spent}) / {rate(ROUNDS)}, 0)"
            for step, spent in {
                "draft: device": rate("adasd_drafter_forward_seconds_sum"),
                "draft: network, waiting": f"{rate(f'{SPEC}_draft_seconds_sum')}"
                f" - {rate('adasd_drafter_forward_seconds_sum')}",
                "verify: device": rate("adasd_verifier_forward_seconds_sum"),
                "verify: network, waiting": f"{rate(f'{SPEC}_verify_seconds_sum')}"
                f" - {rate('adasd_verifier_forward_seconds_sum')}",
                "commit": rate(f"{SPEC}_commit_seconds_sum"),
            }.items()
        },
        stacked=True,
        note="Mean seconds a round. Waiting is for the device and the network; prefill counts as device time.",
    ),
    Panel(
        "Streams and requests in hand",
        "none",
        {
            "gateway requests": f"sum ({GATEWAY}_inflight_requests)",
            "drafter streams": "sum (adasd_drafter_inflight_streams)",
            "verifier streams": "sum (adasd_verifier_inflight_streams)",
        },
    ),
    Panel(
        "Device busy, by replica",
        "percentunit",
        {
            "drafter {{instance}}": rate("adasd_drafter_forward_seconds_sum", "instance"),
            "verifier {{instance}}": rate("adasd_verifier_forward_seconds_sum", "instance"),
        },
    ),
    Panel(
        "Device time of a round",
        "s",
        {
            f"{service} {name}": query
            for service in ("drafter", "verifier")
            for name, query in quantiles(f"adasd_{service}_forward_seconds", 0.5, 0.99).items()
        },
    ),
    Panel(
        "Errors told to clients, by type",
        "reqps",
        {"{{type}}": f"{rate(f'{GATEWAY}_errors_total', 'type')} or vector(0)"},
    ),
    Panel(
        "Faults of drafter and verifier, by type",
        "reqps",
        {
            f"{service} {{{{type}}}}": f"{rate(f'adasd_{service}_errors_total', 'type')} or vector(0)"
            for service in ("drafter", "verifier")
        },
    ),
    Panel(
        "Error budget: share of failing requests",
        "percentunit",
        {window: f"adasd:error_ratio:{window}" for window in ("5m", "30m", "1h", "6h")},
    ),
    Panel("Replicas that answer", "none", {"{{job}}": 'sum by (job) (up{job=~"gateway|drafter|verifier"})'}),
]

SESSIONS = [
    stat("Commits a second", "none", rate(f"{SPEC}_commit_seconds_count")),
    stat("Commit, p99", "s", "adasd:commit_seconds:p99_5m"),
    stat("Sessions stored", "none", "sum (redis_db_keys) / 3", "Three keys a session."),
    stat("Redis memory", "bytes", "sum (redis_memory_used_bytes)"),
    Panel(
        "Commit", "s", quantiles(f"{SPEC}_commit_seconds", 0.5, 0.95, 0.99), note="One script in Redis, once a round."
    ),
    Panel(
        "Sessions that changed hands, a second",
        "none",
        {"conflicts": f'sum (rate({GATEWAY}_errors_total{{type="Conflict"}}[$__rate_interval])) or vector(0)'},
        note="Commits refused because another gateway owns the session.",
    ),
    Panel(
        "Memory",
        "bytes",
        {"used": "sum (redis_memory_used_bytes)", "limit": "sum (redis_memory_max_bytes)"},
        note="Redis does not evict: at its limit it refuses sessions, and clients get 429.",
    ),
    Panel(
        "Keys",
        "none",
        {
            "all": "sum (redis_db_keys)",
            "that will expire": "sum (redis_db_keys_expiring)",
            "evicted a second": rate("redis_evicted_keys_total"),
        },
    ),
    Panel("Commands a second", "none", {"all": rate("redis_commands_processed_total")}),
    Panel(
        "Time in scripts, a second",
        "percentunit",
        {"evalsha": 'sum (rate(redis_commands_duration_seconds_total{cmd="evalsha"}[$__rate_interval]))'},
        note="Redis runs one command at a time: at 100 % it is saturated.",
    ),
    Panel("Clients", "none", {"connected": "sum (redis_connected_clients)"}),
    Panel("Append-only file enabled", "bool", {"{{instance}}": "min by (instance) (redis_aof_enabled)"}),
]

DASHBOARDS = {"acceptance": ACCEPTANCE, "serving": SERVING, "sessions-and-redis": SESSIONS}


def dashboard(name: str, panels: list[Panel]) -> dict[str, Any]:
    return {
        "uid": f"adasd-{name}",
        "title": f"AdaSD: {name.replace('-', ' ')}".replace("redis", "Redis"),
        "tags": ["adasd"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [
            _panel(number, panel, position)
            for number, (panel, position) in enumerate(zip(panels, _positions(panels), strict=True), 1)
        ],
    }


def _positions(panels: list[Panel]) -> Iterator[dict[str, int]]:
    """From left to right, then the next row."""
    x = y = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            raise ValueError(f"{panel.title}: a row is {COLUMNS} columns wide")
        yield {"x": x, "y": y, "w": panel.width, "h": panel.height}
        x += panel.width
        if x == COLUMNS:
            x, y = 0, y + panel.height


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    drawn = {"fillOpacity": 40, "stacking": {"mode": "normal"}} if panel.stacked else {"fillOpacity": 5}
    custom = {"custom": drawn} if panel.kind == "timeseries" else {}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **custom}, "overrides": []},
        "targets": targets,
    }


def text(name: str) -> str:
    """The JSON of one dashboard."""
    return json.dumps(dashboard(name, DASHBOARDS[name]), indent=1) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))
