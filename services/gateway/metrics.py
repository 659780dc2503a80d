"""What the gateway counts. Counters and histograms only; rates are left to PromQL:

acceptance rate          sum(rate(adasd_spec_decode_num_accepted_tokens_total[5m]))
                         / sum(rate(adasd_spec_decode_num_draft_tokens_total[5m]))
mean acceptance length   1 + sum(rate(adasd_spec_decode_num_accepted_tokens_total[5m]))
                         / sum(rate(adasd_spec_decode_num_rounds_total[5m]))
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from adasd.core.costs import CostProfile
from adasd.core.decoding import Round
from adasd.core.progress import GenerationState
from adasd.core.worth import Worth
from services.gateway.rules import Rules
from services.tracing import Fate

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Step = Literal["draft", "verify", "commit"]
Outcome = Literal["stop", "length", "error", "refused", "cancelled"]

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_CANDIDATES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 32, 64)
_RATES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_METHOD = ("stopping", "acceptance")
_BITS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def _harmless(method: Callable[Concatenate[GatewayMetrics, P], None]) -> Callable[Concatenate[GatewayMetrics, P], None]:
    """Counting must never cost a request its answer."""

    @wraps(method)
    def guarded(self: GatewayMetrics, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            logger.exception("metrics: %s failed", method.__name__)

    return guarded


class _Counter(Counter):
    """A counter that knows its children by their labels as they are given: its own look-up checks and spells them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._known: dict[tuple[object, ...], _Counter] = {}

    def labels(self, *values: object, **named: object) -> _Counter:
        if named:
            return super().labels(*values, **named)
        if values not in self._known:
            self._known[values] = super().labels(*values)
        return self._known[values]


class GatewayMetrics:
    """All metrics of one gateway, in a registry of their own unless one is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry = registry or CollectorRegistry()
        spec, gateway = "adasd_spec_decode", "adasd_gateway"

        def counter(name: str, text: str, *labels: str) -> _Counter:
            return _Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self._rounds = counter(f"{spec}_num_rounds", "Rounds: passes of the target, each of a run.", *_METHOD)
        self._drafts = counter(f"{spec}_num_drafts", "Rounds with candidates.", *_METHOD)
        self._drafted = counter(f"{spec}_num_draft_tokens", "Candidates, up to the end of the text.", *_METHOD)
        self._accepted = counter(f"{spec}_num_accepted_tokens", "Accepted candidates.", *_METHOD)
        self._per_position = counter(
            f"{spec}_num_accepted_tokens_per_pos", "Accepted candidates by their place in the block.", "position"
        )
        self._copied = counter(f"{spec}_num_copied_tokens", "Candidates copied from the text itself.", *_METHOD)
        self._relaxed = counter(f"{spec}_num_relaxed_tokens", "Candidates accepted only by relaxation.", *_METHOD)
        self._floored = counter(f"{spec}_num_floored_tokens", "Candidates refused because the target gives them 0.")
        self._block = histogram(f"{spec}_block_length", "Candidates of a round.", _CANDIDATES)
        self._threshold = histogram(f"{spec}_entropy_threshold_bits", "Entropy threshold at the end of a text.", _BITS)
        self._decisions = counter(f"{spec}_num_decisions", "Rounds by plan: off, probe, draft, copy.", "decision")
        self._rate = histogram(f"{spec}_going_rate_tokens_per_second", "What a candidate had to beat.", _RATES)
        self._costs = Gauge(
            f"{spec}_cost_seconds", "What candidates were weighed against last.", ["part"], registry=registry
        )
        self._shown_costs: CostProfile | None = None
        self._prior = histogram(f"{spec}_acceptance_prior", "P(A) at the end of a text.", _SHARES)
        self._steps: dict[Step, Histogram] = {
            "draft": histogram(f"{spec}_draft_seconds", "Waiting for candidates, network included."),
            "verify": histogram(f"{spec}_verify_seconds", "Waiting for a verdict, network included."),
            "commit": histogram(f"{spec}_commit_seconds", "Waiting for the session store."),
        }
        self._requests = counter(f"{gateway}_requests", "Chat requests by outcome.", "outcome")
        self._resumes = counter(f"{gateway}_resumes", "Streams taken up again, by outcome.", "outcome")
        self._take_overs = counter(f"{gateway}_take_overs", "Sessions taken over from gateways that left them.")
        self._outages = counter(
            f"{gateway}_store_outages", "Times that the session store did not answer, and then did."
        )
        self._away = counter(f"{gateway}_store_outage_seconds", "For how long, once it was back.")
        self._errors = counter(f"{gateway}_errors", "Errors told to clients, by type.", "type")
        self._drafter_failures = counter(
            f"{gateway}_drafter_failures", "Rounds that lost their candidates, by error.", "type"
        )
        self._verifier_failures = counter(
            f"{gateway}_verifier_failures", "Attempts at a round that failed and were made again, by error.", "type"
        )
        self._prompt_tokens = counter(f"{gateway}_prompt_tokens", "Prompt tokens of admitted requests.")
        self._generated = counter(f"{gateway}_generated_tokens", "Committed tokens.")
        self._first = histogram(f"{gateway}_time_to_first_token_seconds", "From the request's arrival.")
        self._gap = histogram(f"{gateway}_inter_token_seconds", "Time since the round before, per token of the round.")
        self._inflight = Gauge(f"{gateway}_inflight_requests", "Chat requests in hand.", registry=registry)
        self._replicas = Gauge(
            f"{gateway}_replicas", "Replicas, by whether streams may go there.", ["service", "state"], registry=registry
        )
        self._run = Gauge(f"{spec}_run_length", "Rounds without candidates asked for at once, now.", registry=registry)
        self._spans = counter(f"{gateway}_spans", "Spans of traces, by what became of them.", "outcome")
        self._info = Info(gateway, "What this gateway serves.", registry=registry)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    @_harmless
    def describe(self, labels: dict[str, str]) -> None:
        """What this gateway serves, by default."""
        self._info.info(labels)

    @_harmless
    def watch_replicas(self, service: str, known: Callable[[], int], healthy: Callable[[], int]) -> None:
        """Show how many replicas of a service there are, and how many of them take new streams, whenever asked."""
        self._replicas.labels(service, "known").set_function(known)
        self._replicas.labels(service, "healthy").set_function(healthy)

    @_harmless
    def watch_runs(self, length: Callable[[], int]) -> None:
        """Show how many rounds are asked for at once, whenever asked."""
        self._run.set_function(length)

    @_harmless
    def drafter_failed(self, kind: str) -> None:
        self._drafter_failures.labels(kind).inc()

    @_harmless
    def verifier_failed(self, kind: str) -> None:
        self._verifier_failures.labels(kind).inc()

    @_harmless
    def inflight(self, requests: int) -> None:
        self._inflight.set(requests)

    @_harmless
    def finished(self, outcome: Outcome) -> None:
        self._requests.labels(outcome).inc()

    @_harmless
    def resumed(self, outcome: Outcome) -> None:
        self._resumes.labels(outcome).inc()

    @_harmless
    def taken_over(self) -> None:
        self._take_overs.inc()

    @_harmless
    def spans(self, outcome: Fate, count: int) -> None:
        self._spans.labels(outcome).inc(count)

    @_harmless
    def store_was_away(self, seconds: float) -> None:
        """The session store answers again after so long."""
        self._outages.inc()
        self._away.inc(seconds)

    def refused(self, kind: str) -> None:
        """A chat request that was not admitted."""
        self.finished("refused")
        self.error(kind)

    @_harmless
    def error(self, kind: str) -> None:
        self._errors.labels(kind).inc()

    @_harmless
    def admitted(self, prompt_tokens: int) -> None:
        self._prompt_tokens.inc(prompt_tokens)

    @_harmless
    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    @_harmless
    def tokens(self, count: int, seconds: float) -> None:
        """Further tokens, so long after those before."""
        for _ in range(count):
            self._gap.observe(seconds / count)

    @_harmless
    def round(self, step: Round, rules: Rules) -> None:
        method = rules.stopping, rules.acceptance
        rounds = step.verdict.rounds
        self._rounds.labels(*method).inc(rounds)
        for candidates in (len(step.draft), *[0] * (rounds - 1)):
            self._block.observe(candidates)
        self._generated.inc(len(step.verdict.tokens))
        if len(step.draft):
            self._candidates(step, method)
        self._decisions.labels(step.plan.decision).inc()
        self._decisions.labels("off").inc(rounds - 1)
        if step.plan.worth is not None:
            self._weighed(step.plan.worth)

    def _candidates(self, step: Round, method: tuple[str, str]) -> None:
        judgements = step.verdict.judgements
        self._drafts.labels(*method).inc()
        self._drafted.labels(*method).inc(len(step.draft))
        self._accepted.labels(*method).inc(step.verdict.accepted)
        for position in range(step.verdict.accepted):
            self._per_position.labels(position).inc()
        self._copied.labels(*method).inc(len(step.draft) if step.draft.copied else 0)
        self._relaxed.labels(*method).inc(sum(judgement.relaxed for judgement in judgements))
        self._floored.inc(sum(judgement.floored for judgement in judgements))

    def _weighed(self, worth: Worth) -> None:
        if worth.rate > 0.0:
            self._rate.observe(worth.rate)
        costs = worth.costs
        if costs is self._shown_costs:
            return
        self._shown_costs = costs
        for part, seconds in (("fixed", costs.fixed), ("draft", costs.draft), ("commit", costs.commit)):
            self._costs.labels(part).set(seconds)
        self._costs.labels("reading").set(costs.reading)
        self._costs.labels("verify").set(costs.verify[0])

    @_harmless
    def learned(self, state: GenerationState) -> None:
        """What a text has left behind."""
        threshold = state.acceptance.rejected_entropy.mean
        if threshold is not None:
            self._threshold.observe(threshold)
        if state.acceptance.posterior.ready(1):
            self._prior.observe(state.acceptance.posterior.prior)

    @_harmless
    def took(self, step: Step, seconds: float) -> None:
        """What a step of a round took that succeeded."""
        self._steps[step].observe(seconds)
