"""Tables of measurements: one schema, checked values, and NaN for what was not measured."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pie_p.errors import ProfileError
from pie_p.operators import COLLECTIVES, KINDS, Operator
from pie_p.tables import COUNTED, SCHEMA, Table, repeats, schema_of

ROW = {"kind": "linear", "time_s": 1e-3, "gpu": "h100-sxm-80gb", "origin": "simulated", "source": "test"}


@pytest.mark.parametrize("name", ["operators", "collectives"])
def test_training_reads_the_columns_that_a_prediction_counts(name: str) -> None:
    """A new field of `Operator` belongs into the table, or beside `launches`: what the host does is no property of a kernel."""
    assert tuple(column.name for column in schema_of(name))[: len(COUNTED)] == COUNTED
    assert tuple(field for field in Operator._fields if field != "launches") == COUNTED


def test_a_measured_number_has_its_unit_in_its_name() -> None:
    suffix = {"s": "_s", "W": "_w", "J": "_j", "B": "_bytes", "FLOP": "flops", "1/s": "_per_s"}
    for columns in SCHEMA.values():
        for column in columns:
            assert column.name.endswith(suffix.get(column.unit, "")), column


def test_what_was_not_measured_is_nan_and_never_zero() -> None:
    table = Table.from_columns("operators", ROW)
    assert np.isnan(table["power_w"][0])
    with pytest.raises(
        ProfileError, match=re.escape("column 'power_w' of 'operators' holds 0.0 in row 0; allowed: finite numbers above 0 [W]")
    ):
        table.with_columns(power_w=0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_s": 0.0}, "column 'time_s' of 'operators' holds 0.0 in row 0"),
        ({"time_s": float("nan")}, "column 'time_s' of 'operators' holds nan in row 0"),
        ({"time_s": float("inf")}, "column 'time_s' of 'operators' holds inf in row 0"),
        ({"flops": -1.0}, "column 'flops' of 'operators' holds -1.0 in row 0; allowed: finite numbers of at least 0 [FLOP]"),
        ({"kind": "all_reduce"}, "column 'kind' of 'operators' holds 'all_reduce'; allowed: embedding, linear"),
        ({"origin": "guessed"}, "column 'origin' of 'operators' holds 'guessed'; allowed: measured, imported, simulated"),
        ({"gpu": 3}, "column 'gpu' of 'operators' holds 3; it holds texts"),
        ({"time_s": "soon"}, "column 'time_s' of 'operators' must hold numbers; got 'soon'"),
        ({"power": 300.0}, "the table 'operators' has no column 'power'. Did you mean: power_w"),
        ({"tokens": [1.0, 2.0], "flops": [1.0, 2.0, 3.0]}, "columns of 'operators' differ in length: flops 3, tokens 2"),
        ({"tokens": np.ones((2, 2))}, "column 'tokens' of 'operators' has 2 dimensions"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(message)):
        Table.from_columns("operators", {**ROW, **change})


def test_a_column_without_default_must_be_there() -> None:
    with pytest.raises(ProfileError, match=r"needs the column 'time_s' \(of one call\); it is missing"):
        Table.from_columns("operators", {key: value for key, value in ROW.items() if key != "time_s"})


def test_every_kind_of_the_tree_has_its_table() -> None:
    for kind in KINDS:
        name = "collectives" if kind in COLLECTIVES else "operators"
        assert Table.from_columns(name, {**ROW, "kind": kind}).rows == 1


def test_rows_are_selected_by_mask_index_and_slice() -> None:
    table = Table.from_columns("operators", {**ROW, "time_s": [1.0, 2.0, 3.0]})
    assert table.select(table["time_s"] > 1.5)["time_s"].tolist() == [2.0, 3.0]
    assert table.select(np.array([2, 0]))["time_s"].tolist() == [3.0, 1.0]
    assert table.select(slice(1, 2)).row(0)["time_s"] == 2.0
    assert [row["time_s"] for row in table.iter_rows()] == [1.0, 2.0, 3.0]


def test_tables_of_different_kinds_are_not_put_together() -> None:
    with pytest.raises(ProfileError, match=r"only tables of one kind can be put together; got \['operators', 'waits'\]"):
        Table.concat([Table.empty("operators"), Table.empty("waits")])


def test_a_wrong_table_or_column_name_is_an_error_that_helps() -> None:
    with pytest.raises(ProfileError, match="no table 'operator' in a profile; allowed: operators, collectives, waits, end_to_end"):
        schema_of("operator")
    with pytest.raises(ProfileError, match=re.escape("has no column 'time'. Did you mean: time_s")):
        Table.empty("operators")["time"]


def test_repeats_are_the_later_of_equal_rows_and_nan_equals_nan() -> None:
    table = Table.from_columns("operators", {**ROW, "time_s": [1.0, 2.0, 1.0], "power_w": [np.nan, 9.0, np.nan]})
    assert repeats(table).tolist() == [False, False, True]
    assert repeats(Table.empty("operators")).tolist() == []


def test_equality_is_of_rows_in_order() -> None:
    table = Table.from_columns("operators", {**ROW, "time_s": [1.0, 2.0]})
    assert table.equals(table.select(slice(None)))
    assert not table.equals(table.select(np.array([1, 0])))


def test_every_column_stands_in_the_documentation_with_its_unit(root: Path) -> None:
    page = (root / "docs" / "data.md").read_text(encoding="utf-8")
    missing = [
        column.name for columns in SCHEMA.values() for column in columns if f"| `{column.name}` | {column.unit or 'text'} |" not in page
    ]
    assert not missing
