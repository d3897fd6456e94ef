"""What the sampler costs the workload: processor time of its process, and time of a fixed piece of work with and without it, in turns.

    python benchmarks/sampler_cost.py [--rounds 20] [--period-ms 10]

The target is under 1 %. On a shared machine the second figure is noisy; the first, the most the sampler can take from anyone, is not.
Measured with a simulated meter; NVML's own call costs the board nothing and the sampler's processor some 20-100 us.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial

import numpy as np

from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.laws import SquareWave
from pie_p.profiling.sampling import ProcessSampler
from pie_p.profiling.simulated_meter import SimulatedMeter


def work_s(matrix: np.ndarray) -> float:
    """Time of a piece of single-thread work [s]."""
    start_s = time.perf_counter()
    for _ in range(40):
        np.sort(matrix, axis=1)
    return time.perf_counter() - start_s


def processor_share(sampler: ProcessSampler, length_s: float = 10.0) -> float:
    """Processor time of the sampler's process per second of sampling, 0..1."""
    sampler.start()
    time.sleep(length_s)
    return sampler.stop().processor_s / length_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--period-ms", type=float, default=10.0)
    arguments = parser.parse_args()
    matrix = np.random.default_rng(0).random((400, 4000))
    make_meter = partial(SimulatedMeter, SquareWave(low_w=100.0, high_w=300.0, period_s=0.2), MonotonicClock())
    sampler = ProcessSampler(make_meter, period_s=arguments.period_ms / 1000)
    print(f"processor time of the sampler: {processor_share(sampler):.2%} of one core")
    work_s(matrix)
    ratios = []
    for _ in range(arguments.rounds):
        alone_s = work_s(matrix)
        sampler.start()
        sampled_s = work_s(matrix)
        samples = sampler.stop()
        ratios.append(sampled_s / alone_s - 1)
    print(
        f"time of the work: {statistics.median(ratios):+.2%} (median of {len(ratios)}; quartiles {statistics.quantiles(ratios)[0]:+.2%}, "
        f"{statistics.quantiles(ratios)[2]:+.2%}), sampled at {samples.achieved_hz:.0f} Hz, dropped {samples.dropped_share:.1%}"
    )


if __name__ == "__main__":
    main()
