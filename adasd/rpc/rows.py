"""Rows as bytes: one tag, then what the row is made of. Everything is little-endian.

point   tag 0, token id u32
sparse  tag 1, count u32, ids u32 [count], weights u16 [count]; the weights sum to 2^16
dense   tag 2, weights u24 [vocabulary]; they sum to 2^24

A row with a single id of positive weight is a point whichever way it came about, so u16 and u24 hold every weight.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from adasd.core.errors import InvalidDraft
from adasd.core.rows import DENSE_TOTAL, SPARSE_TOTAL, DenseRow, PointRow, SparseRow
from adasd.core.types import IntArray, Row

POINT, SPARSE, DENSE = 0, 1, 2
DENSE_WEIGHT_BYTES = 3
_POINT = struct.Struct("<BI")
_SPARSE_HEAD = struct.Struct("<BI")
_SPARSE_ENTRY_BYTES = 6


@dataclass(frozen=True)
class OpaqueRow:
    """A row as it came off the wire: forwarded as it is, decoded only if somebody looks inside."""

    encoded: bytes

    @cached_property
    def _row(self) -> Row:
        return decode_row(self.encoded)

    @property
    def total(self) -> int:
        return self._row.total

    @property
    def ids(self) -> IntArray:
        return self._row.ids

    @property
    def weights(self) -> IntArray:
        return self._row.weights

    def weight(self, token: int) -> int:
        return self._row.weight(token)


def encode_row(row: Row) -> bytes:
    """The bytes of a row; an opaque one is forwarded untouched."""
    if isinstance(row, OpaqueRow):
        return row.encoded
    kept = row.weights > 0
    count = int(np.count_nonzero(kept))
    if count == 1:
        return _POINT.pack(POINT, int(row.ids[kept][0]))
    if isinstance(row, DenseRow):
        return bytes([DENSE]) + _pack_dense(row.weights)
    assert row.total == SPARSE_TOTAL
    if count == len(kept):  # as a draft's rows are
        return _pack_sparse(row.ids, row.weights)
    return _pack_sparse(row.ids[kept], row.weights[kept])


def _pack_dense(weights: IntArray) -> bytes:
    words = weights.astype("<u4").view(np.uint8).reshape(-1, 4)
    return words[:, :DENSE_WEIGHT_BYTES].tobytes()


def _pack_sparse(ids: IntArray, weights: IntArray) -> bytes:
    return _SPARSE_HEAD.pack(SPARSE, len(ids)) + ids.astype("<u4").tobytes() + weights.astype("<u2").tobytes()


def decode_row(encoded: bytes) -> Row:
    """The inverse of `encode_row`. Raises InvalidDraft for bytes that are no row.

    Only the shape is looked at here; sums, order and range are `adasd.core.rows.check_row`'s.
    """
    reader = _READERS.get(encoded[0]) if encoded else None
    if reader is None:
        raise InvalidDraft(f"a row must begin with one of the tags {sorted(_READERS)}")
    return reader(encoded)


def _read_point(encoded: bytes) -> Row:
    if len(encoded) != _POINT.size:
        raise InvalidDraft(f"a point row has {_POINT.size} bytes, got {len(encoded)}")
    return PointRow(_POINT.unpack(encoded)[1])


def _read_sparse(encoded: bytes) -> Row:
    if len(encoded) < _SPARSE_HEAD.size:
        raise InvalidDraft(f"a sparse row has at least {_SPARSE_HEAD.size} bytes, got {len(encoded)}")
    count = _SPARSE_HEAD.unpack_from(encoded)[1]
    expected = _SPARSE_HEAD.size + count * _SPARSE_ENTRY_BYTES
    if count == 0 or len(encoded) != expected:
        raise InvalidDraft(f"a sparse row of {count} ids has {expected} bytes, got {len(encoded)}")
    ids = np.frombuffer(encoded, "<u4", count, _SPARSE_HEAD.size).astype(np.int64)
    weights = np.frombuffer(encoded, "<u2", count, _SPARSE_HEAD.size + 4 * count).astype(np.int64)
    return SparseRow(ids, weights, SPARSE_TOTAL)


def _read_dense(encoded: bytes) -> Row:
    count, rest = divmod(len(encoded) - 1, DENSE_WEIGHT_BYTES)
    if count == 0 or rest:
        raise InvalidDraft(f"a dense row has {DENSE_WEIGHT_BYTES} bytes an id, got {len(encoded) - 1}")
    words = np.zeros((count, 4), dtype=np.uint8)
    words[:, :DENSE_WEIGHT_BYTES] = np.frombuffer(encoded, np.uint8, offset=1).reshape(count, DENSE_WEIGHT_BYTES)
    return DenseRow(words.view("<u4").ravel().astype(np.int64), DENSE_TOTAL)


_READERS: dict[int, Callable[[bytes], Row]] = {POINT: _read_point, SPARSE: _read_sparse, DENSE: _read_dense}
