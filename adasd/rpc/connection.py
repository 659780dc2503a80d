"""The client's end of a channel, whichever service is behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from adasd.core.errors import ServiceUnavailable
from adasd.rpc.info import PeerInfo, decode_info
from adasd.rpc.options import MessageLimits, Options, client_options
from adasd.rpc.status import error_of, is_answer
from adasd.rpc.tls import ClientTls
from adasd.rpc.v1 import common_pb2

Headers = tuple[tuple[str, str], ...]

PLAIN = ClientTls()


class Connection:
    """A channel to one address. Connects when first used, and again whenever the connection is lost."""

    def __init__(
        self,
        address: str,
        limits: MessageLimits,
        stub: Callable[[grpc.aio.Channel], Any],
        tls: ClientTls = PLAIN,
    ) -> None:
        """Raises InvalidRequest for TLS files that are of no use."""
        self.address = address
        self._limits = limits
        self._spoken = tls.spoken
        self._channel = _channel(address, (*client_options(limits), *tls.options), tls.credentials())
        self._stub = stub(self._channel)

    async def info(self, seconds: float) -> PeerInfo:
        """What the service has loaded, within so many seconds. Raises ServiceUnavailable while it loads."""
        try:
            message: common_pb2.ModelInfo = await self._stub.Info(common_pb2.InfoRequest(), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            known = error_of(error)
            if isinstance(known, ServiceUnavailable) and not is_answer(error):
                known = ServiceUnavailable(f"{known} (asked {self._spoken})")  # a handshake's failure names no cause
            raise known from None
        return decode_info(message)

    async def lost(self) -> None:
        """Wait while the connection stands; returns at once if it does not."""
        while self._channel.get_state() is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY)

    async def close(self) -> None:
        """Close the channel, and with it every stream that is open."""
        await self._channel.close(None)


def _channel(address: str, options: Options, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)
