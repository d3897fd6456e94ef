"""Times one tool in its own environment and prints one JSON object: standard library only, so that every environment can run it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

REPEATS = 21
Call = Callable[[], object]


def measure(tool: str, load: Callable[[], Call], *, repeats: int = REPEATS, extra: dict[str, Call] | None = None) -> None:
    """Import time, first call, and the median of `repeats` warm calls [s]; `extra` names further calls, timed once after one warm-up.

    `load` imports the tool and returns the call to time.
    """
    start_s = time.perf_counter()
    call = load()
    import_s = time.perf_counter() - start_s
    first_s = _seconds(call)
    warm_s = sorted(_seconds(call) for _ in range(repeats))
    result = {"tool": tool, "import_s": import_s, "first_call_s": first_s, "warm_call_s": statistics.median(warm_s)}
    for name, other in (extra or {}).items():
        other()
        result[name] = _seconds(other)
    json.dump(result, sys.stdout)
    print()


def _seconds(call: Call) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s
