"""Speed of a replay: the Azure conversation trace of 2023 (19,366 requests, an hour) on 8 GPUs, one process, beside what Vidur needs.

    python benchmarks/replay_azure.py AzureLLMInferenceTrace_conv.csv.gz
    python benchmarks/replay_azure.py AzureLLMInferenceTrace_conv.csv.gz --write docs/benchmarks-replay.md

The trace is at github.com/Azure/AzurePublicDataset (CC-BY-4.0).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from run import machine, three_digits

FLEETS: tuple[dict[str, Any], ...] = (
    {"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb", "replicas": 8},
    {"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 4, "replicas": 2},
)


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """What a call returns, its wall and its processor time [s]."""
    wall_s, processor_s = time.perf_counter(), time.process_time()
    value = call()
    return value, time.perf_counter() - wall_s, time.process_time() - processor_s


def row(trace: Any, fleet: dict[str, Any]) -> str:
    from pie_p import replay

    served, wall_s, processor_s = timed(lambda: replay(trace, **fleet))
    again, again_s, _ = timed(lambda: replay(trace, **fleet))
    assert again.energy_j == served.energy_j
    boards = served.gpus / served.bins.power_w.shape[1]  # of each engine
    binned_j = float((served.bins.power_w.sum(axis=1) * served.bins.width_s).sum()) * boards
    apart = abs(served.request_j.sum() + served.idle_j - binned_j) / binned_j
    plan = f"{fleet['llm']}, {served.fleet[0].engines} engines, {served.gpus} GPUs"
    figures = (
        f"{three_digits(wall_s)} s", f"{three_digits(processor_s)} s", f"{three_digits(again_s)} s", f"{served.iterations:,}",
        f"{served.segments:,}", f"{1e6 * again_s / served.iterations:.2g} us", f"{1e6 * again_s / served.segments:.0f} us", f"{apart:.0e}",
    )  # fmt: skip
    return f"| {plan} | " + " | ".join(figures) + " |"


def page(path: Path) -> str:
    from pie_p import load_trace

    trace, wall_s, _ = timed(lambda: load_trace(path))
    rows = [row(trace, fleet) for fleet in FLEETS]
    return "\n".join(
        [
            "# Speed of a replay",
            "",
            f"The Azure conversation trace of 2023 ({len(trace):,} requests in {trace.duration_s:,.0f} s) served by 8 GPUs in one process;",
            f"reading it takes {three_digits(wall_s)} s. The first replay on a deployment asks the predictor for some hundred steps, later",
            "ones do not. An iteration is one engine step; like ones in a row are one segment. Conservation is how far requests and idle",
            "are from the power of the bins summed over time.",
            "",
            "| fleet | first replay | processor time | again | iterations | segments | per iteration | per segment | conservation |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "Vidur, which answers with times and not with joules, trained for over 30 minutes before its first simulation on the same",
            "kind of machine (2 cores, CPU only).",
            "",
            f"{machine()}, load {os.getloadavg()[0]:.1f}.",
            f"Made by `python benchmarks/replay_azure.py` on {datetime.now(timezone.utc):%Y-%m-%d}.",
            "",
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="AzureLLMInferenceTrace_conv.csv, perhaps .gz")
    parser.add_argument("--write", type=Path, help="Markdown page to write")
    options = parser.parse_args()
    made = page(options.trace)
    print(made)
    if options.write:
        options.write.write_text(made, encoding="utf-8")
