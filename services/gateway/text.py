"""The text side of a model: chat messages to token ids and back, from the files of a model folder. No transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from adasd.core.errors import InvalidRequest
from adasd.grammars.engine import VocabularyGrammars
from services.gateway.call_formats import FORMATS
from services.gateway.calling import Calling
from services.gateway.control_tokens import PromptEncoder, control_tokens
from services.gateway.detokenizer import Decoder, Detokenizer
from services.gateway.request import Calls
from services.gateway.spelling import Spelling
from services.gateway.template import ChatTemplate

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

CHEAP_CHARACTERS = 2**16
"""Of a prompt that is tokenised however long it turns out to be: its exact length is worth knowing."""
Check = Callable[[int], None]


def any_length(_: int) -> None:
    """Of prompts that may be as long as they like."""


class ChatText:
    """Tokenizer and chat template of one model. Safe to use from several threads.

    eos_ids: ids that end a text, as the folder names them. spelling: of single tokens. calling: what the template knows
    of tools. grammars: over the vocabulary.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, eos_ids: frozenset[int], parser: str | None = None
    ) -> None:
        """parser: of the model's calls, by name; None is the one that reads those of the template."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.eos_ids = eos_ids
        self.vocabulary: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._template = template
        self._encoder = PromptEncoder(tokenizer, control_tokens(tokenizer, template.literals))
        self._decoder = Decoder.of(tokenizer)
        self.spelling = Spelling(self._decoder)
        self.calling = Calling.of(lambda messages, tools: template.render(messages, tools=tools)).chosen(parser)
        self.grammars = VocabularyGrammars(lambda: tokenizer)

    @classmethod
    def load(cls, folder: Path, template_file: Path | None = None, parser: str | None = None) -> ChatText:
        """Read tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json (the last two
        may be absent). template_file: a chat template instead of the folder's. parser: as of a `ChatText`.

        Raises InvalidRequest naming what is missing or does not fit.
        """
        if not (folder / "tokenizer.json").is_file():
            raise InvalidRequest(f"{folder} holds no tokenizer.json", "tokenizer")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = _read_json(folder / "tokenizer_config.json")
        source = _template_source(folder, config) if template_file is None else _template_of(template_file)
        template = ChatTemplate(source, _special_tokens(config))
        return cls(tokenizer, template, _eos_ids(folder, tokenizer, config), parser)

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        check: Check = any_length,
    ) -> tuple[int, ...]:
        """Token ids of the prompt; text in a message or a tool never becomes a control token.

        messages: `role`, `content`, `tool_calls` (whose arguments are objects), ... as templates take them.
        check: is told how many ids a long prompt has at least, before they are made, and may raise.
        Raises InvalidRequest with the template's own words where it refuses the messages.
        """
        written = messages if self.calling.mappings else [_with_texts(message) for message in messages]
        return self._encoded(self._template.render(written, self._encoder.mark, tools), check)

    def encode_text(self, text: str, check: Check = any_length) -> tuple[int, ...]:
        """Token ids of a text by itself; what looks like a control token in it is text."""
        return self._encoded(self._encoder.mark(text), check)

    def _encoded(self, prompt: str, check: Check) -> tuple[int, ...]:
        if len(prompt) > CHEAP_CHARACTERS:
            check(self._encoder.least(prompt))
        return tuple(self._encoder.encode(prompt))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids below `vocabulary`, control tokens included."""
        return self._decoder.everything(list(ids))

    def literal(self, marker: str) -> str:
        """A marker of calls as grammars name it: as text, or by its id where it is a control token."""
        token = self._decoder.tokenizer.token_to_id(marker)
        return f"<[{token}]>" if token in self._decoder.silent else json.dumps(marker)

    def detokenizer(self, calls: Calls | None = None) -> Detokenizer:
        """A detokenizer for one text; control tokens that mark its calls are shown."""
        return self._decoder.start() if calls is None else self._decoder.marked(FORMATS[calls.form].markers)


def _read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty if there is no such file."""
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _with_texts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of its calls as the texts that some templates want."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _template_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the chat template {file} cannot be read: {error}", "chat_template") from error


def _template_source(folder: Path, config: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    source = config.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
    if not isinstance(source, str):
        raise InvalidRequest(f"{folder} holds no chat template", "tokenizer")
    return source


def _content(token: object) -> str | None:
    """A special token as the configuration writes it: a string, or an object with its `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """What the template may call `bos_token`, `eos_token`, ..."""
    named = {name: _content(config.get(name)) for name in _SPECIAL_NAMES}
    return {name: content for name, content in named.items() if content is not None}


def _eos_ids(folder: Path, tokenizer: Tokenizer, config: Mapping[str, Any]) -> frozenset[int]:
    configured = _read_json(folder / "generation_config.json").get("eos_token_id")
    ids = set(configured if isinstance(configured, list) else [] if configured is None else [configured])
    named = _content(config.get("eos_token"))
    token = tokenizer.token_to_id(named) if named is not None else None
    return frozenset(ids if token is None else {*ids, token})
