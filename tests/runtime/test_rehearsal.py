"""What is done before the first request, and that nothing is left of it."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from adasd.kernels import loops
from adasd.runtime.loading import RuntimeOptions, load_model
from adasd.runtime.toy_tokenizer import write_toy_files
from tests.runtime.models import CONTEXT, VOCABULARY, model


@pytest.mark.parametrize("sound", [True, False], ids=["sound", "gives no numbers"])
def test_a_model_has_decoded_once_it_is_loaded_and_holds_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sound: bool
) -> None:
    """Of one that is no good its first request hears, not whoever waits for the service to be ready."""
    drawn = list[float]()
    draw = loops.draw
    monkeypatch.setattr(loops, "draw", lambda *given: drawn.append(given[-1]) or draw(*given))  # type: ignore[func-returns-value]
    llama = deepcopy(model("llama"))
    if not sound:
        with torch.no_grad():
            llama.get_input_embeddings().weight.fill_(float("nan"))
    llama.save_pretrained(tmp_path)
    write_toy_files(tmp_path, VOCABULARY, CONTEXT)
    runtime, _ = load_model(str(tmp_path), "target", RuntimeOptions())
    assert (len(drawn), runtime.allocated) == (int(sound), 0)
