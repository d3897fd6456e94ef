"""The working behind the errors."""

from dataclasses import replace

import numpy as np
import pytest
from scoring_runs import perfect_runs

from pie_p.fitting import POWER_WIDTHS, ROOFLINE_WIDTHS, SERVING_WIDTHS
from pie_p.scoring.folds import answers_of, unfitted
from pie_p.scoring.working import coverage, reason_for, sensitivities, weighted_quantile, worst_rows
from pie_p.serving import assemble


def test_the_worst_rows_come_first_with_what_is_off() -> None:
    runs = perfect_runs()
    assembly = assemble(runs.cases)
    answers = answers_of(runs, assembly, unfitted())
    answers.time_s[3] *= 2.0
    rows = worst_rows(runs, answers, assembly, unfitted(), runs.odd == "", most=2)
    assert rows[0].energy_error == pytest.approx(1.0)
    assert rows[0].time_error == pytest.approx(1.0)
    assert rows[0].power_error == pytest.approx(0.0, abs=1e-9)
    assert rows[0].reason.startswith("time too long (most of it: ")
    assert rows[1].energy_error == pytest.approx(0.0, abs=1e-9)


def test_reasons_name_time_power_and_the_odd_group() -> None:
    assert reason_for(0.0, -0.3, -0.3, "dense", "") == "power too low"
    assert (
        reason_for(0.5, -0.3, 0.0, "dense", "x")
        == "odd group x: time too long (most of it: dense); power too low, right at the measured time"
    )
    assert reason_for(0.09, 0.09, 0.0, "dense", "") == "small errors of one sign in both"


def test_every_fitted_scalar_is_moved_and_time_scalars_move_time() -> None:
    runs = perfect_runs()
    found = {one.scalar: one for one in sensitivities(runs, assemble(runs.cases), unfitted(), unfitted(), runs.odd == "")}
    assert set(found) == {*ROOFLINE_WIDTHS, *SERVING_WIDTHS, *POWER_WIDTHS}
    assert found["sequence_s"].time > 0
    assert found["kv"].time == 0
    assert found["kv"].power > 0
    energies = [one.energy for one in found.values()]
    assert energies == sorted(energies, reverse=True)


def test_intervals_of_equal_groups_cover_what_they_say() -> None:
    draw = np.random.default_rng(0)
    groups = np.repeat(np.array([f"llm {number}" for number in range(20)], dtype=object), 200)
    measured = np.exp(draw.normal(scale=0.1, size=len(groups)))
    one = coverage(np.ones(len(groups)), measured, groups, np.ones(len(groups), dtype=bool))
    assert one.covered == pytest.approx(0.9, abs=0.02)
    assert one.median_width == pytest.approx(np.exp(2 * 1.645 * 0.1) - 1, rel=0.05)  # 90 % of a normal lie within 1.645 spreads


def test_a_group_counts_once_however_many_rows_it_has() -> None:
    assert weighted_quantile(np.array([1.0, 2.0, 3.0]), np.array([0.8, 0.1, 0.1]), 0.5) == 1.0
    groups = np.array(["a"] * 98 + ["b", "c"], dtype=object)
    measured = np.array([1.0] * 98 + [2.0, 1.0])
    assert coverage(np.ones(100), measured, groups, np.ones(100, dtype=bool), level=0.5).n == 100


def test_odd_rows_are_named() -> None:
    runs = perfect_runs()
    assembly = assemble(runs.cases)
    rows = worst_rows(runs, answers_of(runs, assembly, unfitted()), assembly, unfitted(), runs.odd != "", most=5)
    assert [row.odd for row in rows] == ["b200-gpqa-single"] * 2
    assert rows[0].energy_error == pytest.approx(1 / 3 - 1)
    assert replace(rows[0], odd="").odd == ""
