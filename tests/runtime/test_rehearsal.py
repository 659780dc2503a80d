"""What is done before the first request, and that nothing is left of it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from adasd.kernels import device, drawing
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.toy_tokenizer import write_toy_files
from tests.runtime.models import CONTEXT, VOCABULARY, model


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "gives no numbers"])
def test_a_model_has_decoded_once_it_is_loaded_and_holds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: bool
) -> None:
    """Of all that has to be compiled; of one that is no good its first request hears, not whoever waits for the service
    to be ready."""
    used: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: used.append(name) or function(*given)  # type: ignore[func-returns-value]

    for place, name in ((drawing, "draw"), (drawing, "drawn"), (device, "evidence_of")):
        monkeypatch.setattr(place, name, noted(name, getattr(place, name)))
    llama = deepcopy(model("llama"))
    if not sound:
        with torch.no_grad():
            llama.get_input_embeddings().weight.fill_(float("nan"))
    llama.save_pretrained(tmp_path)
    write_toy_files(tmp_path, VOCABULARY, CONTEXT)
    runtime, _ = load_model(str(tmp_path), "target", RuntimeOptions())
    assert (used, runtime.allocated) == (["drawn", "evidence_of", "draw"] if sound else [], 0)
