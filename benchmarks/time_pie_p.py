"""pie_p: joules of one request, Llama-3.1-70B on 4 x H100 under TP 4, and 1,000 and 20,000 configurations in one call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from stopwatch import measure

REQUEST: dict[str, Any] = {"llm": "llama-3.1-70b", "gpu": "h100-sxm-80gb", "tp": 4, "batch": 16, "prompt_tokens": 150, "output_tokens": 300}


def load() -> Callable[[], object]:
    from pie_p import predict_energy

    def call() -> object:
        return predict_energy(**REQUEST)

    return call


def configurations(prompts: range) -> list[dict[str, Any]]:
    """1,000 different configurations for each number of prompt tokens: 2 GPUs, 4 plans, 125 batch sizes."""
    plans = [{"tp": tp, "pp": pp} for tp, pp in ((1, 4), (2, 2), (4, 1), (8, 1))]
    gpus = ("h100-sxm-80gb", "a100-sxm-80gb")
    return [
        REQUEST | plan | {"gpu": gpu, "batch": batch, "prompt_tokens": prompt_tokens}
        for prompt_tokens, gpu, plan, batch in product(prompts, gpus, plans, range(1, 126))
    ]


def thousand() -> object:
    from pie_p import predict_many

    return predict_many(configurations(range(150, 151)))


def twenty_thousand() -> object:
    from pie_p import predict_many

    return predict_many(configurations(range(150, 170)), keep_working=False)


def sweep_thousand() -> object:
    """A sweep whose feasible plans are about 1,000; benchmarks/time_sweep.py sets it beside its predictor alone."""
    from time_sweep import THOUSAND

    from pie_p import sweep

    return sweep("llama-3.1-70b", prompt_tokens=150, **THOUSAND)


if __name__ == "__main__":
    measure("pie_p", load, repeats=101, extra={"thousand": thousand, "sweep": sweep_thousand, "twenty_thousand": twenty_thousand})
