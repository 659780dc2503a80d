"""The target as the teacher: loaded, its template, its end tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from adasd.core.errors import InvalidRequest
from adasd.distill.construct import head_weight
from adasd.distill.prompts import Prompt
from adasd.runtime.checkpoint import torch_device


class Teacher:
    """The target in `folder`. `head` and `model` stay as they are; `fresh_model` is for a generator that packs it."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        if not (folder / "config.json").is_file():
            raise InvalidRequest(f"no model in {folder}: it has no config.json", "target")
        self._folder, self._device = folder, torch_device(device)
        self.tokenize = TeacherTokenizer(folder)
        self.model = self.fresh_model()
        self.name = folder.resolve().name

    def fresh_model(self) -> PreTrainedModel:
        """The target in float32, for inference."""
        loaded: Any = AutoModelForCausalLM.from_pretrained(self._folder, dtype=torch.float32, local_files_only=True)
        model: PreTrainedModel = loaded.eval().requires_grad_(False).to(self._device)
        return model

    @property
    def head(self) -> torch.Tensor:
        """[vocabulary, width]."""
        return head_weight(self.model)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a text: the generation config's, else the config's."""
        ids = getattr(self.model.generation_config, "eos_token_id", None)
        ids = self.model.config.eos_token_id if ids is None else ids
        return (ids,) if isinstance(ids, int) else tuple(ids or ())


class TeacherTokenizer:
    """From a prompt to the ids the target in `folder` is given; without a chat template the turns are lines."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def opening(self, words: str) -> tuple[int, ...]:
        """What comes before a user's first words. Raises InvalidRequest where no chat template says so."""
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("the target has no chat template, which tells where a user's words begin", "target")
        text: str = self._tokenizer.apply_chat_template([{"role": "user", "content": words}], tokenize=False)
        if words not in text:
            raise InvalidRequest("the target's chat template changes what a user says", "target")
        return tuple(self._tokenizer(text[: text.index(words)], add_special_tokens=False).input_ids)

    def text(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def __call__(self, prompt: Prompt) -> list[int]:
        if self._tokenizer.chat_template is None:
            plain: list[int] = self._tokenizer("\n".join(prompt.turns) + "\n").input_ids
            return plain
        ids: list[int] = self._tokenizer.apply_chat_template(
            prompt.messages, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        return ids
