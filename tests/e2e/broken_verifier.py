"""The verifier with an acceptance that is too generous: what the distribution test must see."""

from __future__ import annotations

import runpy

from adasd.core import acceptance
from adasd.core.draws import DrawKey, Draws
from adasd.core.types import Evidence


def too_generous(evidence: Evidence, key: DrawKey, draws: Draws) -> bool:
    return draws.bernoulli(key, min(1.0, 3.0 * evidence.p / evidence.q))


acceptance.exact_test = too_generous
runpy.run_module("services.verifier", run_name="__main__")
