"""A run on disk: `manifest.json` and parts of responses beside it.

The manifest is the commit point. A window of the run (its seconds, its joules, its responses) is there whole or not at all: the part is
written first, then the manifest that names it with its SHA-256. Whatever kills a run costs the window that was open, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pie_p.bench.plans import BenchPlan, plan_hash, work_hash
from pie_p.bench.prompts import Prompts
from pie_p.bench.rows import joined, rows_from_parquet, rows_to_parquet
from pie_p.errors import InputError, ProfileError
from pie_p.manifest_files import read_manifest
from pie_p.profile_manifest import MANIFEST, MOST_MANIFEST_BYTES, new_manifest
from pie_p.quantities import shown
from pie_p.storage import read_whole, sha256, write_atomically

SCHEMA_VERSION: Final = 1
PART: Final = re.compile(r"responses-[0-9a-f]{12}\.parquet")
State = Literal["running", "interrupted", "incomplete", "complete"]  # incomplete: it ended, and some prompts have no answer
EnergySource = Literal["measured", "replayed", "simulated", "predicted", "unknown"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Window(_Frozen):
    """A stretch of a run without a break: its totals, and what happened besides. Energy of `None` was not measured."""

    part: str  # file of its responses
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    started: str  # wall time, ISO 8601; durations are monotonic
    repetition: int = Field(ge=0)
    responses: int = Field(ge=0)
    words: int = Field(ge=0)
    tokens: int = Field(ge=0)
    seconds: float = Field(ge=0)
    joules: float | None = Field(default=None, ge=0)  # integrated power of all boards [J]
    counter_j: float | None = None  # by their counters, beside it [J]
    dropped_readings: int = 0
    meter_error: str = ""
    request_s: float = Field(ge=0)  # requests in flight, integrated over the window [s]
    faults: dict[str, int] = {}  # failed attempts by kind, those that a retry mended included
    failed: dict[str, int] = {}  # prompts without an answer, by the fault of the last attempt
    cut_off: int = 0  # requests in flight when the window was broken off: counted nowhere, their energy is in it


class MeterRecord(_Frozen):
    """A board that was read."""

    kind: str
    origin: str
    uuid: str
    name: str
    power_limit_w: float | None = None


class RunManifest(_Frozen):
    """What a run is: what was asked of whom, what it gave, and which files belong to it."""

    schema_version: int = SCHEMA_VERSION
    name: str
    created: str
    command: str
    pie_p_version: str
    state: State
    plan_hash: str
    work_hash: str
    plan: dict[str, Any]
    prompts: dict[str, Any]  # name, form, count, sha256, bad lines
    served: str = ""  # what the server calls its LLM
    meters: tuple[MeterRecord, ...] = ()
    windows: tuple[Window, ...] = ()
    notes: tuple[str, ...] = ()
    stopped_by: str = ""  # why it was interrupted
    totals: dict[str, float | None] = {}  # five totals and six figures
    energy_source: EnergySource = "unknown"
    prediction: dict[str, Any] | None = None  # for the same deployment, and its error


def new_run(name: str, plan: BenchPlan, prompts: Prompts) -> RunManifest:
    """The manifest of a run that begins."""
    stamp = new_manifest(name, origin="measured", source="pie-p bench")
    return RunManifest(
        name=name,
        created=stamp.created,
        command=stamp.command,
        pie_p_version=stamp.pie_p_version,
        state="running",
        plan_hash=plan_hash(plan, prompts),
        work_hash=work_hash(plan, prompts),
        plan=plan.model_dump(mode="json"),
        prompts={
            "name": prompts.name,
            "form": prompts.form,
            "count": len(prompts),
            "sha256": prompts.sha256,
            "bad_lines": [str(bad) for bad in prompts.bad_lines],
        },
    )


def load_run_manifest(folder: str | Path) -> RunManifest:
    """The manifest of a run, checked.

    Raises:
        ProfileError: none there, not of a benchmark, or of a newer schema.
    """
    path = Path(folder) / MANIFEST
    manifest, _ = read_manifest(path, RunManifest, of="a benchmark", newest=SCHEMA_VERSION, most=MOST_MANIFEST_BYTES)
    for window in manifest.windows:
        if not PART.fullmatch(window.part):
            raise ProfileError(f"{path} names the file {shown(window.part)}; allowed: responses-<12 hex digits>.parquet in the same folder")
    return manifest


def open_run(folder: Path, plan: BenchPlan, prompts: Prompts) -> RunManifest:
    """The run that the folder holds, to go on with, or a new one.

    Raises:
        InputError: the folder holds another run; the line says in what it differs.
    """
    if not (folder / MANIFEST).exists():
        return new_run(folder.resolve().name, plan, prompts)
    manifest = load_run_manifest(folder)
    if manifest.plan_hash != plan_hash(plan, prompts):
        raise InputError(f"{folder} holds a run that differs in {_difference(manifest, plan, prompts)}; choose another folder for this one")
    return manifest


def _difference(manifest: RunManifest, plan: BenchPlan, prompts: Prompts) -> str:
    """The first settings that differ, both values shown."""
    before, now = _flat(manifest.plan), _flat(plan.model_dump(mode="json"))
    texts = [
        f"{name} ({shown(before.get(name))} there, {shown(now.get(name))} here)"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
    if manifest.prompts.get("sha256") != prompts.sha256:
        texts.append(
            f"prompts ({manifest.prompts.get('count')} of {manifest.prompts.get('name')} there, {len(prompts)} of {prompts.name} here)"
        )
    return ", ".join(texts[:3]) or "its settings"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def commit_window(folder: Path, manifest: RunManifest, window: dict[str, Any], rows: Sequence[dict[str, Any]]) -> RunManifest:
    """Write a window's responses, then the manifest that names them."""
    content = rows_to_parquet(rows)
    digest = sha256(content)
    part = f"responses-{digest[:12]}.parquet"
    write_atomically(folder / part, content)
    whole = Window(part=part, sha256=digest, **window)
    stale: dict[str, Any] = {"totals": {}, "energy_source": "unknown", "prediction": None}
    return save_manifest(folder, manifest.model_copy(update={"windows": (*manifest.windows, whole), **stale}))


def save_manifest(folder: Path, manifest: RunManifest) -> RunManifest:
    """Write the manifest; files that it does not name are cleared away."""
    write_atomically(folder / MANIFEST, (manifest.model_dump_json(indent=1) + "\n").encode())
    named = {window.part for window in manifest.windows}
    for path in folder.glob("responses-*.parquet"):
        if PART.fullmatch(path.name) and path.name not in named:
            path.unlink(missing_ok=True)
    return manifest


def load_rows(folder: Path, manifest: RunManifest) -> dict[str, NDArray[Any]]:
    """Responses of all windows, each file checked against its SHA-256.

    Raises:
        ProfileError: a file that is missing, damaged or another.
    """
    parts = []
    for window in manifest.windows:
        path = folder / window.part
        content = read_whole(path, what="part of a benchmark")
        if sha256(content) != window.sha256:
            raise ProfileError(
                f"{path} is not the file its manifest names: SHA-256 {sha256(content)[:12]}..., expected {window.sha256[:12]}..."
            )
        parts.append(rows_from_parquet(content, what=str(path)))
    return joined(parts)


def wall_time() -> str:
    """Now, as ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
