"""Whether several ranks answer as one process does, for a model of yours:

    torchrun --nproc-per-node 3 -m services.verifier.compare TARGET DRAFT --rounds 20

Rank 0 holds the whole model besides its share. Seeded texts under several acceptance rules must be the same, token by
token, and all logits equal within `--tolerance` of the largest. Where texts part, the line says what decided it and how
closely: a margin above ten times the logit error is no rounding. Ends with 1 if anything is amiss.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from adasd.core.errors import AdasdError
from adasd.runtime.comparison import Compared, Comparison
from adasd.runtime.loading import RuntimeOptions, join_ranks, load_model
from adasd.runtime.ranks import Ranks
from adasd.runtime.replica import Replica

PROMPTS = (
    "The capital of France is",
    "Why is the sky blue?",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "List three fruits and their colours:",
    "The history of the printing press begins",
    "Translate to German: good morning",
    "2, 3, 5, 7, 11, 13,",
    "A recipe for pancakes: first,",
    "Dear Sir or Madam,",
)
ROUNDING = 10.0
"""Times the logit error; a decision as close as that may fall either way."""


def arguments() -> Namespace:
    parser = ArgumentParser(prog="services.verifier.compare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path, help="model folder")
    parser.add_argument("draft", help="model folder, or toy:... for a toy")
    parser.add_argument("--prompts", type=Path, help="a prompt a line; without it ten short ones")
    parser.add_argument("--rounds", type=int, default=20, help="of each text")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of the largest logit")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> int:
    asked, ranks = arguments(), Ranks.read(os.environ)
    if ranks.size == 1:
        raise AdasdError("there is one rank only; start this under torchrun")
    options = RuntimeOptions(device=asked.device)
    member = join_ranks(str(asked.target), "target", options, ranks)
    if ranks.rank > 0:
        member.follow()
        return 0
    try:
        draft = Replica(*load_model(asked.draft, "draft", RuntimeOptions(device=asked.device, target=asked.target)))
        whole = load_model(str(asked.target), "target", options)
        comparison = Comparison(draft, whole, member.lead())
        return report(comparison.texts(_prompts(asked), asked.rounds), ranks.size, asked.tolerance)
    finally:
        member.end()


def _prompts(asked: Namespace) -> Sequence[Sequence[int]]:
    texts = asked.prompts.read_text().splitlines() if asked.prompts else PROMPTS
    tokenizer = Tokenizer.from_file(str(asked.target / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in texts]


def report(texts: Iterator[Compared], size: int, tolerance: float) -> int:
    """Print a line a text and one of all; the status to end with."""
    found: list[Compared] = []
    for text in texts:
        found.append(text)
        print(line(text), flush=True)
    error, largest = max(text.logit_error for text in found), max(text.largest for text in found)
    parted = [text.divergence for text in found if text.divergence is not None]
    unexplained = [one for one in parted if one.margin > ROUNDING * error]
    print(
        f"{size} ranks, {len(found)} texts, {sum(text.rounds for text in found)} rounds, "
        f"{sum(text.tokens for text in found)} tokens: logits of up to {largest:.0f} within {error:.1e}, "
        f"{len(parted)} texts part, {len(unexplained)} by more than rounding"
    )
    return int(error > tolerance * largest or bool(unexplained))


def line(text: Compared) -> str:
    parted = text.divergence
    rule = f"{text.acceptance} at {text.temperature:g}"
    outcome = "same"
    if parted is not None:
        outcome = f"parts in round {parted.round_number}, {parted.decided} with a margin of {parted.margin:.1e}"
    return f"{rule:16}{text.rounds:4} rounds{text.tokens:5} tokens, logits within {text.logit_error:.1e}: {outcome}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AdasdError as error:
        sys.exit(f"compare: {error}")
