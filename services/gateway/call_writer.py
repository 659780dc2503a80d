"""How the calls of an answer are written, whole or streamed. Shapes as OpenAI documents them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from services.gateway.call_formats import FORMATS
from services.gateway.parts import Part
from services.gateway.sessions import Session

Body = dict[str, Any]


class CallWriter:
    """Of one choice. Ids are a function of answer, choice and call, so that whoever tells it tells the same."""

    def __init__(self, session: Session) -> None:
        assert session.generation.calls is not None, "calls are read where there may be some"
        self._form = FORMATS[session.generation.calls.form]
        self._answer = f"{session.presentation.answer} {session.presentation.index}"

    def delta(self, part: Part) -> Body:
        """What a stream tells of a call: first its function, then its arguments as they come."""
        assert part.call is not None, "it belongs to a call"
        if part.name is None:
            return {"index": part.call, "function": {"arguments": part.text}}
        return {"index": part.call, **self._call(part.call, part.name, "")}

    def whole(self, parts: Sequence[Part]) -> list[Body]:
        """All calls. parts: of the whole answer."""
        names: dict[int, str] = {}
        arguments: dict[int, list[str]] = {}
        for part in parts:
            if part.call is not None:
                arguments.setdefault(part.call, []).append(part.text)
                names.setdefault(part.call, part.name or "")
        return [self._call(call, name, "".join(arguments[call])) for call, name in names.items()]

    def _call(self, index: int, name: str, arguments: str) -> Body:
        digest = blake2b(f"{self._answer} {index}".encode(), digest_size=16).hexdigest()
        function = {"name": name, "arguments": arguments}
        return {"id": self._form.call_id(digest), "type": "function", "function": function}
