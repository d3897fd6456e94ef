"""Rows of profiles as the columns a regressor learns from: the same a prediction has, each row once."""

from __future__ import annotations

import numpy as np
import pytest
from known_operators import decodes, linears, reduces, table

from pie_p.examples import family_examples, learn_book
from pie_p.features import FAMILIES, FAMILY_OF, FEATURES, INPUTS, featurize, inputs
from pie_p.hardware import load_cluster
from pie_p.operators import KINDS
from pie_p.physics import Roofline
from pie_p.tables import Table


def test_a_profiles_row_and_a_predictions_row_have_the_same_inputs() -> None:
    operators = linears(40)
    rows = table(operators)
    examples = family_examples(rows, "linear")
    clusters = [load_cluster(gpu) for gpu in sorted(set(rows["gpu"]))]
    which = np.array([sorted(set(rows["gpu"])).index(gpu) for gpu in rows["gpu"]])
    predicted = featurize(operators, clusters, which)
    names = [name for name in FEATURES["linear/time"] if name != "kernel_code"]
    assert len(examples) == len(operators)
    assert np.array_equal(inputs(examples.columns, names), inputs(predicted, names))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_can_be_made(family: str) -> None:
    assert set(FEATURES[f"{family}/time"]) <= set(INPUTS)
    assert len(set(FEATURES[f"{family}/time"])) == len(FEATURES[f"{family}/time"])


def test_families_are_of_known_kinds() -> None:
    assert set(FAMILY_OF) <= set(KINDS)
    assert set(FAMILY_OF.values()) == set(FAMILIES)


def test_rows_that_repeat_are_kept_once_and_other_families_left_out() -> None:
    rows = table(linears(30))
    without_power = rows.with_columns(power_w=np.full(rows.rows, np.nan))
    both = Table.concat([rows, without_power, table(decodes(20))])
    examples = family_examples(both, "linear")
    assert len(examples) == 30
    assert np.isfinite(examples.power_w).all()  # the first of two equal rows stays, and here it has the power


def test_unknown_boards_and_groups_of_one_teach_nothing() -> None:
    rows = table(linears(10))
    assert len(family_examples(rows.with_columns(gpu="arc-pro-b60-24gb"), "linear")) == 0
    meetings = table(reduces(20), name="collectives")
    assert len(family_examples(meetings.with_columns(group_size=1.0), "collective")) == 0


def test_details_say_what_a_prediction_cannot_know() -> None:
    rows = table(linears(3)).with_columns(
        kind="experts",
        detail=np.array(["format=fp8_block; distribution=power_law_1.2", "distribution=balanced; window=128", ""], dtype=object),
    )
    examples = family_examples(rows, "experts")
    assert np.array_equal(examples.columns["skew"], [1.2, 0.0, np.nan], equal_nan=True)
    assert examples.columns["windowed"].tolist() == [0.0, 1.0, 0.0]
    assert examples.label[0].endswith(" fp8_block")


def test_nccl_is_a_library_of_its_own_whoever_measured_it() -> None:
    rows = table(reduces(5), name="collectives", kernels=["trtllm 2.29.2 NCCL"])
    assert set(family_examples(rows, "collective").label) == {"nccl==2.29.2 NCCL"}


def test_the_book_orders_kernels_by_their_ratio_to_the_base() -> None:
    book = learn_book(family_examples(table(linears(300)), "linear"), Roofline())
    assert book.labels == ("vllm==0.24.0 fast", "trtllm==1.3.0 other", "vllm==0.22.0 slow")
