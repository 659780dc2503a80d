"""Redis behind Sentinels: the primary is asked for whenever a connection is made, so a failover is followed.

    redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...]/SERVICE[?db=N&sentinel_password=...]

`rediss+sentinel` is the same over TLS, towards the Sentinels too. User and password are Redis' own; those of the
Sentinels are `sentinel_username` and `sentinel_password`. Other query arguments are those of redis:// URLs.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import BlockingConnectionPool, parse_url
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
SENTINEL_PORT = 26379
_OWN = "sentinel_"


class SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the primary; further commands wait for a free one."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def is_sentinel(url: str) -> bool:
    return url.partition("://")[0] in SCHEMES


def sentinel_pool(url: str, timeouts: dict[str, Any], options: dict[str, Any]) -> SentinelPool:
    """timeouts: of sockets, the Sentinels' too. options: of the pool. Raises ValueError for what the URL lacks."""
    parts = urlsplit(url)
    service = unquote(parts.path.lstrip("/"))
    if not service or not parts.hostname:
        raise ValueError("a Sentinel URL names hosts and a service: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE")
    query = dict(parse_qsl(parts.query))
    own = {name.removeprefix(_OWN): query.pop(name) for name in list(query) if name.startswith(_OWN)}
    credentials, _, hosts = parts.netloc.rpartition("@")
    kept = parse_url(f"{SCHEMES[parts.scheme]}://{credentials}{'@' if credentials else ''}redis/?{urlencode(query)}")
    tls = kept.pop("connection_class", None) is not None
    kept.pop("host")
    of_tls = {"ssl": True, **{name: value for name, value in kept.items() if name.startswith("ssl_")}} if tls else {}
    connection = SentinelManagedSSLConnection if tls else SentinelManagedConnection
    addresses, asked = [_address(host) for host in hosts.split(",")], {**timeouts, **of_tls, **own}
    options = {**timeouts, **kept, **options, "connection_class": connection}
    manager = Sentinel(addresses, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    return SentinelPool(service, manager, **options)  # type: ignore[no-untyped-call]


def _address(host: str) -> tuple[str, int]:
    """Raises ValueError for a port that is none."""
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"no host in {host!r} of a Sentinel URL")
    return parts.hostname, parts.port or SENTINEL_PORT
