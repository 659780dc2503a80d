"""Whether the services fit together: asked when a connection comes up, and again whenever it comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from adasd.core.errors import AdasdError
from adasd.core.messages import ModelInfo
from adasd.rpc.codec import PROTOCOL, PeerInfo
from adasd.rpc.connection import Connection
from services.gateway.remote import DrafterClient, VerifierClient

RETRY_SECONDS = 0.5
RECHECK_SECONDS = 30.0
"""A name with several addresses may change hands without the channel ever being down."""


def mismatch(verifier: PeerInfo, peer: PeerInfo) -> str | None:
    """Why a peer cannot work with a verifier; None if it can. Padded vocabularies may differ in width."""
    target, model = verifier.model, peer.model
    if peer.protocol != PROTOCOL:
        return f"{model.name!r} speaks {peer.protocol or 'no protocol version'}, this gateway {PROTOCOL}"
    if model.vocabulary_fingerprint != target.vocabulary_fingerprint:
        return (
            f"{model.name!r} has another vocabulary than {target.name!r}: "
            f"fingerprint {model.vocabulary_fingerprint}, not {target.vocabulary_fingerprint}"
        )
    if set(model.eos_ids) != set(target.eos_ids):
        return f"{model.name!r} ends at ids {sorted(model.eos_ids)}, {target.name!r} at {sorted(target.eos_ids)}"
    return None


class Handshake:
    """Follows the connections of both clients, and keeps a drafter that does not fit from being asked."""

    def __init__(self, verifier: VerifierClient, drafter: DrafterClient) -> None:
        self._verifier = verifier
        self._drafter = drafter
        self._seen: dict[Connection, PeerInfo] = {}
        self._away: dict[Connection, str] = dict.fromkeys(self._connections(), "not asked yet")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to follow the connections; needs a running loop."""
        self._tasks = [asyncio.create_task(self._follow(connection)) for connection in self._connections()]

    @property
    def verifier(self) -> ModelInfo | None:
        """The verifier's model as last heard of."""
        return next((peer.model for _, peer in self._heard(self._verifier.connections)), None)

    @property
    def drafter(self) -> ModelInfo | None:
        """The drafter's model as last heard of."""
        return next((peer.model for _, peer in self._heard(self._drafter.connections)), None)

    def problem(self) -> str | None:
        """Why requests cannot be served as they should. A drafter that is merely away is no such reason."""
        verifiers = self._verifier.connections
        if all(connection in self._away for connection in verifiers):
            reasons = (f"{connection.address} ({self._away[connection]})" for connection in verifiers)
            return f"no verifier answers: {', '.join(reasons)}"
        return next(self._too_wide(), None) or next(self._misfits(verifiers), None) or self._drafter.refusal

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, connection: Connection) -> None:
        while True:
            await self._introduce(connection)
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await connection.lost()

    async def _introduce(self, connection: Connection) -> None:
        """Ask until there is an answer."""
        while True:
            try:
                self._seen[connection] = await connection.info(self._verifier.options.info_deadline)
                break
            except AdasdError as error:
                self._away[connection] = str(error)
                await asyncio.sleep(RETRY_SECONDS)
        self._away.pop(connection, None)
        self._drafter.refusal = next(self._misfits(self._drafter.connections), None)

    def _connections(self) -> tuple[Connection, ...]:
        return (*self._verifier.connections, *self._drafter.connections)

    def _heard(self, connections: Iterable[Connection]) -> Iterator[tuple[Connection, PeerInfo]]:
        return ((connection, self._seen[connection]) for connection in connections if connection in self._seen)

    def _misfits(self, connections: Iterable[Connection]) -> Iterator[str]:
        """Which of these peers do not fit the first verifier, and why."""
        for _, verifier in islice(self._heard(self._verifier.connections), 1):
            for connection, peer in self._heard(connections):
                if (reason := mismatch(verifier, peer)) is not None:
                    yield f"{connection.address} does not fit: {reason}"

    def _too_wide(self) -> Iterator[str]:
        """Messages are sized before a model is known."""
        limit = self._verifier.options.limits.vocabulary
        for _, peer in self._heard(self._connections()):
            if peer.model.vocabulary > limit:
                yield f"{peer.model.name!r} has {peer.model.vocabulary} ids, messages here are sized for {limit}"
