"""A small profile of operators whose times and powers follow a known law, for tests of learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pie_p import operators as ops
from pie_p.features import featurize
from pie_p.hardware import load_cluster
from pie_p.operators import Operator
from pie_p.physics import Roofline
from pie_p.profile_manifest import new_manifest
from pie_p.profiles import save_profile
from pie_p.tables import Table

BOARDS = ("h200-sxm-141gb", "b200-sxm-180gb")
RATIOS = {"vllm 0.24.0 fast": 1.2, "vllm 0.22.0 slow": 1.8, "trtllm 1.3.0 other": 1.5}  # measured time over the base


def linears(count: int, *, seed: int = 0) -> list[Operator]:
    random = np.random.default_rng(seed)
    tokens = 2 ** random.integers(0, 13, count)
    widths = 256 * random.integers(1, 64, (count, 2))
    return [ops.linear("", tokens=float(t), in_features=float(k), out_features=float(n)) for t, (k, n) in zip(tokens, widths, strict=True)]


def decodes(count: int, *, seed: int = 0) -> list[Operator]:
    random = np.random.default_rng(seed)
    batches, contexts = 2.0 ** random.integers(0, 9, count), 2.0 ** random.integers(6, 15, count)
    return [
        ops.attention_decode("", sequences=b, context_tokens=c, heads=32, kv_heads=8, head_dim=128)
        for b, c in zip(batches, contexts, strict=True)
    ]


def reduces(count: int, *, seed: int = 0) -> list[Operator]:
    random = np.random.default_rng(seed)
    return [
        ops.all_reduce("", tokens=float(t), width=4096, group_size=int(g))
        for t, g in zip(2 ** random.integers(0, 14, count), random.choice([2, 4, 8], count), strict=True)
    ]


def share_of(columns: Any, time_s: Any) -> Any:
    """The law of power: a share of the room that rises with both rates."""
    flops = columns["flops"] / columns["peak_flops_per_s"] / time_s
    moved = columns["hbm_bytes"] / columns["hbm_bytes_per_s"] / time_s
    return 0.1 + 0.4 * np.minimum(flops, 1.0) + 0.4 * np.minimum(moved, 1.0)


def table(operators: Sequence[Operator], *, name: str = "operators", noise: float = 0.01, seed: int = 0, kernels: Any = None) -> Table:
    """Rows measured with kernels that take a fixed ratio to the base, on two boards."""
    random = np.random.default_rng(seed)
    which = random.integers(0, len(BOARDS), len(operators))
    columns = featurize(operators, [load_cluster(board) for board in BOARDS], which)
    kernels = kernels or list(RATIOS)
    labels = [kernels[number] for number in random.integers(0, len(kernels), len(operators))]
    ratio = np.array([RATIOS.get(label, 1.3) for label in labels])
    time_s = Roofline().time_s(columns) * ratio * np.exp(noise * random.standard_normal(len(operators)))
    idle_w, limit_w = columns["active_idle_w"], columns["limit_w"]
    counted = {field: [getattr(one, field) for one in operators] for field in Operator._fields if field not in ("calls", "launches")}
    parts = [label.split(" ", 2) for label in labels]
    return Table.from_columns(
        name,  # type: ignore[arg-type]
        {
            **{field: values for field, values in counted.items() if field in set(Table.empty(name).columns)},  # type: ignore[arg-type]
            "time_s": time_s,
            "power_w": idle_w + (limit_w - idle_w) * share_of(columns, time_s),
            "gpu": [BOARDS[number] for number in which],
            "engine": [part[0] for part in parts],
            "engine_version": [part[1] for part in parts],
            "kernel_source": [part[2] for part in parts],
            "origin": "simulated",
            "source": "known-law",
        },
    )


def profile(folder: Path, tables: Sequence[Table]) -> Path:
    save_profile(folder, new_manifest("known-law", origin="simulated", source="known-law"), list(tables))
    return folder
