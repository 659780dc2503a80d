"""What a user would pick instead: transformers' own assisted generation on the same pair, in this process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from adasd.cli.report import Answer


class Transformers:
    """`generate` of transformers with and without `assistant_model`, on the models of two folders."""

    def __init__(self, target: Path, draft: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from adasd.runtime.student import load_student

        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(target)
        self._target: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self._draft = load_student(draft, target)

    def answer(
        self, method: str, index: int, prompt: str, max_tokens: int, temperature: float, assisted: bool
    ) -> Answer:
        """One greedy or sampled answer."""
        messages = [{"role": "user", "content": prompt}]
        inputs: Any = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        options: dict[str, Any] = {"max_new_tokens": max_tokens, "do_sample": temperature > 0}
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        options |= {"assistant_model": self._draft} if assisted else {}
        self._torch.manual_seed(index)
        begin = time.perf_counter()
        with self._torch.inference_mode():
            output = self._target.generate(**inputs, **options)
        seconds = time.perf_counter() - begin
        return Answer(method, index, output.shape[1] - inputs["input_ids"].shape[1], seconds)
