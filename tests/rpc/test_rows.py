"""Rows on the wire: nothing lost, nothing malformed let in, small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adasd.core.errors import InvalidDraft
from adasd.core.rows import DENSE_TOTAL, SPARSE_TOTAL, DenseRow, PointRow, SparseRow, dense_row, sparse_row
from adasd.core.types import Row
from adasd.rpc.rows import OpaqueRow, decode_row, encode_row

ids = st.integers(0, 2**32 - 1)


@st.composite
def sparse_rows(draw: st.DrawFn) -> Row:
    chosen = draw(st.lists(ids, min_size=1, max_size=40, unique=True))
    shares = draw(st.lists(st.floats(0.001, 1.0), min_size=len(chosen), max_size=len(chosen)))
    return sparse_row(np.array(chosen, dtype=np.int64), np.array(shares) / sum(shares))


@st.composite
def dense_rows(draw: st.DrawFn) -> Row:
    shares = draw(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=60).filter(lambda shares: sum(shares) > 0.01))
    return dense_row(np.array(shares) / sum(shares))


def masses(row: Row) -> dict[int, float]:
    return {int(i): int(w) / row.total for i, w in zip(row.ids, row.weights, strict=True) if w > 0}


@given(st.one_of(ids.map(PointRow), sparse_rows(), dense_rows()))
def test_a_row_survives_the_wire(row: Row) -> None:
    decoded = decode_row(encode_row(row))
    assert masses(decoded) == masses(row)
    assert encode_row(decoded) == encode_row(row)


@pytest.mark.parametrize(
    "row",
    [
        SparseRow(np.array([7]), np.array([SPARSE_TOTAL])),
        SparseRow(np.array([3, 7]), np.array([0, SPARSE_TOTAL])),
        DenseRow(np.eye(9, dtype=np.int64)[7] * DENSE_TOTAL),
    ],
)
def test_a_row_with_one_id_is_a_point(row: Row) -> None:
    """Its weight would not fit into the 16 or 24 bits of the others."""
    assert decode_row(encode_row(row)) == PointRow(7)


def test_512_entries_take_at_most_3200_bytes() -> None:
    row = sparse_row(np.arange(512) * 297, np.full(512, 1 / 512))
    assert len(row.ids) == 512
    assert len(encode_row(row)) <= 3200


def test_an_opaque_row_is_forwarded_untouched_and_can_be_looked_into() -> None:
    row = sparse_row(np.array([5, 9]), np.array([0.25, 0.75]))
    opaque = OpaqueRow(encode_row(row))
    assert encode_row(opaque) is opaque.encoded
    assert encode_row(OpaqueRow(b"anything")) == b"anything"
    assert (opaque.total, opaque.weight(9), opaque.weight(6)) == (SPARSE_TOTAL, 49152, 0)
    assert (opaque.ids.tolist(), opaque.weights.tolist()) == ([5, 9], [16384, 49152])


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\x03\x00\x00\x00\x00",
        b"\xff",
        b"\x00",
        b"\x00\x01\x02\x03",
        b"\x00\x01\x02\x03\x04\x05",
        b"\x01\x01",
        b"\x01\x00\x00\x00\x00",
        b"\x01\x01\x00\x00\x00\x07\x00\x00\x00\x01",
        b"\x01\xff\xff\xff\xff" + bytes(60),
        b"\x02",
        b"\x02\x00\x00",
        b"\x02" + bytes(7),
    ],
)
def test_malformed_bytes_are_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidDraft):
        decode_row(encoded)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_row_or_are_refused(encoded: bytes) -> None:
    try:
        row = decode_row(encoded)
    except InvalidDraft:
        return
    assert len(row.ids) == len(row.weights) > 0
