from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

from adasd.distill.generate import Answer, Generator, Question
from adasd.distill.sampling import inverse_cdf, sample
from tests.distill.conftest import EOS, tiny_llama

LIMIT = 20


def asked(count: int, temperature: float = 0.0, each: int = 1) -> list[Question]:
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(40, 300, (1 + index % 13,), generator=generator).tolist() for index in range(count)]
    return [
        Question("s", f"s/{index}", number, tuple(prompt), temperature, 7)
        for index, prompt in enumerate(prompts)
        for number in range(each)
    ]


def _generator(target: LlamaForCausalLM, slots: int) -> Generator:
    return Generator(target, EOS, slots=slots, limit=LIMIT, length=48)


def _by_name(answers: list[Answer]) -> dict[str, list[int]]:
    return {answer.question.name: answer.ids.tolist() for answer in answers}


def _greedy(model: LlamaForCausalLM, prompt: tuple[int, ...]) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=LIMIT, do_sample=False)
    return out[0, len(prompt) :].tolist()


def test_greedy_equals_transformers_row_by_row_with_refill(target: LlamaForCausalLM) -> None:
    questions = asked(23)
    answers = _by_name(list(_generator(target, slots=4).answers(questions)))
    plain = tiny_llama()
    assert answers == {question.name: _greedy(plain, question.prompt) for question in questions}
    assert len({len(ids) for ids in answers.values()}) > 1, "all answers end together: nothing was refilled in between"


def test_hidden_states_and_normalizers_are_those_of_one_full_pass(target: LlamaForCausalLM) -> None:
    answers = list(_generator(target, slots=3).answers(asked(5, temperature=0.9)))
    plain = tiny_llama()
    for answer in answers:
        ids = torch.tensor([[*answer.question.prompt, *answer.ids.tolist()]])
        rows = slice(len(answer.question.prompt) - 1, -1)
        hidden = plain.model(ids).last_hidden_state[0, rows]
        torch.testing.assert_close(answer.hidden.float(), hidden, atol=3e-3, rtol=3e-3)
        torch.testing.assert_close(answer.log_normalizers, plain.lm_head(hidden).logsumexp(-1), atol=1e-4, rtol=1e-4)


def test_a_sampled_answer_does_not_depend_on_its_company(target: LlamaForCausalLM) -> None:
    questions = asked(9, temperature=1.0, each=2)
    generator = _generator(target, slots=5)
    together = _by_name(list(generator.answers(questions)))
    alone = _by_name([answer for question in questions[::-1] for answer in generator.answers([question])])
    assert together == alone
    assert together["s/3#0"] != together["s/3#1"]


def test_inverse_cdf_takes_the_first_index_above_and_never_one_without_weight() -> None:
    weights = torch.zeros(4, 700)
    weights[0, [3, 500]] = torch.tensor([1.0, 3.0])
    weights[1, 699] = 2.0
    weights[2, [0, 255, 256]] = 1.0
    weights[3, [10, 300, 400]] = torch.tensor([2.0, 1.0, 1.0])
    for uniform, expected in (
        (0.0, [3, 699, 0, 10]),
        (0.26, [500, 699, 0, 10]),
        (0.55, [500, 699, 255, 300]),
        (0.999999, [500, 699, 256, 400]),
    ):
        found = inverse_cdf(weights, torch.full((4,), uniform, dtype=torch.float64))
        assert found.tolist() == expected


def test_samples_follow_the_softmax_at_each_rows_temperature() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.1])
    uniforms = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    for temperature in (0.5, 1.3):
        drawn = sample(logits.repeat(4000, 1), torch.full((4000,), temperature), uniforms)
        expected = torch.softmax(logits / temperature, -1) * 4000
        assert (torch.bincount(drawn, minlength=5) - expected).abs().max() < 2, "a grid of uniforms leaves no chance"
    assert sample(logits.repeat(2, 1), torch.tensor([0.0, 0.0]), uniforms[[0, -1]]).tolist() == [2, 2]


def test_it_stops_before_the_step_at_which_it_is_told_to(target: LlamaForCausalLM) -> None:
    answers = iter((False, False, True))
    found = list(_generator(target, slots=2).answers(asked(8), lambda: next(answers)))
    assert all(len(answer.ids) <= 2 for answer in found)
    assert next(answers, None) is None
