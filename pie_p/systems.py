"""Systems: deployments that a request may be sent to, each known by its joules and seconds as functions of a request's tokens.

from pie_p import predict_system
fast = predict_system("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32)
float(fast.energy_j(500, 200))   # joules of a request of 500 prompt and 200 output tokens
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np

from pie_p.accounting import Accounting
from pie_p.errors import InputError
from pie_p.llm import LLM
from pie_p.predictor import Predictor, load_predictor, predict_many
from pie_p.quantities import as_float, as_int, shown
from pie_p.storage import write_atomically
from pie_p.workload_fits import Form, Method, WorkloadFit, fit_workload

# Tokens that rows are predicted at where none are given: the range of chat and code traffic, in steps of about 1.7 and 1.8.
PROMPTS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
OUTPUTS: Final = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One deployment of an LLM that requests may be sent to.

    Args:
        name: of the system, one of its kind.
        llm: which LLM answers; several systems may host one.
        energy_j: joules of a request from its prompt and output tokens.
        time_s: seconds of a request in service, from its tokens.
        accuracy: of the LLM's answers, in any unit that is larger for better answers; yours, never guessed. None: not known.
        slots: requests that it serves at once.
        rows_from: where the rows come from that the fits were made of.
    """

    name: str
    llm: str
    energy_j: WorkloadFit
    time_s: WorkloadFit
    accuracy: float | None = None
    slots: int = 1
    rows_from: str = "given"

    def __post_init__(self) -> None:
        for what in ("name", "llm"):
            value = getattr(self, what)
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"{what} = {shown(value)} of a system is not allowed; give a text")
        if self.accuracy is not None:
            object.__setattr__(self, "accuracy", as_float(f"accuracy of {self.name!r}", self.accuracy))
        object.__setattr__(self, "slots", as_int(f"slots of {self.name!r}", self.slots))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `save_systems` writes it."""
        return {
            "name": self.name,
            "llm": self.llm,
            "accuracy": self.accuracy,
            "slots": self.slots,
            "rows_from": self.rows_from,
            "energy_j": self.energy_j.to_dict(),
            "time_s": self.time_s.to_dict(),
        }


def fit_system(
    name: str,
    *,
    llm: str,
    prompt_tokens: Sequence[float],
    output_tokens: Sequence[float],
    energy_j: Sequence[float],
    time_s: Sequence[float],
    accuracy: float | None = None,
    slots: int = 1,
    form: Form = "quadratic",
    method: Method = "relative",
    rows_from: str = "measured",
) -> System:
    """A system from rows of requests that were measured on it.

    Args:
        name: of the system.
        llm: which LLM answers.
        prompt_tokens: one per row [-].
        output_tokens: one per row [-].
        energy_j: of a request, one per row [J].
        time_s: of a request in service, one per row [s].
        accuracy: of the LLM's answers, larger for better.
        slots: requests served at once [-].
        form: terms of the fits.
        method: of the fits.
        rows_from: who measured.

    Raises:
        InputError: rows that cannot be, or too few.
    """
    energy, time = (fit_workload(prompt_tokens, output_tokens, values, form=form, method=method) for values in (energy_j, time_s))
    return System(name=name, llm=llm, energy_j=energy, time_s=time, accuracy=accuracy, slots=slots, rows_from=rows_from)


def predict_system(
    llm: str | LLM | Mapping[str, object],
    *,
    name: str | None = None,
    accuracy: float | None = None,
    slots: int | None = None,
    prompts: Sequence[float] = PROMPTS,
    outputs: Sequence[float] = OUTPUTS,
    form: Form = "quadratic",
    method: Method = "relative",
    predictor: str | Predictor | None = None,
    accounting: Accounting | None = None,
    **deployment: Any,
) -> System:
    """A system from predictions: every combination of `prompts` and `outputs` on one deployment is a row.

    A row is a server on which every request has these tokens; a request of a mixed server is taken to cost what it costs there.

    Args:
        llm: as in `predict_energy`.
        name: of the system; default LLM, board and plan.
        accuracy: of the LLM's answers, larger for better; never guessed.
        slots: requests served at once; default `batch * dp` [-].
        prompts: prompt tokens of the rows [-].
        outputs: output tokens of the rows, at least 1 [-].
        form: terms of the fits.
        method: of the fits.
        predictor: as in `predict_energy`.
        accounting: which watts are counted; default GPU boards.
        deployment: other arguments of `predict_energy` that name it: `gpu`, `tp`, `batch`, `engine`, ...

    Raises:
        PiePError: what `predict_energy` refuses, or too few rows.

    >>> system = predict_system("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32)
    >>> system.name, system.slots, system.energy_j.score.mape < 0.10
    ('llama-3.1-8b on h100-sxm-80gb', 32, True)
    """
    answers, counted = load_predictor(predictor), accounting or Accounting()
    reads, writes = ([as_float(what, each, least=1) for each in values] for what, values in (("prompts", prompts), ("outputs", outputs)))
    grid = [(prompt, output) for prompt in reads for output in writes]
    rows = [{"llm": llm, **deployment, "prompt_tokens": prompt, "output_tokens": output} for prompt, output in grid]
    found = predict_many(rows, predictor=answers, accounting=counted, keep_working=False)
    if not found:
        raise InputError("prompts and outputs name no row; give at least six combinations of token counts")
    first, plan = found[0], found[0].deployment.plan
    degrees = "".join(f" {word}{getattr(plan, word)}" for word in ("tp", "pp", "dp", "ep") if getattr(plan, word) > 1)
    prompt_tokens, output_tokens = np.array(grid).T.tolist()
    return fit_system(
        name or f"{first.deployment.llm.name} on {first.deployment.cluster.gpu.name}{degrees}",
        llm=first.deployment.llm.name,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        energy_j=[one.energy_j for one in found],
        time_s=[one.latency_s for one in found],
        accuracy=accuracy,
        slots=ceil(first.request.batch * plan.dp) if slots is None else slots,
        form=form,
        method=method,
        rows_from=f"predictor {answers.name} ({answers.sha256[:12]}), batch {first.request.batch:g}, scope {counted.scope}",
    )


def check_systems(systems: Sequence[System], *, least: int = 1) -> tuple[System, ...]:
    """Systems with names of their own, enough of them.

    Raises:
        InputError: too few, something else among them, or a name twice.
    """
    listed = tuple(systems)
    for each in listed:
        if not isinstance(each, System):
            raise InputError(f"{shown(each)} is not a System; make one with predict_system, fit_system or load_systems")
    if len(listed) < least:
        raise InputError(f"{len(listed)} systems; give at least {least}")
    names = [each.name for each in listed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two systems are called {twice!r}; give each a name of its own")
    return listed


def save_systems(path: str | Path, systems: Sequence[System]) -> None:
    """Write fitted systems as JSON, whole or not at all; `load_systems` reads them back.

    Raises:
        InputError: no systems, or the disk refuses.
    """
    plain = {"systems": [each.to_dict() for each in check_systems(systems)]}
    write_atomically(Path(path), json.dumps(plain, indent=1, allow_nan=False).encode(), error=InputError)
