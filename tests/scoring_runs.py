"""Runs measured by a law we know: the physics with its priors, so that a fit of it has nothing left to learn."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.scoring import EvaluationReport, baselines, engines
from pie_p.scoring.end_to_end import Source, evaluate_runs
from pie_p.scoring.folds import answers_of, energy_j, unfitted
from pie_p.serving import assemble

LLMS = ("llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "qwen3-coder-30b-a3b")


def row(
    llm: str, *, gpu: str = "h100-sxm-80gb", tp: int = 1, batch: float = 16, source: str = "mlenergy_v3", **others: Any
) -> dict[str, Any]:
    """One row without measurements."""
    return {
        "llm": llm,
        "gpu": gpu,
        "tp": tp,
        "batch": batch,
        "prompt_tokens": 150,
        "output_tokens": 400,
        "engine": "vllm",
        "engine_version": "0.5.4" if source == "mlenergy_v2" else "0.11.1",
        "workload": "lm-arena-chat",
        "mode": "steady",
        "source": source,
        **others,
    }


@cache
def perfect_runs() -> MeasuredRuns:
    """Three shapes (four names) on two boards, one and two of them, two batches; two LLMs of an older engine; two odd rows."""
    rows = [
        row(llm, gpu=gpu, tp=tp, batch=batch)
        for llm in LLMS
        for gpu in ("h100-sxm-80gb", "b200-sxm-180gb")
        for tp in (1, 2)
        for batch in (4.0, 64.0)
    ]
    rows += [
        row(llm, batch=batch, source="mlenergy_v2")
        for llm in ("llama-3.1-8b", "mistral-7b-v0.3")
        for batch in (2.0, 8.0, 16.0, 32.0, 64.0, 96.0)
    ]
    rows += [row("qwen3-8b", gpu="b200-sxm-180gb", batch=batch, workload="gpqa", odd_group="b200-gpqa-single") for batch in (8.0, 16.0)]
    return measured_by_the_priors(measured_runs(rows))


@cache
def perfect_report() -> EvaluationReport:
    """The evaluation of those runs, with few and small draws of the older engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "DRAWS", 4)
        patch.setattr(engines, "ROWS", 2)
        patch.setattr(baselines, "TREES", {**baselines.TREES, "n_estimators": 10})
        source = Source(name="made up", sha256=("0123456789abcdef" * 4,), rows=46)
        return evaluate_runs(perfect_runs(), sources=(source,), jobs=1, ablations=False)


def measured_by_the_priors(runs: MeasuredRuns) -> MeasuredRuns:
    """The runs with the unfitted physics' own answers as measurements; the odd ones take three times as long."""
    answers = answers_of(runs, assemble(runs.cases), unfitted())
    time_s = answers.time_s * np.where(runs.odd == "", 1.0, 3.0)
    energy = energy_j(runs, time_s, answers.power_w)
    return replace(runs, time_per_token_s=time_s, itl_s=answers.itl_s, power_w=answers.power_w, energy_per_output_token_j=energy)
