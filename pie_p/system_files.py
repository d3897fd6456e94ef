"""Files of systems: TOML or JSON that names deployments to be predicted, or holds fits that were made before."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict

from pie_p.accounting import Accounting
from pie_p.cases import ARGUMENTS
from pie_p.checks import Noun, Text, read_toml
from pie_p.errors import InputError, did_you_mean
from pie_p.predictor import Predictor
from pie_p.quantities import as_float, shown
from pie_p.storage import read_whole
from pie_p.systems import OUTPUTS, PROMPTS, System, check_systems, predict_system
from pie_p.workload_fits import FORM_TERMS, FitScore, Form, Method, WorkloadFit

MOST_BYTES: Final = 1 << 24
OWN: Final = ("name", "accuracy", "slots")  # beside the arguments that name a deployment
DEPLOYMENT: Final = tuple(name for name in ARGUMENTS if name not in ("llm", "prompt_tokens", "output_tokens", "cached_prompt_tokens"))
ENTRY: Final = ("llm", *OWN, *DEPLOYMENT)
HOW: Final = "list them as [[systems]] with llm, gpu and accuracy, or write fits with save_systems"


class _Score(Noun):
    rows: int
    r2: float
    mape: float
    negative: int


class _Fit(Noun):
    form: Form
    method: Method
    coefficients: dict[str, float]
    least_tokens: tuple[float, float]
    most_tokens: tuple[float, float]
    score: _Score | None = None

    def fit(self) -> WorkloadFit:
        terms = FORM_TERMS[self.form]
        if tuple(self.coefficients) != terms:
            raise InputError(f"coefficients are for {', '.join(self.coefficients) or 'nothing'}; form {self.form!r} has {', '.join(terms)}")
        score = None if self.score is None else FitScore(**self.score.model_dump())
        own = {name: getattr(self, name) for name in ("form", "method", "least_tokens", "most_tokens")}
        return WorkloadFit(coefficients=tuple(self.coefficients.values()), score=score, **own)


class _Fitted(Noun):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Text
    llm: Text
    accuracy: float | None = None
    slots: int = 1
    rows_from: str = "given"
    energy_j: _Fit
    time_s: _Fit

    def system(self) -> System:
        own = {name: getattr(self, name) for name in ("name", "llm", "accuracy", "slots", "rows_from")}
        return System(energy_j=self.energy_j.fit(), time_s=self.time_s.fit(), **own)


def load_systems(
    path: str | Path,
    *,
    prompts: Sequence[float] = PROMPTS,
    outputs: Sequence[float] = OUTPUTS,
    predictor: str | Predictor | None = None,
    accounting: Accounting | None = None,
) -> list[System]:
    """Systems of a TOML or JSON file.

    An entry of `systems` either names a deployment - `llm`, `gpu`, `tp`, `batch` and other arguments of `predict_energy`, with `name`,
    `accuracy` and `slots` - and is predicted now, or holds the fits that `save_systems` wrote.

    Args:
        path: ends in .toml or .json.
        prompts: prompt tokens of predicted rows; of the fits, see `predict_system` [-].
        outputs: output tokens of predicted rows [-].
        predictor: as in `predict_energy`.
        accounting: which watts are counted; default GPU boards.

    Raises:
        PiePError: no such file, or an entry that cannot be; one line names it.
    """
    entries = _entries(Path(path))
    systems = []
    for number, entry in enumerate(entries, start=1):
        where = f"system {number} of {Path(path).name}"
        try:
            if "energy_j" in entry:
                systems.append(_Fitted(**entry).system())
                continue
            _check_entry(entry)
            systems.append(predict_system(**entry, prompts=prompts, outputs=outputs, predictor=predictor, accounting=accounting))
        except InputError as error:
            raise type(error)(f"{where}: {error}") from None
    return list(check_systems(systems))


def _check_entry(entry: Mapping[str, Any]) -> None:
    unknown = next((name for name in entry if name not in ENTRY), None)
    if unknown is not None:
        raise InputError(f"no field {shown(unknown)}.{did_you_mean(str(unknown), ENTRY)} It has: {', '.join(ENTRY)}")
    if "llm" not in entry:
        raise InputError(f"llm is missing; {HOW}")
    if entry.get("accuracy") is not None:
        as_float("accuracy", entry["accuracy"])


def _entries(path: Path) -> list[dict[str, Any]]:
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json"):
        raise InputError(f"{shown(str(path))} cannot be read: its suffix must be .toml or .json; {HOW}")
    if suffix == ".toml":
        content: Any = read_toml(path)
    else:
        try:
            content = json.loads(read_whole(path, what="file of systems", most=MOST_BYTES, error=InputError))
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} is not JSON: {' '.join(str(error).split())[:200]}") from None
    entries = content.get("systems") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries or not all(isinstance(each, dict) for each in entries):
        raise InputError(f"{path} has no list of systems; {HOW}")
    return entries
