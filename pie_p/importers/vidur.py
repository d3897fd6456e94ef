"""Vidur's profiles: times [ms] of dense operators and of all-reduce and send/recv on A100, H100 and A40 (github microsoft/vidur, MIT).

`network/<cluster>/{all_reduce,send_recv}.csv` have message sizes in bytes and up to two hosts; `compute/<gpu>/<org>/<llm>/mlp.csv` has
one row per token count and tensor-parallel degree with the times of a layer's kernels. Medians are taken: a few of the repeats are far off.
The kernels ran in 16 bits; norm and residual addition were measured apart and are put together here, as the tree counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pie_p import operators
from pie_p.importers.counting import counted, details
from pie_p.importers.gathering import GPU_NAMES, Gathered, csv_columns, needed_columns
from pie_p.operators import ACTIVATION_BYTES
from pie_p.tables import Array, Table
from pie_p.units import KILO

Columns = dict[str, Array]


class Fabric(NamedTuple):
    """What stands behind a cluster's name."""

    gpu: str
    link: str


# Pairs of bridged boards exist as PCIe boards only; the name says no more.
CLUSTERS: Final[dict[str, Fabric]] = {
    "a100_dgx": Fabric("a100-sxm-80gb", "nvlink3-nvswitch"),
    "h100_dgx": Fabric("h100-sxm-80gb", "nvlink4-nvswitch"),
    "a100_pairwise_nvlink": Fabric("a100-pcie-80gb", "nvlink3-bridge"),
    "h100_pairwise_nvlink": Fabric("h100-nvl-94gb", "nvlink4-bridge"),
    "a40_pairwise_nvlink": Fabric("a40-48gb", "nvlink3-bridge-ga102"),
}
ENGINE: Final = "sarathi"  # the serving engine whose kernels Vidur profiled


def gather(gathered: Gathered) -> None:
    """Read every network and every dense-operator profile below the path."""
    files = gathered.files("network/*/all_reduce.csv*", "network/*/send_recv.csv*", "compute/*/*/*/mlp.csv*")
    for done, path in enumerate(files, start=1):
        content = gathered.read(path, what="Vidur profile")
        columns = csv_columns(content, what=str(path))
        columns.pop("", None)  # a running number
        rows = len(next(iter(columns.values())))
        if not gathered.is_repeat(path, content, rows):
            kept = gathered.unrepeated(path, columns)
            if path.name.startswith("mlp"):
                _layer_kernels(gathered, path, kept)
            else:
                _network(gathered, path, kept)
        gathered.step(path, done, len(files))


def _network(gathered: Gathered, path: Path, columns: Columns) -> None:
    fabric = CLUSTERS.get(path.parent.name)
    if fabric is None:
        gathered.skip(path, "its cluster is not known")
        return
    kind = path.name.partition(".")[0]
    clock = f"time_stats.{kind}"
    needed_columns(columns, what=str(path), needed=(f"{clock}.median", f"{clock}.std", "num_workers", "size", "devices_per_node"))
    columns = _timed(gathered, path, columns, f"{clock}.median")
    rows = len(columns["size"])
    if rows == 0:
        return
    shape = {
        "tokens": columns["size"] / ACTIVATION_BYTES,
        "width": np.ones(rows),
        "group_size": columns["num_workers"],
        "hosts": np.ceil(columns["num_workers"] / columns["devices_per_node"]),
    }
    told = counted(lambda **by: operators.collective("", **by), same={"kind": np.full(rows, kind, dtype=object)}, each=shape)
    time = {"time_s": columns[f"{clock}.median"] / KILO, "spread_s": columns[f"{clock}.std"] / KILO}
    where = {"gpu": fabric.gpu, "link": fabric.link, "engine": "nccl", "kernel_source": "torch.distributed"}
    gathered.add(Table.from_columns("collectives", {**told, **time, **where, "origin": "imported", "source": gathered.source}))


def _layer_kernels(gathered: Gathered, path: Path, columns: Columns) -> None:
    gpu = GPU_NAMES.get(path.parts[-4])
    if gpu is None:
        gathered.skip(path, "its GPU is not known")
        return
    needed_columns(columns, what=str(path), needed=_SHAPE)
    gated = np.array([str(value).lower() in ("true", "1.0") for value in columns["use_gated_mlp"]], dtype=np.float64)
    columns = {**columns, "gated": gated, "head_dim": columns["n_embd"] / columns["n_head"]}
    for name, kernel in KERNELS.items():
        clocks = [f"time_stats.{part}" for part in kernel.parts]
        needed_columns(columns, what=str(path), needed=[f"{clock}.median" for clock in clocks])
        time_ms = np.sum([columns[f"{clock}.median"] for clock in clocks], axis=0)
        kept = _timed(gathered, path, {**columns, "time_ms": time_ms}, "time_ms")
        rows = len(kept["time_ms"])
        if rows:
            spread_ms = np.sqrt(np.sum([kept[f"{clock}.std"] ** 2 for clock in clocks], axis=0))
            note = details(kernel=np.full(rows, name, dtype=object), tp=kept["num_tensor_parallel_workers"])
            where = {"gpu": gpu, "engine": ENGINE, "origin": "imported", "source": gathered.source, "detail": note}
            time = {"time_s": kept["time_ms"] / KILO, "spread_s": spread_ms / KILO}
            gathered.add(Table.from_columns("operators", {**kernel.counts(kept), **time, **where}))


def _timed(gathered: Gathered, path: Path, columns: Columns, clock: str) -> Columns:
    keep = columns[clock] > 0  # kernels that a profile left out are NaN
    gathered.reject(path, f"{clock} not above 0", int((~keep).sum()))
    return {name: values[keep] for name, values in columns.items()}


class Kernel(NamedTuple):
    """Which times make an operator, and how it is counted."""

    parts: tuple[str, ...]
    counts: Callable[[Columns], Columns]


def _linear(width_in: Callable[[Columns], Array], width_out: Callable[[Columns], Array]) -> Callable[[Columns], Columns]:
    def count(columns: Columns) -> Columns:
        each = {"tokens": columns["num_tokens"], "in_features": width_in(columns), "out_features": width_out(columns)}
        return counted(lambda **by: operators.linear("", **by), same={"dtype": _sixteen(columns)}, each=each)

    return count


def _norm(columns: Columns) -> Columns:
    return counted(lambda **by: operators.norm("", **by), same={}, each={"tokens": columns["num_tokens"], "width": columns["n_embd"]})


def _activation(columns: Columns) -> Columns:
    each = {"tokens": columns["num_tokens"], "width": _mlp_width(columns)}
    return counted(lambda *, gated, **by: operators.activation("", gated=bool(gated), **by), same={"gated": columns["gated"]}, each=each)


def _embedding(columns: Columns) -> Columns:
    each = {"tokens": columns["num_tokens"], "width": columns["n_embd"]}
    return counted(lambda **by: operators.embedding("", **by), same={}, each=each)


def _rope(columns: Columns) -> dict[str, Any]:
    """Queries and keys turned in place: read and written once."""
    values = columns["num_tokens"] * (_heads(columns) + _kv_heads(columns)) * columns["head_dim"]
    return {"kind": "rope", "flops": 6.0 * values, "hbm_bytes": 2.0 * values * ACTIVATION_BYTES, "tokens": columns["num_tokens"]}


def _heads(columns: Columns) -> Array:
    return columns["n_head"] / columns["num_tensor_parallel_workers"]


def _kv_heads(columns: Columns) -> Array:
    """KV heads of one rank; fewer heads than ranks are held more than once."""
    return np.maximum(columns["n_kv_head"] / columns["num_tensor_parallel_workers"], 1.0)


def _mlp_width(columns: Columns) -> Array:
    return columns["n_expanded_embd"] / columns["num_tensor_parallel_workers"]


def _query_width(columns: Columns) -> Array:
    return _heads(columns) * columns["head_dim"]


def _sixteen(columns: Columns) -> Array:
    return np.full(len(columns["num_tokens"]), "fp16", dtype=object)


_SHAPE: Final = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "use_gated_mlp", "num_tokens", "num_tensor_parallel_workers")

KERNELS: Final[dict[str, Kernel]] = {
    "qkv": Kernel(
        ("attn_pre_proj",),
        _linear(lambda c: c["n_embd"], lambda c: _query_width(c) + 2 * _kv_heads(c) * c["head_dim"]),
    ),
    "attention_out": Kernel(("attn_post_proj",), _linear(_query_width, lambda c: c["n_embd"])),
    "mlp_up": Kernel(("mlp_up_proj",), _linear(lambda c: c["n_embd"], lambda c: _mlp_width(c) * (1 + c["gated"]))),
    "mlp_down": Kernel(("mlp_down_proj",), _linear(_mlp_width, lambda c: c["n_embd"])),
    "activation": Kernel(("mlp_act",), _activation),
    "norm": Kernel(("input_layernorm", "add"), _norm),
    "norm_after_attention": Kernel(("post_attention_layernorm", "add"), _norm),
    "embedding": Kernel(("emb",), _embedding),
    "rope": Kernel(("attn_rope",), _rope),
}
