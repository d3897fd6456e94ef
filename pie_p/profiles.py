"""Profiles: folders of measured tables, Parquet beside a `manifest.json` that says where they come from.

The manifest is the commit point: a file counts only when the manifest names it with its SHA-256. So a write that is cut short leaves
the profile as it was before, and a campaign that appends resumes where it stopped. A folder looks like this:

    manifest.json                      schema version, origin, source, conditions, files, rejected rows and why
    operators-3f0a92c41d7e.parquet     one part of a table, named by its content
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pie_p.errors import ProfileError
from pie_p.parquet import table_from_parquet, table_to_parquet
from pie_p.profile_manifest import MANIFEST, MOST_MANIFEST_BYTES, PART_NAME, Manifest, Part, Rejected, load_manifest, new_manifest
from pie_p.storage import check_target, locked, read_whole, sha256, write_atomically
from pie_p.tables import SCHEMA, Table, TableName, repeats


@dataclass(frozen=True, slots=True)
class Profile:
    """A loaded profile: its manifest and its tables, every one of the four (some may be empty)."""

    manifest: Manifest
    tables: Mapping[TableName, Table]

    def __getitem__(self, name: TableName) -> Table:
        return self.tables[name]

    @property
    def operators(self) -> Table:
        """One row per measured kernel."""
        return self.tables["operators"]

    @property
    def collectives(self) -> Table:
        """One row per measured collective."""
        return self.tables["collectives"]

    @property
    def waits(self) -> Table:
        """Waits as distributions."""
        return self.tables["waits"]

    @property
    def end_to_end(self) -> Table:
        """One row per deployment under load."""
        return self.tables["end_to_end"]


def save_profile(folder: str | Path, manifest: Manifest, tables: Sequence[Table], *, replace_existing: bool = False) -> Manifest:
    """Write a profile into a folder that holds none yet.

    Args:
        folder: made when it is not there.
        manifest: from `new_manifest`.
        tables: any of the four kinds; empty ones are left out.
        replace_existing: a profile that is there is replaced, once the new one is complete.

    Raises:
        ProfileError: the folder holds a profile, or cannot be written; nothing half-written is left.
    """
    with locked(folder) as place:
        check_folder(place, replace_existing=replace_existing)
        _check_origins(manifest, tables)
        return _commit(place, manifest.model_copy(update={"parts": ()}), tables)


def check_folder(folder: str | Path, *, replace_existing: bool = False) -> None:
    """Whether a new profile may be saved there: what an importer asks before it reads a gigabyte.

    Raises:
        ProfileError: the folder holds a profile already, or something else with a manifest, or cannot be written.
    """
    path = check_target(folder) / MANIFEST
    if not path.exists():
        return
    text = read_whole(path, what="manifest of a profile", most=MOST_MANIFEST_BYTES)
    if b'"pie_p_version"' not in text or b'"pie_p predictor"' in text:
        raise ProfileError(f"{path} is not that of a profile; choose another folder")
    if not replace_existing:
        raise ProfileError(f"{folder} holds a profile already; choose another folder, append to it, or remove it first")


def append_profile(folder: str | Path, tables: Sequence[Table], *, rejected: Sequence[Rejected] = ()) -> Manifest:
    """Add rows to a profile. A part that is there already, byte for byte, is not added twice, so a repeated append is harmless.

    Raises:
        ProfileError: no profile there, rows of another origin, or the disk refuses; the profile then stays as it was.
    """
    with locked(folder) as place:
        manifest = load_manifest(place)
        _check_origins(manifest, tables)
        return _commit(place, manifest.model_copy(update={"rejected": (*manifest.rejected, *rejected)}), tables)


def load_profile(folder: str | Path, *, tables: Sequence[TableName] = tuple(SCHEMA)) -> Profile:
    """Read a profile; every file is checked against its SHA-256 and every value against the schema.

    Args:
        folder: as written by `save_profile`.
        tables: the ones wanted; the others stay empty.

    Raises:
        ProfileError: one line with the file and what is wrong with it.
    """
    manifest = load_manifest(folder)
    loaded = {name: _load_table(Path(folder), manifest, name) if name in tables else Table.empty(name) for name in SCHEMA}
    return Profile(manifest, loaded)


def verify_profile(folder: str | Path) -> Manifest:
    """Read everything once and keep nothing: the manifest comes back when the profile can be trusted."""
    return load_profile(folder).manifest


def merge_profiles(folders: Sequence[str | Path], out: str | Path, *, name: str, with_simulated: bool = False) -> Manifest:
    """One profile from several. Rows that repeat another row exactly are dropped and counted.

    Raises:
        ProfileError: simulated rows would be mixed with measured or imported ones, unless `with_simulated`.
    """
    profiles = [load_profile(folder) for folder in folders]
    if not profiles:
        raise ProfileError("nothing to merge: give at least one profile folder")
    origin = _merged_origin([profile.manifest.origin for profile in profiles], with_simulated=with_simulated)
    merged = [Table.concat([profile[table] for profile in profiles]) for table in SCHEMA]
    kept = [table.select(~repeats(table)) for table in merged]
    dropped = [
        Rejected(file=table.name, reason="repeats another row of the merged profiles", rows=table.rows - rest.rows)
        for table, rest in zip(merged, kept, strict=True)
        if table.rows > rest.rows
    ]
    manifest = new_manifest(name, origin="imported", source="; ".join(sorted({profile.manifest.source for profile in profiles})))
    history = {
        "origin": origin,
        "inputs": tuple(item for profile in profiles for item in profile.manifest.inputs),
        "rejected": (*(item for profile in profiles for item in profile.manifest.rejected), *dropped),
    }
    return save_profile(out, manifest.model_copy(update=history), kept)


def load_tables(folders: Sequence[str | Path], name: TableName, *, with_simulated: bool = False) -> Table:
    """One table over several profiles: what a trainer reads.

    Raises:
        ProfileError: simulated rows would be mixed with others, unless `with_simulated`.
    """
    profiles = [load_profile(folder, tables=(name,)) for folder in folders]
    _merged_origin([profile.manifest.origin for profile in profiles], with_simulated=with_simulated)
    return Table.concat([profile[name] for profile in profiles]) if profiles else Table.empty(name)


def find_profiles(root: str | Path) -> list[Path]:
    """Folders below `root`, itself included, that hold a profile."""
    return sorted(path.parent for path in Path(root).rglob(MANIFEST))


def _commit(place: Path, manifest: Manifest, tables: Sequence[Table]) -> Manifest:
    """Write the parts, then the manifest that names them, then clear away files that no manifest names."""
    parts = list(manifest.parts)
    for table in tables:
        if table.rows == 0:
            continue
        table.check()
        content = table_to_parquet(table)
        digest = sha256(content)
        part = Part(name=f"{table.name}-{digest[:12]}.parquet", table=table.name, rows=table.rows, sha256=digest)
        if part in parts:
            continue
        write_atomically(place / part.name, content)
        parts.append(part)
    complete = manifest.model_copy(update={"parts": tuple(parts)})
    write_atomically(place / MANIFEST, (complete.model_dump_json(indent=1, exclude_none=True) + "\n").encode())
    _remove_unnamed(place, complete)
    return complete


def _remove_unnamed(place: Path, manifest: Manifest) -> None:
    named = {part.name for part in manifest.parts}
    for path in place.glob("*.parquet"):
        if PART_NAME.fullmatch(path.name) and path.name not in named:
            path.unlink(missing_ok=True)


def _load_table(folder: Path, manifest: Manifest, name: TableName) -> Table:
    parts = [_load_part(folder, part) for part in manifest.parts if part.table == name]
    return Table.concat(parts) if parts else Table.empty(name)


def _load_part(folder: Path, part: Part) -> Table:
    path = folder / part.name
    content = read_whole(path, what="part of a profile")
    digest = sha256(content)
    if digest != part.sha256:
        raise ProfileError(f"{path} is not the file its manifest names: SHA-256 {digest[:12]}..., expected {part.sha256[:12]}...")
    table = table_from_parquet(content, part.table, what=str(path))
    if table.rows != part.rows:
        raise ProfileError(f"{path} holds {table.rows} rows; its manifest says {part.rows}")
    return table


def _check_origins(manifest: Manifest, tables: Sequence[Table]) -> None:
    """Simulated, imported and measured rows stay apart, unless a merge put them together on purpose."""
    for table in tables:
        others = set(table["origin"]) - {manifest.origin}
        if others and manifest.origin != "mixed":
            raise ProfileError(
                f"{min(others)} rows of {table.name!r} cannot go into a profile of origin {manifest.origin!r}; use a folder of their own"
            )


def _merged_origin(origins: Sequence[str], *, with_simulated: bool) -> str:
    found = set(origins)
    if "simulated" in found and len(found) > 1 and not with_simulated:
        raise ProfileError("simulated profiles are not mixed with measured or imported ones; ask for it with with_simulated=True")
    return found.pop() if len(found) == 1 else "mixed"
