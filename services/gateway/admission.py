"""From a request body to a generation: everything that can be refused is refused here, before any other work."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from adasd.core.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from adasd.core.messages import ModelInfo
from adasd.core.stopping import stopping_rule
from adasd.core.types import SamplingParams
from adasd.core.verification import verification
from services.gateway.costs import LiveCosts
from services.gateway.request import SESSION_BYTES, GenerationRequest
from services.gateway.schema import ChatRequest, Message, Speculation, parse_chat_request
from services.gateway.text import ChatText

SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class Rules:
    """How to draft and accept. max_candidates: bound on a block; None leaves it to the stopping rule."""

    stopping: str = "adasd"
    acceptance: str = "adasd-anchored"
    max_candidates: int | None = None

    def overridden(self, asked: Speculation) -> Rules:
        """These rules, but for what the client asked for. Another stopping rule brings its own block length."""
        stopping = asked.stopping or self.stopping
        inherited = self.max_candidates if stopping == self.stopping else None
        candidates = inherited if asked.max_candidates is None else asked.max_candidates
        return Rules(stopping, asked.acceptance or self.acceptance, candidates)


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """What a prompt may have before it is tokenised: so many messages, so many characters in each."""

    messages: int = 2048
    characters: int = 2**20

    def check(self, texts: Sequence[str], param: str = "messages", field: str = ".content") -> None:
        """Raises InvalidRequest naming the message at fault."""
        if len(texts) > self.messages:
            raise InvalidRequest(f"{len(texts)} messages; at most {self.messages} are taken", param)
        for place, text in enumerate(texts):
            name = f"{param}[{place}]{field}" if field else param
            if len(text) > self.characters:
                raise InvalidRequest(f"{name} has {len(text)} characters; at most {self.characters} are taken", name)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that will be answered. cost_profile: version of the stated costs that its text depends on, if any."""

    chat: ChatRequest
    rules: Rules
    generation: GenerationRequest
    cost_profile: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of one served model.

    names: what clients may call it, its own name first. default_max_tokens: where the client names no limit; None is
    whatever the context leaves. costs: what candidates are weighed against; where the text depends on it and the client
    chose the seed, the stated ones, so that the same seed gives the same text.
    """

    text: ChatText
    names: Sequence[str]
    rules: Rules = Rules()
    default_max_tokens: int | None = None
    limits: PromptLimits = PromptLimits()
    costs: LiveCosts = field(default_factory=LiveCosts)

    def require_model(self, name: str) -> None:
        """Raises ModelNotFound."""
        if name not in self.names:
            raise ModelNotFound(f"no model {name!r} here; served: {', '.join(self.names)}", "model")

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a chat, up to where the assistant begins. Raises InvalidRequest."""
        self.limits.check([message.content for message in messages])
        return self.text.encode([message.for_template() for message in messages])

    def admit(self, body: bytes, target: ModelInfo) -> Admitted:
        """Parse, check, tokenise. Takes as long as the prompt is long: not for the event loop.

        Raises InvalidRequest naming the parameter, ModelNotFound, ContextLengthExceeded.
        """
        chat = parse_chat_request(body)
        self.require_model(chat.model)
        rules = self.rules.overridden(chat.speculation)
        sampling = _sampling(chat)
        pinned = _depends_on_costs(rules, sampling) and chat.seed is not None
        stopping = stopping_rule(rules.stopping, rules.max_candidates, self.costs.source(pinned))
        verification(rules.acceptance)
        prompt = self.prompt(chat.messages)
        generation = GenerationRequest(
            session=secrets.token_bytes(SESSION_BYTES),
            prompt=prompt,
            sampling=sampling,
            stopping=stopping,
            acceptance=rules.acceptance,
            max_tokens=self._max_tokens(chat.asked_tokens, len(prompt), target.context_length),
            context_length=target.context_length,
            eos_ids=self.text.eos_ids | set(target.eos_ids),
            stop=chat.stop,
            seeded=chat.seed is not None,
        )
        return Admitted(chat, rules, generation, self.costs.prior.version if pinned else None)

    def _max_tokens(self, asked: int | None, prompt: int, context_length: int) -> int:
        """At least 1; an answer longer than the context ends with the context."""
        if prompt == 0:
            raise InvalidRequest("these messages make an empty prompt", "messages")
        room = context_length - prompt
        if room < 1:
            raise ContextLengthExceeded(
                f"this model's context is {context_length} tokens and these messages are {prompt} tokens;"
                " that leaves no room for an answer",
                "messages",
            )
        wanted = self.default_max_tokens if asked is None else asked
        return room if wanted is None else min(wanted, room)


def _depends_on_costs(rules: Rules, sampling: SamplingParams) -> bool:
    """Whether other costs could give another text. Greedy and coupled text is the target's own whatever is drafted."""
    coupled = verification(rules.acceptance).coupled
    return rules.stopping == "marginal" and not (coupled or sampling.greedy)


def _sampling(chat: ChatRequest) -> SamplingParams:
    """Negative seeds are taken modulo 2^64; without a seed one is drawn."""
    seed = secrets.randbits(SEED_BITS) if chat.seed is None else chat.seed % 2**SEED_BITS
    return SamplingParams(chat.temperature, max(chat.top_k, 0), chat.top_p, chat.min_p, seed)
