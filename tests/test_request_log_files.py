"""Logs as files: five forms, two kinds of time, and no row lost without a count."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_p.errors import InputError
from pie_p.request_log_files import read_log, time_s

CSV = """\
start,end,prompt_tokens,output_tokens,deployment
2026-12-01T00:00:00Z,2026-12-01T00:00:10Z,100,50,a
1796083205,1796083220.5,200,80,b
"""
MIDNIGHT_S = 1796083200.0  # 2026-12-01T00:00:00Z


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_table_of_requests_in_iso_and_seconds(tmp_path: Path) -> None:
    rows = read_log(written(tmp_path / "r.csv", CSV))
    assert rows.start_s.tolist() == [MIDNIGHT_S, MIDNIGHT_S + 5]
    assert rows.end_s.tolist() == [MIDNIGHT_S + 10, MIDNIGHT_S + 20.5]
    assert (rows.prompt_tokens.tolist(), rows.output_tokens.tolist(), rows.deployment) == ([100, 200], [50, 80], ["a", "b"])
    assert (rows.id, rows.dropped, len(rows)) == (["2", "3"], 0, 2)


def test_the_five_forms_say_the_same(tmp_path: Path) -> None:
    wanted = read_log(written(tmp_path / "r.csv", CSV))
    table = [line.split(",") for line in CSV.splitlines()]
    forms = [
        written(tmp_path / "r.tsv", CSV.replace(",", "\t")),
        written(tmp_path / "r.txt", CSV.replace(",", "|")),
        written(tmp_path / "r.jsonl", "".join(json.dumps(dict(zip(table[0], row, strict=True))) + "\n" for row in table[1:])),
    ]
    stamps = [[dt.datetime.fromtimestamp(value, tz=dt.timezone.utc) for value in values] for values in (wanted.start_s, wanted.end_s)]
    columns = {"start": stamps[0], "end": stamps[1], "prompt_tokens": [100, 200], "output_tokens": [50, 80], "deployment": ["a", "b"]}
    pq.write_table(pa.table(columns), tmp_path / "r.parquet")
    for path in (*forms, tmp_path / "r.parquet"):
        rows = read_log(path)
        for name in ("start_s", "end_s", "prompt_tokens", "output_tokens"):
            assert np.allclose(getattr(rows, name), getattr(wanted, name), rtol=0, atol=1e-6), (path, name)
        assert rows.deployment == wanted.deployment


def test_columns_of_other_tools_are_understood(tmp_path: Path) -> None:
    rows = read_log(written(tmp_path / "r.csv", "Arrival,Finish,ContextTokens,GeneratedTokens,Request_ID\n0,1,10,5,x\n"))
    assert (rows.prompt_tokens[0], rows.output_tokens[0], rows.id) == (10, 5, ["x"])


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0,0,1,1", "it takes no time"),
        ("5,4,1,1", "it ends before it starts"),
        ("soon,4,1,1", "a time that is neither a number of seconds nor ISO 8601"),
        (",4,1,1", "a time that is neither a number of seconds nor ISO 8601"),
        ("1796083200000,1796083205000,1,1", "a time too large for seconds; are these milliseconds?"),
        ("nan,4,1,1", "a time that is not finite"),
        ("0,4,few,1", "prompt_tokens that is no number"),
        ("0,4,-3,1", "prompt_tokens below 0, above 1e+08 or not finite"),
        ("0,4,1,inf", "output_tokens below 0, above 1e+08 or not finite"),
        ("0,4,0,1", "no prompt tokens"),
        ("0,4", "prompt_tokens that is no number"),
    ],
)
def test_a_bad_row_is_left_out_counted_and_named(tmp_path: Path, row: str, reason: str) -> None:
    text = f"start,end,prompt_tokens,output_tokens\n0,1,10,5\n{row}\n{row}\n"
    rows = read_log(written(tmp_path / "r.csv", text))
    assert len(rows) == 1
    [bad] = rows.bad_rows
    assert (bad.reason, bad.count, bad.first_line) == (reason, 2, 3)


def test_a_row_with_more_cells_than_the_header_is_left_out_not_read_askew(tmp_path: Path) -> None:
    rows = read_log(written(tmp_path / "r.csv", CSV + "1,5,2,7,100,50\n1796083300,1796083320,5,5,c,\n"))
    assert [(one.reason, one.count, one.first_line) for one in rows.bad_rows] == [("more cells than the header", 1, 4)]
    assert rows.deployment == ["a", "b", "c"]  # a comma at the end holds nothing


def test_json_lines_that_are_no_objects_or_lack_a_column_are_counted(tmp_path: Path) -> None:
    good = '{"start": 0, "end": 1, "prompt_tokens": 3, "output_tokens": 2}'
    rows = read_log(written(tmp_path / "r.jsonl", f'[1]\n{good}\n{{"start": 0, "end": 1}}\n{{torn\n\n{good}\n'))
    assert len(rows) == 2
    assert {(bad.reason, bad.count, bad.first_line) for bad in rows.bad_rows} == {("no JSON object", 2, 1), ("no prompt_tokens", 1, 3)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.csv", "begin,end\n0,1\n", r"has no column start_s or start or start_time; it has: begin, end\."),
        ("r.csv", "start,end,prompt_tokens,output_tokens\n", "has no usable row$"),
        ("r.csv", "start,end,prompt_tokens,output_tokens\n1,0,1,1\n", r"has no usable row: it ends before it starts \(line 2\)$"),
        ("r.xlsx", "", r"must end in \.csv, \.tsv, \.txt, \.jsonl, \.ndjson or \.parquet$"),
        ("r.jsonl", "", "has no usable row$"),
    ],
)
def test_a_file_without_anything_to_read_is_one_clear_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_log(written(tmp_path / name, text))


def test_a_missing_file_and_one_that_is_no_text_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no log at "):
        read_log(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"is not UTF-8 text$"):
        read_log(tmp_path / "r.csv")


def test_sacct_is_read_as_a_table_of_jobs_and_one_that_still_runs_is_counted(tmp_path: Path) -> None:
    text = """\
JobID|JobName|State|Start|End
7|llama|COMPLETED|2026-12-01T00:00:00|2026-12-01T01:00:00
8|llama|RUNNING|2026-12-01T02:00:00|Unknown
"""
    jobs = read_log(written(tmp_path / "jobs.txt", text), jobs=True)
    assert (jobs.start_s.tolist(), jobs.end_s.tolist(), jobs.deployment) == ([MIDNIGHT_S], [MIDNIGHT_S + 3600], ["llama"])
    assert jobs.dropped == 1


@given(st.datetimes(min_value=dt.datetime(1980, 1, 1), max_value=dt.datetime(2100, 1, 1)), st.integers(-12, 14))
def test_a_time_reads_the_same_in_every_zone(at: dt.datetime, hours: int) -> None:
    moment = at.replace(tzinfo=dt.timezone.utc)
    assert time_s(at.isoformat()) == moment.timestamp()
    assert time_s(moment.astimezone(dt.timezone(dt.timedelta(hours=hours))).isoformat()) == pytest.approx(moment.timestamp(), abs=1e-6)
    assert time_s(at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond:06d}789Z") == pytest.approx(moment.timestamp(), abs=1e-6)
