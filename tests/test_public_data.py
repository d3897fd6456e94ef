"""The whole public data sets, where they are at hand: row counts as published, and physics that every row must obey."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pie_p.importers import import_source
from pie_p.profiles import Profile, load_profile

pytest.importorskip("pyarrow", reason="pyarrow comes with the extra: pip install 'pie_p[train]'")

DATA = Path(os.environ.get("PIE_P_SHARED", Path(__file__).parents[2] / "shared")) / "data"
PLACES = {
    "mlenergy_v3": "mlenergy_v3",
    "mlenergy_v2": "mlenergy_v2",
    "mlperf_power": "mlperf_power",
    "vidur": "vidur",
    "aiconfigurator_e2e": "aiconfigurator/end_to_end_time",
    "aiconfigurator_power": "aiconfigurator/power",
    "aiconfigurator_time": "aiconfigurator/time",
}
TRUSTED_S = 1e-4  # shorter kernels are seen by one or two power samples

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no public data at {DATA}; set PIE_P_SHARED")


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Profile]:
    """Every source, imported once."""
    out = tmp_path_factory.mktemp("imported")
    found = {}
    for name, place in PLACES.items():
        started = time.monotonic()
        import_source(name, DATA / place, out / name)
        assert time.monotonic() - started < 300, f"{name} takes minutes to import"
        found[name] = load_profile(out / name)
    return found


def test_power_rows_are_as_many_as_published(profiles: dict[str, Profile]) -> None:
    manifest = profiles["aiconfigurator_power"].manifest
    read = {gpu: sum(item.rows for item in manifest.inputs if item.file.startswith(gpu)) for gpu in ("h200_sxm", "b200_sxm")}
    operators, collectives = profiles["aiconfigurator_power"].operators, profiles["aiconfigurator_power"].collectives
    powers = {
        gpu: np.concatenate([table["power_w"][table["gpu"] == gpu] for table in (operators, collectives)])
        for gpu in ("h200-sxm-141gb", "b200-sxm-180gb")
    }
    assert read == {"h200_sxm": 258_489, "b200_sxm": 812_403 + 6_677}
    assert int(np.isnan(powers["b200-sxm-180gb"]).sum()) == 6_677
    assert len(powers["h200-sxm-141gb"]) == 258_489
    assert not np.isnan(powers["h200-sxm-141gb"]).any()


@pytest.mark.parametrize(("gpu", "rows"), [("h200-sxm-141gb", 108_058), ("b200-sxm-180gb", 316_486)])
def test_trustworthy_rows_are_as_many_as_published(profiles: dict[str, Profile], gpu: str, rows: int) -> None:
    kept = 0
    for table in (profiles["aiconfigurator_power"].operators, profiles["aiconfigurator_power"].collectives):
        kept += int(((table["gpu"] == gpu) & (table["time_s"] >= TRUSTED_S) & ~np.isnan(table["power_w"])).sum())
    assert kept == rows


def test_v3_has_318_rows_of_text_llms_and_its_odd_groups(profiles: dict[str, Profile]) -> None:
    rows = profiles["mlenergy_v3"].end_to_end
    plain = np.array(["Nemotron" not in llm for llm in rows["llm"]])
    assert (int(plain.sum()), rows.rows) == (318, 374)
    odd = rows["odd_group"][plain].tolist()
    assert (odd.count("b200-gpqa-single"), odd.count("attention-dp"), odd.count("")) == (17, 16, 285)


def test_v3_energy_closes_and_gpus_are_those_of_the_plan(profiles: dict[str, Profile]) -> None:
    rows = profiles["mlenergy_v3"].end_to_end
    server_batch = rows["batch"] * rows["dp"]
    assert rows["energy_per_output_token_j"] == pytest.approx(rows["avg_power_w"] * rows["time_per_token_s"] / server_batch)
    gpus = rows["tp"] * rows["pp"] * rows["dp"]
    assert (rows["avg_power_w"] < 1.02 * gpus * rows["power_limit_w"]).all()
    assert ((rows["tp"] * rows["dp"]) % rows["ep"] == 0).all()


def test_v3_stated_mean_lengths_agree_with_the_histograms(profiles: dict[str, Profile]) -> None:
    rows = profiles["mlenergy_v3"].end_to_end
    spread = rows["output_second_moment"] / rows["output_tokens"] ** 2
    medians = {workload: float(np.median(spread[rows["workload"] == workload])) for workload in set(rows["workload"])}
    assert medians == pytest.approx({"lm-arena-chat": 1.9, "gpqa": 1.4, "sourcegraph-fim": 3.3}, abs=0.1)


def test_every_end_to_end_source_has_the_rows_it_should(profiles: dict[str, Profile]) -> None:
    rows = {name: profiles[name].end_to_end.rows for name in ("mlenergy_v2", "mlperf_power", "aiconfigurator_e2e")}
    assert rows == {"mlenergy_v2": 151, "mlperf_power": 6, "aiconfigurator_e2e": 1276}
    left_out = sum(item.rows for item in profiles["aiconfigurator_e2e"].manifest.rejected)
    assert rows["aiconfigurator_e2e"] + left_out == 1683  # nothing is lost silently


def test_mlperf_server_time_agrees_with_loadgen_s_own_figure(profiles: dict[str, Profile]) -> None:
    rows = profiles["mlperf_power"].end_to_end
    told = ~np.isnan(rows["tpot_s"])
    assert told.sum() == 2
    assert rows["time_per_token_s"][told] == pytest.approx(rows["tpot_s"][told], rel=0.01)


def test_repeated_files_are_dropped_and_h100_pairs_are_not_a100_pairs(profiles: dict[str, Profile]) -> None:
    vidur = profiles["vidur"]
    pairs = vidur.collectives.select(vidur.collectives["link"] == "nvlink4-bridge")
    assert set(pairs["kind"]) == {"all_reduce"}
    rejected = profiles["aiconfigurator_time"].manifest.rejected
    repeated = [item.file for item in rejected if item.reason.startswith("repeats") and "/comm/" in item.reason]
    assert {path.partition("/")[0] for path in repeated} == {"h100_sxm", "h200_sxm", "l40s"}


# Data sheets; H100 3.35 TB/s, H200 4.8, B200 8, A100 SXM 80 GB 2.04, L40S 0.864.
PEAK_BYTES_PER_S = {
    "h200-sxm-141gb": 4.8e12,
    "h100-sxm-80gb": 3.35e12,
    "b200-sxm-180gb": 8e12,
    "a100-sxm-80gb": 2.04e12,
    "l40s-48gb": 0.864e12,
}


def large_and_faster_than_memory(table: Any) -> tuple[Any, Any]:
    """Long rows that move more than a gigabyte, and which of them move it faster than the data sheet allows."""
    large = table.select((table["time_s"] >= TRUSTED_S) & (table["weight_bytes"] + table["kv_bytes"] > 1e9))
    peak = np.array([PEAK_BYTES_PER_S[gpu] for gpu in large["gpu"]])
    return large, large["hbm_bytes"] / large["time_s"] > peak


@pytest.mark.parametrize("name", ["aiconfigurator_power", "aiconfigurator_time"])
@pytest.mark.parametrize("kind", ["linear", "attention_decode", "experts"])
def test_no_large_kernel_beats_the_memory(profiles: dict[str, Profile], name: str, kind: str) -> None:
    """Counted bytes are a lower bound: a wrong unit or shape would show as rows faster than the memory.

    Skewed mixtures touch fewer experts than an even choice would, and so does DeepSeek's choice of groups on even scores; TensorRT-LLM's
    decode attention is a known quality limit.
    """
    large, too_fast = large_and_faster_than_memory(profiles[name].operators)
    even = np.array(["power_law" not in note for note in large["detail"]])
    meant = (large["kind"] == kind) & even & (large["engine"] != "trtllm")
    assert meant.sum() > 1000
    assert too_fast[meant].mean() < 0.02


def test_tensorrt_llm_s_decode_attention_is_still_faster_than_memory_allows(profiles: dict[str, Profile]) -> None:
    large, too_fast = large_and_faster_than_memory(profiles["aiconfigurator_power"].operators)
    suspect = (large["kind"] == "attention_decode") & (large["engine"] == "trtllm") & (large["head_dim"] <= 256)
    assert too_fast[suspect].mean() > 0.8  # docs/data.md, quality limits
