"""Profiles on disk: whole or not there, verified on reading, and simulated rows apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_p.errors import ProfileError
from pie_p.parquet import table_from_parquet, table_to_parquet
from pie_p.profile_manifest import MANIFEST, Conditions, Manifest, Rejected, load_manifest, new_manifest
from pie_p.profiles import append_profile, find_profiles, load_profile, load_tables, merge_profiles, save_profile, verify_profile
from pie_p.tables import SCHEMA, Table, TableName, schema_of

pytest.importorskip("pyarrow", reason="pyarrow comes with the extra: pip install 'pie_p[train]'")


def table(*times_s: float, origin: str = "measured", **columns: Any) -> Table:
    return Table.from_columns(
        "operators", {"kind": "linear", "time_s": list(times_s), "gpu": "h100-sxm-80gb", "origin": origin, "source": "test", **columns}
    )


def manifest(origin: Any = "measured") -> Manifest:
    return new_manifest("a-test", origin=origin, source="test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile of two rows."""
    save_profile(tmp_path / "profile", manifest(), [table(1.0, 2.0, power_w=[300.0, np.nan])])
    return tmp_path / "profile"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Round trip ---------------------------------------------------------------------------------------------------------------------


def rows_of(name: TableName) -> st.SearchStrategy[Table]:
    """Random valid rows: texts of any kind, numbers over the whole range, NaN where a number may be missing."""

    def values(column: Any) -> st.SearchStrategy[Any]:
        if column.name == "kind":
            kinds = {"operators": ["linear", "experts", "quantize"], "collectives": ["all_reduce", "send_recv"]}
            return st.sampled_from(kinds.get(name, ["", "all_reduce"]))
        if column.type == "text":
            return st.sampled_from(column.allowed) if column.allowed else st.text(max_size=8).filter(_encodes)
        numbers = st.floats(min_value=column.least, max_value=1e300, exclude_min=column.above)
        missing = isinstance(column.default, float) and np.isnan(column.default)
        return numbers | st.just(float("nan")) if missing else numbers

    row = st.fixed_dictionaries({column.name: values(column) for column in schema_of(name)})
    return st.lists(row, min_size=1, max_size=5).map(
        lambda rows: Table.from_columns(name, {key: [row[key] for row in rows] for key in rows[0]})
    )


def _encodes(text: str) -> bool:
    return "\x00" not in text and text == text.encode("utf-8", "ignore").decode("utf-8")


@pytest.mark.parametrize("name", list(SCHEMA))
def test_any_table_comes_back_as_it_went(name: TableName) -> None:
    @settings(max_examples=30)
    @given(rows_of(name))
    def round_trip(sample: Table) -> None:
        assert table_from_parquet(table_to_parquet(sample), name, what="here").equals(sample)

    round_trip()


@settings(max_examples=8)
@given(st.lists(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=4), min_size=1, max_size=5))
def test_appending_piece_by_piece_is_the_same_as_saving_at_once(pieces: list[list[float]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "profile"
        save_profile(folder, manifest(), [table(*pieces[0])])
        for piece in pieces[1:]:
            append_profile(folder, [table(*piece)])
        unique = list(dict.fromkeys(tuple(piece) for piece in pieces))
        assert load_profile(folder).operators["time_s"].tolist() == [time for piece in unique for time in piece]


def test_the_manifest_tells_where_the_rows_come_from(tmp_path: Path) -> None:
    conditions = Conditions(gpu="h100-sxm-80gb", driver="570.1", sampler_period_s=0.02, sampler_field="power.draw.instant")
    rejected = (Rejected(file="campaign", reason="clock dropped", rows=3),)
    whole = new_manifest("a", origin="measured", source="s", licence="Apache-2.0", conditions=conditions, rejected=rejected)
    save_profile(tmp_path / "p", whole, [table(1.0)])
    back = load_manifest(tmp_path / "p")
    assert (back.conditions, back.rejected, back.rows("operators"), back.licence) == (conditions, rejected, 1, "Apache-2.0")


def test_tables_not_asked_for_stay_empty(folder: Path) -> None:
    profile = load_profile(folder, tables=("waits",))
    assert (profile.operators.rows, profile.waits.rows, profile.collectives.rows, profile.end_to_end.rows) == (0, 0, 0, 0)
    assert load_profile(folder)["operators"].rows == 2


def test_profiles_are_found_below_a_folder(folder: Path) -> None:
    assert find_profiles(folder.parent) == [folder]


# Append, merge ------------------------------------------------------------------------------------------------------------------


def test_an_append_that_is_repeated_adds_nothing(folder: Path) -> None:
    append_profile(folder, [table(3.0)])
    append_profile(folder, [table(3.0)])
    assert load_profile(folder).operators["time_s"].tolist() == [1.0, 2.0, 3.0]


def test_an_append_adds_to_the_rejected_rows(folder: Path) -> None:
    append_profile(folder, [], rejected=[Rejected(file="campaign", reason="spread too wide", rows=2)])
    assert load_manifest(folder).rejected[-1].reason == "spread too wide"


def test_a_profile_is_not_written_over_unless_asked(folder: Path) -> None:
    with pytest.raises(ProfileError, match="holds a profile already; choose another folder, append to it, or remove it first"):
        save_profile(folder, manifest(), [table(9.0)])
    save_profile(folder, manifest(), [table(9.0)], replace_existing=True)
    assert load_profile(folder).operators["time_s"].tolist() == [9.0]
    assert len(list(folder.glob("*.parquet"))) == 1


@pytest.mark.parametrize("text", ['{"name": "a browser extension"}', '{"format": "pie_p predictor", "pie_p_version": "0.1"}'])
def test_what_is_no_profile_is_not_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ProfileError, match="is not that of a profile; choose another folder"):
        save_profile(tmp_path, manifest(), [table(1.0)], replace_existing=True)
    assert (tmp_path / "manifest.json").read_text() == text


def test_simulated_rows_do_not_enter_a_measured_profile(folder: Path) -> None:
    with pytest.raises(ProfileError, match="simulated rows of 'operators' cannot go into a profile of origin 'measured'"):
        append_profile(folder, [table(1.0, origin="simulated")])
    assert load_profile(folder).operators.rows == 2


def test_simulated_profiles_are_mixed_only_when_asked(folder: Path, tmp_path: Path) -> None:
    save_profile(tmp_path / "sim", manifest("simulated"), [table(5.0, origin="simulated")])
    both = [folder, tmp_path / "sim"]
    with pytest.raises(ProfileError, match="simulated profiles are not mixed with measured or imported ones"):
        load_tables(both, "operators")
    with pytest.raises(ProfileError, match="simulated profiles are not mixed"):
        merge_profiles(both, tmp_path / "both", name="both")
    assert load_tables(both, "operators", with_simulated=True).rows == 3
    assert load_tables([tmp_path / "sim"], "operators").rows == 1
    assert load_tables([], "operators").rows == 0


def test_merging_keeps_a_shared_row_once_and_counts_it(folder: Path, tmp_path: Path) -> None:
    save_profile(tmp_path / "other", manifest(), [table(2.0, 7.0)])
    merged = merge_profiles([folder, tmp_path / "other"], tmp_path / "both", name="both")
    assert load_profile(tmp_path / "both").operators["time_s"].tolist() == [1.0, 2.0, 7.0]
    assert [(item.reason, item.rows) for item in merged.rejected] == [("repeats another row of the merged profiles", 1)]
    with pytest.raises(ProfileError, match="nothing to merge"):
        merge_profiles([], tmp_path / "none", name="none")


# What can go wrong --------------------------------------------------------------------------------------------------------------


def damage_part(folder: Path, change: Any) -> None:
    part = next(folder.glob("*.parquet"))
    part.write_bytes(change(part.read_bytes()))


def damage_manifest(folder: Path, **changes: Any) -> None:
    record = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**record, **changes}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: damage_part(folder, lambda content: content[:-20]), "is not the file its manifest names"),
        (lambda folder: damage_part(folder, lambda content: b"x" + content[1:]), "is not the file its manifest names"),
        (lambda folder: next(folder.glob("*.parquet")).unlink(), "no part of a profile at"),
        (lambda folder: (folder / MANIFEST).unlink(), "no manifest of a profile at"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "is not the manifest of a profile"),
        (lambda folder: (folder / MANIFEST).write_text('{"layers": 32}'), "is not the manifest of a profile: name: Field required"),
        (
            lambda folder: (folder / MANIFEST).write_bytes(b" " * (17 << 20)),
            "has 17825792 bytes; a manifest of a profile has at most 16777216",
        ),
        (lambda folder: damage_manifest(folder, schema_version=99), "has schema version 99; this pie_p reads up to 1"),
        (lambda folder: damage_manifest(folder, schema_version=99, later="field"), "has schema version 99; this pie_p reads up to 1"),
        (
            lambda folder: damage_manifest(folder, parts=[{"name": "../x.parquet", "table": "waits", "rows": 1, "sha256": "0" * 64}]),
            "names the file '../x.parquet'; allowed: <table>-<12 hex digits>.parquet",
        ),
    ],
)
def test_a_damaged_profile_is_one_clear_line(folder: Path, harm: Any, message: str) -> None:
    harm(folder)
    with pytest.raises(ProfileError, match=re.escape(message)) as caught:
        verify_profile(folder)
    assert "\n" not in str(caught.value)


def test_a_path_that_is_no_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(ProfileError, match="cannot write into"):
        save_profile(tmp_path / "file", manifest(), [table(1.0)])
    with pytest.raises(ProfileError, match="no manifest of a profile at"):
        load_profile(tmp_path / "nowhere")
    with pytest.raises(ProfileError, match="cannot read the manifest of a profile"):
        load_profile(tmp_path / "file")


def test_a_missing_column_and_a_foreign_one_are_named() -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    whole = parquet.read_table(arrow.BufferReader(table_to_parquet(table(1.0))))
    for changed, message in (
        (whole.drop(["time_s"]), "lacks column 'time_s'"),
        (whole.append_column("zz", [[1.0]]), "unknown column 'zz'"),
    ):
        sink = arrow.BufferOutputStream()
        parquet.write_table(changed, sink)
        with pytest.raises(ProfileError, match=f"here .*{message}"):
            table_from_parquet(sink.getvalue().to_pybytes(), "operators", what="here")


@given(st.data())
def test_no_damage_to_a_parquet_file_gets_past_as_anything_but_an_error(data: st.DataObject) -> None:
    content = bytearray(table_to_parquet(table(1.0, 2.0, 3.0)))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(1, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        table_from_parquet(bytes(content), "operators", what="here").check()
    except ProfileError as error:
        assert "\n" not in str(error)  # noqa: PT017 - a flipped bit may also leave the table as it was, or another valid one


@given(st.binary(max_size=200) | st.text(max_size=50).map(str.encode))
def test_no_text_passes_for_a_manifest(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / MANIFEST).write_bytes(content)
        with pytest.raises(ProfileError):
            load_manifest(root)


# Crashes ------------------------------------------------------------------------------------------------------------------------

KILLED_AT_RENAME = """
import os, sys
import numpy as np
from pie_p.profiles import append_profile
from pie_p.tables import Table
left, rename = int(sys.argv[2]), os.replace
def killed(*names):
    global left
    if left == 0:
        os._exit(9)
    left -= 1
    rename(*names)
os.replace = killed
times = {"kind": "linear", "time_s": [4.0], "gpu": "h100-sxm-80gb", "origin": "measured", "source": "test"}
append_profile(sys.argv[1], [Table.from_columns("operators", times)])
"""


@pytest.mark.parametrize("renames", [0, 1])
def test_a_kill_between_write_and_rename_leaves_the_profile_as_it_was(folder: Path, renames: int) -> None:
    before = load_profile(folder).operators
    killed = subprocess.run([sys.executable, "-c", KILLED_AT_RENAME, str(folder), str(renames)], check=False)
    assert killed.returncode == 9
    assert load_profile(folder).operators.equals(before)
    append_profile(folder, [table(4.0)])  # the campaign resumes
    assert load_profile(folder).operators["time_s"].tolist() == [1.0, 2.0, 4.0]
    assert set(files(folder)) == {MANIFEST, *(part.name for part in load_manifest(folder).parts)}


def test_a_full_disk_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(folder)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pie_p.storage.os.fsync", full)
    with pytest.raises(ProfileError, match="No space left on device; nothing was changed"):
        append_profile(folder, [table(4.0)])
    assert files(folder) == before


def test_two_writers_do_not_write_at_once(folder: Path) -> None:
    storage = pytest.importorskip("pie_p.storage")
    with storage.locked(folder), pytest.raises(ProfileError, match="another process is writing into"):
        append_profile(folder, [table(4.0)])
    append_profile(folder, [table(4.0)])


def test_without_pyarrow_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'pie_p[train]'")):
        load_profile(folder)


def test_a_folder_of_profiles_names_those_it_holds(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text("{}")
    with pytest.raises(ProfileError, match=r"is no profile, it holds 2; give one of them: .*one, .*two"):
        load_manifest(tmp_path)
