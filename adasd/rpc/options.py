"""gRPC options that both ends of a channel must agree on, computed in one place."""

from __future__ import annotations

from dataclasses import dataclass

Options = tuple[tuple[str, int | str], ...]

MAX_VOCABULARY = 262_144
MAX_CANDIDATES = 64
DENSE_WEIGHT_BYTES = 3
_ENTRY_OVERHEAD_BYTES = 64
_CONTEXT_BYTES = 8 * 2**20
"""Room for a context of a million ids, the acceptance state and the message around them."""

SERVICE_CONFIG = '{"loadBalancingConfig": [{"round_robin": {}}]}'
CONNECTION_AGE_MS = 600_000
KEEPALIVE_TIME_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """What the largest message holds: a block of `candidates` dense rows over `vocabulary` ids."""

    vocabulary: int = MAX_VOCABULARY
    candidates: int = MAX_CANDIDATES

    @property
    def message_bytes(self) -> int:
        return self.candidates * (DENSE_WEIGHT_BYTES * self.vocabulary + _ENTRY_OVERHEAD_BYTES) + _CONTEXT_BYTES


def shared_options(limits: MessageLimits) -> Options:
    """What server and client set alike.

    Both sides ping at the same pace and allow the other to: a server that expects pings less often than its client
    sends them ends the connection with `too_many_pings` in the middle of a long prefill.
    """
    return (
        ("grpc.max_send_message_length", limits.message_bytes),
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    )


def server_options(limits: MessageLimits) -> Options:
    """A port that is taken is an error, not shared: of two servers on one each would get half the streams.

    Connections grow old so that clients look again for addresses, and find replicas that were added; streams that are
    open on an old connection stay on it to their end.
    """
    return (
        *shared_options(limits),
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
    )


def client_options(limits: MessageLimits) -> Options:
    """Streams are spread over all addresses of a name, and a server that comes back is found within seconds."""
    return (
        *shared_options(limits),
        ("grpc.service_config", SERVICE_CONFIG),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # also the time a connection attempt may take
        ("grpc.max_reconnect_backoff_ms", 2_000),
    )
