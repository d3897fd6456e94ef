"""Benches of ranks: which clock, meter and sampler a measurement is made with."""

from __future__ import annotations

from functools import partial
from typing import Final

from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.laws import Timeline
from pie_p.profiling.measurement import Bench
from pie_p.profiling.meters import AbsentMeter
from pie_p.profiling.nvml_meter import NvmlMeter
from pie_p.profiling.ranks import Rank
from pie_p.profiling.sampling import NoSampler, ProcessSampler, SimulatedSampler
from pie_p.profiling.simulated_meter import Artefacts, SimulatedMeter
from pie_p.profiling.window import MeterTiming, known_timing, period_for

# What a simulated board of a rank draws while the rank does something [W]; figures near an H100.
SIMULATED_W: Final = {
    "embedding": 250.0, "norm": 300.0, "attention": 450.0, "mlp": 600.0, "lm_head": 500.0,
    "all_reduce": 260.0, "send_recv": 220.0, "wait": 150.0, "away": 90.0,
}  # fmt: skip


def unmetered_bench(_rank: Rank | None = None) -> Bench:
    """Time on the real clock; power is not measured, and every figure of it says so."""
    return Bench(clock=MonotonicClock(), meter=AbsentMeter(), sampler=NoSampler(), timing=None)


def simulated_rank_bench(rank: Rank) -> Bench:
    """A simulated board for a rank that computes on the CPU: it draws `SIMULATED_W`, and 5 W more for each rank before it.

    The meter is twenty-five times quicker than that of an A6000 and sees all of the time as that one does, so half a second is enough.
    """
    shown = Artefacts(period_s=0.004, window_s=0.004)
    board = Timeline(idle_w=75.0)
    clock = MonotonicClock()
    meter = SimulatedMeter(board, clock, artefacts=shown, uuid=f"SIM-{rank.index}")
    timing = MeterTiming(period_s=shown.period_s, window_s=shown.window_s, lag_s=0.0, residual=0.0, updates=0)
    sampler = SimulatedSampler(meter, clock, period_s=period_for(timing))

    def draw(at_s: float, what: str) -> None:
        board.set_level(at_s, SIMULATED_W.get(what, SIMULATED_W["all_reduce"]) + 5.0 * rank.index)

    return Bench(clock=clock, meter=meter, sampler=sampler, timing=timing, on_state=draw)


def nvml_bench(board: int | str, timing: MeterTiming | None = None, *, period_s: float | None = None) -> Bench:
    """One NVIDIA board, sampled by a process of its own; without `timing` the published one of its product.

    Raises:
        DeviceError: the board did not answer, or the timing of its meter is not known.
    """
    meter = NvmlMeter(board)
    known = timing or known_timing(meter.identity.name)
    sampler = ProcessSampler(partial(NvmlMeter, meter.identity.uuid), period_s=period_s or period_for(known))
    return Bench(clock=MonotonicClock(), meter=meter, sampler=sampler, timing=known)


def rank_bench(rank: Rank, timing: MeterTiming | None = None) -> Bench:
    """The board a rank computes on: by CUDA's own UUID, because NVML may number boards otherwise; none on the CPU."""
    if not rank.device.startswith("cuda"):
        return unmetered_bench()
    return nvml_bench(cuda_board(rank.device), timing)


def cuda_board(device: str) -> str:
    """UUID of the board behind a CUDA device, as NVML writes it."""
    from pie_p.extras import require

    uuid = str(require("torch", extra="profile").cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
