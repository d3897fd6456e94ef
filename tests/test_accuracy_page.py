"""The generated page: complete, reproducible, and plain about what was missed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from scoring_runs import perfect_report

from pie_p.accuracy_page import accuracy_page, table, write_accuracy
from pie_p.scoring import EvaluationReport

for extra in ("scipy", "xgboost"):
    pytest.importorskip(extra, reason=f"{extra} comes with the extra: pip install 'pie_p[train]'")


@pytest.fixture
def report() -> EvaluationReport:
    return perfect_report()


def test_the_page_names_its_data_by_hash_and_no_date(report: EvaluationReport) -> None:
    page = accuracy_page(report)
    assert "`made up` (46 rows, SHA-256 0123456789ab)" in page
    assert not re.search(r"20\d\d-\d\d-\d\d", page)


def test_every_table_is_rectangular(report: EvaluationReport) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", accuracy_page(report), flags=re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_a_goal_that_is_missed_is_marked(report: EvaluationReport) -> None:
    page = accuracy_page(report)
    assert re.search(r"unseen LLM, E, without odd groups \| \d+ \| 0\.0 \| at most 10\.5 \| met", page)
    worse = replace(report, decisions=(replace(report.decisions[0], broken=0.5), *report.decisions[1:]))
    assert re.search(r"limit broken \| \d+ \| 50\.0 \| at most 10 \| \*\*missed\*\*", accuracy_page(worse))


def test_the_operators_section_is_put_in(report: EvaluationReport) -> None:
    assert "## Operators\n\nhere" in accuracy_page(report, operators="## Operators\n\nhere\n")


def test_writing_twice_gives_the_same_bytes(report: EvaluationReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra: pip install 'pie_p[plot]'")
    first, second = (write_accuracy(report, tmp_path / name) for name in ("a", "b"))
    files = sorted(path.relative_to(first.parent) for path in first.parent.rglob("*") if path.is_file())
    assert [path.name for path in files] == ["accuracy.md", "accuracy-groups.svg", "accuracy-predicted.svg"]
    for path in files:
        assert (first.parent / path).read_bytes() == (second.parent / path).read_bytes()
    assert all(f"assets/{path.name}" in first.read_text(encoding="utf-8") for path in files[1:])


def test_without_the_plot_extra_the_page_has_no_pictures(report: EvaluationReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = write_accuracy(report, tmp_path)
    assert "![" not in page.read_text(encoding="utf-8")
    assert not list(tmp_path.rglob("*.svg"))


def test_tables_align_text_left_and_numbers_right() -> None:
    assert table(["a", "b"], [["x", "1"]]).splitlines()[1] == "|---|---:|"


def test_the_page_says_in_short_how_far_off_and_what_was_missed(report: EvaluationReport) -> None:
    text = accuracy_page(report).split("## In short", 1)[1].split("\n\n", 2)[1]
    assert "off by 0.0 % on average" in text
    assert "Goals missed: " in text
    worse = replace(report, decisions=(replace(report.decisions[0], broken=0.5), *report.decisions[1:]))
    assert f"{report.decisions[0].method}: limit broken" in accuracy_page(worse).split("## In short", 1)[1].split("\n\n", 2)[1]
