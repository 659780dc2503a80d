"""Draws must never change silently: a seed's text, and every replayed round, hangs on these bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from adasd.core.draws import GOLDEN_GAMMA, CounterDraws, DrawKey, Purpose, inverse_cdf, splitmix64
from adasd.core.types import IntArray


def ids(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (
            1234567,
            [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821],
        ),
    ],
)
def test_splitmix64_gives_the_published_sequence(seed: int, outputs: list[int]) -> None:
    """Token t takes output t + 1 of the reference generator seeded with the key."""
    assert splitmix64(seed, np.arange(len(outputs))).tolist() == outputs


def test_splitmix64_wraps_around() -> None:
    assert splitmix64(2**64 - 1, ids(0)).tolist() == splitmix64(GOLDEN_GAMMA - 1, ids(-1)).tolist()


def test_key_encoding() -> None:
    """Little-endian seed (8 bytes), choice (4), base (8), offset (4), purpose (1), then blake2b; top 53 bits count."""
    packed = bytes.fromhex("08070605040302010c0b0a0914131211100000001817161502")
    bits = int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") >> 11
    draws = CounterDraws(0x0102030405060708, 0x090A0B0C)
    assert draws.uniform(DrawKey(0x10111213_14, 0x15161718, Purpose.EMIT)) == (bits + 0.5) / 2**53


def test_known_draws() -> None:
    draws = CounterDraws(seed=42, choice=1)
    found = [draws.uniform(DrawKey(100, 3, purpose)) for purpose in (Purpose.DRAFT, Purpose.ACCEPT, Purpose.EMIT)]
    assert found == [0.4927711716832593, 0.8089532731518776, 0.9101224929387337]
    assert draws.gumbel_key(100) == 9764455454977433053
    noise = [2.6312290526408675, -0.32655974545805205, 0.5202815660823203]
    np.testing.assert_allclose(draws.gumbel(100, ids(0, 1, 49151)), noise, rtol=1e-12)


def test_purposes_keep_their_numbers() -> None:
    assert [(purpose.name, purpose.value) for purpose in Purpose] == [
        ("DRAFT", 0),
        ("ACCEPT", 1),
        ("EMIT", 2),
        ("GUMBEL", 3),
    ]


def test_bernoulli_compares_the_uniform() -> None:
    draws, key = CounterDraws(5), DrawKey(1, 2, Purpose.ACCEPT)
    uniform = draws.uniform(key)
    assert not draws.bernoulli(key, uniform)
    assert draws.bernoulli(key, math.nextafter(uniform, 1.0))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.integers(0, 2**20))
def test_keys_do_not_collide(seed: int, choice: int, base: int, offset: int) -> None:
    draws, key = CounterDraws(seed, choice), DrawKey(base, offset, Purpose.ACCEPT)
    others = [
        CounterDraws(seed ^ 1, choice).uniform(key),
        CounterDraws(seed, choice ^ 1).uniform(key),
        draws.uniform(DrawKey(base + 1, offset, Purpose.ACCEPT)),
        draws.uniform(DrawKey(base, offset + 1, Purpose.ACCEPT)),
        draws.uniform(DrawKey(base, offset, Purpose.DRAFT)),
    ]
    assert draws.uniform(key) == CounterDraws(seed, choice).uniform(key)
    assert draws.uniform(key) not in others
    assert len(set(others)) == len(others)


@dataclass(frozen=True, slots=True)
class ExtremeDraws(CounterDraws):
    """The same 64 bits for every key."""

    bits: int = 0

    def _bits(self, base: int, offset: int, purpose: Purpose) -> int:
        return self.bits


@pytest.mark.parametrize("bits", [0, 1, 2**11, 2**63, 2**64 - 2**11, 2**64 - 1])
def test_uniform_lies_strictly_between_0_and_1(bits: int) -> None:
    draws, key = ExtremeDraws(0, bits=bits), DrawKey(0, 0, Purpose.EMIT)
    assert 0.0 < draws.uniform(key) < 1.0
    assert draws.bernoulli(key, 1.0)
    assert not draws.bernoulli(key, 0.0)
    assert draws.categorical(key, ids(0, 1, 0)) == 1


@dataclass(frozen=True, slots=True)
class KeyedDraws(CounterDraws):
    """The same Gumbel key at every position."""

    key: int = 0

    def gumbel_key(self, position: int) -> int:
        return self.key


def inverse_splitmix64(output: int) -> int:
    """The key that gives token 0 these 64 bits."""
    mask = 2**64 - 1

    def unshift(value: int, by: int) -> int:
        result = value
        for _ in range(64 // by + 1):
            result = value ^ (result >> by)
        return result

    state = unshift(output, 31)
    state = unshift(state * pow(0x94D049BB133111EB, -1, 2**64) & mask, 27)
    state = unshift(state * pow(0xBF58476D1CE4E5B9, -1, 2**64) & mask, 30)
    return (state - GOLDEN_GAMMA) & mask


@pytest.mark.parametrize("bits", [0, 2**64 - 1])
def test_gumbel_is_finite_at_extreme_bits(bits: int) -> None:
    key = inverse_splitmix64(bits)
    assert splitmix64(key, ids(0)).tolist() == [bits]

    assert math.isfinite(KeyedDraws(0, key=key).gumbel(5, ids(0))[0])


def test_uniforms_and_gumbels_have_their_distributions() -> None:
    draws = CounterDraws(seed=7)
    uniforms = [draws.uniform(DrawKey(base, 0, Purpose.ACCEPT)) for base in range(4000)]
    assert kstest(uniforms, "uniform").pvalue > 1e-3
    assert kstest(draws.gumbel(5, np.arange(20_000)), "gumbel_r").pvalue > 1e-3
    across = np.concatenate([draws.gumbel(position, ids(17)) for position in range(4000)])
    assert kstest(across, "gumbel_r").pvalue > 1e-3


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8).filter(any),
    st.one_of(st.sampled_from([2.0**-54, 0.5, 1.0 - 2.0**-53]), st.floats(0.0, 1.0, exclude_max=True)),
    st.sampled_from([1, 1.0, 1e-320, 1e300, 0.1]),
)
def test_inverse_cdf(weights: list[int], uniform: float, unit: float) -> None:
    """The index whose share of [0, 1) holds the uniform; never one of weight 0, whatever the unit."""
    scaled = np.array(weights) * unit
    index = inverse_cdf(scaled, uniform)
    assert scaled[index] > 0
    if unit == 1:
        assert sum(weights[:index]) <= uniform * sum(weights) <= sum(weights[: index + 1])


def test_inverse_cdf_at_both_ends() -> None:
    weights = np.array([0.0, 0.0, 0.1, 0.0, 0.7, 0.0])
    assert inverse_cdf(weights, 0.0) == inverse_cdf(weights, 2.0**-54) == 2
    assert inverse_cdf(weights, 1.0 - 2.0**-53) == inverse_cdf(weights, math.nextafter(1.0, 0.0)) == 4
    assert inverse_cdf(ids(0, 1, 1, 0), 0.5) == 2
