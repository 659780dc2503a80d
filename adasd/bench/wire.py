"""What a round's rows cost on the wire, by vocabulary: `python -m adasd.bench.wire`.

Bytes a candidate, the gateway's own work on a block (take it from the drafter's message, put it into the verifier's),
the same with gRPC's share in this process, and how long a block is on its way: two messages each way over real gRPC to
another process that does nothing else.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np
import uvloop

from adasd.core.adaptive import AcceptanceState
from adasd.core.messages import ContextDelta, DraftReply, VerifyRequest
from adasd.core.rows import dense_row, sparse_row
from adasd.core.types import Draft, Row, SamplingParams
from adasd.rpc.codec import decode_draft_reply, encode_draft_reply, encode_verify_request
from adasd.rpc.options import MessageLimits, client_options, server_options

VOCABULARIES = (49_152, 128_256, 151_936, 262_144)
SUPPORTS = (128, 512, None)
"""Entries of a row; None is the whole vocabulary."""
CANDIDATES = 5
REPEATS = 200
DRAFTER, VERIFIER = "/adasd.bench.Wire/Draft", "/adasd.bench.Wire/Verify"
SMALL = b"\0" * 256
"""A message without rows."""


@dataclass(frozen=True, slots=True)
class Figures:
    """bytes: a candidate. work: of the gateway's codec, seconds of processor time a round; sent: of gRPC beside it, in
    all threads of the process. trip: seconds a round.
    """

    bytes: float
    work: float
    sent: float
    trip: float


def flat_row(vocabulary: int, support: int | None, rng: np.random.Generator) -> Row:
    """A row whose every entry has a weight: the largest there is."""
    if support is None:
        return dense_row(np.full(vocabulary, 1.0 / vocabulary))
    return sparse_row(rng.permutation(vocabulary)[:support], np.full(support, 1.0 / support))


def block(vocabulary: int, support: int | None) -> Draft:
    rng = np.random.default_rng(0)
    rows = tuple(flat_row(vocabulary, support, rng) for _ in range(CANDIDATES))
    return Draft(tuple(int(row.ids[0]) for row in rows), (9.0,) * CANDIDATES, rows)


def relay(drafted: bytes, parse: Callable[[bytes], Any]) -> bytes:
    """The gateway's part: the drafter's reply, as bytes that `parse` reads, to the verifier's request, as bytes."""
    reply = decode_draft_reply(parse(drafted))
    context = ContextDelta(bytes(16), 1000, 900, 998, (1, 2), bytes(32))
    state = AcceptanceState().pack()
    request = VerifyRequest(context, SamplingParams(seed=1), reply.draft, "adasd-anchored", state, 7)
    return encode_verify_request(request).SerializeToString()


def worked(action: Callable[[], object]) -> float:
    """Seconds of processor time, the mean of REPEATS."""
    action()
    begun = time.process_time()
    for _ in range(REPEATS):
        action()
    return (time.process_time() - begun) / REPEATS


async def trips(channel: grpc.aio.Channel, drafted: bytes, asked: bytes) -> tuple[float, float]:
    """Seconds of a round: ask the drafter, get a block; hand it to the verifier, get a verdict.

    The median of those that pass, and the mean of the processor's.
    """
    open_stream: Any = channel.stream_stream
    drafter, verifier = open_stream(DRAFTER)(), open_stream(VERIFIER)()
    await drafter.write(drafted)  # what it is to answer with
    seconds, worked_before = [], time.process_time()
    for _ in range(REPEATS):
        begun = time.perf_counter()
        await drafter.write(SMALL)
        await drafter.read()
        await verifier.write(asked)
        await verifier.read()
        seconds.append(time.perf_counter() - begun)
    worked_for = time.process_time() - worked_before
    drafter.cancel()
    verifier.cancel()
    return statistics.median(seconds), worked_for / REPEATS


class Peers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """A drafter that answers with the first message it got, and a verifier that answers shortly."""

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        return grpc.stream_stream_rpc_method_handler(self._draft if details.method == DRAFTER else self._verify)

    async def _draft(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        answer = b""
        async for request in requests:
            if answer:
                yield answer
            else:
                answer = request

    async def _verify(self, requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield SMALL


def serve(ready: Connection) -> None:
    """The other process."""

    async def run() -> None:
        server = grpc.aio.server(options=server_options(MessageLimits()))
        server.add_generic_rpc_handlers((Peers(),))
        ready.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    uvloop.run(run())


async def measured(channel: grpc.aio.Channel, vocabulary: int, support: int | None) -> Figures:
    draft = block(vocabulary, support)
    message = encode_draft_reply(DraftReply(7, 1000, draft))
    drafted, parse = message.SerializeToString(), type(message).FromString
    trip, sent = await trips(channel, drafted, relay(drafted, parse))
    return Figures(len(drafted) / CANDIDATES, worked(lambda: relay(drafted, parse)), sent, trip)


async def table(port: int) -> AsyncIterator[str]:
    columns = "codec, CPU ms a round | with gRPC, CPU ms a round | there and back, ms a round"
    yield f"| ids | entries | bytes a candidate | {columns} |"
    yield "|---|---|---|---|---|---|"
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=client_options(MessageLimits())) as channel:
        for vocabulary in VOCABULARIES:
            for support in SUPPORTS:
                found = await measured(channel, vocabulary, support)
                cpu = f"{found.work * 1e3:.2f} | {(found.work + found.sent) * 1e3:.2f}"
                figures = f"{found.bytes:,.0f} | {cpu} | {found.trip * 1e3:.2f}"
                yield f"| {vocabulary:,} | {support or 'all'} | {figures} |"


async def main() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    peers = context.Process(target=serve, args=(there,), daemon=True)
    peers.start()
    try:
        async for line in table(here.recv()):
            print(line, flush=True)
    finally:
        peers.terminate()


if __name__ == "__main__":
    uvloop.run(main())
