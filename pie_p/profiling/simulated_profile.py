"""A complete profile of a simulated host: kernels, collectives and waits of GPUs that follow a known law, each seen through a meter.

    python -m pie_p.profiling.simulated_profile --out profiles/h100-sxm-80gb-simulated/known-law

Notebooks and tests train on it: what a predictor learns from it can be held against `SimulatedGpu`, which no real profile allows.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from pie_p.operators import COLLECTIVES, KINDS, Kind, Operator, collective
from pie_p.profiles import append_profile
from pie_p.profiling.campaign import CampaignPlan, open_profile
from pie_p.profiling.collectives import payloads
from pie_p.profiling.design import SPACES, choose
from pie_p.profiling.measurement import Procedure, measure
from pie_p.profiling.rows import operator_table, wait_table
from pie_p.profiling.simulated_host import SimulatedGpu, SimulatedKernel, simulated_bench
from pie_p.profiling.waits import Distribution
from pie_p.tables import Table
from pie_p.units import Dtype

QUICK: Final = Procedure(cool_down_s=0.1, warm_up_s=0.1, enough_s=2.0, trials=3, longest_pause_s=0.2, rise_s=0.2)
MEETINGS: Final = 512
BEFORE_MEETINGS: Final[tuple[Kind, ...]] = ("linear", "attention_decode", "attention_prefill", "experts")
NAME: Final = "simulated-known-law"
LINK: Final = "nvlink4-switch"


def write_simulated_profile(
    folder: str | Path,
    *,
    gpu: SimulatedGpu | None = None,
    gpu_name: str = "h100-sxm-80gb",
    group_sizes: Sequence[int] = (2, 4),
    points: int | Mapping[Kind, int] = 208,
    dtypes: Sequence[Dtype] = ("bf16", "fp8"),
    payload_count: int = 21,
    seed: int = 0,
) -> None:
    """Measure a simulated host into a new profile.

    Args:
        folder: of the profile.
        gpu: the law; default one near an H100.
        gpu_name: what the rows call it: a name in the catalogue, so that features can be made.
        group_sizes: ranks that meet [-].
        points: of each kernel kind [-], or of some.
        dtypes: of weights.
        payload_count: payloads of each collective, 1 KiB to 1 GiB [-].
        seed: of the jitter.
    """
    law = gpu or SimulatedGpu()
    bench, clock, board = simulated_bench(law)
    kernels = dict.fromkeys(SPACES, points) if isinstance(points, int) else points
    plan = CampaignPlan(name=NAME, gpu=gpu_name, kernels=kernels, dtypes=tuple(dtypes), procedure=QUICK)
    open_profile(plan, Path(folder), bench, {})
    rows: dict[str, list[Table]] = defaultdict(list)
    for operator in (*plan.points(), *_collectives(group_sizes, payload_count)):
        measured = measure(SimulatedKernel(operator, law, clock, board, seed=seed), bench, QUICK)
        row = operator_table(operator, measured, gpu=gpu_name, source=NAME, kernel_source="simulated")
        rows[row.name].append(row)
    tables = [Table.concat(made).with_columns(engine="simulated") for made in rows.values()]
    waits = [*(row for size in group_sizes for row in _skew_rows(law, size, gpu_name, seed)), *_gap_rows(law, gpu_name)]
    tables.append(Table.concat(waits).with_columns(engine="simulated"))
    append_profile(folder, [table if table.name == "operators" else table.with_columns(link=LINK) for table in tables])


def _collectives(group_sizes: Sequence[int], payload_count: int) -> Iterator[Operator]:
    """Powers of two, and one and a half times each."""
    for payload_bytes in payloads(payload_count):
        for kind in KINDS:
            sizes = () if kind not in COLLECTIVES else (2,) if kind == "send_recv" else group_sizes
            for size in sizes:
                for factor in (1.0, 1.5):
                    yield collective(kind, kind, tokens=1, width=factor * payload_bytes / 2, group_size=size)


def _skew_rows(law: SimulatedGpu, group_size: int, gpu_name: str, seed: int) -> list[Table]:
    """Waits at an all-reduce after kernels of the kinds that come before one, small and large."""
    return [
        wait_table(
            cause="skew",
            wait=Distribution.of(law.waits_s(work, group_size, meetings=MEETINGS, seed=seed)),
            kind="all_reduce",
            payload_bytes=max(1.0, work.tokens) * 8192.0,
            preceding=kind,
            preceding_s=law.time_s(work),
            group_size=group_size,
            gpu=gpu_name,
            origin="simulated",
            source=NAME,
            power_w=law.wait_w,
        )
        for kind in BEFORE_MEETINGS
        for work in choose(kind, 6)
    ]


def _gap_rows(law: SimulatedGpu, gpu_name: str) -> list[Table]:
    """The gap after a kernel and the one after a step; both are what they are, always."""
    made = partial(wait_table, group_size=1, gpu=gpu_name, origin="simulated", source=NAME, power_w=law.wait_w)
    gaps = {"launch_gap": law.gap_s, "host_gap": law.host_s}
    return [made(cause=cause, wait=Distribution.of(np.full(2, gap_s))) for cause, gap_s in gaps.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the profile that ships."""
    parser = argparse.ArgumentParser(description="Write a profile of a simulated host with a known law.")
    parser.add_argument("--out", type=Path, required=True)
    write_simulated_profile(parser.parse_args(arguments).out)


if __name__ == "__main__":
    main()
