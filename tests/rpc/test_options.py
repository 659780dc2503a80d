"""What both ends of a channel must agree on."""

from __future__ import annotations

import numpy as np

from adasd.core.rows import dense_row
from adasd.rpc.options import MessageLimits, client_options, server_options
from adasd.rpc.rows import encode_row

LIMITS = MessageLimits(vocabulary=1000, candidates=8)


def test_keepalive_and_sizes_are_equal_on_both_ends() -> None:
    server, client = dict(server_options(LIMITS)), dict(client_options(LIMITS))
    shared = {
        name for name in server.keys() | client.keys() if "keepalive" in name or "ping" in name or "length" in name
    }
    assert len(shared) == 7
    assert {name: server[name] for name in shared} == {name: client[name] for name in shared}


def test_the_server_expects_pings_at_least_as_often_as_clients_send_them() -> None:
    options = dict(server_options(LIMITS))
    assert int(options["grpc.http2.min_ping_interval_without_data_ms"]) <= int(options["grpc.keepalive_time_ms"])


def test_a_block_of_dense_rows_fits() -> None:
    row = encode_row(dense_row(np.full(1000, 1 / 1000)))
    assert 8 * len(row) < LIMITS.message_bytes
    assert dict(server_options(LIMITS))["grpc.max_receive_message_length"] == LIMITS.message_bytes


def test_limits_grow_with_the_vocabulary_and_the_block() -> None:
    assert MessageLimits(2000, 8).message_bytes > LIMITS.message_bytes
    assert MessageLimits(1000, 9).message_bytes > LIMITS.message_bytes
