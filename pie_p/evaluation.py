"""How far off learned operators are, beside the physical base, simpler rules, and the noise of the labels themselves.

Splits, each beside the others, from kind to unkind:
- random: a fifth of the rows of known engines, boards and shapes;
- beyond: rows larger in one dimension than four fifths of all, from the smaller ones;
- eight ranks from two and four;
- an engine, a board never seen.

A rule is chosen nowhere here: every split is scored once, with the settings that training uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import ProfileError
from pie_p.examples import COUNTS, Examples, family_examples
from pie_p.features import FAMILIES, MEETING, Family
from pie_p.learning import LEAST_POWER_S, SETTINGS, learn_family, power_rows, profiled_power_w, profiled_time_s
from pie_p.model_files import ErrorRow, error_row
from pie_p.physics import Roofline
from pie_p.power import PowerLaw
from pie_p.profile_manifest import load_manifest
from pie_p.profiles import load_tables
from pie_p.regressors import FamilyRegressor
from pie_p.tables import TableName

Progress = Callable[[str, int, int], None]  # (what is done, steps done, steps in all)
Mask = NDArray[np.bool_]

STREAM: Final = 2026  # beside the seed: the scored split is none of those that settings were chosen on
HELD_OUT: Final = 0.2
MOST_ROWS: Final = 120_000  # that teach a split other than the random one: enough for its error, and ten times faster
LEAST_ROWS: Final = 100  # on either side of a split
BEYOND: Final[dict[Family, tuple[tuple[str, str], ...]]] = {
    "linear": (("tokens", "m"), ("out_features", "n"), ("in_features", "k")),
    "attention_decode": (("context_tokens", "KV length"), ("sequences", "sequences")),
    "attention_prefill": (("context_tokens", "KV length"), ("sequences", "sequences")),
    "experts": (("tokens", "tokens"), ("weight_bytes", "weight bytes read")),
    "collective": (("payload_bytes", "message size"),),
    "exchange": (("payload_bytes", "message size"),),
}
UNSEEN_ENGINE: Final = ("trtllm", "b200-sxm-180gb")
BOARDS: Final = (("b200-sxm-180gb", "h200-sxm-141gb"), ("h200-sxm-141gb", "b200-sxm-180gb"))  # (teaches, is predicted)
VERSIONS: Final = (("b200-sxm-180gb", "vllm==0.22.0", "vllm==0.24.0"), ("h200-sxm-141gb", "vllm==0.22.0", "vllm==0.24.0"))
PARTS: Final[dict[Family, tuple[tuple[str, str], ...]]] = {  # of a family's random split, told apart by the kernel's label
    "collective": (("NCCL", "nccl=="), ("custom all-reduce in a graph", "graph"), ("custom all-reduce of TensorRT-LLM", "TRTLLM"),
                   ("custom all-reduce launched by the host", "eager")),
}  # fmt: skip


class Split(NamedTuple):
    """Which rows teach and which are predicted."""

    name: str
    teach: Mask
    test: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorReport:
    """Errors by family, target, regressor and split; noise of labels; where it all came from."""

    errors: tuple[ErrorRow, ...]
    noise: tuple[ErrorRow, ...]
    profiles: tuple[str, ...]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "seed": self.seed,
            "profiles": list(self.profiles),
            "errors": [row.model_dump(mode="json") for row in self.errors],
            "noise": [row.model_dump(mode="json") for row in self.noise],
        }


def evaluate_operators(
    profiles: Sequence[str | Path],
    *,
    seed: int = 0,
    jobs: int = 1,
    families: Sequence[Family] = FAMILIES,
    most_rows: int = MOST_ROWS,
    progress: Progress | None = None,
) -> OperatorReport:
    """Learn on every split and score what was left out.

    Args:
        profiles: folders with operator rows.
        seed: of the random split and of subsets.
        jobs: threads.
        families: which to score.
        most_rows: that teach any split but the random one.
        progress: called after every fit.

    Raises:
        ProfileError: no rows of any family.
    """
    names: tuple[TableName, ...] = ("operators", "collectives")
    tables = {name: load_tables(profiles, name) for name in names}
    errors: list[ErrorRow] = []
    noise: list[ErrorRow] = []
    for done, family in enumerate(families, start=1):
        examples = family_examples(tables["collectives" if family in MEETING else "operators"], family)
        noise += label_noise(examples)
        for split in splits(examples, seed=seed):
            errors += score_split(examples, split, seed=seed, jobs=jobs, most_rows=most_rows)
            if progress is not None:
                progress(f"{family}: {split.name}", done, len(families))
    if not errors:
        raise ProfileError(f"no profile of {', '.join(map(str, profiles)) or 'none given'} has {LEAST_ROWS} operator rows of one family")
    told = tuple(f"{manifest.name} ({manifest.source})" for manifest in map(load_manifest, profiles))
    return OperatorReport(errors=tuple(errors), noise=tuple(noise), profiles=told, seed=seed)


def splits(examples: Examples, *, seed: int) -> Iterator[Split]:
    """Every split of a family that leaves enough rows on both sides."""
    columns, gpu = examples.columns, examples.gpu
    engine = np.array([label.partition("==")[0] for label in examples.label], dtype=object)
    held = np.random.default_rng([STREAM, seed]).random(len(examples)) < HELD_OUT
    found = [Split("random fifth", ~held, held)]
    for name, shown in BEYOND[examples.family]:
        far = columns[name] > np.quantile(columns[name], 0.8) if len(examples) else held
        found.append(Split(f"largest {shown}", ~far, far))
    if examples.family in MEETING:
        found.append(Split("8 ranks from 2 and 4", columns["group_size"] <= 4, columns["group_size"] == 8))
    else:
        unseen = (engine == UNSEEN_ENGINE[0]) & (gpu == UNSEEN_ENGINE[1])
        found.append(Split("engine never seen: TensorRT-LLM on B200", ~unseen, unseen))
        found += [Split(f"board never seen: {test} from {teach}", gpu == teach, gpu == test) for teach, test in BOARDS]
    yield from (split for split in found if split.teach.sum() >= LEAST_ROWS and split.test.sum() >= LEAST_ROWS)


def score_split(examples: Examples, split: Split, *, seed: int, jobs: int, most_rows: int) -> list[ErrorRow]:
    """Errors of time and, where power was measured, of power and energy: learned, physical, and by simple rules."""
    whole = split.name == "random fifth"
    teach = examples.select(np.flatnonzero(split.teach) if whole else _some(split.teach, most_rows, seed))
    test = examples.select(np.flatnonzero(split.test) if whole else _some(split.test, most_rows, seed))
    roofline = Roofline()
    regressor = learn_family(teach, roofline, seed=seed, jobs=jobs, settings=SETTINGS)
    rows = _errors(regressor, teach, test, split=split.name)
    for name, mark in PARTS.get(examples.family, ()) if whole else ():
        part = test.select(np.array([mark in label for label in test.label], dtype=bool))
        if len(part) >= LEAST_ROWS:
            rows += _errors(regressor, teach, part, split=f"{split.name}, {name}")
    return rows


def _some(mask: Mask, most: int, seed: int) -> NDArray[np.int64]:
    rows = np.flatnonzero(mask)
    return rows if len(rows) <= most else np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))


def _errors(regressor: FamilyRegressor, teach: Examples, test: Examples, *, split: str) -> list[ErrorRow]:
    roofline, law = Roofline(), PowerLaw()
    time_s, base_s = profiled_time_s(regressor, test, roofline), roofline.time_s(test.columns)
    answers = {("time", "learned"): (time_s, test.time_s), ("time", "physics"): (base_s, test.time_s)}
    loud = power_rows(test)
    if "power" in regressor.boosters and len(loud) >= LEAST_ROWS:
        rows, limit_w = test.select(loud), test.columns["limit_w"][loud]
        learned_w, law_w = profiled_power_w(regressor, rows, time_s[loud]), law.power_w(rows.columns, base_s[loud])
        energy_j = rows.power_w * rows.time_s
        known = power_rows(teach)
        fraction = float(np.median(teach.power_w[known] / teach.columns["limit_w"][known]))
        answers |= {
            ("power", "learned"): (learned_w, rows.power_w),
            ("power", "physics"): (law_w, rows.power_w),
            ("energy", "learned"): (learned_w * time_s[loud], energy_j),
            ("energy", "physics"): (law_w * base_s[loud], energy_j),
            ("energy", "limit x measured time"): (limit_w * rows.time_s, energy_j),
            ("energy", "median fraction x measured time"): (fraction * limit_w * rows.time_s, energy_j),
        }
    return [
        error_row(predicted, measured, family=test.family, target=target, regressor=who, split=split)
        for (target, who), (predicted, measured) in answers.items()
    ]


def label_noise(examples: Examples) -> list[ErrorRow]:
    """How far two releases of one engine differ on one shape: time, and power and energy from 0.1 ms on. No regressor beats this."""
    rows: list[ErrorRow] = []
    for gpu, first, second in VERSIONS:
        one, other = (_means(examples, gpu, version) for version in (first, second))
        both = sorted(one.keys() & other.keys())
        if len(both) < LEAST_ROWS:
            continue
        before, after = np.array([one[key] for key in both]), np.array([other[key] for key in both])
        named = {"family": examples.family, "regressor": "one release for the other", "split": f"{gpu}: {second} from {first}"}
        rows.append(error_row(before[:, 0], after[:, 0], target="time", **named))
        loud = np.isfinite(before[:, 1]) & np.isfinite(after[:, 1]) & (after[:, 0] >= LEAST_POWER_S)
        if loud.sum() >= LEAST_ROWS:
            before, after = before[loud], after[loud]
            rows.append(error_row(before[:, 1], after[:, 1], target="power", **named))
            rows.append(error_row(before.prod(axis=1), after.prod(axis=1), target="energy", **named))
    return rows


def _means(examples: Examples, gpu: str, version: str) -> dict[tuple[float, ...], tuple[float, float]]:
    """Time and power by shape and format, where a release measured it with one kernel."""
    mine = np.flatnonzero((examples.gpu == gpu) & np.array([label.startswith(version) for label in examples.label], dtype=bool))
    part = examples.select(mine)
    named = not examples.family.startswith("attention")  # attention has its formats in its codes, and no other in its label
    formats = [label.split(" ")[-1] if named else "" for label in part.label]
    codes = [part.columns[name].astype(np.float64) for name in ("kind_code", "dtype_code", "kv_dtype_code")]
    extra = np.nan_to_num(part.columns["skew"], nan=-1.0)
    keys = zip(*codes, extra, *(part.columns[name] for name in COUNTS), formats, strict=True)
    found: dict[tuple[float, ...], tuple[float, float]] = {}
    for key, time_s, power_w in zip(keys, part.time_s.tolist(), part.power_w.tolist(), strict=True):
        found.setdefault(key, (time_s, power_w))
    return found


__all__ = ["OperatorReport", "Split", "evaluate_operators", "label_noise", "score_split", "splits"]
