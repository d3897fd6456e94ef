"""A complete profile of a simulated host: kernels, collectives and waits of GPUs that follow a known law, each seen through a meter.

    python -m pie_p.profiling.simulated_profile --out profiles/h100-sxm-80gb-simulated/known-law

Notebooks and tests train on it: what a predictor learns from it can be held against `SimulatedGpu`, which no real profile allows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pie_p.operators import COLLECTIVES, KINDS, Kind, Operator, collective
from pie_p.profiles import append_profile
from pie_p.profiling.campaign import CampaignPlan, compact, run_campaign
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.collectives import payloads
from pie_p.profiling.design import SPACES, choose
from pie_p.profiling.laws import Timeline
from pie_p.profiling.measurement import Bench, Procedure, measure
from pie_p.profiling.rows import operator_table, wait_table
from pie_p.profiling.simulated_host import SimulatedGpu, SimulatedKernel, simulated_bench
from pie_p.profiling.waits import Distribution
from pie_p.tables import Table

QUICK: Final = Procedure(cool_down_s=0.1, warm_up_s=0.1, enough_s=2.0, trials=3, longest_pause_s=0.2, rise_s=0.2)
MEETINGS: Final = 512
BEFORE_MEETINGS: Final[tuple[Kind, ...]] = ("linear", "attention_decode", "attention_prefill", "experts")
NAME: Final = "simulated-known-law"


def write_simulated_profile(
    folder: str | Path,
    *,
    gpu: SimulatedGpu | None = None,
    gpu_name: str = "h100-sxm-80gb",
    group_sizes: Sequence[int] = (2, 4),
    points: int = 48,
    payload_count: int = 21,
    seed: int = 0,
) -> None:
    """Measure a simulated host into a new profile.

    Args:
        folder: of the profile.
        gpu: the law; default one near an H100.
        gpu_name: what the rows call it: a name in the catalogue, so that features can be made.
        group_sizes: ranks that meet [-].
        points: of each kernel kind [-].
        payload_count: payloads of each collective, 1 KiB to 1 GiB [-].
        seed: of the jitter.
    """
    law = gpu or SimulatedGpu()
    bench, clock, board = simulated_bench(law)
    plan = CampaignPlan(name=NAME, gpu=gpu_name, kernels=dict.fromkeys(SPACES, points), dtypes=("bf16", "fp8"), procedure=QUICK)
    run_campaign(plan, folder, bench, lambda operator: SimulatedKernel(operator, law, clock, board, seed=seed))
    meetings = [_collective_row(operator, law, bench, clock, board, gpu_name) for operator in _collectives(group_sizes, payload_count)]
    waits = [row for size in group_sizes for row in _wait_rows(law, size, gpu_name, seed)]
    append_profile(folder, [Table.concat(meetings), Table.concat(waits)])
    compact(folder)


def _collectives(group_sizes: Sequence[int], payload_count: int) -> Iterator[Operator]:
    for payload_bytes in payloads(payload_count):
        for kind in KINDS:
            sizes = () if kind not in COLLECTIVES else (2,) if kind == "send_recv" else group_sizes
            for size in sizes:
                yield collective(kind, kind, tokens=1, width=payload_bytes / 2, group_size=size)


def _collective_row(operator: Operator, law: SimulatedGpu, bench: Bench, clock: SimulatedClock, board: Timeline, gpu_name: str) -> Table:
    measured = measure(SimulatedKernel(operator, law, clock, board), bench, QUICK)
    row = operator_table(operator, measured, gpu=gpu_name, source=NAME, kernel_source="simulated")
    return row.with_columns(link="nvlink4-switch", engine="simulated")


def _wait_rows(law: SimulatedGpu, group_size: int, gpu_name: str, seed: int) -> list[Table]:
    """Waits at an all-reduce after kernels of the kinds that come before one, small and large."""
    rows = []
    for kind in BEFORE_MEETINGS:
        for work in choose(kind, 6):
            waits_s = law.waits_s(work, group_size, meetings=MEETINGS, seed=seed)
            row = wait_table(
                cause="skew",
                wait=Distribution.of(waits_s),
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
            rows.append(row.with_columns(link="nvlink4-switch", engine="simulated"))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the profile that ships."""
    parser = argparse.ArgumentParser(description="Write a profile of a simulated host with a known law.")
    parser.add_argument("--out", type=Path, required=True)
    write_simulated_profile(parser.parse_args(arguments).out)


if __name__ == "__main__":
    main()
