"""Traces: files of every form are read whole, bad rows are counted and named, and drawn arrivals have the moments that were asked for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from pie_p.arrivals import Burst, Lognormal
from pie_p.errors import InputError
from pie_p.traces import RequestTrace, load_trace, synthetic_trace

AZURE = Path("/work/shared/data/azure_llm_trace")


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_azure_columns_count_seconds_from_the_first_arrival(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    trace = load_trace(write(tmp_path / "azure.csv", text))
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 4.314579], abs=1e-9)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([374, 396], [44, 109])
    assert trace.bad_rows == ()


def test_dates_of_every_zone_are_one_clock(tmp_path: Path) -> None:
    dates = [
        "2023-11-16T18:15:46+01:00",
        "2023-11-16 17:15:47Z",
        "2023-11-16 17:15:48.5",
        "2023-11-16 22:45:49.25+0530",
        "2023-11-16 12:15:50-05",
    ]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{date},374,44\n" for date in dates)
    trace = load_trace(write(tmp_path / "zones.csv", text))
    assert trace.arrival_s.tolist() == [0.0, 1.0, 2.5, 3.25, 4.0]
    assert trace.bad_rows == ()


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_a_table_as_spreadsheets_write_it_is_read(tmp_path: Path, mark: str) -> None:
    text = "\ufeffarrival_s,prompt_tokens,output_tokens\r\n0,100,20\r\n0.5,101,21\r\n".replace(",", mark)
    trace = load_trace(write(tmp_path / "table.csv", text))
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0.0, 0.5], [100, 101])


def test_a_row_with_more_cells_than_the_header_is_left_out_not_read_askew(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.csv", "arrival_s,prompt_tokens,output_tokens\n0,5,100,20\n1,100,20,\n"))
    assert [(rows.reason, rows.count, rows.lines) for rows in trace.bad_rows] == [("more cells than the header", 1, (2,))]
    assert trace.prompt_tokens.tolist() == [100]


def test_burstgpt_columns_carry_llm_and_log_type(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n"
    )
    trace = load_trace(write(tmp_path / "burst.csv", text))
    assert trace.arrival_s.tolist() == [0.0, 40.0]
    assert trace.llm is not None
    assert trace.llm.tolist() == ["ChatGPT", "GPT-4"]
    assert trace.log_type is not None
    assert trace.log_type.tolist() == ["Conversation log", "API log"]


def test_milliseconds_of_mooncake_become_seconds(tmp_path: Path) -> None:
    lines = [
        {"timestamp": 1000, "input_length": 6955, "output_length": 52, "hash_ids": [1]},
        {"timestamp": 4000, "input_length": 7, "output_length": 9},
    ]
    trace = load_trace(write(tmp_path / "m.jsonl", "\n".join(map(json.dumps, lines))))
    assert trace.arrival_s.tolist() == [0.0, 3.0]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_what_is_saved_is_read_back(tmp_path: Path, suffix: str) -> None:
    trace = synthetic_trace(requests=50, rate_per_s=3.0, prompt_tokens=Lognormal(mean=100), output_tokens=[5, 7], cached_share=0.5, seed=3)
    trace.save(tmp_path / f"trace{suffix}")
    again = load_trace(tmp_path / f"trace{suffix}")
    assert again.arrival_s.tolist() == pytest.approx((trace.arrival_s - trace.arrival_s[0]).tolist())
    for name in ("prompt_tokens", "output_tokens", "cached_prompt_tokens"):
        assert getattr(again, name).tolist() == getattr(trace, name).tolist()


def test_every_bad_row_is_counted_with_its_line_and_none_is_lost(tmp_path: Path) -> None:
    text = (
        "arrival_s,prompt_tokens,output_tokens\n"
        "0,10,5\n"  # 2
        "1,-3,5\n"  # 3
        "2,nan,5\n"  # 4
        "3,ten,5\n"  # 5
        "4,10,0\n"  # 6
        "6,10,5\n"  # 7
        "5,11,5\n"  # 8, out of order
        "x,10,5\n"  # 9
        "7,10\n"  # 10, torn
        "8,2.5,5\n"  # 11
        "inf,1,1\n"  # 12
    )
    trace = load_trace(write(tmp_path / "bad.csv", text))
    assert trace.prompt_tokens.tolist() == [10, 11, 10]
    named = {rows.reason: rows.lines for rows in trace.bad_rows}
    assert named == {
        "arrival is neither a number nor a date": (9,),
        "arrival is not finite": (12,),
        "prompt_tokens is not a number": (5,),
        "prompt_tokens is not finite": (4,),
        "prompt_tokens is below 0": (3,),
        "prompt_tokens is not a whole number": (11,),
        "output_tokens is not a number": (10,),
        "output_tokens is 0": (6,),
        "arrival before that of an earlier row; put in order": (8,),
    }
    assert len(trace) + trace.dropped == 11
    with pytest.raises(InputError, match=r"bad.csv has bad rows: 1 row: arrival is neither a number nor a date \(line 9\)"):
        load_trace(tmp_path / "bad.csv", strict=True)


def test_only_the_first_lines_of_many_are_named(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.csv", "arrival_s,prompt_tokens,output_tokens\n" + "0,0,1\n" * 20 + "1,1,1\n"))
    [rows] = trace.bad_rows
    assert (rows.count, rows.lines) == (20, (2, 3, 4, 5, 6))
    assert str(rows) == "20 rows: prompt_tokens is 0 (line 2, 3, 4, 5, 6, ...)"


def test_lines_that_are_no_object_are_counted(tmp_path: Path) -> None:
    good = json.dumps({"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1})
    nothing = json.dumps({"arrival_s": 1, "prompt_tokens": None, "output_tokens": True})
    trace = load_trace(write(tmp_path / "t.jsonl", f"{good}\nnot json\n[1]\n{nothing}\n"))
    assert [str(rows) for rows in trace.bad_rows] == [
        "1 row: prompt_tokens is not a number (line 4)",
        "2 rows: not a JSON object (line 2, 3)",
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.csv", "a,b\n1,2\n", r"t.csv has columns a, b: no known form of a trace. Known: generic: arrival_s, prompt_tokens"),
        ("t.csv", "", r"t.csv holds no table: it is empty, or no line of it is a row"),
        ("t.csv", "arrival_s,prompt_tokens,output_tokens\n", r"t.csv has no usable request among 0 rows"),
        (
            "t.csv",
            "arrival_s,prompt_tokens,output_tokens\n1,0,1\n",
            r"no usable request among 1 rows: 1 row: prompt_tokens is 0 \(line 2\)",
        ),
        ("t.txt", "", r"its name must end in .csv, .jsonl \(each perhaps with .gz\) or .parquet"),
        ("t.csv.gz", "no gzip", r"cannot read the trace 't.csv.gz': Not a gzipped file"),
        ("t.parquet", "no parquet", r"t.parquet is not a readable Parquet file"),
    ],
)
def test_an_unknown_file_is_one_clear_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_trace(write(tmp_path / name, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace at"):
        load_trace(tmp_path / "none.csv")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"cannot read the trace 't\.csv': 'utf-8' codec"):
        load_trace(tmp_path / "t.csv")


def test_own_columns_are_named_by_role(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "when,in,out\n2,10,20\n3,11,21\n")
    trace = load_trace(path, columns={"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out"})
    assert (trace.arrival_s.tolist(), trace.output_tokens.tolist()) == ([0.0, 1.0], [20, 21])
    with pytest.raises(InputError, match=r"'nope' is missing; give arrival_s, .*, output_tokens and columns that t\.csv has"):
        load_trace(path, columns={"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "nope"})
    with pytest.raises(InputError, match="no role 'tokens'"):
        load_trace(path, columns={"tokens": "in"})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"arrival_s": [1.0, 0.5]}, r"arrival_s\[1\] = 0.5 follows 1; arrivals rise"),
        ({"arrival_s": [0.0, float("nan")]}, r"arrival_s\[1\] = nan is not allowed"),
        ({"prompt_tokens": [5]}, r"prompt_tokens has 1 values for 2 arrivals"),
        ({"prompt_tokens": [5, 0]}, r"prompt_tokens\[1\] = 0 is not allowed; give a whole number of at least 1"),
        ({"output_tokens": [5, 1.5]}, r"output_tokens\[1\] = 1.5 is not allowed"),
        ({"output_tokens": [[1, 2]]}, r"output_tokens has 2 dimensions"),
        ({"output_tokens": ["a", "b"]}, r"output_tokens = \['a', 'b'\] is not a list of numbers"),
        ({"cached_prompt_tokens": [0, 11]}, r"cached_prompt_tokens\[1\] = 11 is not allowed; give at most prompt_tokens"),
    ],
)
def test_arrays_that_cannot_be_are_refused(fields: dict[str, object], says: str) -> None:
    arrays = {"arrival_s": [0.0, 1.0], "prompt_tokens": [10, 10], "output_tokens": [5, 5], **fields}
    with pytest.raises(InputError, match=says):
        RequestTrace(**arrays)  # type: ignore[arg-type]


def test_a_trace_cannot_be_changed() -> None:
    trace = RequestTrace(arrival_s=[0.0], prompt_tokens=[1], output_tokens=[1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_s[0] = 1.0


def test_a_faster_trace_has_the_same_requests_in_less_time() -> None:
    trace = synthetic_trace(requests=100, rate_per_s=1.0, prompt_tokens=10, output_tokens=10)
    fast = trace.faster(4)
    assert fast.duration_s == pytest.approx(trace.duration_s / 4)
    assert fast.rate_per_s == pytest.approx(4 * trace.rate_per_s)


def test_the_same_seed_gives_the_same_trace_and_another_gives_another() -> None:
    draw = [synthetic_trace(requests=20, rate_per_s=1.0, prompt_tokens=Lognormal(mean=50), output_tokens=9, seed=s) for s in (1, 1, 2)]
    assert draw[0].to_dict() == draw[1].to_dict()
    assert draw[0].to_dict() != draw[2].to_dict()


@pytest.mark.parametrize(("arrivals", "variation"), [("regular", 0.0), ("poisson", 1.0), ("gamma", 2.0)])
def test_drawn_gaps_have_the_rate_and_the_variation_asked_for(arrivals: str, variation: float) -> None:
    trace = synthetic_trace(requests=40_000, rate_per_s=5.0, prompt_tokens=1, output_tokens=1, arrivals=arrivals, variation=2.0)  # type: ignore[arg-type]
    summary = trace.summary()
    assert summary.rate_per_s == pytest.approx(5.0, rel=0.05)
    assert summary.gap_variation == pytest.approx(variation, abs=0.06)


def test_bursts_keep_the_mean_rate_and_spread_counts_as_a_modulated_poisson_process() -> None:
    """Counts in a window t: variance / mean = 1 + 2 s^2 / (m c) (1 - (1 - e^-ct) / (ct)), c the sum of the two rates of leaving a state."""
    burst = Burst(factor=4.0, share=0.1, mean_s=5.0)
    rate, window_s = 20.0, 50.0
    trace = synthetic_trace(requests=400_000, rate_per_s=rate, prompt_tokens=1, output_tokens=1, arrivals="bursty", burst=burst, seed=5)
    counts = np.histogram(trace.arrival_s, np.arange(0.0, trace.arrival_s[-1], window_s))[0]
    low = (1 - 0.4) / 0.9
    variance = rate**2 * 0.1 * 0.9 * (4.0 - low) ** 2
    leaving = 1 / 5.0 + 1 / 45.0
    expected = 1 + 2 * variance / (rate * leaving) * (1 - (1 - np.exp(-leaving * window_s)) / (leaving * window_s))
    assert trace.rate_per_s == pytest.approx(rate, rel=0.1)
    assert counts.var() / counts.mean() == pytest.approx(expected, rel=0.25)


def test_lognormal_lengths_have_their_mean_and_variation() -> None:
    lengths = Lognormal(mean=500, variation=1.5).draw(np.random.default_rng(1), 200_000)
    assert lengths.mean() == pytest.approx(500, rel=0.03)
    assert lengths.std() / lengths.mean() == pytest.approx(1.5, rel=0.1)
    assert Lognormal(mean=500, least=100, most=600).draw(np.random.default_rng(1), 1000).max() == 600


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"arrivals": "often"}, "arrivals = 'often' is not known; allowed: regular, poisson, gamma, bursty"),
        ({"requests": 0}, "requests = 0 is not allowed"),
        ({"rate_per_s": 0}, "rate_per_s = 0 is not allowed"),
        ({"prompt_tokens": "long"}, "prompt_tokens = 'long' is no length"),
        ({"prompt_tokens": []}, "has no lengths to draw from"),
        ({"output_tokens": 0}, "output_tokens = 0 is not allowed"),
        ({"cached_share": 2}, "cached_share = 2 is not allowed"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(fields: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        synthetic_trace(**{"requests": 5, "rate_per_s": 1.0, "prompt_tokens": 5, "output_tokens": 5, **fields})  # type: ignore[arg-type]


def test_bursts_that_hold_more_than_all_requests_are_refused() -> None:
    with pytest.raises(InputError, match=r"factor \* share must be at most 1"):
        Burst(factor=20, share=0.1)


def test_a_summary_counts_by_hand() -> None:
    trace = RequestTrace(arrival_s=[0.0, 1.0, 3.0], prompt_tokens=[1, 2, 6], output_tokens=[4, 4, 4])  # type: ignore[arg-type]
    summary = trace.summary().to_dict()
    assert (summary["requests"], summary["duration_s"], summary["rate_per_s"]) == (3, 3.0, pytest.approx(2 / 3))
    assert summary["prompt_tokens"] | {"p90": 0, "p99": 0} == {"total": 9.0, "mean": 3.0, "p50": 2.0, "most": 6.0, "p90": 0, "p99": 0}
    assert summary["gap_variation"] == pytest.approx(1 / 3)  # gaps 1 and 2: deviation 0.5 over 1.5


def test_the_lengths_of_a_trace_are_what_predict_energy_takes() -> None:
    trace = RequestTrace(arrival_s=[0.0, 0.0], prompt_tokens=[1, 1], output_tokens=[100, 300])  # type: ignore[arg-type]
    assert trace.output_lengths.spread == pytest.approx(1.25)
    assert trace.rate_per_s == 0.0


@pytest.mark.skipif(not AZURE.exists(), reason="the public Azure trace is not on this machine")
def test_the_azure_traces_are_read_whole() -> None:
    """Splitwise (ISCA 2024): median prompt 1,020 and output 129 tokens in conversation, 1,500 and 13 in code, as the paper's text says."""
    talk = load_trace(AZURE / "AzureLLMInferenceTrace_conv.csv.gz")
    code = load_trace(AZURE / "AzureLLMInferenceTrace_code.csv.gz")
    assert (len(talk), len(code), talk.dropped, code.dropped) == (19366, 8819, 0, 0)
    assert float(np.median(talk.prompt_tokens)) == pytest.approx(1020, rel=0.02)
    assert float(np.median(talk.output_tokens)) == pytest.approx(129, rel=0.02)
    assert float(np.median(code.prompt_tokens)) == pytest.approx(1500, rel=0.03)  # printed with two figures
    assert float(np.median(code.output_tokens)) == pytest.approx(13, rel=0.02)
    with gzip.open(AZURE / "AzureLLMInferenceTrace_conv.csv.gz", "rt") as file:
        assert sum(1 for _ in file) == 19367
