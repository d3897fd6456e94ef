"""Splits: no group is ever on both sides."""

import numpy as np
import pytest
from scoring_runs import perfect_runs, row

from pie_p.end_to_end import measured_runs
from pie_p.errors import InputError
from pie_p.scoring.splits import UNSEEN_COUNT, UNSEEN_FAMILY, UNSEEN_LLM, everything, roles_of, same_shape, splits_of


def test_checkpoints_of_one_shape_are_one_llm() -> None:
    runs = measured_runs(
        [row("deepseek-r1", gpu="b200-sxm-180gb", tp=8, ep=8), row("deepseek-v3", gpu="b200-sxm-180gb", tp=8, ep=8), row("qwen3-8b")]
    )
    assert len(runs.left_out) == 0
    assert same_shape(runs).tolist() == ["deepseek-v3", "deepseek-v3", "qwen3-8b"]


def test_every_scored_row_is_answered_once_per_split() -> None:
    runs = perfect_runs()
    roles = roles_of(runs)
    for split in splits_of(runs, roles)[:3]:
        times = np.sum([fold.scored for fold in split.folds], axis=0)
        assert np.array_equal(times, roles.scored.astype(int)), split.name


@pytest.mark.parametrize(("name", "groups"), [(UNSEEN_LLM, "shape"), (UNSEEN_FAMILY, "family"), (UNSEEN_COUNT, "gpus")])
def test_no_group_teaches_the_fold_that_scores_it(name: str, groups: str) -> None:
    runs = perfect_runs()
    labels = same_shape(runs) if groups == "shape" else getattr(runs, groups)
    [split] = [each for each in splits_of(runs, roles_of(runs)) if each.name == name]
    for fold in split.folds:
        taught = set(labels[fold.timed].tolist()) | set(labels[fold.metered].tolist())
        assert not taught & set(labels[fold.scored].tolist())


def test_gpus_are_transferred_both_ways() -> None:
    runs = perfect_runs()
    names = [split.name for split in splits_of(runs, roles_of(runs))]
    assert names[3:] == ["H100 → B200", "B200 → H100"]
    [fold] = splits_of(runs, roles_of(runs))[4].folds
    assert set(runs.gpu[fold.metered]) == {"b200-sxm-180gb"}


def test_odd_rows_are_scored_and_teach_nothing() -> None:
    runs = perfect_runs()
    roles, odd = roles_of(runs), runs.odd != ""
    assert roles.scored[odd].all()
    assert not (roles.timed | roles.metered)[odd].any()


def test_the_older_engine_teaches_power_alone() -> None:
    runs = perfect_runs()
    roles = roles_of(runs)
    older = runs.source == "mlenergy_v2"
    assert not roles.timed[older].any()
    assert roles.metered[older].all()
    assert not everything(roles).scored.any()


def test_runs_of_another_source_cannot_be_scored() -> None:
    runs = measured_runs([row("qwen3-8b", source="mine")])
    with pytest.raises(InputError, match=r"no run comes from 'mlenergy_v3'.*the profiles hold mine"):
        roles_of(runs)
