"""Times one tool in its own environment and prints one JSON object: standard library only, so that every environment can run it."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable

REPEATS = 21
Call = Callable[[], object]


def measure(tool: str, load: Callable[[], Call], *, repeats: int = REPEATS, extra: dict[str, Call] | None = None) -> None:
    """Import, first call, the median of `repeats` warm calls, and `extra` calls after one warm-up; each as wall and as processor time [s].

    Processor time depends much less than wall time on what else the machine does. `load` imports the tool and returns the call to time.
    """
    timings = {"import": _seconds(load)}
    call = load()
    timings["first_call"] = _seconds(call)
    warm_s = [_seconds(call) for _ in range(repeats)]
    timings["warm_call"] = statistics.median(wall for wall, _ in warm_s), statistics.median(processor for _, processor in warm_s)
    for name, other in (extra or {}).items():
        other()
        timings[name] = _seconds(other)
    result: dict[str, object] = {"tool": tool}
    if extra:
        result["extra_peak_bytes"] = peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
    for name, (wall_s, processor_s) in timings.items():
        result |= {f"{name}_s": wall_s, f"{name}_processor_s": processor_s}
    json.dump(result, sys.stdout)
    print()


def _seconds(call: Call) -> tuple[float, float]:
    start_s, start_processor_s = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start_s, time.process_time() - start_processor_s


def peak_bytes(usage: resource.struct_rusage) -> float:
    """Peak resident memory [B]; Linux counts KiB, macOS bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
