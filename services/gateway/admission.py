"""From a request body to a generation: everything that can be refused is refused here, before any other work."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from adasd.core.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from adasd.core.grammar import Grammar
from adasd.core.messages import ModelInfo
from adasd.core.stopping import StoppingRule, stopping_rule
from adasd.core.types import Processing, SamplingParams
from adasd.core.verification import verification
from services.gateway.call_grammar import grammar_of, schema_of
from services.gateway.completions_schema import Prompt, parse_completion_request
from services.gateway.costs import LiveCosts
from services.gateway.messages import Message
from services.gateway.request import SESSION_BYTES, Calls, GenerationRequest
from services.gateway.rules import Rules
from services.gateway.schema import Asked, ChatRequest, parse_chat_request
from services.gateway.structured import Wanted
from services.gateway.text import ChatText, Check, any_length
from services.gateway.tools import Tool, named_results

SEED_BITS = 64


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
    """A request that will be answered. cost_profile: version of the stated costs that its text depends on, if any.

    generations: one a choice, in their order. echoes: what each choice's text begins with.
    """

    asked: Asked
    rules: Rules
    generations: tuple[GenerationRequest, ...]
    echoes: tuple[str, ...]
    cost_profile: str | None = None

    @property
    def prompt_tokens(self) -> int:
        """Of each prompt once."""
        return sum(len(request.prompt) for request in self.generations if request.sampling.choice == 0)


@dataclass(frozen=True, slots=True)
class _Outline:
    """A request but for its prompts. pinned: its text depends on the stated costs."""

    rules: Rules
    sampling: SamplingParams
    stopping: StoppingRule
    context_length: int
    eos_ids: frozenset[int]
    pinned: bool
    calls: Calls | None = None

    def generation(self, asked: Asked, prompt: tuple[int, ...], max_tokens: int, choice: int) -> GenerationRequest:
        """One choice."""
        return GenerationRequest(
            session=secrets.token_bytes(SESSION_BYTES),
            prompt=prompt,
            sampling=replace(self.sampling, choice=choice),
            stopping=self.stopping,
            acceptance=self.rules.acceptance,
            max_tokens=max_tokens,
            context_length=self.context_length,
            eos_ids=self.eos_ids,
            stop=asked.stop,
            seeded=asked.seed is not None,
            top_logprobs=asked.wanted_logprobs,
            calls=self.calls,
            copying=self.rules.copying,
        )


@dataclass(frozen=True, slots=True)
class Admission:
    """The rules of one served model.

    names: what clients may call it, its own name first. default_max_tokens: where the client names no limit; None is
    whatever the context leaves. costs: what candidates are weighed against; where the text depends on it and the client
    chose the seed, the stated ones, so that the same seed gives the same text.
    """

    text: ChatText
    names: Sequence[str]
    rules: Rules = field(default_factory=Rules)
    default_max_tokens: int | None = None
    limits: PromptLimits = PromptLimits()
    costs: LiveCosts = field(default_factory=LiveCosts)

    def require_model(self, name: str) -> None:
        """Raises ModelNotFound."""
        if name not in self.names:
            raise ModelNotFound(f"no model {name!r} here; served: {', '.join(self.names)}", "model")

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), check: Check = any_length
    ) -> tuple[int, ...]:
        """Token ids of a chat, up to where the assistant begins. check: as `ChatText.encode`. Raises InvalidRequest."""
        self.limits.check([message.content or "" for message in messages])
        self.limits.check([tool.text for tool in tools], "tools", "")
        self._require_recall(messages)
        if tools:
            self.text.calling.require()
        results = named_results(messages)
        written = [message.for_template(results.get(place)) for place, message in enumerate(messages)]
        return self.text.encode(written, [tool.for_template() for tool in tools] or None, check)

    def _require_recall(self, messages: Sequence[Message]) -> None:
        """Raises InvalidRequest for calls of earlier turns, where the model's template would not show them."""
        for place, message in enumerate(messages) if not self.text.calling.recalled else ():
            if message.tool_calls or message.role == "tool":
                path = f"messages[{place}].{'tool_calls' if message.tool_calls else 'role'}"
                raise InvalidRequest(f"{path}: this model's chat template knows no calls of tools", path)

    def admit(self, body: bytes, target: ModelInfo) -> Admitted:
        """Parse, check, tokenise a chat. Takes as long as the prompt is long: not for the event loop.

        Raises InvalidRequest naming the parameter, ModelNotFound, ContextLengthExceeded.
        """
        chat = parse_chat_request(body)
        wanted = self._wanted_calls(chat) if chat.calls_follow_schemas else chat.wanted_grammar
        outline = replace(self._outline(chat, target, wanted), calls=self._calls(chat))
        check = partial(_require_room, target.context_length, "messages", "at least ")
        return self._admitted(chat, outline, [self.prompt(chat.messages, chat.offered, check)], [""], "messages")

    def _calls(self, chat: ChatRequest) -> Calls | None:
        """What calls the answer may hold. Raises InvalidRequest."""
        if not chat.offered:
            return None
        names = tuple(function.name for function in chat.callable)
        return Calls(self.text.calling.require().name, names, chat.parallel_tool_calls)

    def _wanted_calls(self, chat: ChatRequest) -> Wanted:
        """Calls as their functions' schemas have them. Raises InvalidRequest naming the function at fault."""
        form = self.text.calling.require()
        several = chat.parallel_tool_calls and chat.tool_choice in ("auto", "required")
        for place, tool in enumerate(chat.tools):
            path = f"tools[{place}].function.parameters"
            if tool.function in chat.callable:
                self._grammar(Wanted.of("json_schema", json.dumps(schema_of(tool.function)), path), self.text.eos_ids)
        lark = grammar_of(form, chat.callable, self.text.literal, chat.must_call, several)
        return Wanted.of("lark", lark, "tools")

    def admit_completion(self, body: bytes, target: ModelInfo) -> Admitted:
        """As `admit`, of texts that go on."""
        asked = parse_completion_request(body)
        outline = self._outline(asked, target, asked.wanted_grammar)
        self.limits.check([prompt for prompt in asked.prompt if isinstance(prompt, str)], "prompt", "")
        prompts = [self._ids(prompt, target) for prompt in asked.prompt]
        echoes = [self._text(prompt) if asked.echo else "" for prompt in asked.prompt]
        return self._admitted(asked, outline, prompts, echoes, "prompt")

    def _ids(self, prompt: Prompt, target: ModelInfo) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return self.text.encode_text(prompt, partial(_require_room, target.context_length, "prompt", "at least "))
        if max(prompt) >= target.vocabulary:
            raise InvalidRequest(f"this model has {target.vocabulary} ids, from 0; got {max(prompt)}", "prompt")
        return prompt

    def _text(self, prompt: Prompt) -> str:
        return prompt if isinstance(prompt, str) else self.text.decode(prompt)

    def _outline(self, asked: Asked, target: ModelInfo, wanted: Wanted | None) -> _Outline:
        """Check all but the prompts."""
        self.require_model(asked.model)
        rules = self.rules.overridden(asked.speculation)
        eos_ids = self.text.eos_ids | set(target.eos_ids)
        grammar = self._grammar(wanted, eos_ids)
        sampling = _sampling(asked, eos_ids, target.vocabulary, grammar)
        pinned = _depends_on_costs(rules, sampling) and asked.seed is not None
        stopping = stopping_rule(rules.stopping, rules.max_candidates, self.costs.source(pinned))
        verification(rules.acceptance)
        return _Outline(
            rules, sampling, stopping, target.context_length, frozenset() if asked.ignore_eos else eos_ids, pinned
        )

    def _grammar(self, wanted: Wanted | None, eos_ids: Collection[int]) -> Grammar | None:
        """One that can be followed. Raises InvalidRequest naming the parameter, with the reason."""
        if wanted is None:
            return None
        if not eos_ids:
            raise InvalidRequest(f"{wanted.param}: this model has no EOS to end such a text with", wanted.param)
        try:
            self.text.grammars.start(wanted.grammar, eos_ids)
        except InvalidRequest as error:
            raise InvalidRequest(f"{wanted.param}: {error}", wanted.param) from None
        return wanted.grammar

    def _admitted(
        self, asked: Asked, outline: _Outline, prompts: Sequence[tuple[int, ...]], echoes: Sequence[str], param: str
    ) -> Admitted:
        """param: where the prompts stand in the request."""
        _check_choices(asked, len(prompts) * asked.n)
        limits = [
            self._max_tokens(asked.asked_tokens, len(prompt), outline.context_length, param) for prompt in prompts
        ]
        generations = tuple(
            outline.generation(asked, prompt, limit, choice)
            for prompt, limit in zip(prompts, limits, strict=True)
            for choice in range(asked.n)
        )
        each = tuple(echo for echo in echoes for _ in range(asked.n))
        return Admitted(asked, outline.rules, generations, each, self.costs.prior.version if outline.pinned else None)

    def _max_tokens(self, asked: int | None, prompt: int, context_length: int, param: str) -> int:
        """At least 1; an answer longer than the context ends with the context."""
        if prompt == 0:
            raise InvalidRequest(f"{param}: this makes an empty prompt", param)
        _require_room(context_length, param, "", prompt)
        room = context_length - prompt
        wanted = self.default_max_tokens if asked is None else asked
        return room if wanted is None else min(wanted, room)


def _require_room(context_length: int, param: str, about: str, tokens: int) -> None:
    """Raises ContextLengthExceeded, in words that clients look for: not all of them read its code."""
    if tokens >= context_length:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {context_length} tokens and {param} has {about}{tokens} tokens:"
            " the prompt is too long to leave room for an answer",
            param,
        )


def _check_choices(asked: Asked, choices: int) -> None:
    """Several choices have a session each: none of them is the request's."""
    for name in ("session", "resumable") if choices > 1 else ():
        if getattr(asked, name) is not None:
            raise InvalidRequest(f"{name} is not supported with several choices", name)


def _depends_on_costs(rules: Rules, sampling: SamplingParams) -> bool:
    """Whether other costs could give another text. Greedy and coupled text is the target's own whatever is drafted."""
    coupled = verification(rules.acceptance).coupled
    return rules.stopping == "marginal" and not (coupled or sampling.greedy)


def _sampling(asked: Asked, eos_ids: Collection[int], vocabulary: int, grammar: Grammar | None) -> SamplingParams:
    """Of the first choice. Negative seeds are taken modulo 2^64; without a seed one is drawn. Raises InvalidRequest."""
    if asked.logit_bias and asked.logit_bias[-1][0] >= vocabulary:
        raise InvalidRequest(
            f"logit_bias: this model has {vocabulary} ids, from 0; got {asked.logit_bias[-1][0]}", "logit_bias"
        )
    processing = Processing(
        logit_bias=asked.logit_bias,
        repetition_penalty=asked.repetition_penalty,
        frequency_penalty=asked.frequency_penalty,
        presence_penalty=asked.presence_penalty,
        min_tokens=asked.min_tokens,
        eos_ids=tuple(sorted(token for token in eos_ids if token < vocabulary)) if asked.min_tokens or grammar else (),
        grammar=grammar,
    )
    return SamplingParams(
        temperature=asked.temperature,
        top_k=max(asked.top_k, 0),
        top_p=asked.top_p,
        min_p=asked.min_p,
        seed=secrets.randbits(SEED_BITS) if asked.seed is None else asked.seed % 2**SEED_BITS,
        processing=processing,
        ignore_eos=asked.ignore_eos,
    )
