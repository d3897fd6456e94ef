"""`pie-p replay`: a trace on disk into figures, tables and JSON, and one line for every mistake."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pie_p import synthetic_trace
from pie_p.cli import main

WHERE = ("--llm", "llama-3.1-8b", "--gpu", "h100-sxm-80gb")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    synthetic_trace(requests=40, rate_per_s=4.0, prompt_tokens=[100, 900], output_tokens=[20, 200], seed=1).save(path)
    return path


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `pie-p replay ...`."""
    with pytest.raises(SystemExit) as stopped:
        main(["replay", *map(str, words)])
    shown = capsys.readouterr()
    return int(stopped.value.code or 0), shown.out, shown.err


def test_the_table_names_units_scope_and_what_was_idle(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, trace, *WHERE, "--replicas", 2)
    assert (code, err) == (0, "")
    assert "40 requests of trace.csv" in out
    assert "2 engines of llama-3.1-8b (bf16, one GPU) on 2 x h100-sxm-80gb" in out
    for word in (
        "energy of the fleet",
        "idle",
        "no request in flight",
        "energy per output token",
        "time to first token",
        "GPU boards only",
    ):
        assert word in out


def test_json_and_the_folder_say_the_same(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, trace, *WHERE, "--json", "-o", tmp_path / "served")
    assert code == 0
    summary = json.loads(out)
    assert summary == json.loads((tmp_path / "served" / "summary.json").read_text())
    with (tmp_path / "served" / "requests.csv").open() as file:
        energies = [float(row["energy_j"]) for row in csv.DictReader(file)]
    assert sum(energies) + summary["idle_j"] == pytest.approx(summary["energy_j"], rel=1e-9)
    assert "40 requests" in err


def test_the_first_requests_alone_and_faster(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = json.loads(said(capsys, trace, *WHERE, "--json", "--first", 20)[1])
    fast = json.loads(said(capsys, trace, *WHERE, "--json", "--first", 20, "--faster", 10)[1])
    assert slow["requests"] == fast["requests"] == 20
    assert fast["duration_s"] < slow["duration_s"]
    assert fast["idle_j"] < slow["idle_j"]


def test_bad_rows_are_said_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n1,0,20\n")
    code, out, _ = said(capsys, path, *WHERE, "--json")
    assert code == 0
    assert json.loads(out)["bad_rows"] == ["1 row: prompt_tokens is 0 (line 3)"]
    code, out, err = said(capsys, path, *WHERE, "--strict")
    assert (code, out) == (2, "")
    assert err == "InputError: bad.csv has bad rows: 1 row: prompt_tokens is 0 (line 3)\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--tp", "1.5"), "InputError: tp = 1.5 is not a whole number"),
        (("--routing", "random"), "InputError: routing = 'random' is not known; allowed: least_loaded, round_robin"),
        (("--scope", "site"), "InputError: scope = 'site' is not known"),
        (("--form", "xls", "-o", "out"), "InputError: form = 'xls' is not known; allowed: csv, parquet"),
        (("--tp", "3"), "PlanError: tp = 3 does not divide"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    trace: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trace.parent)
    code, out, err = said(capsys, trace, *WHERE, *words)
    assert (code, out) == (2, "")
    assert err.startswith(says)
    assert err.count("\n") == 1
    assert not (trace.parent / "out").exists()


def test_a_missing_trace_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "nowhere.csv", *WHERE)
    assert (code, err) == (2, "InputError: no trace at 'nowhere.csv'\n")
