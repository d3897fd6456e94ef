"""What ranks do in tests: in a module of its own, because fresh processes import it by name."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pie_p import operators
from pie_p.profiling.benches import simulated_rank_bench
from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.collectives import make_collective, meet
from pie_p.profiling.laws import Timeline
from pie_p.profiling.measurement import Bench
from pie_p.profiling.ranks import Rank
from pie_p.profiling.runners import Layout, ParallelRun, run_parallel
from pie_p.profiling.sampling import SimulatedSampler
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter
from pie_p.profiling.stamps import find_offset
from pie_p.profiling.start import main
from pie_p.profiling.waits import Skew, WaitPower, measure_skew, measure_wait_power
from pie_p.profiling.window import MeterTiming


def die(rank: Rank, *, which: int) -> None:
    if rank.index == which:
        os._exit(9)
    make_collective(rank, "all_reduce", 1024)()


def fail(rank: Rank, *, which: int) -> None:
    if rank.index == which:
        raise ValueError("this rank has a bad day")
    make_collective(rank, "all_reduce", 1024)()


def hang(rank: Rank, *, which: int) -> None:
    if rank.index == which:
        time.sleep(600)


def stay_away(rank: Rank, *, which: int) -> None:
    if rank.index == which:
        time.sleep(6)
    make_collective(rank, "all_reduce", 1024)()


def injected(rank: Rank) -> Skew:
    return measure_skew(rank, "all_reduce", 1024, meetings=120, delays_s=(0.0, 0.005, 0.020, 0.050), delayed_rank=2)


def power_of_waiting(rank: Rank) -> WaitPower:
    clock, law = MonotonicClock(), Timeline(idle_w=70.0, rise_s=0.02)
    artefacts = Artefacts(period_s=0.02, window_s=0.01)
    meter = SimulatedMeter(law, clock, artefacts=artefacts)
    timing = MeterTiming(period_s=0.02, window_s=0.01, lag_s=0.0, residual=0.0, updates=100)
    bench = Bench(clock=clock, meter=meter, sampler=SimulatedSampler(meter, clock, period_s=0.005), timing=timing)
    set_power = partial(_set_power, law, {"wait": 180.0 + rank.index, "away": 90.0})
    return measure_wait_power(rank, replace(bench, on_state=set_power), away_s=1.0, rise_s=0.2)


def _set_power(law: Timeline, levels_w: dict[str, float], at_s: float, state: str) -> None:
    law.set_level(at_s, levels_w[state])


def everything(rank: Rank) -> dict[str, Any]:
    """Every collective, the waits after real work, the power of waiting and the clock, in one launch."""
    import torch

    answers: dict[str, Any] = {"transfer_s": {}, "moved": {}}
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"):
        answers["transfer_s"][kind] = meet(rank, kind, 4096, meetings=5).transfer_s  # type: ignore[arg-type]
    mine = torch.full((4,), float(rank.index))
    torch.distributed.all_reduce(mine)
    answers["sum"] = float(mine[0])
    answers["sizes"] = {size: float(np.median(meet(rank, "all_reduce", size, meetings=9).transfer_s)) for size in (1 << 12, 1 << 24)}
    work = operators.linear("l", tokens=32, in_features=256, out_features=256)
    answers["skew"] = measure_skew(rank, "all_reduce", 4096, meetings=8, preceding=work, preceding_calls=2)
    answers["power"] = power_of_waiting(rank)
    answers["offset"] = find_offset(rank)
    return answers


def parallel(rank: Rank) -> dict[str, ParallelRun]:
    """The layouts of four ranks, in one launch; power of simulated boards where ranks meet."""
    layouts = {
        "tp": Layout(tp=4),
        "pp": Layout(pp=4, micro_batches=2),
        "dp": Layout(dp=4),
        "tp+pp": Layout(tp=2, pp=2, micro_batches=2),
    }
    bench, enough_s = simulated_rank_bench(rank), {"tp": 0.5, "tp+pp": 0.5}
    return {
        name: run_parallel(rank, layout=layout, steps=2, bench=bench if name in enough_s else None, enough_s=enough_s.get(name, 0.0))
        for name, layout in layouts.items()
    }


def metered(rank: Rank) -> Bench:
    """A simulated board of 120 W and 10 W per rank, whatever it does, on the real clock."""
    clock, artefacts = MonotonicClock(), Artefacts(period_s=0.02, window_s=0.01)
    meter = SimulatedMeter(Timeline(idle_w=120.0 + 10.0 * rank.index), clock, artefacts=artefacts, uuid=f"SIM-{rank.index}")
    timing = MeterTiming(period_s=0.02, window_s=0.01, lag_s=0.0, residual=0.0, updates=100)
    return Bench(clock=clock, meter=meter, sampler=SimulatedSampler(meter, clock, period_s=0.005), timing=timing)


def launched(index: int, size: int, port: int, plan: str, out: str) -> None:
    """What torchrun starts on each rank."""
    os.environ.update(RANK=str(index), WORLD_SIZE=str(size), LOCAL_RANK=str(index), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    main([plan, "--out", out])


def beat(rank: Rank, *, folder: str) -> None:
    """Say which process this is, and stay."""
    (Path(folder) / f"rank-{rank.index}").write_text(str(os.getpid()))
    time.sleep(600)
