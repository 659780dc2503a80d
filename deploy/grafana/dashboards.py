"""The Grafana dashboards: `python -m deploy.grafana.dashboards` writes their JSON, for provisioning."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.panels import Panel, by_method, quantiles, rate, ratio, stat, text

FOLDER = Path(__file__).parent / "dashboards"
SPEC, GATEWAY = "adasd_spec_decode", "adasd_gateway"
ACCEPTED, DRAFTED, RELAXED, ROUNDS = (
    f"{SPEC}_num_{what}_total" for what in ("accepted_tokens", "draft_tokens", "relaxed_tokens", "rounds")
)
SERVICES = {"draft": "drafter", "verify": "verifier"}


def _round_parts() -> dict[str, str]:
    """Seconds a second that rounds spend, by what on."""
    parts = {}
    for step, service in SERVICES.items():
        inside = {
            part: rate(f"adasd_{service}_{seconds}_seconds_sum")
            for part, seconds in (("waiting", "queue"), ("device", "forward"), ("rules", "rules"))
        }
        parts |= {f"{step}: {part}": query for part, query in inside.items()}
        parts[f"{step}: network"] = " - ".join((rate(f"{SPEC}_{step}_seconds_sum"), *inside.values()))
    return parts | {"commit": rate(f"{SPEC}_commit_seconds_sum")}


def _by_service(title: str, histogram: str) -> Panel:
    queries = {
        f"{service} {name}": query
        for service in SERVICES.values()
        for name, query in quantiles(f"adasd_{service}_{histogram}", 0.5, 0.99).items()
    }
    return Panel(title, "s", queries)


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
        note="Rounds a second: off drafts nothing, probe drafts to learn, draft because it pays, copy from the text.",
    ),
    Panel(
        "What a candidate has to beat",
        "none",
        quantiles(f"{SPEC}_going_rate_tokens_per_second", 0.1, 0.5, 0.9),
        note="Tokens a second that the session makes, as the marginal rule counts.",
    ),
    Panel(
        "Candidates copied from the text",
        "percentunit",
        {"copied": ratio(f"{SPEC}_num_copied_tokens_total", DRAFTED)},
        note="Of all candidates; these need no drafter.",
    ),
    Panel(
        "Rounds without candidates, at once",
        "none",
        {"{{instance}}": f"max by (instance) ({SPEC}_run_length)"},
        note="For one message and one commit; their tokens come together.",
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
        {part: f"clamp_min(({seconds}) / {rate(ROUNDS)}, 0)" for part, seconds in _round_parts().items()},
        stacked=True,
        note="Mean seconds a round. Device and rules count the reading of prompts too.",
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
        "Replicas that take streams",
        "none",
        {
            f"{state} {service}s": f'min ({GATEWAY}_replicas{{service="{service}", state="{state}"}})'
            for service in SERVICES.values()
            for state in ("healthy", "known")
        },
        note="As the gateway that sees the fewest knows them.",
    ),
    Panel(
        "Messages in passes at a time, by replica",
        "none",
        {
            f"{service} {{{{instance}}}}": rate(f"adasd_{service}_forward_seconds_sum", "instance")
            for service in SERVICES.values()
        },
        note="A pass of several messages counts for each of them.",
    ),
    Panel(
        "Positions of KV allocated, by replica",
        "none",
        {f"{service} {{{{instance}}}}": f"adasd_{service}_kv_positions" for service in SERVICES.values()},
        note="Of running sessions and of those that ended lately. kv_positions of the runtime is the bound.",
    ),
    Panel(
        "Messages in a pass",
        "none",
        {
            f"{service}, {share:.0%}": query
            for service in SERVICES.values()
            for share, query in zip(
                (0.5, 0.95), quantiles(f"adasd_{service}_batch_size", 0.5, 0.95).values(), strict=True
            )
        },
    ),
    Panel(
        "Messages in a pass",
        "none",
        {
            service: ratio(f"adasd_{service}_batch_size_sum", f"adasd_{service}_batch_size_count")
            for service in SERVICES.values()
        },
    ),
    _by_service("Wait for the device", "queue_seconds"),
    _by_service("Device time of a message", "forward_seconds"),
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
        {"taken over": rate(f"{GATEWAY}_take_overs_total")},
        note="Taken over by another gateway, from one that stopped, was lost, or did not renew its lease in time.",
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


if __name__ == "__main__":
    for name, panels in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(text(name, panels))
