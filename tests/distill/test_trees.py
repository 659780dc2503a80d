from __future__ import annotations

import torch
from transformers import LlamaForCausalLM

from adasd.distill.construct import student_of
from adasd.distill.evaluate import student_states
from adasd.distill.generate import Answer, Question
from adasd.distill.trees import PACKED_ATTENTION, Tree, batches, pack, trees_of


def _tree(key: str, prompt: int, lengths: list[int]) -> Tree:
    torch.manual_seed(len(key) + prompt)
    ids = tuple(torch.randint(3, 300, (prompt,)).tolist())
    answers = [
        Answer(
            Question("s", key, number, ids, 1.0, 0),
            torch.randint(3, 300, (length,), dtype=torch.int32),
            torch.randn(length, 32).half(),
            torch.randn(length),
        )
        for number, length in enumerate(lengths)
    ]
    return Tree(tuple(answers))


def test_packed_trees_read_every_answer_as_if_it_stood_alone(target: LlamaForCausalLM) -> None:
    student = student_of(target, (0, 3), torch.arange(200, dtype=torch.int32))
    trees = [_tree("a", 5, [4, 1, 7]), _tree("b", 1, [3]), _tree("c", 9, [2, 2])]
    alone = [
        student.model(torch.tensor([[*tree.prompt, *answer.ids.tolist()]])).last_hidden_state[
            0, len(tree.prompt) - 1 : -1
        ]
        for tree in trees
        for answer in tree.answers
    ]
    student.set_attn_implementation(PACKED_ATTENTION)
    packed = student_states(student, pack(trees, torch.device("cpu")))
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-4)


def test_trees_group_answers_by_prompt_whatever_their_order() -> None:
    trees = [_tree("a", 5, [4, 1, 7]), _tree("b", 1, [3])]
    answers = [answer for tree in trees for answer in tree.answers]
    assert trees_of(answers[::-1]) == trees_of(answers) == trees
    assert [tree.scored for tree in trees] == [12, 3]


def test_batches_keep_every_tree_once_in_order() -> None:
    trees = [_tree(str(index), 3, [2 + index % 4]) for index in range(20)]
    found = list(batches(trees, 14))
    assert [tree for batch in found for tree in batch] == trees
    assert all(sum(tree.size for tree in batch) >= 14 for batch in found[:-1])
