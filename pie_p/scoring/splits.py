"""Splits: which group of runs a fit never sees, and which rows it is scored on.

Three kinds of rows take part. *Scored* rows are text rows of the main source (Nemotron hybrids are scored apart). *Timed* rows teach time:
scored rows of one engine version outside the odd groups. *Metered* rows teach power: timed rows and those of an older engine version of
the same source, whose power given the measured time does not depend on the engine. A group that is left out is left out of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns
from pie_p.errors import InputError

Mask = NDArray[np.bool_]

MAIN: Final = "mlenergy_v3"  # source of the scored rows
POWER_ONLY: Final = "mlenergy_v2"  # older engine version: its rows teach power
APART: Final = "nemotron"  # family of hybrids, scored apart

UNSEEN_LLM: Final = "unseen LLM"
UNSEEN_FAMILY: Final = "unseen LLM family"
UNSEEN_COUNT: Final = "unseen GPU count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One fit: what teaches time, what teaches power, what is answered for."""

    name: str  # the group left out
    timed: Mask
    metered: Mask
    scored: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Folds that together answer for each scored row once."""

    name: str
    folds: tuple[Fold, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What each run may be used for, before any group is left out."""

    scored: Mask
    timed: Mask
    metered: Mask
    apart: Mask
    older: Mask  # runs of the older engine version
    shape: NDArray[Any] = field(repr=False)  # group of "unseen LLM"


def roles_of(runs: MeasuredRuns) -> Roles:
    """Roles of the runs by source, family and odd group.

    Raises:
        InputError: no run of the main source.
    """
    main, older = runs.source == MAIN, runs.source == POWER_ONLY
    apart = main & (runs.family == APART)
    scored = main & ~apart
    if not scored.any():
        found = ", ".join(sorted(set(runs.source))) or "no source"
        raise InputError(
            f"no run comes from {MAIN!r}, whose rows are scored; the profiles hold {found}. Import it first: pie-p import {MAIN}"
        )
    timed = scored & (runs.odd == "")
    return Roles(scored=scored, timed=timed, metered=timed | (older & (runs.odd == "")), apart=apart, older=older, shape=same_shape(runs))


def same_shape(runs: MeasuredRuns) -> NDArray[Any]:
    """Name of the first LLM, by name, that has each run's shape.

    Two checkpoints of one shape are one LLM, or "unseen" would be a word only. So Llama 3.1 and 3.3 70B are one,
    and DeepSeek R1 and V3.1, and Qwen3-30B-A3B and Qwen3-Coder-30B-A3B.
    """
    shapes = [(run.deployment.llm.hidden_size, run.deployment.llm.vocab_size, run.deployment.llm.layers) for run in runs.cases]
    first: dict[object, str] = {}
    for name, shape in sorted(zip(runs.base.tolist(), shapes, strict=True), key=lambda pair: pair[0]):
        first.setdefault(shape, name)
    return np.array([first[shape] for shape in shapes], dtype=object)


def splits_of(runs: MeasuredRuns, roles: Roles) -> tuple[Split, ...]:
    """Unseen LLM, family and GPU count, and one split per ordered pair of GPUs."""
    grouped = (
        (UNSEEN_LLM, roles.shape),
        (UNSEEN_FAMILY, runs.family),
        (UNSEEN_COUNT, np.array([f"{count} GPU" for count in runs.gpus], dtype=object)),
    )
    return (*(Split(name=name, folds=tuple(_one_out(roles, groups))) for name, groups in grouped), *_transfers(runs, roles))


def _one_out(roles: Roles, groups: NDArray[Any]) -> Iterator[Fold]:
    for group in sorted(set(groups[roles.scored].tolist())):
        own = groups == group
        yield Fold(name=str(group), timed=roles.timed & ~own, metered=roles.metered & ~own, scored=roles.scored & own)


def _transfers(runs: MeasuredRuns, roles: Roles) -> Iterator[Split]:
    boards = sorted(set(runs.gpu[roles.scored].tolist()), reverse=True)
    for known in boards:
        for new in boards:
            if known != new:
                own = runs.gpu == known
                fold = Fold(name=new, timed=roles.timed & own, metered=roles.metered & own, scored=roles.scored & (runs.gpu == new))
                yield Split(name=f"{_short(known)} → {_short(new)}", folds=(fold,))


def _short(gpu: str) -> str:
    """First part of a board's catalogue name, in capitals.

    >>> _short("h100-sxm-80gb")
    'H100'
    """
    return gpu.split("-")[0].upper()


def everything(roles: Roles) -> Fold:
    """The fit on all rows that may teach; answers for the hybrids it never saw."""
    return Fold(name="all rows", timed=roles.timed, metered=roles.metered, scored=roles.apart)


def ranges_of_batch(batch: NDArray[np.float64]) -> NDArray[Any]:
    """Range of batch sizes each run falls into.

    >>> ranges_of_batch(np.array([4.0, 100.0])).tolist()
    ['batch below 16', 'batch 64 to 256']
    """
    names = np.array(["batch below 16", "batch 16 to 64", "batch 64 to 256", "batch above 256"], dtype=object)
    return np.asarray(names[np.searchsorted([16.0, 64.0, 256.0], batch, side="right")])
