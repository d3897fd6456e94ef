"""PIE-P's inner node: children weighted by what is learned, against their plain sum.

    E(node) = sum over children of alpha(child) * E(child),   alpha = 1 + tanh(W f + b) / tau

with tau = 10 as in IrEne (ACL 2021), so a child's energy can be moved by a tenth at most. `f` describes the run (batch, GPUs, shape), in
logarithms, standardised, to the first power: a third-degree expansion has more weights than there are LLMs.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pie_p.extras import require
from pie_p.fitting import Physics
from pie_p.physics import Floats
from pie_p.scoring.facts import GROUPS, RAW, Facts, row_group
from pie_p.scoring.folds import run_physics
from pie_p.scoring.splits import Mask
from pie_p.serving import WAIT_CAUSES, Assembly

TAU: Final = 10.0
PULL: Final = 0.1  # a weight of 1 costs as much as a relative error of this size
DESCRIBED_BY: Final = ("batch", "gpus", "hidden size", "active parameters", "KV bytes per token", "experts per token", "output tokens")


def children_j(assembly: Assembly, physics: Physics) -> Floats:
    """Energy per output token of each group of operators and of each cause of waiting, all boards: (runs, children) [J]."""
    run = run_physics(assembly, physics)
    count, groups = len(assembly.cases), len(GROUPS)
    lives = assembly.decode_steps + assembly.prefill_steps
    row_step = assembly.stage_step[assembly.row_stage]
    row_j = assembly.calls * run.time_s * run.power_w * assembly.stage_ranks[assembly.row_stage] * lives[row_step]
    leaves = np.bincount(assembly.row_case * groups + row_group(assembly), weights=row_j, minlength=count * groups).reshape(count, groups)
    stage_case = assembly.step_case[assembly.stage_step]
    per_s = run.wait_power_w * assembly.stage_ranks * lives[assembly.stage_step]
    waits = [np.bincount(stage_case, weights=run.clock.waits_s[cause] * per_s, minlength=count) for cause in WAIT_CAUSES]
    life = np.array([plan.sharing * plan.output_tokens for plan in assembly.schedules])
    return np.asarray(np.column_stack([leaves, *waits]) / life[:, None])


def description(facts: Facts) -> Floats:
    """What the weights are a function of: (runs, features)."""
    return np.asarray(facts.raw[:, [RAW.index(name) for name in DESCRIBED_BY]])


def weighted_sum(children: Floats, features: Floats, measured_j: Floats, teaching: Mask) -> Floats:
    """Energies of every run by weighted children, the weights learned on the teaching rows.

    Args:
        children: energies of the children, (runs, children) [J].
        features: what describes a run, (runs, features).
        measured_j: energies measured [J].
        teaching: rows that teach.

    Returns:
        `sum alpha_c E_c` of every run [J].
    """
    known = teaching & np.isfinite(measured_j)
    mean, spread = features[known].mean(axis=0), features[known].std(axis=0)
    scaled = np.column_stack([np.ones(len(features)), (features - mean) / np.where(spread > 1e-9, spread, np.inf)])
    shape = (scaled.shape[1], children.shape[1])

    def errors(flat: Floats) -> Floats:
        total = np.sum(alphas(scaled[known], flat.reshape(shape)) * children[known], axis=1)
        return np.concatenate([total / measured_j[known] - 1.0, PULL * flat])

    def slopes(flat: Floats) -> Floats:
        bend = 1.0 - np.tanh(scaled[known] @ flat.reshape(shape)) ** 2
        moved = (children[known] / measured_j[known, None]) * bend / TAU
        of_rows = (scaled[known][:, :, None] * moved[:, None, :]).reshape(int(known.sum()), -1)
        return np.concatenate([of_rows, PULL * np.eye(len(flat))])

    optimize: Any = require("scipy.optimize", extra="train")
    solved = optimize.least_squares(errors, np.zeros(shape[0] * shape[1]), jac=slopes, max_nfev=30)
    return np.asarray(np.sum(alphas(scaled, solved.x.reshape(shape)) * children, axis=1))


def alphas(scaled: Floats, weights: Floats) -> Floats:
    """Weight of each child of each run: between 0.9 and 1.1 [-].

    >>> alphas(np.array([[1.0]]), np.array([[0.0, 50.0]])).tolist()
    [[1.0, 1.1]]
    """
    return np.asarray(1.0 + np.tanh(scaled @ weights) / TAU)
