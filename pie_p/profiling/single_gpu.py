"""Everything one GPU can tell, in one command and one time box: what `profiles/collect_single_gpu.sh` runs.

    python -m pie_p.profiling.single_gpu --gpu h200-sxm-141gb --out profiles/h200-single/2026-12-01 --budget 7m

    1. idle power, before anything runs on the board                               10 s
    2. update period, window and lag of the meter, by square waves                 30 s, at most an eighth of the box
    3. active idle: the board with a context and its clocks up, between kernels     5 s
    4. power against time: one long product, held against the energy counter       10 s
    5. a small transformer from end to end: its time, power and energy per step    15 s
    6. kernels of every kind, most informative first, until the box is used up     the rest

Steps 1 to 5 are facts in the notes of the profile's manifest; step 6 is its rows. A second run in the same folder resumes step 6.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.errors import DeviceError, PiePError
from pie_p.extras import require
from pie_p.operators import Operator, linear
from pie_p.profile_manifest import MANIFEST
from pie_p.profiling.benches import cuda_board
from pie_p.profiling.campaign import CampaignPlan, run_campaign
from pie_p.profiling.clocks import Clock, MonotonicClock
from pie_p.profiling.design import SPACES
from pie_p.profiling.kernels import KernelWorkload
from pie_p.profiling.measurement import Bench, Measurement, Procedure, Workload, measure
from pie_p.profiling.meters import Meter
from pie_p.profiling.nvml_meter import NvmlMeter
from pie_p.profiling.plans import parse_budget
from pie_p.profiling.progress import OnProgress, Progress
from pie_p.profiling.runners import batch_of
from pie_p.profiling.samples import Floats
from pie_p.profiling.sampling import ProcessSampler, Sampler
from pie_p.profiling.transformer import Shape, build
from pie_p.profiling.window import MeterTiming, SwitchedLoad, find_timing, known_timing, period_for
from pie_p.storage import check_target

LOG: Final = logging.getLogger(__name__)
QUICK: Final = Procedure(cool_down_s=0.3, warm_up_s=0.3, enough_s=1.5, trials=2, rounds=2, longest_pause_s=0.1, rise_s=0.3)
LONG: Final = dataclasses.replace(QUICK, enough_s=4.0)
IDLE_S: Final = 10.0
POINTS: Final = 40  # of each kind; the time box ends it earlier


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleHost:
    """One board and what runs on it, made when it is needed: the first step wants the board untouched. A simulated one in tests."""

    clock: Clock
    meter: Meter
    make_sampler: Callable[[float], Sampler]  # from the time between readings [s]
    make_load: Callable[[], SwitchedLoad]
    make_workload: Callable[[Operator], Workload]
    make_transformer: Callable[[], Workload]  # one forward step of a small LLM
    make_pause: Callable[[], Workload]  # calls in which next to nothing runs, with the clocks up


def collect(host: SingleHost, folder: str | Path, *, gpu: str, budget_s: float, on_progress: OnProgress | None = None) -> Progress:
    """Run the steps above; the state of the campaign at the end.

    Raises:
        DeviceError: the board or its meter failed; what was measured is safe.
        ProfileError: the folder cannot be written, or holds another profile.
    """
    place, end_s = check_target(folder), host.clock.now_s() + budget_s
    kinds = [kind for kind in SPACES if kind != "router"]  # a router is a linear layer with few outputs
    plan = CampaignPlan(name=f"{gpu}-single", gpu=gpu, kernels=dict.fromkeys(kinds, POINTS), dtypes=("bf16", "fp8"), procedure=QUICK)
    facts: dict[str, Any] = {}
    if not (place / MANIFEST).exists():
        facts["idle_w"] = idle_power_w(host)
    timing = timing_of(host, longest_s=budget_s / 8)
    bench = Bench(clock=host.clock, meter=host.meter, sampler=host.make_sampler(period_for(timing)), timing=timing)
    if not (place / MANIFEST).exists():
        facts["meter_timing"] = dataclasses.asdict(timing)
        facts |= long_facts(host, bench)
    left_s = max(0.0, end_s - host.clock.now_s())
    return run_campaign(plan, place, bench, host.make_workload, budget_s=left_s, on_progress=on_progress, facts=facts)


def idle_power_w(host: SingleHost) -> float:
    """Power of the board while nothing runs on it [W]."""
    sampler = host.make_sampler(0.02)
    sampler.start()
    host.clock.sleep(IDLE_S)
    return float(sampler.stop().power_w.mean())


def timing_of(host: SingleHost, *, longest_s: float) -> MeterTiming:
    """Timing of the meter: by square waves; where those fail, the published one."""
    try:
        return find_timing(host.make_load(), host.make_sampler(0.0015), host.clock, seconds_per_wave=min(4.0, longest_s / 7))
    except DeviceError as error:
        LOG.warning("square waves failed (%s); taking the published timing", error)
        return known_timing(host.meter.identity.name)


def long_facts(host: SingleHost, bench: Bench) -> dict[str, Any]:
    """Active idle, power against time, and the transformer."""
    pause = measure(host.make_pause(), bench, QUICK)
    product = measure(host.make_workload(linear("linear", tokens=8192, in_features=8192, out_features=8192)), bench, LONG)
    step = measure(host.make_transformer(), bench, LONG)
    return {
        "active_idle_w": pause.power_w,
        "power_against_time": _figures(product),
        "transformer_step": _figures(step),
    }


def _figures(measured: Measurement) -> Mapping[str, float | str | None]:
    """What a measurement says, in short."""
    return {
        "signature": measured.signature,
        "time_s": measured.time_s,
        "power_w": measured.power_w,
        "energy_j": measured.energy_j,
        "counter_ratio": measured.counter_ratio,
        "spread": measured.spread,
        "rejected_because": measured.rejected_because,
    }


class CudaLoad(SwitchedLoad):
    """Large matrix products on, nothing off; each product is some tenths of a millisecond, so edges are sharp."""

    def __init__(self, device: str, clock: Clock) -> None:
        self._torch: Any = require("torch", extra="profile")
        self._clock, self._device = clock, device
        self._square = self._torch.randn(4096, 4096, device=device, dtype=self._torch.bfloat16)

    def run_high(self, duration_s: float) -> None:
        """Products until the time is over; never more than a few are queued."""
        end_s = self._clock.now_s() + duration_s
        while self._clock.now_s() < end_s:
            self._torch.matmul(self._square, self._square)
            self._torch.cuda.synchronize(self._device)

    def run_low(self, duration_s: float) -> None:
        """Nothing."""
        self._clock.sleep(duration_s)


class CudaPause:
    """One tiny kernel every millisecond: the clocks stay up and the board does next to nothing."""

    signature = "pause"

    def __init__(self, device: str, clock: Clock) -> None:
        self._torch: Any = require("torch", extra="profile")
        self._clock, self._one = clock, self._torch.zeros(1, device=device)

    def run(self, calls: int) -> float:
        """A millisecond each [s]."""
        start_s = self._clock.now_s()
        for _ in range(calls):
            self._one.add_(1.0)
            self._clock.sleep(0.001)
        self._torch.cuda.synchronize()
        return self._clock.now_s() - start_s

    def time_each(self, calls: int) -> Floats:
        """Times of single calls [s]."""
        return np.array([self.run(1) for _ in range(calls)])


class TransformerStep:
    """One forward step of a small LLM on one board."""

    def __init__(self, device: str, clock: Clock, *, sequences: int = 8, tokens: int = 1024) -> None:
        self._torch: Any = require("torch", extra="profile")
        shape = Shape(layers=8, width=4096, heads=32, intermediate=14336, vocab=32768) if device != "cpu" else Shape()
        dtype = self._torch.bfloat16 if device != "cpu" else self._torch.float32
        self._clock, self._device = clock, device
        self._transformer = build(shape).to(device=device, dtype=dtype)
        self._batch = batch_of(shape, sequences=sequences, tokens=tokens, seed=0).to(device)
        self.signature = f"transformer step {shape}, {sequences} x {tokens} tokens"

    def run(self, calls: int) -> float:
        """Steps back to back [s]."""
        start_s = self._clock.now_s()
        with self._torch.inference_mode():
            for _ in range(calls):
                self._transformer(self._batch)
        if self._device != "cpu":
            self._torch.cuda.synchronize(self._device)
        return self._clock.now_s() - start_s

    def time_each(self, calls: int) -> Floats:
        """Times of single steps [s]; some are enough."""
        return np.array([self.run(1) for _ in range(min(calls, 8))])


def cuda_host(device: str = "cuda:0") -> SingleHost:
    """The real board behind a CUDA device.

    Raises:
        DeviceError: no such GPU, or NVML does not answer.
    """
    torch = require("torch", extra="profile")
    if not torch.cuda.is_available():
        raise DeviceError("torch finds no CUDA GPU here; run this on a GPU host with a CUDA build of torch")
    clock, board = MonotonicClock(), cuda_board(device)
    return SingleHost(
        clock=clock,
        meter=NvmlMeter(board),
        make_sampler=lambda period_s: ProcessSampler(partial(NvmlMeter, board), period_s=period_s),
        make_load=lambda: CudaLoad(device, clock),
        make_workload=lambda operator: KernelWorkload(operator, device),
        make_transformer=lambda: TransformerStep(device, clock),
        make_pause=lambda: CudaPause(device, clock),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the device script."""
    parser = argparse.ArgumentParser(description="Profile one GPU into a folder, inside a time box.")
    parser.add_argument("--gpu", required=True, help="name in the catalogue, h200-sxm-141gb")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=parse_budget, default=420.0)
    parser.add_argument("--device", default="cuda:0")
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        host = cuda_host(chosen.device)
        collect(host, chosen.out, gpu=chosen.gpu, budget_s=chosen.budget, on_progress=lambda progress: LOG.info("%s", progress))
    except PiePError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
