"""A sweep beside what its predictor alone needs for the same cases, and beside the boosted trees alone; and the memory of a large one.

    python benchmarks/time_sweep.py            # about a minute

Ratios travel between machines, seconds do not. Nothing here is a test: no test has a time limit.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from stopwatch import peak_bytes

REPEATS = 5
ASK: dict[str, Any] = {"gpus": ["h100-sxm-80gb", "a100-sxm-80gb"], "tp": [2, 4, 8], "pp": [1, 2], "output_tokens": 300, "progress": False}
THOUSAND = ASK | {"batch": range(1, 85)}  # 2 boards x 6 plans x 84 batches: 1,008
TWENTY_THOUSAND = ASK | {"batch": range(1, 85), "power_limit_w": [None, *range(250, 400, 8)]}  # x 20 power limits: 20,160


def main() -> None:
    if sys.argv[1:] == ["memory"]:
        print(json.dumps(memory()))
        return
    result = {name: ratios(name) for name in ("default", "operators")}
    large = subprocess.run([sys.executable, __file__, "memory"], check=True, capture_output=True, text=True)
    print(json.dumps(result | {"large": json.loads(large.stdout)}, indent=2))


def ratios(name: str) -> dict[str, float]:
    """Processor seconds of a sweep of 1,000 plans, and how many times what the predictor and its trees need for the same cases."""
    from pie_p import load_predictor, sweep
    from pie_p.serving import assemble

    predictor = load_predictor(name)
    cases = [candidate.case for candidate in sweep("llama-3.1-70b", prompt_tokens=500, predictor=name, **THOUSAND)]
    assembly = assemble(cases)
    calls: dict[str, Callable[[], object]] = {
        "sweep": lambda: sweep("llama-3.1-70b", prompt_tokens=500, predictor=name, **THOUSAND),
        "predictor": lambda: predictor.predict(cases, keep_working=False),
    }
    if predictor.operators is not None:
        calls["trees"] = lambda: predictor.learned(assembly)
    taken: dict[str, list[tuple[float, float]]] = {each: [] for each in calls}
    for _ in range(REPEATS):  # in turn, so that what else the machine does meets all alike
        for each, call in calls.items():
            taken[each].append(seconds(call))
    wall_s, processor_s = ({each: statistics.median(pair[place] for pair in pairs) for each, pairs in taken.items()} for place in (0, 1))
    over = {f"over_{each}": processor_s["sweep"] / processor_s[each] for each in calls if each != "sweep"}
    per_thousand = {"thousand_s": wall_s["sweep"] * 1000 / len(cases), "thousand_processor_s": processor_s["sweep"] * 1000 / len(cases)}
    return {"feasible": len(cases)} | per_thousand | over


def memory() -> dict[str, float]:
    """Peak memory of a process that sweeps 20,000 plans and writes them."""
    from tempfile import TemporaryDirectory

    from pie_p import sweep

    start_s = time.perf_counter()
    plans = sweep("llama-3.1-70b", prompt_tokens=500, **TWENTY_THOUSAND)
    seconds = time.perf_counter() - start_s
    with TemporaryDirectory() as folder:
        plans.save(f"{folder}/plans.csv")
    return {"feasible": len(plans), "sweep_s": seconds, "peak_bytes": peak_bytes(resource.getrusage(resource.RUSAGE_SELF))}


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor time of one call [s]."""
    start_s, start_processor_s = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start_s, time.process_time() - start_processor_s


if __name__ == "__main__":
    main()
