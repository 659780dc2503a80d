"""Plans for blocks, and how they go on, to protobuf messages and back."""

from __future__ import annotations

import math
from dataclasses import replace

from adasd.core.copying import copying_for
from adasd.core.costs import MAX_ROWS, Constant, CostProfile
from adasd.core.course import Course
from adasd.core.errors import InvalidRequest
from adasd.core.marginal import Marginal
from adasd.core.stopping import AdaSDStopping, Fixed, StoppingRule, stopping_rule
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
    if worth is not None:
        _check_window(message.max_candidates, "plan")
    return DraftPlan(message.max_candidates, message.entropy_threshold, message.coupled, worth)


def encode_course(course: Course) -> verifier_pb2.Course:
    """Of a held one."""
    copying = None
    if course.copying is not None:
        copying = verifier_pb2.Copying(eos_ids=sorted(course.copying.eos_ids))
    return verifier_pb2.Course(
        stopping=_named(course.stopping),
        max_candidates=course.stopping.most,
        limit=course.limit,
        rounds=course.rounds,
        costs=_encode_all_costs(course.stopping.costs()) if isinstance(course.stopping, Marginal) else None,
        copying=copying,
    )


def _named(rule: StoppingRule) -> str:
    match rule:
        case Fixed():
            return "fixed"
        case AdaSDStopping():
            return "adasd"
        case Marginal():
            return "marginal"
        case _:
            raise InvalidRequest("a course is of a rule that drafts", "course.stopping")


def decode_course(message: verifier_pb2.Course, coupled: bool) -> Course:
    """coupled: as the plan has it. Raises InvalidRequest."""
    rule = _decode_rule(message)
    copying = copying_for(rule, frozenset(message.copying.eos_ids), message.HasField("copying"))
    return Course(rule, message.limit, coupled, copying, message.rounds)


def _decode_rule(message: verifier_pb2.Course) -> StoppingRule:
    if message.stopping != "marginal":
        return stopping_rule(message.stopping, message.max_candidates)
    if not message.HasField("costs"):
        raise InvalidRequest("a course of marginal says what rounds cost", "course.costs")
    _check_window(message.max_candidates, "course")
    costs = replace(
        _decode_costs(message.costs),
        copied=tuple(message.costs.copied),
        reading=message.costs.reading,
        joined=tuple(message.costs.joined),
    )
    return stopping_rule(message.stopping, message.max_candidates, Constant(costs))


def _check_window(candidates: int, place: str) -> None:
    if candidates >= MAX_ROWS:
        raise InvalidRequest(
            f"a rule that weighs costs has at most {MAX_ROWS - 1} candidates", f"{place}.max_candidates"
        )


def _encode_all_costs(costs: CostProfile) -> common_pb2.CostProfile:
    message = _encode_costs(costs)
    message.copied.extend(costs.copied)
    message.joined.extend(costs.joined)
    message.reading = costs.reading
    return message


def _encode_costs(costs: CostProfile) -> common_pb2.CostProfile:
    return common_pb2.CostProfile(
        version=costs.version, fixed=costs.fixed, draft=costs.draft, verify=costs.verify, commit=costs.commit
    )


def _decode_costs(message: common_pb2.CostProfile) -> CostProfile:
    return CostProfile(message.version, message.fixed, message.draft, tuple(message.verify), message.commit)


def _encode_worth(worth: Worth) -> common_pb2.Worth:
    costs = _encode_costs(worth.costs)
    return common_pb2.Worth(acceptance=worth.acceptance, mean=worth.mean, rate=worth.rate, costs=costs)


def _decode_worth(message: common_pb2.Worth) -> Worth:
    return Worth(tuple(message.acceptance), message.mean, message.rate, _decode_costs(message.costs))
