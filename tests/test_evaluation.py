"""Operators scored: every split keeps what it tests out of what it teaches, and the tables say what a known law says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from known_operators import decodes, linears, profile, reduces, table

from pie_p.errors import ProfileError
from pie_p.tables import Table

pytest.importorskip("xgboost", reason="xgboost comes with the extra 'train'")
pytest.importorskip("sklearn", reason="scikit-learn comes with the extra 'train'")

from pie_p import evaluation
from pie_p.evaluation import OperatorReport, evaluate_operators, label_noise, splits
from pie_p.examples import family_examples

KERNELS = ["vllm 0.22.0 a", "vllm 0.24.0 b", "trtllm 1.3.0 c"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> OperatorReport:
    operators = [table(linears(2500), kernels=KERNELS), table(decodes(900), kernels=KERNELS)]
    collectives = table(reduces(1600), name="collectives", kernels=["nccl 2.29.2 NCCL", "vllm 0.24.0 custom_graph"])
    known = profile(tmp_path_factory.mktemp("known"), [*operators, collectives])
    quick = {key: replace(one, trees=30, leaves=16) for key, one in evaluation.SETTINGS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "SETTINGS", quick)
        return evaluate_operators([known])


@pytest.mark.parametrize(("family", "rows"), [("linear", linears(2000)), ("attention_decode", decodes(1500))])
def test_what_is_tested_never_teaches(family: str, rows: list[object]) -> None:
    examples = family_examples(table(rows, kernels=KERNELS), family)  # type: ignore[arg-type]
    found = list(splits(examples, seed=0))
    assert len(found) == 1 + len(evaluation.BEYOND[family]) + 3  # type: ignore[index]
    for split in found:
        assert not (split.teach & split.test).any()


def test_the_largest_fifth_is_larger_than_all_that_teaches() -> None:
    examples = family_examples(table(linears(2000)), "linear")
    [split] = [split for split in splits(examples, seed=0) if split.name == "largest k"]
    widths = examples.columns["in_features"]
    assert widths[split.test].min() > widths[split.teach].max()
    assert 0.1 < split.test.mean() < 0.25


def test_a_board_never_seen_is_never_seen() -> None:
    examples = family_examples(table(linears(2000)), "linear")
    for split in splits(examples, seed=0):
        if split.name.startswith("board"):
            assert len(set(examples.gpu[split.teach])) == len(set(examples.gpu[split.test])) == 1


def test_a_known_law_is_learned_and_named_beside_its_rivals(report: OperatorReport) -> None:
    row = {(one.family, one.target, one.regressor): one for one in report.errors if one.split == "random fifth"}
    assert row["linear", "time", "learned"].mape < 0.05 < row["linear", "time", "physics"].mape
    assert row["linear", "energy", "learned"].mape < row["linear", "energy", "limit x measured time"].mape
    assert row["linear", "energy", "learned"].mape < row["linear", "energy", "median fraction x measured time"].mape
    assert ("linear", "energy", "physics") in row


def test_collectives_are_told_apart_by_their_library(report: OperatorReport) -> None:
    names = {one.split for one in report.errors if one.family == "collective"}
    assert {"random fifth", "random fifth, NCCL", "random fifth, custom all-reduce in a graph", "8 ranks from 2 and 4"} <= names


def test_noise_of_labels_is_what_two_releases_differ_by() -> None:
    rows = table(linears(1500), kernels=["vllm 0.22.0 a"], noise=0.0)
    again = rows.with_columns(engine_version="0.24.0", time_s=1.25 * rows["time_s"])
    noise = [row for row in label_noise(family_examples(Table.concat([rows, again]), "linear")) if row.target == "time"]
    assert len(noise) == 2  # one per board
    for row in noise:
        assert row.mape == pytest.approx(0.2)
        assert row.bias == pytest.approx(-0.2)


def test_the_same_report_twice_is_the_same(report: OperatorReport) -> None:
    assert np.isfinite([row["mape"] for row in report.to_dict()["errors"]]).all()


def test_profiles_without_operators_are_one_clear_error(tmp_path: Path) -> None:
    few = profile(tmp_path / "few", [table(linears(20))])
    with pytest.raises(ProfileError, match="has 100 operator rows of one family"):
        evaluate_operators([few])
