"""Small tokenizers of both families, and one that speaks the toy model's bytes."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import Prepend, Replace, Sequence

from adasd.runtime.toy_tokenizer import toy_tokenizer

IM_START, IM_END = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "  def f(x):\n    return x + 1\n",
    "naïve café 你好 😀🏽 hello",
]


def byte_level() -> Tokenizer:
    """BPE over bytes, as GPT-2, Llama 3 and Qwen have it: all bytes, some merges, three special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(token, special=True, normalized=False) for token in ("<|end|>", IM_START, IM_END)]
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=specials,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """Pieces with a space marker and bytes to fall back to, as Llama 2 has it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "a", "b", "c", ".", "é", "\ufffd", "▁a", "▁b", "ab", "▁ab"]
    merges = [("▁", "a"), ("▁", "b"), ("▁", "▁"), ("a", "b"), ("▁", "ab")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = Sequence([Prepend("▁"), Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(parts)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in pieces[:3]])
    return tokenizer


def metaspace() -> Tokenizer:
    """Pieces with a space marker; only the very first piece of a text gets one of its own."""
    pieces = ["<unk>", "<s>", "▁", "a", "b", "▁a", "▁b"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return tokenizer


def word_piece() -> Tokenizer:
    pieces = ["[UNK]", "[SEP]", "un", "##believ", "##able", ".", "do", "n't", "so"]
    tokenizer = Tokenizer(models.WordPiece(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    tokenizer.add_special_tokens([AddedToken("[SEP]", special=True, normalized=False)])
    return tokenizer


FAMILIES = {
    "byte-level": byte_level(),
    "sentencepiece": sentencepiece(),
    "metaspace": metaspace(),
    "word-piece": word_piece(),
    "toy": toy_tokenizer(257),
}


def write_model(folder: Path, tokenizer: Tokenizer, **config: object) -> Path:
    """A model folder with this tokenizer; ChatML unless `config` says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": IM_END, "chat_template": TEMPLATE, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
