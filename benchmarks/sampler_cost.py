"""What the sampler costs the workload: in pairs of equal work with and without it, in random order, many times.

    python benchmarks/sampler_cost.py [--rounds 100] [--period-ms 21.3] [--sorts 10]

Three figures, the target is under 1 % for each:
- processor time of the sampler's process per second: the most it can take from anyone, whatever else the machine does;
- processor time of the work, sampled over alone: what it loses to colder caches, with no regard to who else runs;
- time of the work, sampled over alone: noisy on a shared machine.

The last two are medians over the pairs with a 95 % interval (bootstrap, seeded). Measured with a simulated meter; NVML's own call takes the
sampler's processor some 20-100 us more and the board nothing.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import numpy as np

from pie_p.profiling.clocks import MonotonicClock
from pie_p.profiling.laws import SquareWave
from pie_p.profiling.sampling import ProcessSampler
from pie_p.profiling.simulated_meter import SimulatedMeter


def work_s(matrix: np.ndarray, sorts: int) -> tuple[float, float]:
    """Processor time and time of a piece of single-thread work [s]."""
    processor_s, start_s = time.process_time(), time.perf_counter()
    for _ in range(sorts):
        np.sort(matrix, axis=1)
    return time.process_time() - processor_s, time.perf_counter() - start_s


def processor_share(sampler: ProcessSampler, length_s: float = 20.0) -> float:
    """Processor time of the sampler's process per second of sampling, 0..1."""
    sampler.start()
    time.sleep(length_s)
    return sampler.stop().processor_s / length_s


def pair(sampler: ProcessSampler, matrix: np.ndarray, sorts: int, *, sampled_first: bool) -> np.ndarray:
    """Sampled over alone, less one: of processor time and of time."""
    times = {}
    for sampled in (sampled_first, not sampled_first):
        if sampled:
            sampler.start()
        times[sampled] = np.array(work_s(matrix, sorts))
        if sampled:
            sampler.stop()
    return times[True] / times[False] - 1


def told(ratios: np.ndarray) -> str:
    """Median and its 95 % interval."""
    chance = np.random.default_rng(0)
    medians = np.median(chance.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return f"{np.median(ratios):+.2%} ({low:+.2%} to {high:+.2%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--period-ms", type=float, default=21.3)
    parser.add_argument("--sorts", type=int, default=10, help="how long a piece of work is: some 25 ms each")
    arguments = parser.parse_args()
    chance = np.random.default_rng(0)
    matrix = chance.random((400, 4000))
    make_meter = partial(SimulatedMeter, SquareWave(low_w=100.0, high_w=300.0, period_s=0.2), MonotonicClock())
    sampler = ProcessSampler(make_meter, period_s=arguments.period_ms / 1000)
    work_s(matrix, arguments.sorts)
    ratios = np.array([pair(sampler, matrix, arguments.sorts, sampled_first=bool(chance.integers(2))) for _ in range(arguments.rounds)])
    print(f"one reading every {arguments.period_ms:g} ms, {arguments.rounds} pairs of {work_s(matrix, arguments.sorts)[0]:.2f} s of work")
    print(f"processor time of the sampler:  {processor_share(sampler):.2%} of one core")
    print(f"processor time of the work:     {told(ratios[:, 0])}")
    print(f"time of the work:               {told(ratios[:, 1])}")


if __name__ == "__main__":
    main()
