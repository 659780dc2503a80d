from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from adasd.core.errors import InvalidRequest
from adasd.distill.checkpoint import Progress
from adasd.distill.construct import frequent_ids, student_from, student_of
from adasd.distill.evaluate import pooled, score
from adasd.distill.generate import Generator, Question
from adasd.distill.losses import KullbackLeibler, TotalVariation
from adasd.distill.train import Trainer, TrainingPlan
from adasd.distill.trees import PACKED_ATTENTION, Tree, trees_of
from adasd.runtime.student import TrimmedLlamaForCausalLM
from tests.distill.conftest import EOS, tiny_llama

PLAN = TrainingPlan(positions=20_000, rate=3e-3, batch=200, every=7, warmup=0.1)


@pytest.fixture(scope="module")
def trees() -> list[Tree]:
    torch.manual_seed(9)
    prompts = [tuple(torch.randint(40, 300, (1 + index % 9,)).tolist()) for index in range(40)]
    questions = [
        Question("s", f"s/{index}", number, prompt, temperature, 1)
        for index, prompt in enumerate(prompts)
        for number, temperature in enumerate((0.0, 0.7, 1.0))
    ]
    return trees_of(Generator(tiny_llama(), EOS, slots=32, limit=24, length=48).answers(questions))


def _student(target: LlamaForCausalLM, trees: Sequence[Tree]) -> TrimmedLlamaForCausalLM:
    texts = [answer.ids.tolist() for tree in trees for answer in tree.answers]
    return student_of(target, (0, 3), frequent_ids(texts, 200, EOS, 300))


def _train(
    target: LlamaForCausalLM, trees: Sequence[Tree], plan: TrainingPlan, checkpoint: Path
) -> tuple[Trainer, list[float]]:
    student, losses = _student(target, trees), list[float]()
    trainer = Trainer(student, trees, plan, checkpoint)
    trainer.run(dict, lambda progress, loss: losses.append(loss))
    return trainer, losses


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in trainer.weights.values()])


def test_training_brings_the_student_nearer_to_the_target(
    target: LlamaForCausalLM, trees: list[Tree], tmp_path: Path
) -> None:
    student = _student(target, trees)
    trainer = Trainer(student, trees, PLAN, tmp_path / "c")
    losses: list[float] = []

    def acceptance() -> dict[str, float]:
        return {"acceptance": pooled(score(student, target.lm_head.weight, trees)).acceptance}

    curve = trainer.run(acceptance, lambda progress, loss: losses.append(loss)).curve
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert curve[-1]["acceptance"] > curve[0]["acceptance"] + 0.2
    assert curve[-1]["positions"] >= PLAN.positions


def test_killed_and_resumed_ends_with_the_same_weights(
    target: LlamaForCausalLM, trees: list[Tree], tmp_path: Path
) -> None:
    plan = replace(PLAN, positions=8_000, final_share=0.3)
    whole, _ = _train(target, trees, plan, tmp_path / "whole")
    for steps in (5, 11, 20):  # each run is killed in the middle of a step
        interrupted = Trainer(_student(target, trees), trees, plan, tmp_path / "cut")
        with pytest.raises(KeyboardInterrupt):
            interrupted.run(dict, _killer(steps))
    resumed, _ = _train(target, trees, plan, tmp_path / "cut")
    assert torch.equal(_weights(resumed), _weights(whole))
    assert [point["positions"] for point in resumed.progress.curve] == [
        point["positions"] for point in whole.progress.curve
    ]


def _killer(steps: int) -> Callable[[Progress, float], None]:
    def report(progress: Progress, loss: float) -> None:
        if progress.step >= steps:
            raise KeyboardInterrupt

    return report


def test_workers_share_a_step_and_change_nothing_but_rounding(
    target: LlamaForCausalLM, trees: list[Tree], tmp_path: Path
) -> None:
    plan = replace(PLAN, positions=500)
    one, losses = _train(target, trees, plan, tmp_path / "one")
    three, shared = _train(target, trees, replace(plan, workers=3), tmp_path / "three")
    assert shared == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(_weights(three), _weights(one), atol=1e-3, rtol=1e-3)


def test_only_layers_and_norm_learn(target: LlamaForCausalLM, trees: list[Tree], tmp_path: Path) -> None:
    trainer, _ = _train(target, trees, replace(PLAN, positions=500), tmp_path / "c")
    assert all(name.startswith(("model.layers.", "model.norm.")) for name in trainer.weights)
    assert torch.equal(target.lm_head.weight, tiny_llama().lm_head.weight)


def test_scores_are_those_of_full_passes_at_each_temperature(target: LlamaForCausalLM, trees: list[Tree]) -> None:
    student = _student(target, trees)
    answers = [answer for tree in trees[:6] for answer in tree.answers if answer.question.temperature == 0.7]
    rows = [
        (torch.tensor([[*a.question.prompt, *a.ids.tolist()]]), slice(len(a.question.prompt) - 1, -1)) for a in answers
    ]
    overlap = [
        torch.minimum(
            (target(ids).logits[0, at] / 0.7).softmax(-1), (student(ids).logits[0, at] / 0.7).softmax(-1)
        ).sum(-1)
        for ids, at in rows
    ]
    student.set_attn_implementation(PACKED_ATTENTION)
    found = score(student, target.lm_head.weight, trees[:6])
    assert found["s", 0.7].acceptance == pytest.approx(torch.cat(overlap).mean().item(), abs=2e-3)
    assert found["s", 0.0].acceptance == found["s", 0.0].agreement
    assert found["s", 0.7].positions == sum(len(answer.ids) for answer in answers)


def test_losses_by_hand() -> None:
    target, student = torch.tensor([[0.5, 0.2], [0.1, 0.8]]).log(), torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    assert TotalVariation()(target, student).item() == pytest.approx(1 - (0.7 + 0.2) / 2)
    by_hand = [0.2 * torch.tensor(0.4).log(), 0.1 * torch.tensor(1 / 9).log() + 0.8 * torch.tensor(8.0).log()]
    assert KullbackLeibler()(target, student).item() == pytest.approx(float(sum(by_hand)) / 2)


def test_a_plan_without_an_end_or_with_an_unknown_loss_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="needs an end"):
        TrainingPlan()
    with pytest.raises(InvalidRequest, match="unknown loss 'mse'"):
        TrainingPlan(positions=1, loss="mse")


def test_frequent_ids_keep_what_must_be_kept() -> None:
    found = frequent_ids([[7, 7, 9, 9, 9, 4]], 4, {11}, 20)
    assert found.tolist() == [4, 7, 9, 11]
    assert frequent_ids([[7]], 3, {11}, 20).tolist() == [0, 7, 11]
    assert frequent_ids([[7]], 4, {11}, 20, [15, 7]).tolist() == [0, 7, 11, 15]


def test_layers_the_target_lacks_are_refused(target: LlamaForCausalLM) -> None:
    with pytest.raises(InvalidRequest, match="some of the target's 4"):
        student_of(target, (0, 4), torch.arange(8, dtype=torch.int32))


def test_a_student_of_all_layers_and_ids_is_the_target(target: LlamaForCausalLM, trees: list[Tree]) -> None:
    student = student_of(target, (0, 1, 2, 3), torch.arange(300, dtype=torch.int32))
    ids = torch.tensor([trees[0].prompt])
    torch.testing.assert_close(student(ids).logits, target(ids).logits, atol=1e-5, rtol=1e-5)
    student.set_attn_implementation(PACKED_ATTENTION)
    assert pooled(score(student, target.lm_head.weight, trees[:5])).acceptance == pytest.approx(1, abs=5e-3)


@torch.inference_mode()
def said(student: TrimmedLlamaForCausalLM) -> torch.Tensor:
    logits: torch.Tensor = student.eval()(input_ids=torch.arange(40, 60)[None]).logits
    return logits


def test_a_student_with_more_layers_begins_as_the_earlier_one_and_learns_with_all_of_them(
    target: LlamaForCausalLM, trees: list[Tree], tmp_path: Path
) -> None:
    ids = torch.arange(300, dtype=torch.int32)
    earlier = student_of(target, (0, 3), ids)
    larger = student_from(earlier, target, ids, begun=(0, 3), layers=(0, 2, 3))
    assert larger.config.num_hidden_layers == 3
    torch.testing.assert_close(said(larger), said(earlier))
    new = {name: weights.clone() for name, weights in larger.model.layers[1].named_parameters()}
    Trainer(larger, trees, TrainingPlan(positions=900, batch=300), tmp_path / "training.pt").run(dict)
    moved = [name for name, weights in larger.model.layers[1].named_parameters() if not torch.equal(weights, new[name])]
    assert len(moved) == len(new)


def test_a_student_with_fewer_layers_keeps_those_it_has(target: LlamaForCausalLM) -> None:
    ids = torch.arange(300, dtype=torch.int32)
    smaller = student_from(student_of(target, (0, 1, 3), ids), target, ids, begun=(0, 1, 3), layers=(0, 3))
    torch.testing.assert_close(said(smaller), said(student_of(target, (0, 3), ids)))


def test_layers_that_an_earlier_student_did_not_begin_as_are_refused(target: LlamaForCausalLM) -> None:
    ids = torch.arange(300, dtype=torch.int32)
    earlier = student_of(target, (0, 3), ids)
    with pytest.raises(InvalidRequest, match="began as 2 layers") as refusal:
        student_from(earlier, target, ids, begun=(0, 1, 3), layers=(0, 3))
    assert refusal.value.param == "layers"
    with pytest.raises(InvalidRequest, match="target's 4"):
        student_from(earlier, target, ids, begun=(0, 3), layers=(0, 9))
