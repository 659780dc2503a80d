"""What a service says of itself, as a message and back."""

from __future__ import annotations

from typing import NamedTuple

from adasd.core.messages import ModelInfo
from adasd.rpc.v1 import common_pb2

PROTOCOL = "adasd.rpc.v1.1"
"""Version of the messages and of what they mean; two sides with different ones do not work together."""


class PeerInfo(NamedTuple):
    """What a service says of itself: the model it serves, and the protocol it speaks."""

    model: ModelInfo
    protocol: str


def encode_info(info: ModelInfo) -> common_pb2.ModelInfo:
    return common_pb2.ModelInfo(
        name=info.name,
        vocabulary=info.vocabulary,
        context_length=info.context_length,
        eos_ids=info.eos_ids,
        vocabulary_fingerprint=info.vocabulary_fingerprint,
        weights_fingerprint=info.weights_fingerprint,
        support=info.support,
        protocol=PROTOCOL,
        passes=info.passes,
        runs_ahead=info.runs_ahead,
        drafts=info.drafts,
    )


def decode_info(message: common_pb2.ModelInfo) -> PeerInfo:
    model = ModelInfo(
        name=message.name,
        vocabulary=message.vocabulary,
        context_length=message.context_length,
        eos_ids=tuple(message.eos_ids),
        vocabulary_fingerprint=message.vocabulary_fingerprint,
        weights_fingerprint=message.weights_fingerprint,
        support=message.support,
        passes=tuple(message.passes),
        runs_ahead=message.runs_ahead,
        drafts=message.drafts,
    )
    return PeerInfo(model, message.protocol)
