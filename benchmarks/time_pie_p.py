"""pie_p: joules of one request, Llama-3.1-70B on 4 x H100 under TP 4, and 1,000 configurations in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stopwatch import measure

REQUEST: dict[str, Any] = {"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 4, "batch": 16, "prompt_tokens": 150, "output_tokens": 300}


def load() -> Callable[[], object]:
    from pie_p import predict_energy

    def call() -> object:
        return predict_energy(**REQUEST)

    return call


def thousand() -> object:
    """1,000 different configurations: 2 GPUs, 4 plans, 125 batch sizes."""
    from pie_p import predict_many

    plans = [(1, 4), (2, 2), (4, 1), (8, 1)]
    gpus = ["h100-sxm-80gb", "a100-sxm-80gb"]
    requests = [REQUEST | {"gpu": gpu, "tp": tp, "pp": pp, "batch": batch} for gpu in gpus for tp, pp in plans for batch in range(1, 126)]
    return predict_many(requests)


if __name__ == "__main__":
    measure("pie_p", load, repeats=101, extra={"thousand_configurations_s": thousand})
