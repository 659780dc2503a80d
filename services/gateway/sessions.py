"""A session as the gateway works with it, and how it is written into its record."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, TypeVar, cast

from adasd.core.adaptive import AcceptanceState
from adasd.core.decoding import Controller, Runs
from adasd.core.errors import Conflict
from adasd.core.grammar import Grammar
from adasd.core.messages import ModelInfo
from adasd.core.progress import Counters, GenerationState
from adasd.core.stopping import stopping_rule
from adasd.core.types import Processing, SamplingParams
from adasd.state.base import SessionRecord, StoredSession
from services.gateway.admission import Admitted
from services.gateway.costs import LiveCosts
from services.gateway.request import Calls, GenerationRequest
from services.gateway.rules import Rules
from services.gateway.schema import ChatRequest
from services.tracing import TRACEPARENT

T = TypeVar("T")
FIRST_TURN = 1
COST_PROFILE = "cost_profile"
Kind = Literal["chat", "text"]
_PREFIXES: Mapping[Kind, str] = {"chat": "chatcmpl", "text": "cmpl"}


class SessionIncompatible(Conflict):
    """A session cannot go on here: what is recorded, what is served and what the client has do not agree."""


@dataclass(frozen=True, slots=True)
class Presentation:
    """What the chunks of an answer repeat, and what its client asked to see. created: seconds since the epoch.

    kind: which interface it came by. index: of this choice, of so many `choices`. echo: what its text begins with.
    """

    answer: str = ""
    model: str = ""
    fingerprint: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    include_usage: bool = False
    continuous_usage: bool = False
    trace: bool = False
    kind: Kind = "chat"
    index: int = 0
    choices: int = 1
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """One turn of a session: everything its text depends on.

    principal: whose it is. window: seconds that it is run on for after its last client has gone.
    turn: requests that the session has had, this one included. cost_profile: as of `Admitted`.
    traceparent: the request's span, where its trace is kept.
    """

    generation: GenerationRequest
    rules: Rules
    presentation: Presentation
    principal: str = ""
    window: float = 0.0
    turn: int = FIRST_TURN
    cost_profile: str | None = None
    traceparent: str | None = None

    @property
    def id(self) -> bytes:
        return self.generation.session

    @property
    def resumable(self) -> bool:
        """Whether a client may come back to it: not for log-probabilities, nor for one choice of several."""
        return self.generation.top_logprobs is None and self.presentation.choices == 1

    @property
    def learns_from_others(self) -> bool:
        """Whether it may begin with what other sessions found: not where its text depends on that and is seeded."""
        return self.cost_profile is None

    def controller(self, runs: Runs) -> Controller:
        """How far each round may draft. runs: as of `Controller`; heeded where no text could depend on it."""
        return self.generation.controller(runs if self.learns_from_others else None)

    @classmethod
    def of_request(
        cls, admitted: Admitted, fingerprint: str, principal: str, traceparent: str | None = None
    ) -> list[Session]:
        """The sessions a client asks for, one a choice."""
        asked, choices = admitted.asked, len(admitted.generations)
        kind: Kind = "chat" if isinstance(asked, ChatRequest) else "text"
        presentation = Presentation(
            answer=f"{_PREFIXES[kind]}-{secrets.token_hex(16)}",
            model=asked.model,
            fingerprint=fingerprint,
            include_usage=asked.include_usage,
            continuous_usage=asked.continuous_usage,
            trace=asked.speculation.trace,
            kind=kind,
            choices=choices,
        )
        window = asked.resumable.window_s if asked.resumable else 0.0
        pairs = enumerate(zip(admitted.generations, admitted.echoes, strict=True))
        return [
            cls(
                generation,
                admitted.rules,
                replace(presentation, index=index, echo=echo),
                principal,
                window,
                cost_profile=admitted.cost_profile,
                traceparent=traceparent,
            )
            for index, (generation, echo) in pairs
        ]

    @classmethod
    def of_record(cls, record: SessionRecord, costs: LiveCosts) -> Session:
        """The inverse of `record`. costs: of this gateway."""
        stored = cast(Mapping[str, Any], record.parameters)
        cost_profile: str | None = stored.get(COST_PROFILE)
        rules = _picked(Rules, {"copying": False, **stored})  # an older release did not copy
        generation = GenerationRequest(
            session=record.session,
            prompt=tuple(record.prompt),
            sampling=_sampling(stored),
            stopping=stopping_rule(rules.stopping, rules.max_candidates, costs.source(cost_profile is not None)),
            acceptance=rules.acceptance,
            max_tokens=stored["max_tokens"],
            context_length=stored["context_length"],
            eos_ids=frozenset(stored["eos_ids"]),
            stop=tuple(stored["stop"]),
            seeded=stored["seeded"],
            top_logprobs=stored.get("top_logprobs"),
            calls=_calls(stored.get("calls")),
            copying=rules.copying,
        )
        presentation = _picked(Presentation, stored.get("presentation", {}))
        window = stored.get("window", 0.0)
        trace: str | None = stored.get(TRACEPARENT)
        return cls(generation, rules, presentation, record.principal, window, record.turn, cost_profile, trace)

    def record(self, owner: str, epoch: int, models: Mapping[str, str]) -> SessionRecord:
        """What is stored when it begins."""
        request = self.generation
        parameters = (
            asdict(request.sampling)
            | asdict(self.rules)
            | {
                "max_tokens": request.max_tokens,
                "context_length": request.context_length,
                "eos_ids": sorted(request.eos_ids),
                "stop": list(request.stop),
                "seeded": request.seeded,
                "top_logprobs": request.top_logprobs,
                "calls": request.calls and asdict(request.calls),
                COST_PROFILE: self.cost_profile,
                "presentation": asdict(self.presentation),
                "window": self.window,
            }
            | ({} if self.traceparent is None else {TRACEPARENT: self.traceparent})
        )
        return SessionRecord(
            request.session, owner, epoch, request.prompt, parameters, models, self.principal, self.turn
        )


def _picked(kind: type[T], stored: Mapping[str, Any]) -> T:
    """A dataclass from those of its fields that were stored; an older release knew fewer."""
    names = {known.name for known in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in stored.items() if name in names})


def _sampling(stored: Mapping[str, Any]) -> SamplingParams:
    processing = {name: _tuples(value) for name, value in stored.get("processing", {}).items()}
    if processing.get("grammar") is not None:
        processing["grammar"] = Grammar(**processing["grammar"])
    return _picked(SamplingParams, {**stored, "processing": _picked(Processing, processing)})


def _calls(stored: Mapping[str, Any] | None) -> Calls | None:
    return None if stored is None else _picked(Calls, {name: _tuples(value) for name, value in stored.items()})


def _tuples(value: Any) -> Any:
    """Lists as the tuples they were: JSON knows none."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def fingerprints(target: ModelInfo, draft: ModelInfo | None) -> dict[str, str]:
    """The models behind a text. draft: "" where no drafter has answered yet."""
    return {
        "target": target.weights_fingerprint,
        "draft": draft.weights_fingerprint if draft else "",
        "vocabulary": target.vocabulary_fingerprint,
    }


def require_models(stored: Mapping[str, str], now: Mapping[str, str], finished: bool) -> None:
    """Raises SessionIncompatible where a session's text cannot go on, or not even be read, with the models of now."""
    for name in ("vocabulary",) if finished else ("vocabulary", "target", "draft"):
        was, is_now = stored.get(name, ""), now[name]
        if was and is_now and was != is_now:
            raise SessionIncompatible(f"the session was made with another {name} ({was}) than is served now ({is_now})")


def require_costs(record: SessionRecord, now: str) -> None:
    """Raises SessionIncompatible where a session's text depends on other costs than those stated now."""
    was = record.parameters.get(COST_PROFILE)
    if was not in (None, now):
        raise SessionIncompatible(f"the session's text depends on the cost profile {was}; {now} is stated now")


def restored(stored: StoredSession) -> GenerationState:
    """Where a generation stands, from its record. Raises SessionIncompatible for a state that cannot be read here."""
    try:
        acceptance = AcceptanceState.unpack(stored.state)
    except ValueError as error:
        raise SessionIncompatible(f"the session's adaptive state cannot be read here: {error}") from None
    return GenerationState(acceptance, Counters.restored(stored.counters), stored.finish_reason)
