"""aiconfigurator's compute tables as operators: GEMM, attention, MLA, mixture of experts, quantisation.

Every reader takes a file's columns and returns the counted columns. MLA blocks, MLA's batched GEMMs and quantisation are no leaves of the
tree; they are kept under kinds of their own (`pie_p.tables.MODULE_KINDS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from pie_p import operators
from pie_p.importers.aiconfigurator_files import Columns, as_dtypes
from pie_p.importers.counting import counted, details, summed
from pie_p.operators import ACTIVATION_BYTES, Operator
from pie_p.tables import Array

# Experts with two matrices instead of three (squared ReLU, as in Nemotron's mixtures). TensorRT-LLM's tables say so; vLLM's do from 0.24 on
# without saying: there these shapes take 2/3 of the time that three matrices need on every GPU, before it the full time.
NOT_GATED: Final = "nongated"
NOT_GATED_SHAPES: Final = frozenset({(512, 22), (128, 6)})  # (experts, experts per token)
NOT_GATED_SINCE: Final = (0, 24)

# DeepSeek-V3's latent attention, the only one in the tables (arXiv 2412.19437, section 4.2): widths per head and of the latents.
HIDDEN, QUERY_RANK, KV_RANK, NOPE, ROPE, VALUE = 7168, 1536, 512, 128, 64, 128
LATENT: Final = KV_RANK + ROPE


class Reader(NamedTuple):
    """How one table is read."""

    needed: tuple[str, ...]  # columns that must be there
    formats: str  # the column whose number format must be known
    counts: Callable[[Columns], Columns]  # counted columns and `detail`


def _gemm(columns: Columns) -> Columns:
    shape = {"tokens": columns["m"], "in_features": columns["k"], "out_features": columns["n"]}
    rows = counted(lambda **by: operators.linear("", **by), same={"dtype": as_dtypes(columns["gemm_dtype"])}, each=shape)
    return {**rows, "detail": details(format=columns["gemm_dtype"])}


def _attention_shape(columns: Columns) -> Columns:
    return {
        "sequences": columns["batch_size"],
        "heads": columns["num_heads"],
        "kv_heads": columns["num_key_value_heads"],
        "head_dim": columns["head_dim"],
    }


def _attention_detail(columns: Columns) -> Array:
    window = _window(columns)
    windowed = window > 0
    positions = np.where(windowed, columns["isl"] + columns["step"], np.nan)  # in the cache, whether the window shows them or not
    return details(window=np.where(windowed, window, np.nan), positions=positions)


def _window(columns: Columns) -> Array:
    """Sliding window [tokens]; 0: none. Old tables have no such column."""
    return np.nan_to_num(columns.get("window_size", np.zeros_like(columns["isl"])))


def _context_attention(columns: Columns) -> Columns:
    def count(*, window: int, **by: Any) -> Operator:
        return operators.attention_prefill("", window=window or None, **by)

    same = {
        "new_tokens": columns["isl"],
        "cached_tokens": columns["step"],
        "window": _window(columns),
        "kv_dtype": as_dtypes(columns["kv_cache_dtype"]),
    }
    rows = counted(count, same=same, each=_attention_shape(columns))
    return {**rows, "dtype": as_dtypes(columns["attn_dtype"]), "detail": _attention_detail(columns)}


def _generation_attention(columns: Columns) -> Columns:
    context, window = columns["isl"] + columns["step"], _window(columns)
    seen = np.where(window > 0, np.minimum(context, window), context)
    same = {"kv_dtype": as_dtypes(columns["kv_cache_dtype"])}
    each = {**_attention_shape(columns), "context_tokens": seen}
    rows = counted(lambda **by: operators.attention_decode("", **by), same=same, each=each)
    return {**rows, "dtype": as_dtypes(columns["attn_dtype"]), "detail": _attention_detail(columns)}


def _experts(columns: Columns) -> Columns:
    same = {
        "tokens": columns["num_tokens"],
        "total_experts": columns["num_experts"],
        "top_k": columns["topk"],
        "dtype": as_dtypes(columns["moe_dtype"]),
        "gated": _gated(columns),
    }
    each = {
        "width": columns["hidden_size"],
        "intermediate": columns["inter_size"] / columns["moe_tp_size"],
        "local_experts": columns["num_experts"] / columns["moe_ep_size"],
    }
    rows = counted(lambda *, gated, **by: operators.experts("", gated=bool(gated), **by), same=same, each=each)
    note = details(
        format=columns["moe_dtype"],
        total_experts=columns["num_experts"],
        moe_tp=columns["moe_tp_size"],
        moe_ep=columns["moe_ep_size"],
        distribution=columns["distribution"],
    )
    return {**rows, "detail": note}


def _gated(columns: Columns) -> Array:
    """1 where an expert has a gate projection beside its up projection."""
    rows = zip(columns["kernel_source"], columns["version"], columns["num_experts"], columns["topk"], strict=True)
    return np.array([float(not _without_gate(*row)) for row in rows])


def _without_gate(kernel: str, version: str, total: float, top_k: float) -> bool:
    if NOT_GATED in kernel or (total, top_k) not in NOT_GATED_SHAPES:
        return NOT_GATED in kernel
    return kernel.startswith("vllm") and _release(version) >= NOT_GATED_SINCE


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _mla_prefill_core(columns: Columns) -> Columns:
    """Heads of 128 + 64 wide keys and 128 wide values; the cache holds one latent of 512 + 64 values per position."""
    same = {"new_tokens": columns["isl"], "cached_tokens": columns["step"], "kv_dtype": as_dtypes(columns["kv_cache_dtype"])}
    each = {"sequences": columns["batch_size"], "heads": columns["num_heads"], "kv_heads": columns["num_heads"]}

    def count(**by: Any) -> Operator:
        return operators.attention_prefill("", head_dim=NOPE + ROPE, value_dim=VALUE, kv_width=float(LATENT), **by)

    return {**counted(count, same=same, each=each), "detail": details(attention=np.full(len(columns["isl"]), "mla", dtype=object))}


def _mla_decode_core(columns: Columns) -> Columns:
    """Absorbed form: every head reads the cached latents, 512 + 64 wide as keys and 512 wide as values."""
    same = {"kv_dtype": as_dtypes(columns["kv_cache_dtype"])}
    each = {
        "sequences": columns["batch_size"],
        "context_tokens": columns["isl"] + columns["step"],
        "heads": columns["num_heads"],
    }

    def count(**by: Any) -> Operator:
        return operators.attention_decode("", kv_heads=1, head_dim=LATENT, value_dim=KV_RANK, kv_width=float(LATENT), **by)

    return {**counted(count, same=same, each=each), "detail": details(attention=np.full(len(columns["isl"]), "mla", dtype=object))}


def _dense(columns: Columns, tokens: Array, width_in: Array | float, width_out: Array | float) -> Columns:
    ones = np.ones_like(tokens)
    each = {"tokens": tokens, "in_features": ones * width_in, "out_features": ones * width_out}
    return counted(lambda **by: operators.linear("", **by), same={"dtype": as_dtypes(columns["gemm_type"])}, each=each)


def _mla_projections(columns: Columns, tokens: Array) -> list[Columns]:
    heads = columns["num_heads"]
    return [
        _dense(columns, tokens, HIDDEN, LATENT),
        _dense(columns, tokens, HIDDEN, QUERY_RANK),
        _dense(columns, tokens, QUERY_RANK, heads * (NOPE + ROPE)),
        _dense(columns, tokens, heads * VALUE, HIDDEN),
    ]


def _mla_context_module(columns: Columns) -> Columns:
    tokens = columns["batch_size"] * columns["isl"]
    up = _dense(columns, tokens, KV_RANK, columns["num_heads"] * (NOPE + VALUE))
    return _module(columns, [_mla_prefill_core(columns), *_mla_projections(columns, tokens), up], kind="mla_prefill")


def _mla_generation_module(columns: Columns) -> Columns:
    tokens = columns["batch_size"]
    keys = _dense(columns, tokens, NOPE, columns["num_heads"] * KV_RANK)
    values = _dense(columns, tokens, KV_RANK, columns["num_heads"] * VALUE)
    return _module(columns, [_mla_decode_core(columns), *_mla_projections(columns, tokens), keys, values], kind="mla_decode")


def _module(columns: Columns, parts: list[Columns], *, kind: str) -> Columns:
    note = details(format=columns["gemm_type"], attention_format=columns["mla_dtype"], llm=columns["model"])
    return {**summed(parts, kind=kind), "dtype": as_dtypes(columns["gemm_type"]), "detail": note}


def _mla_bmm(columns: Columns) -> Columns:
    before = columns["op_name"] == "mla_gen_pre"
    heads, ones = columns["num_heads"], np.ones_like(columns["num_heads"])
    each = {
        "tokens": columns["num_tokens"],
        "in_features": np.where(before, NOPE, KV_RANK) * ones,
        "out_features": np.where(before, heads * KV_RANK, heads * VALUE),
    }
    rows = counted(lambda **by: operators.linear("", **by), same={"dtype": as_dtypes(columns["bmm_dtype"])}, each=each)
    kind = np.full(len(heads), "mla_bmm", dtype=object)
    return {**rows, "heads": heads, "kind": kind, "detail": details(part=columns["op_name"])}


def _quantize(columns: Columns) -> Columns:
    """An elementwise pass over (m, k) 16-bit values: read once for the scales, or read and written as one byte each."""
    values = columns["m"] * columns["k"]
    written = np.where(columns["op_name"] == "scale_matrix", 1.0, 0.0)
    return {
        "kind": np.full(len(values), "quantize", dtype=object),
        "flops": 2.0 * values,
        "hbm_bytes": values * (ACTIVATION_BYTES + written),
        "tokens": columns["m"],
        "in_features": columns["k"],
        "dtype": as_dtypes(columns["quant_dtype"]),
        "detail": details(part=columns["op_name"]),
    }


_ATTENTION: Final = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype", "kv_cache_dtype", "step")
_MLA: Final = ("batch_size", "isl", "num_heads", "mla_dtype", "kv_cache_dtype", "step")
_MODULE: Final = (*_MLA, "gemm_type", "model")
_MOE_KIND: Final = ("moe_dtype", "version")
_MOE: Final = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "distribution", *_MOE_KIND)

READERS: Final[dict[str, Reader]] = {
    "gemm_perf.parquet": Reader(("m", "n", "k", "gemm_dtype"), "gemm_dtype", _gemm),
    "context_attention_perf.parquet": Reader(_ATTENTION, "kv_cache_dtype", _context_attention),
    "generation_attention_perf.parquet": Reader(_ATTENTION, "kv_cache_dtype", _generation_attention),
    "moe_perf.parquet": Reader(_MOE, "moe_dtype", _experts),
    "context_mla_perf.parquet": Reader(_MLA, "kv_cache_dtype", _mla_prefill_core),
    "generation_mla_perf.parquet": Reader(_MLA, "kv_cache_dtype", _mla_decode_core),
    "mla_context_module_perf.parquet": Reader(_MODULE, "gemm_type", _mla_context_module),
    "mla_generation_module_perf.parquet": Reader(_MODULE, "gemm_type", _mla_generation_module),
    "mla_bmm_perf.parquet": Reader(("num_tokens", "num_heads", "bmm_dtype", "op_name"), "bmm_dtype", _mla_bmm),
    "computescale_perf.parquet": Reader(("m", "k", "quant_dtype", "op_name"), "quant_dtype", _quantize),
    "scale_matrix_perf.parquet": Reader(("m", "k", "quant_dtype", "op_name"), "quant_dtype", _quantize),
}
