"""`pie-p estimate-log`: a table for people, JSON, rows on disk, and one line for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pie_p.cli import main

LOG = "start,end,prompt_tokens,output_tokens\n0,8,100,200\n4,9,100,100\n20,25,50,10\n9,8,1,1\n"
LLM = ["--llm", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--predictor", "physics"]


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["estimate-log", *words])
    return int(end.value.code or 0)


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "requests.csv").write_text(LOG)
    return str(tmp_path / "requests.csv")


def test_json_rows_and_bad_rows(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "energy.parquet"
    assert run(log, *LLM, "-o", str(out), "--json") == 0
    shown = capsys.readouterr()
    sums = json.loads(shown.out)
    assert sums["requests"] == 3
    assert sum(pq.read_table(out)["energy_j"].to_pylist()) + sums["idle_j"] == pytest.approx(sums["total_j"])
    assert sums["deployments"][0]["idle_s"] == pytest.approx(11.0)
    assert "left out: 1 rows: it ends before it starts (first in line 5)" in shown.err


def test_people_see_a_table_and_jobs_add_idle(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = tmp_path / "jobs.txt"
    jobs.write_text("JobID|Start|End\n7|1970-01-01T00:00:00|1970-01-01T01:00:00\n")
    assert run(log, *LLM, "--jobs", str(jobs), "--scope", "facility", "--pue", "1.2") == 0
    text = capsys.readouterr().out
    assert "Estimated, not metered" in text
    assert "and 3.59 ks idle" in text
    assert "facility" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "InputError: give --llm and --gpu for one deployment, or --deployments FILE.toml for several"),
        (["--llm", "llama-3.1-8b", "--gpu", "h99"], "UnknownGpuError: no GPU 'h99'"),
        ([*LLM, "--jobs", "gone.csv"], "InputError: no log at gone.csv"),
        (["--deployments", "gone.toml"], "InputError: no file 'gone.toml'"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(log: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(log, *words) == 2
    assert capsys.readouterr().err.startswith(message)
