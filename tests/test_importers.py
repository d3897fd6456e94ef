"""Importers on hand-made files in the public formats, with results worked out by hand."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.errors import ProfileError
from pie_p.importers import SOURCES, import_source
from pie_p.profiles import load_profile

pytest.importorskip("pyarrow", reason="pyarrow comes with the extra: pip install 'pie_p[train]'")


def imported(name: str, path: Path, out: Path) -> Any:
    import_source(name, path, out)
    return load_profile(out)


def reasons(profile: Any) -> dict[str, int]:
    return {item.reason: item.rows for item in profile.manifest.rejected}


# ML.ENERGY v3 -------------------------------------------------------------------------------------------------------------------

HISTOGRAM = {"bins": [0.0, 100.0, 300.0], "counts": [1, 1]}


def v3_run(**changes: Any) -> dict[str, Any]:
    """Batch 64, 1,000 token/s, 500 W: 64 ms per token, 0.5 J per token."""
    run = {
        "gpu_model": "H100",
        "num_gpus": 1,
        "max_num_seqs": 64,
        "avg_batch_size": 64.0,
        "avg_output_len": 125.0,
        "output_throughput_tokens_per_sec": 1000.0,
        "avg_power_watts": 500.0,
        "energy_per_token_joules": 0.5,
        "median_itl_ms": 60.0,
        "p90_itl_ms": 70.0,
        "p99_itl_ms": 90.0,
        "output_length_distribution": HISTOGRAM,
        "parallelization": {"tensor_parallel": 1, "expert_parallel": 1, "data_parallel": 1},
    }
    return {**run, **changes}


def put_v3(root: Path, *runs: dict[str, Any], llm: str = "Qwen/Qwen3-8B", task: str = "lm-arena-chat", **record: Any) -> Path:
    path = root / "public" / "data" / "models" / f"{llm.replace('/', '__')}__{task}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"model_id": llm, "task": task, "weight_precision": "bfloat16", "architecture": "Dense", "configurations": list(runs), **record}
    path.write_text(json.dumps(whole))
    return root


def test_v3_time_per_token_is_batch_over_throughput(tmp_path: Path) -> None:
    row = imported("mlenergy_v3", put_v3(tmp_path / "in", v3_run()), tmp_path / "out").end_to_end.row(0)
    assert (row["batch"], row["time_per_token_s"], row["itl_s"], row["energy_per_output_token_j"]) == (64.0, 0.064, 0.06, 0.5)
    assert (row["llm"], row["gpu"], row["dtype"], row["engine_version"]) == ("Qwen/Qwen3-8B", "h100-sxm-80gb", "bf16", "0.11.1")
    assert np.isnan(row["ttft_s"])
    assert row["prompt_tokens"] == 150
    assert "prompt 150 tokens" in row["assumed"]


def test_v3_second_moment_has_the_histogram_s_spread_and_the_stated_mean(tmp_path: Path) -> None:
    # Bins 0-100 and 100-300, one request each: mean (50 + 200) / 2 = 125, E[L^2] = (100^2 / 3 + (100^2 + 300 * 100 + 300^2) / 3) / 2
    row = imported("mlenergy_v3", put_v3(tmp_path / "in", v3_run()), tmp_path / "out").end_to_end.row(0)
    assert row["output_second_moment"] == pytest.approx((10_000 + 130_000) / 6)


def test_v3_expert_parallel_runs_attention_on_all_its_gpus(tmp_path: Path) -> None:
    run = v3_run(num_gpus=4, parallelization={"tensor_parallel": 1, "expert_parallel": 4, "data_parallel": 1})
    row = imported("mlenergy_v3", put_v3(tmp_path / "in", run), tmp_path / "out").end_to_end.row(0)
    assert (row["tp"], row["dp"], row["ep"]) == (4, 1, 4)
    assert "attention ran TP4" in row["assumed"]


def test_v3_attention_dp_divides_the_server_s_batch_and_is_named(tmp_path: Path) -> None:
    run = v3_run(num_gpus=4, parallelization={"tensor_parallel": 1, "expert_parallel": 4, "data_parallel": 4})
    row = imported("mlenergy_v3", put_v3(tmp_path / "in", run), tmp_path / "out").end_to_end.row(0)
    assert (row["tp"], row["dp"], row["ep"], row["batch"], row["max_batch"]) == (1, 4, 4, 16.0, 16.0)
    assert row["time_per_token_s"] == 0.064  # batch / throughput, both of the server
    assert row["odd_group"] == "attention-dp"


def test_v3_single_b200_gpqa_rows_of_qwen3_are_kept_and_named(tmp_path: Path) -> None:
    put_v3(tmp_path / "in", v3_run(gpu_model="B200"), task="gpqa")
    put_v3(tmp_path / "in", v3_run(gpu_model="B200"), task="gpqa", llm="openai/gpt-oss-20b", weight_precision="mxfp4")
    rows = imported("mlenergy_v3", tmp_path / "in", tmp_path / "out").end_to_end
    assert dict(zip(rows["llm"], rows["odd_group"], strict=True)) == {"Qwen/Qwen3-8B": "b200-gpqa-single", "openai/gpt-oss-20b": ""}
    assert set(rows["dtype"]) == {"bf16", "mxfp4"}


def test_v3_tasks_with_pictures_are_counted_as_rejected(tmp_path: Path) -> None:
    put_v3(tmp_path / "in", v3_run())
    put_v3(tmp_path / "in", v3_run(), v3_run(), task="image-chat")
    profile = imported("mlenergy_v3", tmp_path / "in", tmp_path / "out")
    assert reasons(profile) == {"task image-chat: not text in, text out": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"energy_per_token_joules": 5.0}, "500 W / 1000 token/s is not 5 J per token; the units are not as published"),
        ({"gpu_model": "H300"}, "the GPU 'H300' is not one this importer knows"),
        ({"num_gpus": 2}, "tensor 1 x data 1 is not the 2 GPUs it names"),
        ({"avg_batch_size": None}, "'avg_batch_size' = None is not a number above 0"),
        ({"output_length_distribution": {"bins": [0, 1], "counts": []}}, "2 bin edges for 0 counts"),
        ({"output_length_distribution": "long"}, "has no histogram of output lengths"),
    ],
)
def test_v3_a_row_that_cannot_be_is_named_and_nothing_is_written(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    put_v3(tmp_path / "in", v3_run(), v3_run(**change))
    with pytest.raises(ProfileError, match=re.escape(message)):
        import_source("mlenergy_v3", tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ML.ENERGY v2 -------------------------------------------------------------------------------------------------------------------


def test_v2_time_comes_from_throughput_and_power_from_energy(tmp_path: Path) -> None:
    run = {
        "Model": "neuralmagic/Llama-FP8",
        "GPU": "NVIDIA H100 80GB HBM3",
        "TP": 2,
        "PP": 1,
        "Energy/req (J)": 100.0,
        "Avg TPOT (s)": 0.05,
        "Token tput (tok/s)": 1000.0,
        "Avg Output Tokens": 200.0,
        "Avg BS (reqs)": 64.0,
        "Max BS (reqs)": 128,
    }
    path = tmp_path / "in" / "data" / "llm_text_generation" / "code" / "H100 80GB HBM3" / "neuralmagic" / "Llama-FP8" / "bs128+tp2+pp1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(run))
    row = imported("mlenergy_v2", tmp_path / "in", tmp_path / "out").end_to_end.row(0)
    assert (row["time_per_token_s"], row["energy_per_output_token_j"], row["avg_power_w"]) == (0.064, 0.5, 500.0)
    assert (row["tp"], row["dtype"], row["prompt_tokens"], row["tpot_s"], row["workload"]) == (2.0, "fp8", 180.0, 0.05, "v2 code")
    assert np.isnan(row["output_second_moment"])


# MLPerf Power -------------------------------------------------------------------------------------------------------------------

SUMMARY = """Samples per second: 10.0
Tokens per second: 2000.0
"""
SERVER_SUMMARY = """Completed samples per second    : 16.0
Completed tokens per second: 3200.00
Mean latency (ns)               : 20000000000
Mean First Token latency (ns)               : 250000000
Mean Time to Output Token (ns)               : 99000000
"""
SYSTEM = "H200-SXM-141GBx8_TRT_MaxQ"


def put_mlperf(folder: Path, summary: str = SUMMARY) -> Path:
    folder.mkdir(parents=True)
    (folder / "mlperf_log_summary.txt").write_text(summary)
    window = {"power_begin": "07-17-2024 10:00:01.000", "power_end": "07-17-2024 10:00:02.500"}
    (folder / "power_window.json").write_text(json.dumps(window))
    watts = "".join(f"07-17-2024 10:00:0{second}.000,{second * 1000}\n" for second in range(4))
    (folder / "spl_time_watts.csv.gz").write_bytes(gzip.compress(b"time,watts\n" + watts.encode()))
    return folder


def test_mlperf_watts_are_averaged_within_the_marked_window(tmp_path: Path) -> None:
    put_mlperf(tmp_path / "in" / SYSTEM / "llama2-70b-99.9" / "Offline")
    row = imported("mlperf_power", tmp_path / "in", tmp_path / "out").end_to_end.row(0)
    assert (row["avg_power_w"], row["energy_per_output_token_j"], row["meter_scope"]) == (1500.0, 0.75, "host wall")
    assert (row["output_tokens"], row["batch"], row["time_per_token_s"]) == (200.0, 806.0, 806 * 8 / 2000)
    assert (row["dp"], row["power_limit_w"], row["dtype"]) == (8.0, 500.0, "fp8")


def test_mlperf_s_own_layout_gives_the_same_row(tmp_path: Path) -> None:
    put_mlperf(tmp_path / "a" / SYSTEM / "mixtral-8x7b" / "Offline")
    folder = tmp_path / "b" / "closed" / "NVIDIA" / "results" / SYSTEM / "mixtral-8x7b" / "Offline" / "performance" / "run_1"
    folder.mkdir(parents=True)
    (folder / "mlperf_log_summary.txt").write_text(SUMMARY)
    marks = {"power_begin": "07-17-2024 10:00:01.000", "power_end": "07-17-2024 10:00:02.500"}
    log = "".join(f':::MLLOG {{"key": "{key}", "value": "{time}", "time_ms": 1.0}}\n' for key, time in marks.items())
    (folder / "mlperf_log_detail.txt").write_text(log)
    lines = [f"Time,07-17-2024 10:00:0{second}.000,Watts,{second * 1000}.0,Volts,230.0,Amps,1.0,PF,0.9,Mark,run_1" for second in range(4)]
    (folder / "spl.txt").write_text("\n".join(lines))
    first, second = (imported("mlperf_power", tmp_path / name, tmp_path / f"{name}-out").end_to_end for name in "ab")
    assert first.equals(second)


def test_mlperf_server_batch_follows_from_little_s_law(tmp_path: Path) -> None:
    put_mlperf(tmp_path / "in" / SYSTEM / "llama2-70b-99.9" / "Server", SERVER_SUMMARY)
    other = put_mlperf(tmp_path / "in" / SYSTEM / "llama2-70b-99" / "Server", SERVER_SUMMARY)
    (other / "spl_time_watts.csv.gz").unlink()
    profile = imported("mlperf_power", tmp_path / "in", tmp_path / "out")
    row = profile.end_to_end.row(0)
    assert (row["batch"], row["max_batch"], row["time_per_token_s"]) == (20 * 16 / 8, 896.0, 0.1)
    assert (row["ttft_s"], row["tpot_s"]) == (0.25, 0.099)
    assert profile.end_to_end.rows == 1
    assert "the same run counts for two accuracy targets" in next(iter(reasons(profile)))


# Any source ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOURCES)
def test_a_path_without_the_files_is_one_clear_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ProfileError, match=f"nothing below .* looks like '{name}'"):
        import_source(name, tmp_path / "in", tmp_path / "out")
    with pytest.raises(ProfileError, match="no such path"):
        import_source(name, tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_source_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=re.escape("no importer for 'mlenergy'. Did you mean: mlenergy_v3")):
        import_source("mlenergy", tmp_path, tmp_path / "out")


FOREIGN: dict[str, Callable[[Path], Path]] = {
    "mlenergy_v3": lambda root: root / "models" / "a__b__lm-arena-chat.json",
    "mlenergy_v2": lambda root: root / "llm_text_generation" / "chat" / "gpu" / "org" / "llm" / "bs1+tp1+pp1.json",
    "aiconfigurator_power": lambda root: root / "h200_sxm" / "gemm" / "vllm" / "0.22.0" / "gemm_perf.parquet",
    "aiconfigurator_time": lambda root: root / "l40s" / "moe" / "vllm" / "0.24.0" / "moe_perf.parquet",
    "aiconfigurator_e2e": lambda root: root / "silicon_sample.csv",
    "vidur": lambda root: root / "network" / "a100_dgx" / "all_reduce.csv.gz",
    "mlperf_power": lambda root: root / SYSTEM / "gptj-99" / "Offline" / "mlperf_log_summary.txt",
}


TORN = [b"", b"{}", b"[]", b'{"configurations": [{}]}', b"a,b\n1\n", b"a,b\n1,2\n", b"PAR1"]


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=12)
@given(
    content=st.binary(max_size=60) | st.sampled_from([b"", b"{}", b"[]", b'{"configurations": [{}]}', b"a,b\n1\n", b"a,b\n1,2\n", b"PAR1"])
)
def test_foreign_and_torn_files_are_one_clear_line_and_leave_nothing(
    name: str, content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("foreign")
    path = FOREIGN[name](root / "in")
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (path.parent / "spl.txt").write_bytes(content)
    with pytest.raises(ProfileError) as caught:
        import_source(name, root / "in", root / "out")
    assert "\n" not in str(caught.value)
    assert not (root / "out").exists()


def test_a_place_that_is_taken_is_told_before_a_file_is_read(tmp_path: Path) -> None:
    read: list[Any] = []
    put_v3(tmp_path / "in", v3_run())
    import_source("mlenergy_v3", tmp_path / "in", tmp_path / "out")
    with pytest.raises(ProfileError, match="holds a profile already"):
        import_source("mlenergy_v3", tmp_path / "in", tmp_path / "out", progress=lambda *step: read.append(step))
    assert not read


def test_progress_is_told_file_by_file(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    put_v3(tmp_path / "in", v3_run())
    import_source("mlenergy_v3", tmp_path / "in", tmp_path / "out", progress=lambda *step: told.append(step))
    assert told == [("public/data/models/Qwen__Qwen3-8B__lm-arena-chat.json", 1, 1)]


def test_sources_toml_and_the_registry_name_the_same_sources(root: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    listed = tomllib.loads((root / "profiles" / "sources.toml").read_text(encoding="utf-8"))["source"]
    assert {item["name"]: (item["where"], item["version"], item["licence"]) for item in listed} == {
        source.name: (source.where, source.version, source.licence) for source in SOURCES.values()
    }
    for item in listed:
        assert item["command"] == f"pie-p import {item['name']} PATH -o OUT"
