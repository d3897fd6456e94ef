"""Facts: counted, not measured."""

import numpy as np
import pytest
from scoring_runs import perfect_runs

from pie_p.scoring.facts import GROUPS, RAW, facts_of, per_token, row_group, waits_per_token
from pie_p.scoring.folds import run_physics, unfitted
from pie_p.serving import WAIT_CAUSES, assemble


def test_groups_and_waits_of_a_single_board_add_up_to_its_time_per_token() -> None:
    runs = perfect_runs()
    assembly = assemble(runs.cases)
    run = run_physics(assembly, unfitted())
    whole = per_token(assembly, run.time_s).sum(axis=1) + sum(waits_per_token(assembly, run.clock.waits_s[cause]) for cause in WAIT_CAUSES)
    kept = runs.odd == ""
    assert whole[kept] == pytest.approx(runs.time_per_token_s[kept], rel=1e-9)


def test_only_several_boards_communicate() -> None:
    runs = perfect_runs()
    assembly = assemble(runs.cases)
    sums = per_token(assembly, run_physics(assembly, unfitted()).time_s)[:, GROUPS.index("communication")]
    assert ((sums > 0) == (runs.gpus > 1)).all()
    assert set(row_group(assembly).tolist()) <= set(range(len(GROUPS)))


def test_raw_facts_are_logarithms_of_what_was_asked_for() -> None:
    runs = perfect_runs()
    facts = facts_of(runs, assemble(runs.cases), unfitted())
    assert np.exp(facts.raw[:, RAW.index("batch")]) == pytest.approx([case.request.batch for case in runs.cases])
    assert np.exp(facts.raw[:, RAW.index("gpus")]) == pytest.approx(runs.gpus)
    assert np.isfinite(facts.raw).all()
    assert np.isfinite(facts.physical).all()
