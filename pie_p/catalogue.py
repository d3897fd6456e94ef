"""The catalogue's tables: what the bundled TOML files and a user's own file say, before it becomes a Gpu, a Link or a Host.

Every file has the same form, so an entry can be copied from the bundled ones: `[[gpu]]`, `[[link]]`, `[[host]]` (or a single `[gpu]`, ...)
with a `name`, and a `sources` table that names, number by number, an entry of `[sources]` or gives kind, cite and date on the spot.
`base = "h100-sxm-80gb"` starts from a bundled entry; a number that overrides it loses the base's source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pie_p.checks import read_toml
from pie_p.errors import InputError, UnknownGpuError, did_you_mean

Kind = Literal["gpu", "link", "host"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Entry = dict[str, Any]

DATA = Path(__file__).parent / "data"
HOW_TO = "docs/how-to/add-a-gpu.md"
TITLES: dict[Kind, str] = {"gpu": "GPU", "link": "link", "host": "host"}


@cache
def bundled(kind: Kind) -> dict[str, Entry]:
    """The bundled entries of a kind by name, each number with its source."""
    tables = read_toml(DATA / f"{kind}s.toml")
    return {entry["name"]: {**entry, "sources": _cited(entry, tables["sources"], kind)} for entry in tables[kind]}


def find(kind: Kind, name: str) -> Entry:
    """A bundled entry by name or, for a GPU, by the name NVML gives it.

    Raises:
        UnknownGpuError: with near names.
    """
    entries = bundled(kind)
    wanted = " ".join(name.split()).lower()
    if wanted in entries:
        return entries[wanted]
    for entry in entries.values():
        if wanted in (alias.lower() for alias in entry.get("nvml_names", ())):
            return entry
    raise UnknownGpuError(unknown(kind, name))


def unknown(kind: Kind, name: str) -> str:
    """One line: no such name, near ones, and where to read on."""
    bare = name.lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removeprefix("tesla-").removeprefix("geforce-")
    near = did_you_mean(bare[:80], bundled(kind)) or f" Known: {', '.join(bundled(kind))}."
    shown = name if len(name) <= 80 else name[:77] + "..."
    return f"no {TITLES[kind]} {shown!r} in the catalogue.{near} Add one: {HOW_TO}"


def from_file(path: str | Path) -> dict[str, Any]:
    """A user's file: `{"gpu": {name: entry}, "link": ..., "host": ..., "cluster": entry or None}`, bases and sources filled in.

    Raises:
        InputError: anything that is not of this form, in one line.
    """
    tables = read_toml(path)
    strange = next((key for key in tables if key not in (*KINDS, "cluster", "sources")), None)
    if strange is not None:
        raise InputError(f"{path}: no table {strange[:80]!r}; allowed: gpu, link, host, cluster, sources")
    cites = _mapping(tables.get("sources", {}), f"{path}: sources")
    found: dict[str, Any] = {kind: _entries(tables.get(kind, []), kind, cites, path) for kind in KINDS}
    cluster = tables.get("cluster")
    found["cluster"] = None if cluster is None else _own(_mapping(cluster, f"{path}: cluster"), {}, cites, f"{path}: cluster")
    return found


def _entries(tables: object, kind: Kind, cites: Entry, path: str | Path) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for table in tables if isinstance(tables, list) else [tables]:
        entry = dict(_mapping(table, f"{path}: {kind}"))
        base_name = entry.pop("base", None)
        if base_name is not None and not isinstance(base_name, str):
            raise InputError(f"{path}: base = {base_name!r} is not a name of the catalogue")
        base = find(kind, base_name) if base_name else {}
        name = entry.setdefault("name", f"{base_name}-modified" if base_name else None)
        if not isinstance(name, str):
            raise InputError(f"{path}: {kind} needs a name, a text; got {name!r}")
        entries[name] = _own(entry, base, cites, f"{path}: {kind}")
    return entries


def _own(entry: Entry, base: Entry, cites: Entry, place: str) -> Entry:
    """A user's entry over its base; each of its numbers is 'given by the user' unless it says more."""
    own = {key: value for key, value in entry.items() if key != "sources"}
    given = {"kind": "given", "cite": f"given by the user in {place.split(': ')[0]}", "date": "undated"}
    sources = {number: source for number, source in base.get("sources", {}).items() if number.split(".")[0] not in own}
    for key, value in own.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):  # peaks of some formats over the base's
            old = {f"{key}.{part}": _source_of(base, key, part) for part in base[key] if part not in value}
            sources |= old | {f"{key}.{part}": given for part in value}
            own[key] = {**base[key], **value}
        elif isinstance(value, (int, float, dict)) and not isinstance(value, bool):
            sources[key] = given
    kept = {key: value for key, value in base.items() if key not in ("sources", "nvml_names")}
    return {**kept, **own, "sources": {**sources, **_cited(entry, cites, place)}}


def _source_of(base: Entry, key: str, part: str) -> Any:
    return base["sources"].get(f"{key}.{part}", base["sources"].get(key))


def _cited(entry: Entry, cites: Entry, place: str) -> Entry:
    """The entry's sources with each name replaced by what `[sources]` says under it."""
    sources: Entry = {}
    for number, source in _mapping(entry.get("sources", {}), f"{place}: sources").items():
        if isinstance(source, str) and source not in cites:
            raise InputError(f"{place}: no source {source[:80]!r} in [sources] for {number}.{did_you_mean(source[:80], cites)}")
        sources[number] = cites[source] if isinstance(source, str) else source
    return sources


def _mapping(value: object, place: str) -> Entry:
    if not isinstance(value, Mapping):
        raise InputError(f"{place} must be a table, not {str(value)[:60]!r}")
    return dict(value)
