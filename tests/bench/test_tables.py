from __future__ import annotations

from adasd.bench.tables import methods_table, report
from tests.bench.answers import ALONE, RECORD, answer


def rows(table: str) -> dict[str, list[str]]:
    """Cells by the first one of their row."""
    split = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    return {cells[0]: cells[1:] for cells in split}


def test_figures_of_a_method_stand_beside_the_share_of_rounds_with_candidates() -> None:
    answers = [answer("alone", 0, 1.0, ALONE), answer("alone", 1, 4.0, ALONE)]
    answers += [answer("fast", 0, 0.5, RECORD), answer("fast", 1, 2.0, RECORD), answer("peer", 0, 2.0)]
    table = rows(methods_table(answers, "alone"))
    assert table["fast"][:8] == ["12.5", "2.00", "0.500", "2.00", "90%", "25%", "20.0%", "0.50 / 0.75"]
    assert table["alone"][:8] == ["6.2", "1.00", "-", "1.00", "0%", "-", "-", "-"]
    assert table["peer"][:8] == ["5.0", "0.50", "-", "-", "-", "-", "-", "-"]
    assert table["peer"][8:] == ["500 / 500", "1500 / 1500", "0 of 1"]


def test_a_failure_is_counted_and_its_batch_has_no_rate() -> None:
    answers = [answer("alone", 0, 1.0), answer("alone", 1, 1.0), answer("fast", 0, 0.5)]
    answers += [answer("fast", 1, 0.1, reply=None, error="ServiceUnavailable: gone")]
    text = report(answers, "alone")
    assert rows(methods_table(answers, "alone"))["fast"][:2] == ["20.0", "2.00"]
    assert rows(methods_table(answers, "alone"))["fast"][-1] == "1 of 2"
    assert "- fast, 1 times: ServiceUnavailable: gone" in text


def test_what_runs_together_counts_together() -> None:
    begins = {0: 0.0, 1: 0.5}
    both = [answer("a", p, 1.0, batch=0, begin=begin, load="2 streams") for p, begin in begins.items()]
    assert rows(methods_table(both, "a"))["a"][0] == "13.3", "20 tokens in 1.5 s"


def test_sections_by_load_and_file_and_matrices_of_what_grows() -> None:
    answers = [
        answer(variant, prompt, seconds * (2 if load == "2 streams" else 1), data=data, load=load, context=context)
        for load in ("1 stream", "2 streams")
        for context in (128, 1000)
        for prompt, data in enumerate(("x", "y"))
        for variant, seconds in (("b", 1.0), ("a", 2.0))[:: 1 if data == "x" else -1]
    ]
    text = report(answers, "a")
    assert text.count("### in all") == 4
    assert "## 2 streams, prompts of 1000 tokens\n\n### x" in text
    assert text.index("| b |") < text.index("| a |"), "as they came first"
    grown = text[text.index("## Tokens/s in all") :]
    assert rows(grown.split("\n\n")[1]) == {
        "method": ["1 stream", "2 streams"], "---": ["---", "---"],
        "b": ["10.0 (750)", "5.0 (1500)"], "a": ["5.0 (1500)", "2.5 (3000)"],
    }  # fmt: skip
    assert "| b | 83.3 (7) | 83.3 (7) |" in grown, "0.75 s for the nine tokens after the first"
