"""Importers of operator and collective tables, on hand-made files with results worked out by hand."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pie_p.importers import import_source
from pie_p.importers.counting import counted
from pie_p.operators import Operator, attention_decode, attention_prefill, experts, linear
from pie_p.profiles import load_profile
from pie_p.tables import COUNTED, Table

arrow = pytest.importorskip("pyarrow", reason="pyarrow comes with the extra: pip install 'pie_p[train]'")
parquet = pytest.importorskip("pyarrow.parquet")


def imported(name: str, path: Path, out: Path) -> Any:
    import_source(name, path, out)
    return load_profile(out)


def fields(operator: Operator) -> dict[str, Any]:
    return {name: getattr(operator, name) for name in COUNTED}


def put_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)
    return path


def put_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def reasons(profile: Any) -> dict[str, int]:
    return {item.reason: item.rows for item in profile.manifest.rejected}


# aiconfigurator -----------------------------------------------------------------------------------------------------------------

WHERE = {"framework": "VLLM", "version": "0.22.0", "device": "NVIDIA H200", "kernel_source": "vllm_default"}
POWER = {"power": 600.0, "power_limit": 700.0}


def gemm(**changes: Any) -> dict[str, Any]:
    return {**WHERE, "op_name": "gemm", "gemm_dtype": "bfloat16", "m": 8, "n": 4096, "k": 1024, "latency": 0.5, **POWER, **changes}


def table_path(root: Path, name: str, system: str = "h200_sxm") -> Path:
    return root / "systems" / "data" / system / "family" / "vllm" / "0.22.0" / f"{name}_perf.parquet"


def test_a_gemm_is_counted_as_a_prediction_counts_it_and_timed_in_seconds(tmp_path: Path) -> None:
    put_parquet(table_path(tmp_path / "in", "gemm"), [gemm(), gemm(gemm_dtype="fp8_block", m=16)])
    rows = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "out").operators
    for row, operator in zip(
        rows.iter_rows(),
        [
            linear("", tokens=8, in_features=1024, out_features=4096),
            linear("", tokens=16, in_features=1024, out_features=4096, dtype="fp8"),
        ],
        strict=True,
    ):
        assert {name: row[name] for name in COUNTED} == fields(operator)
        assert (row["time_s"], row["power_w"], row["power_limit_w"], row["gpu"]) == (5e-4, 600.0, 700.0, "h200-sxm-141gb")
    assert rows["detail"].tolist() == ["format=bfloat16", "format=fp8_block"]


def test_rows_without_a_time_or_a_known_format_and_exact_repeats_are_counted(tmp_path: Path) -> None:
    bad = [gemm(latency=0.0), gemm(latency=None), gemm(gemm_dtype="fp3")]
    put_parquet(table_path(tmp_path / "in", "gemm"), [gemm(), gemm(), gemm(power=None, power_limit=None, m=9), *bad])
    profile = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "out")
    assert profile.operators["power_w"].tolist() == pytest.approx([600.0, np.nan], nan_ok=True)
    assert reasons(profile) == {"repeats another row of the file": 1, "latency not above 0": 2, "number format 'fp3' not known": 1}


def test_tables_without_power_are_left_to_the_other_importer(tmp_path: Path) -> None:
    plain = {key: value for key, value in gemm().items() if key not in POWER}
    put_parquet(table_path(tmp_path / "in", "gemm"), [gemm()])
    put_parquet(table_path(tmp_path / "in", "gemm", "h100_sxm"), [plain])
    put_parquet(table_path(tmp_path / "in", "gdn"), [gemm()])
    put_parquet(table_path(tmp_path / "in", "gemm", "b60"), [plain])
    powered = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "powered")
    timed = imported("aiconfigurator_time", tmp_path / "in", tmp_path / "timed")
    assert powered.operators["gpu"].tolist() == ["h200-sxm-141gb"]
    assert timed.operators["gpu"].tolist() == ["h100-sxm-80gb"]
    assert np.isnan(timed.operators["power_w"]).all()
    both = {"no importer reads this table": 0, "its GPU is not in the catalogue": 0}
    assert reasons(powered) == {**both, "no power column: see aiconfigurator_time": 1}
    assert reasons(timed) == {**both, "power column: see aiconfigurator_power": 1}


def attention(name: str, **changes: Any) -> dict[str, Any]:
    shape = {"batch_size": 2, "isl": 64, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "step": 0, "window_size": 0}
    return {**WHERE, "op_name": name, "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "latency": 1.0, **POWER, **shape, **changes}


def test_context_attention_counts_pairs_under_its_window(tmp_path: Path) -> None:
    put_parquet(table_path(tmp_path / "in", "context_attention"), [attention("c"), attention("c", window_size=16)])
    rows = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "out").operators
    shape: dict[str, Any] = {"sequences": 2, "new_tokens": 64, "cached_tokens": 0, "heads": 32, "kv_heads": 8, "head_dim": 128}
    whole, seen = (attention_prefill("", kv_dtype="fp8", window=window, **shape) for window in (None, 16))
    assert rows["flops"].tolist() == [whole.flops, seen.flops]
    assert rows["kv_bytes"].tolist() == [whole.kv_bytes, seen.kv_bytes]
    assert rows["detail"].tolist() == ["", "window=16; positions=64"]


def test_generation_attention_reads_step_plus_one_positions(tmp_path: Path) -> None:
    rows = [attention("g", isl=1, step=1023), attention("g", isl=1, step=1023, window_size=128)]
    put_parquet(table_path(tmp_path / "in", "generation_attention"), rows)
    found = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "out").operators
    operator = attention_decode("", sequences=2, context_tokens=1024, heads=32, kv_heads=8, head_dim=128, kv_dtype="fp8")
    assert found["context_tokens"].tolist() == [1024.0, 128.0]
    assert found["kv_bytes"][0] == operator.kv_bytes == 2 * 1024 * 8 * 256


def moe(**changes: Any) -> dict[str, Any]:
    shape = {"num_tokens": 4, "hidden_size": 1024, "inter_size": 512, "topk": 2, "num_experts": 8, "moe_tp_size": 2, "moe_ep_size": 4}
    return {**WHERE, "op_name": "moe", "moe_dtype": "fp8", "distribution": "balanced", "latency": 0.2, **POWER, **shape, **changes}


def test_a_mixture_is_counted_per_rank(tmp_path: Path) -> None:
    put_parquet(table_path(tmp_path / "in", "moe"), [moe()])
    row = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "out").operators.row(0)
    operator = experts("", tokens=4, width=1024, intermediate=256, total_experts=8, local_experts=2, top_k=2, gated=True, dtype="fp8")
    assert {name: row[name] for name in COUNTED} == pytest.approx(fields(operator))
    assert row["detail"] == "format=fp8; total_experts=8; moe_tp=2; moe_ep=4; distribution=balanced"


@pytest.mark.parametrize(
    ("change", "matrices"),
    [
        ({"kernel_source": "moe_torch_flow_nongated"}, 2),
        ({"num_experts": 512, "topk": 22, "version": "0.24.0", "kernel_source": "vllm_fp8moe"}, 2),
        ({"num_experts": 512, "topk": 22, "version": "0.22.0", "kernel_source": "vllm_fused_moe"}, 3),
        ({"version": "0.24.0", "kernel_source": "vllm_fp8moe"}, 3),
    ],
)
def test_experts_without_a_gate_have_two_matrices(tmp_path: Path, change: dict[str, Any], matrices: int) -> None:
    put_parquet(table_path(tmp_path / "in", "moe"), [moe(moe_tp_size=1, moe_ep_size=1, **change)])
    row = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "out").operators.row(0)
    assert row["flops"] == 2 * 4 * row["top_k"] * matrices * 1024 * 512


def test_an_mla_block_is_the_sum_of_its_parts_and_no_leaf_of_the_tree(tmp_path: Path) -> None:
    shape = {"num_heads": 16, "batch_size": 8, "isl": 1, "tp_size": 1, "step": 99}
    formats = {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "gemm_type": "fp8_block", "model": "deepseek-ai/DeepSeek-V3"}
    put_parquet(table_path(tmp_path / "in", "mla_generation_module"), [{**WHERE, **shape, **formats, "latency": 0.1, **POWER}])
    row = imported("aiconfigurator_power", tmp_path / "in", tmp_path / "out").operators.row(0)
    weights = 7168 * 576 + 7168 * 1536 + 1536 * 16 * 192 + 16 * 128 * 7168 + 128 * 16 * 512 + 512 * 16 * 128
    assert (row["kind"], row["weight_bytes"], row["kv_bytes"]) == ("mla_decode", weights, 8 * 100 * 576 * 2)


def message(operation: str, elements: int, ranks: int, **changes: Any) -> dict[str, Any]:
    where = {**WHERE, "framework": "TRTLLM", "version": "2.29.2", "kernel_source": "NCCL"}
    return {**where, "op_name": operation, "nccl_dtype": "half", "num_gpus": ranks, "message_size": elements, "latency": 0.02, **changes}


def test_nccl_messages_are_elements_and_an_all_gather_is_shared_by_its_ranks(tmp_path: Path) -> None:
    rows = [message("all_reduce", 1024, 8), message("all_gather", 1024, 8), message("alltoall", 1024, 4, nccl_dtype="int8")]
    put_parquet(tmp_path / "in" / "h200_sxm" / "comm" / "nccl" / "2.29.2" / "nccl_perf.parquet", rows)
    found = imported("aiconfigurator_time", tmp_path / "in", tmp_path / "out").collectives
    assert found["kind"].tolist() == ["all_reduce", "all_gather", "all_to_all"]
    assert found["payload_bytes"].tolist() == [2048.0, 256.0, 1024.0]
    assert found["time_s"].tolist() == pytest.approx([2e-5] * 3)
    assert (found["engine"][0], found["engine_version"][0], found["link"][0]) == ("nccl", "2.29.2", "nvlink4-nvswitch")


def test_one_measurement_under_two_names_is_kept_once(tmp_path: Path) -> None:
    for system, device in (("h100_sxm", "NVIDIA H100"), ("h200_sxm", "NVIDIA H200")):
        put_parquet(
            tmp_path / "in" / system / "comm" / "nccl" / "2.23" / "nccl_perf.parquet", [message("all_reduce", 1024, 8, device=device)]
        )
    profile = imported("aiconfigurator_time", tmp_path / "in", tmp_path / "out")
    assert profile.collectives["gpu"].tolist() == ["h100-sxm-80gb"]
    assert reasons(profile) == {"repeats h100_sxm/comm/nccl/2.23/nccl_perf.parquet": 1}


def test_an_expert_exchange_moves_one_copy_per_chosen_expert_and_is_timed_in_us(tmp_path: Path) -> None:
    kind = {"phase": "dispatch", "comm_backend": "deepep_ll", "comm_dtype": "fp8", "ep_size": 8, "sms": 0, "num_experts": 256}
    row = {**WHERE, **kind, "hidden_size": 7168, "topk": 8, "num_tokens": 16, "latency": 60.0}
    put_parquet(tmp_path / "in" / "gb200" / "comm" / "vllm" / "0.24.0" / "moe_a2a_perf.parquet", [row])
    found = imported("aiconfigurator_time", tmp_path / "in", tmp_path / "out").collectives.row(0)
    assert (found["payload_bytes"], found["group_size"], found["hosts"]) == (16 * 8 * 7168, 8, 2)  # four GPUs per host
    assert found["time_s"] == pytest.approx(6e-5)


def test_deepep_gives_a_dispatch_and_a_combine(tmp_path: Path) -> None:
    times = {"dispatch_transmit_us": 30.0, "dispatch_notify_us": 10.0, "combine_transmit_us": 50.0, "combine_notify_us": 0.0}
    row = {**WHERE, "node_num": 2, "hidden_size": 7168, "num_token": 4, "num_topk": 8, "num_experts": 256, "dispatch_sms": 20, **times}
    put_parquet(tmp_path / "in" / "h100_sxm" / "comm" / "sglang" / "0.5" / "wideep_deepep_normal_perf.parquet", [row])
    found = imported("aiconfigurator_time", tmp_path / "in", tmp_path / "out").collectives
    assert found["time_s"].tolist() == pytest.approx([4e-5, 5e-5])
    assert set(found["group_size"]) == {16.0}
    assert found["payload_bytes"][0] == 4 * 8 * 7168 * 2
    assert found["detail"][0] == "phase=dispatch; backend=deepep_ht; top_k=8; total_experts=256; sms=20"


def serving(**changes: Any) -> dict[str, Any]:
    run = {
        "id": "run_1",
        "backend": "vllm",
        "backend_version": "0.19.0",
        "model_path": "meta-llama/Llama-3.1-70B",
        "system": "h200_sxm",
        "precision": "fp4",
        "mode": "agg",
        "isl": 1024,
        "osl": 101,
        "gemm_quant_mode": "nvfp4",
        "batch_size": 16,
        "tp_size": 4,
        "pp_size": 1,
        "attention_dp_size": 1,
        "moe_tp_size": 4,
        "moe_ep_size": 1,
        "silicon_ttft_ms": 110.0,
        "silicon_tpot_ms": 10.0,
    }
    return {**run, **changes}


def test_a_serving_run_s_time_per_token_is_its_latency_over_its_tokens(tmp_path: Path) -> None:
    rows = [
        serving(),
        serving(id="again"),
        serving(mode="disagg", batch_size=""),
        serving(attention_dp_size=4),
        serving(tp_size=64, moe_tp_size=8, moe_ep_size=8),
        serving(id="x_tp8_ep8_7", tp_size=64, moe_tp_size=8, moe_ep_size=8, precision="fp8"),
    ]
    put_csv(tmp_path / "in" / "silicon_sample.csv.gz", rows)
    profile = imported("aiconfigurator_e2e", tmp_path / "in", tmp_path / "out")
    first, second = profile.end_to_end.iter_rows()
    assert first["time_per_token_s"] == pytest.approx((0.110 + 100 * 0.010) / 101)
    assert (first["tp"], first["ep"], first["dtype"], first["meter_scope"]) == (4.0, 1.0, "nvfp4", "none")
    assert (second["tp"], second["ep"], second["dtype"]) == (8.0, 8.0, "fp8")
    assert sorted(reasons(profile).values()) == [1, 1, 1, 1]


# Vidur --------------------------------------------------------------------------------------------------------------------------


def test_vidur_messages_are_bytes_and_medians_are_taken(tmp_path: Path) -> None:
    stats = {f"time_stats.all_reduce.{name}": value for name, value in (("mean", 0.09), ("median", 0.05), ("std", 0.01))}
    row = {"": 0, **stats, "rank": 0, "num_workers": 16, "size": 4096, "collective": "all_reduce", "devices_per_node": 8}
    put_csv(tmp_path / "in" / "data" / "profiling" / "network" / "a100_dgx" / "all_reduce.csv", [row])
    found = imported("vidur", tmp_path / "in", tmp_path / "out").collectives.row(0)
    assert (found["payload_bytes"], found["group_size"], found["hosts"], found["link"]) == (4096, 16, 2, "nvlink3-nvswitch")
    assert (found["time_s"], found["spread_s"]) == (pytest.approx(5e-5), pytest.approx(1e-5))


def test_vidur_layers_become_operators_of_one_rank(tmp_path: Path) -> None:
    parts = ("emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm")
    parts += ("mlp_up_proj", "mlp_act", "mlp_down_proj", "add")
    stats = {f"time_stats.{part}.{name}": value for part in parts for name, value in (("median", 0.1), ("std", 0.0))}
    shape = {"n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336, "use_gated_mlp": True, "num_tokens": 64}
    row = {**stats, **shape, "num_tensor_parallel_workers": 4, "vocab_size": 32768}
    put_csv(tmp_path / "in" / "compute" / "a40" / "org" / "llm" / "mlp.csv.gz", [row])
    rows = imported("vidur", tmp_path / "in", tmp_path / "out").operators
    shapes = zip(rows["in_features"], rows["out_features"], strict=True)
    widths = dict(zip(rows["detail"], shapes, strict=True))
    assert widths["kernel=qkv; tp=4"] == (4096, 8 * 128 + 2 * 2 * 128)
    assert widths["kernel=mlp_up; tp=4"] == (4096, 2 * 14336 / 4)
    assert rows["time_s"][rows["detail"] == "kernel=norm; tp=4"].tolist() == pytest.approx([2e-4])  # norm and residual addition
    assert set(rows["gpu"]) == {"a40-48gb"}


def test_rows_are_counted_in_groups_as_one_by_one() -> None:
    tokens = np.array([1.0, 8.0, 1.0, 64.0])
    dtypes = np.array(["fp8", "bf16", "bf16", "fp8"], dtype=object)
    each = {"tokens": tokens, "in_features": np.full(4, 16.0), "out_features": np.full(4, 32.0)}
    columns = counted(lambda **by: linear("", **by), same={"dtype": dtypes}, each=each)
    for index in range(4):
        operator = linear("", tokens=tokens[index], in_features=16.0, out_features=32.0, dtype=dtypes[index])
        assert {name: columns[name][index] for name in COUNTED} == fields(operator)
    Table.from_columns("operators", {**columns, "time_s": 1.0, "gpu": "g", "origin": "imported", "source": "s"})
