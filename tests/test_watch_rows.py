"""Rows: moments in Parquet files that are whole at any time and begin anew when full."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from simulated_server import Counts, vllm_page

from pie_p.errors import InputError
from pie_p.operating_points import operating_points
from pie_p.watch.rows import UNITS, RowWriter, row_of
from pie_p.watch.watcher import Moment, Watcher


@pytest.fixture(scope="module")
def moments() -> list[Moment]:
    watcher = Watcher(operating_points({"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}, predictor="physics"))
    made = []
    for second in range(0, 130, 5):
        counts = Counts(output_tokens=1000 * second, steps=100 * second, running=10)
        made += watcher.take("http://a", vllm_page(counts), now_s=second, wall_s=1.8e9 + second)
    return made


def test_every_row_is_in_one_file_and_files_are_full_but_the_last(tmp_path: Path, moments: list[Moment]) -> None:
    writer = RowWriter(tmp_path, {"llm": "llama-3.1-8b", "pue": None}, rows_per_file=10, rows_per_write=3)
    for moment in moments:
        writer.add(moment)
    writer.flush()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [f"watch-20270115T080{stamp}Z.parquet" for stamp in ("005", "055", "145")]
    tables = [pq.read_table(file) for file in files]
    assert [table.num_rows for table in tables] == [10, 10, 5]
    assert sum(sum(table["energy_j"].to_pylist()) for table in tables) == pytest.approx(sum(one.estimate.energy_j for one in moments))
    assert tables[0].schema.metadata[b"llm"] == b"llama-3.1-8b"
    assert {name: field.metadata[b"unit"].decode() for name in UNITS if (field := tables[0].schema.field(name))} == UNITS
    assert set(tables[0]["host_j"].to_pylist()) == {None}  # not within the scope: not zero


def test_what_is_on_disk_is_whole_after_every_write_and_a_crash_loses_at_most_one(tmp_path: Path, moments: list[Moment]) -> None:
    writer = RowWriter(tmp_path, {}, rows_per_file=100, rows_per_write=4)
    for number, moment in enumerate(moments, start=1):
        writer.add(moment)
        rows = sum(pq.read_table(file).num_rows for file in tmp_path.glob("*.parquet"))
        assert rows == number - number % 4


def test_a_second_run_in_the_same_second_takes_another_name(tmp_path: Path, moments: list[Moment]) -> None:
    for _ in range(2):
        writer = RowWriter(tmp_path, {})
        writer.add(moments[0])
        writer.flush()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["watch-20270115T080005Z-2.parquet", "watch-20270115T080005Z.parquet"]


def test_parts_of_a_row_add_up(moments: list[Moment]) -> None:
    row = row_of(moments[3])
    assert row["compute_j"] + row["communication_j"] + row["wait_j"] + row["idle_j"] == pytest.approx(row["energy_j"])
    assert row["power_w"] * row["seconds_s"] == pytest.approx(row["energy_j"])


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^cannot write rows into .*; give another folder$"):
        RowWriter(tmp_path / "file" / "rows", {})
