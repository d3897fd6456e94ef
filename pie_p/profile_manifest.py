"""Manifest of a profile: where its rows come from, under what they were measured, and which files belong to it."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from pie_p.errors import ProfileError
from pie_p.manifest_files import read_manifest
from pie_p.tables import Origin, TableName

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
MOST_MANIFEST_BYTES: Final = 16 << 20  # a manifest is a few kB; more is not one

PART_NAME: Final = re.compile(r"(operators|collectives|waits|end_to_end)-[0-9a-f]{12}\.parquet")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Conditions(_Frozen):
    """Under what a campaign measured; what was not recorded is absent."""

    gpu: str | None = None
    topology: str | None = None
    hosts: int | None = None
    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    torch: str | None = None
    engine: str | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_limit_w: float | None = None
    least_temperature_c: float | None = None
    most_temperature_c: float | None = None
    sampler_period_s: float | None = None
    sampler_field: str | None = None
    notes: str | None = None


class Part(_Frozen):
    """One Parquet file of a profile."""

    name: str
    table: TableName
    rows: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Rejected(_Frozen):
    """Rows that were read but not kept, with the reason."""

    file: str
    reason: str
    rows: int = Field(ge=0)  # 0: the whole file was left unread


class InputFile(_Frozen):
    """A file an importer read, so that a reader can check that it has the same one."""

    file: str
    sha256: str
    rows: int = Field(ge=0)


class Manifest(_Frozen):
    """What a profile is, and why it can be trusted."""

    schema_version: int = SCHEMA_VERSION
    name: str
    created: str
    command: str
    pie_p_version: str
    origin: Literal["measured", "imported", "simulated", "mixed"]
    source: str
    source_version: str = ""
    licence: str = ""
    conditions: Conditions = Conditions()
    parts: tuple[Part, ...] = ()
    inputs: tuple[InputFile, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    def rows(self, table: TableName) -> int:
        """Rows of one table, over its parts [-]."""
        return sum(part.rows for part in self.parts if part.table == table)


def new_manifest(name: str, *, origin: Origin, source: str, source_version: str = "", licence: str = "", **more: object) -> Manifest:
    """A manifest stamped with the time, the running command and the package's version; the parts come with the writing."""
    return Manifest.model_validate(
        {
            "name": name,
            "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else "",
            "pie_p_version": _package_version(),
            "origin": origin,
            "source": source,
            "source_version": source_version,
            "licence": licence,
            **more,
        }
    )


def load_manifest(folder: str | Path) -> Manifest:
    """The manifest of a profile, checked.

    Raises:
        ProfileError: not a folder, no manifest, not ours, or of a newer schema.
    """
    path = Path(folder) / MANIFEST
    below = [] if path.exists() else sorted(str(one.parent) for one in Path(folder).glob(f"*/{MANIFEST}"))
    if below:
        raise ProfileError(f"{folder} is no profile, it holds {len(below)}; give one of them: {', '.join(below[:3])}")
    manifest, _ = read_manifest(path, Manifest, of="a profile", newest=SCHEMA_VERSION, most=MOST_MANIFEST_BYTES)
    for part in manifest.parts:
        if not PART_NAME.fullmatch(part.name):
            raise ProfileError(f"{path} names the file {part.name!r}; allowed: <table>-<12 hex digits>.parquet in the same folder")
    return manifest


def _package_version() -> str:
    try:
        return metadata.version("pie_p")
    except metadata.PackageNotFoundError:  # a checkout that was never installed
        return "unknown"
