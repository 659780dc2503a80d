"""The connections to Redis: how long they wait, when they are thrown away, what their errors mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import redis.asyncio as redis
from redis import exceptions
from redis.asyncio.connection import BlockingConnectionPool, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from adasd.core.errors import AdasdError, Overloaded, ServiceUnavailable
from adasd.state.sentinel import is_sentinel, sentinel_pool

_PASSING = frozenset({"LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "MISCONF"})
"""Error codes of a server that is itself in trouble, or no longer the one to write to."""

_ELSEWHERE = frozenset({"MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT"})
"""What only nodes of a cluster say."""

_BROKEN = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.InvalidResponse, OSError)

_CODE = re.compile(r"^(?P<plain>[A-Z]+) |: -(?P<in_script>[A-Z]+) ")
"""Redis before 7 reports an error inside a script as `ERR Error running script (...): @user_script:7: -OOM ...`."""


LONGEST_PAUSE_SECONDS = 0.5
"""Between two attempts: a store that is back is noticed soon, and not stormed."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """All times in seconds.

    ttl: life of a session after its last commit. lease: a gateway that shows no life for so long may be replaced.
    connections: upper bound; further commands wait for a free one.
    connect_timeout, reply_timeout: of one attempt. deadline: of a whole operation, waiting and repeating included, and
    of an outage that is waited out. backoff: between the first two attempts; doubling, up to LONGEST_PAUSE_SECONDS.
    refuse_after: what begins new work does not wait for a store that has been away for longer.
    """

    ttl: int = 3600
    lease: float = 10.0
    connections: int = 64
    connect_timeout: float = 2.0
    reply_timeout: float = 2.0
    deadline: float = 10.0
    backoff: float = 0.02
    refuse_after: float = 1.0

    def __post_init__(self) -> None:
        for name in ("ttl", "lease", "connections", "connect_timeout", "reply_timeout", "deadline"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("backoff", "refuse_after"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")


def connect(url: str, settings: StoreSettings) -> redis.Redis:
    """A client for redis://, rediss://, unix:// or Sentinels (`adasd.state.sentinel`); it connects with the first
    command. Raises ValueError for the rest.

    redis-py closes a connection whose command was cut short before its reply was read. Should one reach the pool all
    the same, the pool notices the unread reply and reconnects, but only while maintenance notifications are off, and
    RESP 3 turns them on: hence RESP 2. Repeating is left to the store, which knows what may be repeated.
    """
    timeouts = {"socket_connect_timeout": settings.connect_timeout, "socket_timeout": settings.reply_timeout}
    options: dict[str, Any] = {
        "max_connections": settings.connections,
        "timeout": settings.deadline,
        "protocol": 2,
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if url.partition("://")[0].endswith("+cluster"):
        raise ValueError("this URL is of a Redis Cluster, which is not supported: name one Redis, or Sentinels")
    if is_sentinel(url):
        return redis.Redis.from_pool(sentinel_pool(url, timeouts, options))
    return redis.Redis.from_pool(BlockingConnectionPool(**{**timeouts, **parse_url(url), **options}))


def meaning(error: exceptions.RedisError | OSError) -> AdasdError | None:
    """What an error of redis-py means to a caller of the store; None if it is a bug of ours."""
    code = error_code(error)
    if code == "OOM":
        return Overloaded("the session store is full: Redis has reached its maxmemory")
    if code in _ELSEWHERE:
        return ServiceUnavailable("the session store is a node of a Redis Cluster, which is not supported")
    if code in _PASSING or isinstance(error, _BROKEN):
        return ServiceUnavailable(f"the session store cannot serve: {error}")
    return None


def error_code(error: Exception) -> str | None:
    """The code of an error reply, wherever the server's version puts it."""
    found = _CODE.search(str(error))
    code = found and (found["plain"] or found["in_script"])
    return code or getattr(error, "status_code", None)
