"""Benches of real hosts: which clock, meter and sampler a measurement is made with."""

from __future__ import annotations

from functools import partial

from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.measurement import Bench
from pie_p.profiling.meters import AbsentMeter
from pie_p.profiling.nvml_meter import NvmlMeter
from pie_p.profiling.ranks import Rank
from pie_p.profiling.sampling import NoSampler, ProcessSampler
from pie_p.profiling.window import MeterTiming, known_timing


def unmetered_bench(_rank: Rank | None = None) -> Bench:
    """Time on the real clock; power is not measured, and every figure of it says so."""
    return Bench(clock=MonotonicClock(), meter=AbsentMeter(), sampler=NoSampler(), timing=None)


def nvml_bench(board: int | str, timing: MeterTiming | None = None, *, period_s: float = 0.01) -> Bench:
    """One NVIDIA board, sampled by a process of its own; without `timing` the published one of its product.

    Raises:
        DeviceError: the board did not answer, or the timing of its meter is not known.
    """
    meter = NvmlMeter(board)
    sampler = ProcessSampler(partial(NvmlMeter, meter.identity.uuid), period_s=period_s)
    return Bench(clock=MonotonicClock(), meter=meter, sampler=sampler, timing=timing or known_timing(meter.identity.name))


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
