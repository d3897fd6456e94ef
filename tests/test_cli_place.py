"""`pie-p place`: a trace and a file of systems in, a table, JSON and a file out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from pie_p.cli import main
from pie_p.traces import synthetic_trace

SYSTEMS = "".join(
    f'[[systems]]\nname = "{name}"\nllm = "{llm}"\ngpu = "h100-sxm-80gb"\ntp = {tp}\nbatch = 16\naccuracy = {accuracy}\n'
    for name, llm, tp, accuracy in (("small", "llama-3.1-8b", 1, 0.66), ("large", "llama-3.1-70b", 4, 0.79))
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    synthetic_trace(requests=60, rate_per_s=2, prompt_tokens=[50, 500], output_tokens=[20, 200], seed=2).save("trace.csv")
    (tmp_path / "systems.toml").write_text(SYSTEMS, encoding="utf-8")
    return tmp_path


def run(arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments.split())
    return int(end.value.code or 0)


def test_json_holds_the_best_placement_beside_the_rules(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("place trace.csv --systems systems.toml --zeta 0.2,0.9 --most-share llama-3.1-70b=0.5 --json") == 0
    answer = json.loads(capfd.readouterr().out)  # the descriptor's, so that a line of the solver's own would break it
    first, second = answer["placements"]
    assert first["best"]["counts"] == {"small": 30, "large": 30}  # accuracy asks for the large one, the share allows half
    assert second["best"]["energy_j"] <= first["best"]["energy_j"]
    assert {each["rule"] for each in first["rules"]} == {"greedy", "all on small", "all on large", "round robin", "random"}
    assert answer["trace"]["requests"] == 60


def test_slot_seconds_leave_standard_output_to_json(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("place trace.csv --systems systems.toml --zeta 0.8 --within-s 3 --json") == 0
    best = json.loads(capfd.readouterr().out)["placements"][0]["best"]
    assert best["feasible"]
    assert min(best["counts"].values()) > 1


def test_a_table_a_file_and_fits_are_written(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place trace.csv --systems systems.toml --zeta 0.5 --fits fits.json --out placed.csv --first 40") == 0
    text = capsys.readouterr().out
    assert "integer program: proven best (gap 0); 4 distinct pairs of token counts" in text
    assert "round robin" in text
    with (files / "placed.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert {row["system"] for row in rows} <= {"small", "large"}
    assert run("place trace.csv --systems fits.json --zeta 0.5 --first 40 --json") == 0
    again = json.loads(capsys.readouterr().out)["placements"][0]["best"]["energy_j"]
    assert again == pytest.approx(sum(float(row["energy_j"]) for row in rows))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--max-latency-s 0.01", "InputError: max_latency_s: 60 requests take longer than 0.01 s on every system"),
        ("--most-share large", "--most-share 'large' is not LLM=SHARE; give one like llama-3.1-8b=0.25"),
        ("--zeta 0.1,0.2 -o placed.csv", "--out holds one placement, and --zeta has 2 values; give one"),
        ("--zeta 2", "InputError: zeta = 2 is not allowed; give a finite number of at least 0 and at most 1"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(files: Path, capsys: pytest.CaptureFixture[str], options: str, text: str) -> None:
    assert run(f"place trace.csv --systems systems.toml {options}") == 2
    shown = capsys.readouterr()
    assert text in shown.err
    assert shown.err.count("\n") == 1
    assert not (files / "placed.csv").exists()
