"""Plans for blocks, and how they go on, to protobuf messages and back."""

from __future__ import annotations

import math

from adasd.core.costs import MAX_ROWS, CostProfile
from adasd.core.course import Course
from adasd.core.errors import InvalidRequest
from adasd.core.stopping import AdaSDStopping, Fixed, stopping_rule
from adasd.core.types import DraftPlan
from adasd.core.worth import Worth
from adasd.rpc.v1 import common_pb2, verifier_pb2


def encode_plan(plan: DraftPlan) -> common_pb2.DraftPlan:
    return common_pb2.DraftPlan(
        max_candidates=plan.max_candidates,
        entropy_threshold=plan.entropy_threshold,
        coupled=plan.coupled,
        worth=None if plan.worth is None else _encode_worth(plan.worth),
    )


def decode_plan(message: common_pb2.DraftPlan) -> DraftPlan:
    """Raises InvalidRequest, naming the field."""
    worth = _decode_worth(message.worth) if message.HasField("worth") else None
    if math.isnan(message.entropy_threshold):
        raise InvalidRequest("plan.entropy_threshold must be a number", "plan.entropy_threshold")
    if worth is not None and message.max_candidates >= MAX_ROWS:
        raise InvalidRequest(f"a plan that weighs costs has at most {MAX_ROWS - 1} candidates", "plan.max_candidates")
    return DraftPlan(message.max_candidates, message.entropy_threshold, message.coupled, worth)


def encode_course(course: Course) -> verifier_pb2.Course:
    match course.stopping:
        case Fixed(candidates):
            stopping, most = "fixed", candidates
        case AdaSDStopping(window):
            stopping, most = "adasd", window
        case _:
            raise InvalidRequest("a course is of a rule that weighs no costs", "course.stopping")
    return verifier_pb2.Course(stopping=stopping, max_candidates=most, limit=course.limit, rounds=course.rounds)


def decode_course(message: verifier_pb2.Course, coupled: bool) -> Course:
    """coupled: as the plan has it. Raises InvalidRequest."""
    return Course(stopping_rule(message.stopping, message.max_candidates), message.limit, coupled, message.rounds)


def _encode_worth(worth: Worth) -> common_pb2.Worth:
    costs = common_pb2.CostProfile(
        version=worth.costs.version,
        fixed=worth.costs.fixed,
        draft=worth.costs.draft,
        verify=worth.costs.verify,
        commit=worth.costs.commit,
    )
    return common_pb2.Worth(acceptance=worth.acceptance, mean=worth.mean, rate=worth.rate, costs=costs)


def _decode_worth(message: common_pb2.Worth) -> Worth:
    costs = message.costs
    profile = CostProfile(costs.version, costs.fixed, costs.draft, tuple(costs.verify), costs.commit)
    return Worth(tuple(message.acceptance), message.mean, message.rate, profile)
