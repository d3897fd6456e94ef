"""Saved predictors: a folder with `manifest.json`, `card.md` and boosters in XGBoost's JSON, gzipped. Loading executes nothing.

The manifest names every file with its SHA-256 and carries a checksum of itself, so a flipped bit anywhere is an error and not an answer.
Shipped predictors stand in `models/<name>/` of a checkout and in `pie_p/models/<name>/` of an installed package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pie_p import operators as ops
from pie_p.errors import PredictorError, did_you_mean
from pie_p.features import FAMILIES, Family, featurize
from pie_p.hardware import load_cluster
from pie_p.intervals import Intervals
from pie_p.kernels import KernelBook, Use
from pie_p.manifest_files import read_manifest
from pie_p.physics import Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.regressors import Booster, FamilyRegressor, OperatorRegressors, Target, check_features
from pie_p.serving import ServingCosts
from pie_p.storage import check_target, locked, read_whole, sha256, write_together

SCHEMA_VERSION: Final = 1
MANIFEST: Final = "manifest.json"
CARD: Final = "card.md"
FORMAT: Final = "pie_p predictor"
MOST_MANIFEST_BYTES: Final = 8 << 20
MOST_FILE_BYTES: Final = 32 << 20
MOST_CONSTANT: Final = 1e6  # times are in seconds, the others are shares, factors and exponents
FILE_NAME: Final = re.compile(r"[a-z_]+-(time|power)\.json\.gz")
PLACES: Final = (Path(__file__).parent / "models", Path(__file__).parent.parent / "models")
T = TypeVar("T")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Saved(_Frozen):
    """One file."""

    file: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class TrainedOn(_Frozen):
    """A profile that taught the predictor."""

    name: str
    source: str
    origin: str
    parts: tuple[str, ...]  # SHA-256 of its files


class ErrorRow(_Frozen):
    """Error of one target on rows that were held out."""

    family: str
    target: str
    regressor: str  # "learned", "physics", ...
    split: str
    rows: int
    mape: float  # mean absolute relative error [-]
    median: float  # of the absolute relative error [-]
    p90: float  # 90th percentile of it [-]
    bias: float  # mean relative error [-]


def error_row(predicted: Floats, measured: Floats, *, family: str, target: str, regressor: str, split: str) -> ErrorRow:
    """Relative errors of one target, summed up.

    >>> row = error_row(np.array([1.1, 0.8]), np.ones(2), family="linear", target="time", regressor="x", split="y")
    >>> round(row.mape, 3), round(row.bias, 3)
    (0.15, -0.05)
    """
    return summed_errors(predicted / measured - 1.0, family=family, target=target, regressor=regressor, split=split)


def summed_errors(relative: Floats, *, family: str, target: str, regressor: str, split: str) -> ErrorRow:
    """The same from relative errors [-]."""
    size = np.abs(relative)
    return ErrorRow(
        family=family,
        target=target,
        regressor=regressor,
        split=split,
        rows=len(relative),
        mape=float(size.mean()),
        median=float(np.median(size)),
        p90=float(np.quantile(size, 0.9)),
        bias=float(relative.mean()),
    )


class FamilyEntry(_Frozen):
    """What is stored for one family of operators."""

    features: dict[Literal["time", "power"], tuple[str, ...]]
    boosters: dict[Literal["time", "power"], Saved]
    ranges: dict[str, tuple[float, float]]
    known: dict[str, tuple[int, ...]]
    labels: tuple[str, ...]
    uses: tuple[tuple[str, str, str, str, str, int, float], ...]
    fades: dict[str, float] = {}
    rows: dict[str, int]  # per target, that taught
    settings: dict[str, dict[str, float | int | str | None]]  # per target, of the learner


class PredictorManifest(_Frozen):
    """What a saved predictor is, and from what it came."""

    format: Literal["pie_p predictor"] = FORMAT
    schema_version: int = SCHEMA_VERSION
    name: str
    pie_p_version: str
    libraries: dict[str, str]
    profiles: tuple[TrainedOn, ...]
    seed: int
    split: str
    notes: tuple[str, ...] = ()
    roofline: dict[str, float]
    power: dict[str, float] = {}
    serving: dict[str, dict[str, float]] = {}
    intervals: dict[str, Any] = {}  # `Intervals.to_plain`; empty: none were tested
    families: dict[str, FamilyEntry]
    operator_base: dict[str, float] = {}  # the roofline that the families correct, where it is not `roofline`
    base_s: tuple[float, ...] = ()  # `base_times_s` when the families were learned [s]
    errors: tuple[ErrorRow, ...] = ()
    checksum: str = ""

    def text(self) -> bytes:
        """The file's content, its checksum filled in."""
        bare = self.model_copy(update={"checksum": ""})
        return _json(self.model_copy(update={"checksum": sha256(_json(bare))}))


def _json(manifest: PredictorManifest) -> bytes:
    return (json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()


def save_predictor(folder: str | Path, manifest: PredictorManifest, boosters: Mapping[str, Booster], *, card: str) -> PredictorManifest:
    """Write a predictor into a folder; all files take their names at once, the manifest last, so that what is there is whole.

    Args:
        folder: made when it is not there; a predictor that is there is replaced.
        manifest: names every booster's file.
        boosters: by file name.
        card: text for people.
    """
    with locked(folder, error=PredictorError) as place:
        check_target(place, mark=FORMAT, error=PredictorError)
        contents = {place / name: booster.content for name, booster in boosters.items()}
        write_together({**contents, place / CARD: card.encode(), place / MANIFEST: manifest.text()}, error=PredictorError)
        for path in place.glob("*.json.gz"):
            if FILE_NAME.fullmatch(path.name) and path.name not in boosters:
                path.unlink(missing_ok=True)
    return manifest


def save_parts(
    folder: str | Path,
    *,
    name: str,
    roofline: Roofline,
    power: PowerLaw,
    serving: Mapping[str, ServingCosts],
    operators: OperatorRegressors | None,
    intervals: Intervals | None,
    note: str,
) -> None:
    """The fields of a `Predictor` as a saved one; where they came from is the note.

    Raises:
        PredictorError: the folder cannot be written.
    """
    families = operators.families if operators is not None else {}
    base = operators.roofline if operators is not None else roofline
    manifest = PredictorManifest(
        name=name,
        pie_p_version=package_version(),
        libraries={},
        profiles=(),
        seed=0,
        split="none: saved, not trained",
        notes=(note,),
        roofline=stored_constants(roofline),
        power=stored_constants(power),
        serving={engine: stored_constants(costs) for engine, costs in sorted(serving.items())},
        intervals=intervals.to_plain() if intervals is not None else {},
        families={family: entry_of(one, rows={}, settings={}) for family, one in families.items()},
        operator_base=stored_constants(base) if base != roofline else {},
        base_s=base_times_s(base) if families else (),
    )
    files = {file_of(family, target): booster for family, one in families.items() for target, booster in one.boosters.items()}
    save_predictor(folder, manifest, files, card=f"# Predictor `{name}`\n\n{note}\n")


def package_version() -> str:
    """Of pie_p; "unknown" in a checkout that was never installed."""
    try:
        return metadata.version("pie_p")
    except metadata.PackageNotFoundError:
        return "unknown"


def find_predictor(name: str | Path) -> Path:
    """The folder of a shipped predictor, or the folder given.

    Raises:
        PredictorError: with the names that are known.
    """
    path, known = Path(name), shipped()
    if path.is_dir() and ((path / MANIFEST).is_file() or str(name) not in known):  # a folder "operators" may hold anything
        return path
    if str(name) in known:
        return known[str(name)]
    if len(path.parts) > 1:
        raise PredictorError(f"no predictor at {str(path)[:200]}: no such folder")
    names = ", ".join(["physics", *known])
    raise PredictorError(f"no predictor {str(name)[:80]!r}; known: {names}.{did_you_mean(str(name)[:80], known)} Or give a folder")


def shipped() -> dict[str, Path]:
    """Predictors that come with the package, by name."""
    return {path.parent.name: path.parent for place in reversed(PLACES) for path in sorted(place.glob(f"*/{MANIFEST}"))}


def load_predictor_manifest(folder: str | Path) -> PredictorManifest:
    """The manifest of a saved predictor, checked.

    Raises:
        PredictorError: no folder, no manifest, not ours, of a newer schema, or changed after it was written.
    """
    path = Path(folder) / MANIFEST
    manifest, text = read_manifest(
        path, PredictorManifest, of="a predictor", newest=SCHEMA_VERSION, most=MOST_MANIFEST_BYTES, error=PredictorError
    )
    bare = text.replace(f'"checksum": "{manifest.checksum}"'.encode(), b'"checksum": ""', 1)
    if sha256(bare) != manifest.checksum:  # over the file as it is: a later pie_p may know more fields
        raise PredictorError(f"{path} was changed after it was written: its checksum does not fit; train or download it again")
    return manifest


def load_parts(name_or_path: str | Path) -> dict[str, Any]:
    """The fields of a `Predictor` from a saved one, by name or folder.

    Raises:
        PredictorError: one line with the file and what is wrong with it.
    """
    folder = find_predictor(name_or_path)
    manifest = load_predictor_manifest(folder)
    return {
        "name": manifest.name,
        "roofline": constants(Roofline, manifest.roofline, folder),
        "power": constants(PowerLaw, manifest.power, folder),
        "serving": {engine: constants(ServingCosts, costs, folder) for engine, costs in manifest.serving.items()},
        "operators": load_regressors(folder, manifest) if manifest.families else None,
        "intervals": Intervals.from_plain(manifest.intervals) if manifest.intervals else None,
        "digest": manifest.checksum,
    }


def load_regressors(folder: str | Path, manifest: PredictorManifest) -> OperatorRegressors:
    """The learned regressors of a saved predictor; every file is checked against its SHA-256, none is unpacked before it is asked.

    Raises:
        PredictorError: one line with the file and what is wrong with it.
    """
    families: dict[Family, FamilyRegressor] = {}
    roofline = constants(Roofline, manifest.operator_base or manifest.roofline, folder)
    for family in FAMILIES:
        if family in manifest.families:
            families[family] = _family(Path(folder), family, manifest.families[family])
    now_s = base_times_s(roofline) if manifest.base_s else ()
    if len(now_s) != len(manifest.base_s) or not np.allclose(now_s, manifest.base_s, rtol=1e-6):
        raise PredictorError(f"{folder} corrects a physical base that this pie_p no longer has; train it again")
    strange = set(manifest.families) - set(FAMILIES)
    if strange:
        raise PredictorError(f"{folder} has regressors for {min(strange)!r}; this pie_p knows {', '.join(FAMILIES)}")
    return OperatorRegressors(roofline=roofline, families=families)


def base_times_s(roofline: Roofline) -> tuple[float, ...]:
    """Times of one operator of each learned kind on one board: what shows that the base's formulas are still the same [s]."""
    probes = (
        ops.linear("", tokens=100, in_features=4096, out_features=8192),
        ops.lm_head("", tokens=8, width=4096, vocab=32000, dtype="fp8"),
        ops.attention_decode("", sequences=16, context_tokens=1000, heads=32, kv_heads=8, head_dim=128),
        ops.attention_prefill("", sequences=2, new_tokens=2000, cached_tokens=0, heads=32, kv_heads=8, head_dim=128),
        ops.experts(
            "", tokens=64, width=4096, intermediate=1024, total_experts=64, local_experts=64, top_k=4, gated=True, dtype="fp8"
        ),
        ops.all_reduce("", tokens=64, width=4096, group_size=4),
        ops.all_to_all("", tokens=64, width=4096, group_size=8),
    )  # fmt: skip
    columns = featurize(probes, [load_cluster("h200-sxm-141gb")], np.zeros(len(probes), dtype=np.int64))
    return tuple(roofline.time_s(columns).tolist())


def _family(folder: Path, family: Family, entry: FamilyEntry) -> FamilyRegressor:
    boosters: dict[Target, Booster] = {}
    if set(entry.features) != set(entry.boosters) or "time" not in entry.boosters:
        raise PredictorError(f"{folder}: {family} has boosters for {sorted(entry.boosters)} and inputs for {sorted(entry.features)}")
    for target, saved in entry.boosters.items():
        check_features(family, target, entry.features[target])
        if not FILE_NAME.fullmatch(saved.file):
            raise PredictorError(f"{folder} names the file {saved.file!r}; allowed: <family>-<target>.json.gz in the same folder")
        content = read_whole(folder / saved.file, what="booster", most=MOST_FILE_BYTES, error=PredictorError)
        digest = sha256(content)
        if digest != saved.sha256:
            path = folder / saved.file
            raise PredictorError(f"{path} is not the file its manifest names: SHA-256 {digest[:12]}..., expected {saved.sha256[:12]}...")
        boosters[target] = Booster(content, f"{folder / saved.file}")
    return FamilyRegressor(
        family=family,
        features=dict(entry.features),
        boosters=boosters,
        ranges=entry.ranges,
        known=entry.known,
        book=KernelBook(entry.labels, tuple(Use(*use) for use in entry.uses)),
        fades=entry.fades,
    )


def constants(noun: type[T], stored: Mapping[str, float], folder: str | Path) -> T:
    """A frozen set of constants (`Roofline`, `PowerLaw`, `ServingCosts`) from its stored numbers; those not stored keep their prior.

    Raises:
        PredictorError: a constant this package does not know, or one that cannot be.
    """
    known = getattr(noun, "_fields", None) or tuple(one.name for one in fields(noun))  # type: ignore[arg-type]
    for name, value in stored.items():
        if name not in known:
            raise PredictorError(f"{folder} sets {name!r} of {noun.__name__}, which this pie_p does not know; train it again")
        if not 0.0 <= value < MOST_CONSTANT:
            raise PredictorError(f"{folder} sets {name} = {value:g} of {noun.__name__}; allowed: 0 to {MOST_CONSTANT:g}")
    return noun(**stored)


def stored_constants(constants_of: Roofline | PowerLaw | ServingCosts) -> dict[str, float]:
    """The numbers of a frozen set of constants."""
    if isinstance(constants_of, ServingCosts):
        return {name: float(value) for name, value in constants_of._asdict().items()}
    return {name: float(value) for name, value in asdict(constants_of).items()}


def entry_of(regressor: FamilyRegressor, *, rows: Mapping[Target, int], settings: Mapping[Target, Mapping[str, Any]]) -> FamilyEntry:
    """What is stored of a family's regressor."""
    return FamilyEntry.model_validate(
        {
            "features": dict(regressor.features),
            "boosters": {
                target: Saved(file=file_of(regressor.family, target), sha256=sha256(booster.content))
                for target, booster in regressor.boosters.items()
            },
            "ranges": dict(regressor.ranges),
            "known": dict(regressor.known),
            "labels": regressor.book.labels,
            "uses": tuple(tuple(use) for use in regressor.book.uses),
            "fades": dict(regressor.fades),
            "rows": dict(rows),
            "settings": {target: dict(values) for target, values in settings.items()},
        }
    )


def file_of(family: str, target: str) -> str:
    """Name of a booster's file.

    >>> file_of("linear", "time")
    'linear-time.json.gz'
    """
    return f"{family}-{target}.json.gz"
