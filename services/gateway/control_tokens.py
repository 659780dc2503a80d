"""Keeps client text plain: a prompt's control tokens come from the chat template, never from a message.

Message contents, and what is told of tools, are marked before the template sees them. In the rendered prompt every
control token outside a mark is the template's; only those are encoded as their ids, through stand-ins that no text can
contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from tokenizers import AddedToken, Tokenizer

from services.gateway.token_bounds import TokenBound

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Unicode noncharacters, reserved for use inside a program; a message loses them."""
_ESCAPED = ((r"\ufdd0", OPEN), (r"\ufdd1", CLOSE))
"""As JSON and Python may write them in quotes, which templates do to tools."""


def control_tokens(tokenizer: Tokenizer, literals: Iterable[str]) -> dict[str, int]:
    """Special tokens, and the added tokens that the template writes itself: content and id."""
    written = "\0".join(literals)
    return {
        entry.content: token
        for token, entry in tokenizer.get_added_tokens_decoder().items()
        if entry.special or (entry.content.strip() and entry.content in written)
    }


class PromptEncoder:
    """Encodes rendered prompts. tokens: control tokens, content and id."""

    def __init__(self, tokenizer: Tokenizer, tokens: dict[str, int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._bound = TokenBound.of(tokenizer)
        self._guarded, self._stand_ins = _guarded(tokenizer, tokens)
        any_token = _any_of(tokens) or "(?!)"
        self._control = re.compile(any_token)
        self._marked = re.compile(f"{OPEN}({any_token}){CLOSE}|({any_token})|[{OPEN}{CLOSE}]")
        self._beginnings = {token[:end] for token in tokens for end in range(1, len(token))}
        self._longest = max(map(len, self._beginnings), default=0)

    def mark(self, content: str) -> str:
        """A message content with its control tokens marked, one that only begins at its very end included."""
        content = content.replace(OPEN, "").replace(CLOSE, "")
        content = self._control.sub(f"{OPEN}\\g<0>{CLOSE}", content)
        content = content.replace(r"\ufdd", rf"\uf{CLOSE}dd")  # a client's own escape is none
        text = content.rstrip()
        if any(text[-length:] in self._beginnings for length in range(1, self._longest + 1)):
            return f"{text}{CLOSE}{content[len(text) :]}"
        return content

    def least(self, prompt: str) -> int:
        """A number of ids that a rendered prompt has at least, known at once; 0 where little is known."""
        return self._bound.least(prompt.replace(OPEN, "").replace(CLOSE, ""))

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a rendered prompt; nothing is added, the template writes what it wants."""
        for escaped, noncharacter in _ESCAPED:
            prompt = prompt.replace(escaped, noncharacter)
        if OPEN not in prompt and CLOSE not in prompt:
            return _ids(self._tokenizer, prompt)
        encoded = _ids(self._guarded, self._marked.sub(_stand_in, prompt))
        return [self._stand_ins.get(token, token) for token in encoded]


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Unlike `encode`, the batch methods release the interpreter lock: other threads go on meanwhile."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _any_of(texts: Collection[str]) -> str:
    """A regular expression for any of the texts, the longest where several match.

    Beginnings are shared: with hundreds of reserved tokens, plain alternatives take seconds on a hostile message.
    """
    branches: dict[str, list[str]] = {}
    for text in filter(None, texts):
        branches.setdefault(text[0], []).append(text[1:])
    alternatives = "|".join(re.escape(first) + _any_of(rests) for first, rests in branches.items())
    optional = "?" if branches and "" in texts else ""
    return f"(?:{alternatives}){optional}" if len(branches) > 1 or optional else alternatives


def _stand_in(match: re.Match[str]) -> str:
    plain, control = match.groups()
    if control is not None:
        return f"{OPEN}{control}"
    return plain or ""


def _guarded(tokenizer: Tokenizer, tokens: dict[str, int]) -> tuple[Tokenizer, dict[int, int]]:
    """The tokenizer with control tokens read as text, and added stand-ins for those of the template."""
    description = json.loads(tokenizer.to_str())
    for entry in description["added_tokens"]:
        entry["special"] = entry["special"] or entry["content"] in tokens
    guarded = Tokenizer.from_str(json.dumps(description))
    guarded.encode_special_tokens = True
    entries = {entry.content: entry for entry in tokenizer.get_added_tokens_decoder().values()}
    guarded.add_tokens([_renamed(entries[content], f"{OPEN}{content}") for content in tokens])
    ids = guarded.get_vocab(with_added_tokens=True)
    return guarded, {ids[f"{OPEN}{content}"]: token for content, token in tokens.items()}


def _renamed(entry: AddedToken, content: str) -> AddedToken:
    return AddedToken(
        content, single_word=entry.single_word, lstrip=entry.lstrip, rstrip=entry.rstrip, normalized=False
    )
