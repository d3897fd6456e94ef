"""The device script's steps on a simulated board: the facts it finds are the ones that were put in, inside the time box."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pie_p.errors import DeviceError
from pie_p.operators import linear
from pie_p.profiles import load_profile
from pie_p.profiling.clocks import SimulatedClock
from pie_p.profiling.laws import Timeline
from pie_p.profiling.samples import Floats
from pie_p.profiling.sampling import SimulatedSampler
from pie_p.profiling.simulated_host import SimulatedGpu, SimulatedKernel, simulated_bench
from pie_p.profiling.simulated_meter import Artefacts
from pie_p.profiling.single_gpu import SingleHost, collect, cuda_host

GPU = SimulatedGpu(jitter=0.005)


class Level:
    """A load, or a pause, at a level of power."""

    signature = "level"

    def __init__(self, clock: SimulatedClock, board: Timeline, level_w: float) -> None:
        self.clock, self.board, self.level_w = clock, board, level_w

    def run_high(self, duration_s: float) -> None:
        self.board.set_level(self.clock.now_s(), self.level_w)
        self.clock.sleep(duration_s)
        self.board.set_level(self.clock.now_s(), GPU.idle_w)

    def run_low(self, duration_s: float) -> None:
        self.clock.sleep(duration_s)

    def run(self, calls: int) -> float:
        self.run_high(0.001 * calls)
        return 0.001 * calls

    def time_each(self, calls: int) -> Floats:
        return np.array([self.run(1) for _ in range(calls)])


def simulated_host(artefacts: Artefacts) -> tuple[SingleHost, SimulatedClock]:
    bench, clock, board = simulated_bench(GPU, artefacts=artefacts)
    kernel = partial(SimulatedKernel, gpu=GPU, clock=clock, board=board)
    host = SingleHost(
        clock=clock,
        meter=bench.meter,
        make_sampler=lambda period_s: SimulatedSampler(bench.meter, clock, period_s=period_s),  # type: ignore[arg-type]
        make_load=lambda: Level(clock, board, 600.0),
        make_workload=kernel,
        make_transformer=lambda: kernel(linear("l", tokens=4096, in_features=4096, out_features=4096)),
        make_pause=lambda: Level(clock, board, 118.0),
    )
    return host, clock


def test_the_facts_that_were_put_in_come_out_inside_the_time_box(tmp_path: Path) -> None:
    host, clock = simulated_host(Artefacts(period_s=0.1, window_s=0.05, lag_s=0.01, phase_s=0.03))
    progress = collect(host, tmp_path, gpu="h200-sxm-141gb", budget_s=420.0)
    assert clock.now_s() <= 420.0
    profile = load_profile(tmp_path)
    facts = json.loads(profile.manifest.conditions.notes or "")
    assert facts["idle_w"] == pytest.approx(GPU.idle_w, rel=0.01)
    assert facts["active_idle_w"] == pytest.approx(118.0, rel=0.01)
    assert facts["meter_timing"]["period_s"] == pytest.approx(0.1, rel=0.005)
    assert facts["meter_timing"]["window_s"] == pytest.approx(0.05, rel=0.15)
    assert facts["power_against_time"]["counter_ratio"] == pytest.approx(1.0, abs=0.05)
    assert progress.done >= 40
    assert len(set(profile.operators["kind"])) == 9  # every kind but the router has been reached
    rows = profile.manifest.rows("operators")
    again, second_clock = simulated_host(Artefacts(period_s=0.1, window_s=0.05, lag_s=0.01, phase_s=0.03))
    collect(again, tmp_path, gpu="h200-sxm-141gb", budget_s=120.0)
    assert second_clock.now_s() <= 120.0
    assert load_profile(tmp_path).manifest.rows("operators") > rows


def test_without_a_gpu_the_script_says_so() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(DeviceError, match="torch finds no CUDA GPU here"):
        cuda_host()


@pytest.mark.gpu
def test_a_real_gpu_gives_a_profile_that_verifies(tmp_path: Path) -> None:
    progress = collect(cuda_host(), tmp_path, gpu="h200-sxm-141gb", budget_s=150.0)
    assert progress.done > progress.rejected
    facts = json.loads(load_profile(tmp_path).manifest.conditions.notes or "")
    assert 0 < facts["idle_w"] < facts["active_idle_w"] < facts["power_against_time"]["power_w"]


def test_a_transformer_step_runs_on_the_cpu() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from pie_p.profiling.clocks import MonotonicClock
    from pie_p.profiling.single_gpu import TransformerStep

    step = TransformerStep("cpu", MonotonicClock(), sequences=1, tokens=8)
    assert step.run(2) > 0
    assert "1 x 8 tokens" in step.signature
