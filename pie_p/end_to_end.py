"""Measured end-to-end runs as cases: what was deployed, and what time, power and energy were measured.

A row becomes a case of the same kind that `predict_energy` answers, so predicted and measured are compared field by field.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from pie_p.cases import make_case
from pie_p.errors import InputError, PiePError
from pie_p.hardware import load_gpu
from pie_p.llm import load_llm
from pie_p.physics import Floats
from pie_p.quantities import as_float, as_int, shown
from pie_p.serving import Case
from pie_p.units import DTYPES
from pie_p.workload import LengthDistribution, OutputTokens

# Checkpoints of one pre-trained shape that differ in training only: one group, or an unseen LLM would have been seen.
SAME_BASE: Final = {"deepseek-r1": "deepseek-v3", "llama-3.3-70b": "llama-3.1-70b", "qwen3-coder-30b-a3b": "qwen3-30b-a3b"}

# First word of a catalogue name -> family, where the two differ.
FAMILIES: Final = {"codellama": "llama", "vicuna": "llama", "codegemma": "gemma", "mixtral": "mistral", "nemotron": "nemotron"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """Runs with what was measured; NaN where it was not. Arrays have one value per run."""

    cases: tuple[Case, ...]
    time_per_token_s: Floats  # batch over throughput of one data-parallel rank [s]
    itl_s: Floats  # median decode step [s]
    power_w: Floats  # mean of one board [W]
    energy_per_output_token_j: Floats  # all boards of the deployment [J]
    base: NDArray[Any]  # base LLM, the group of "unseen LLM"
    family: NDArray[Any]  # LLM family
    gpu: NDArray[Any]  # board
    workload: NDArray[Any]
    odd: NDArray[Any]  # name of the odd group a run belongs to, or ""
    source: NDArray[Any]
    left_out: tuple[str, ...] = ()  # rows that could not become cases, and why

    def __len__(self) -> int:
        return len(self.cases)

    def take(self, which: NDArray[Any]) -> MeasuredRuns:
        """The runs that a mask or an index array picks."""
        index = np.arange(len(self))[which]
        arrays = {name: getattr(self, name)[index] for name in _ARRAYS}
        return MeasuredRuns(cases=tuple(self.cases[i] for i in index), left_out=self.left_out, **arrays)

    @property
    def gpus(self) -> NDArray[np.int64]:
        """GPUs of each deployment [-]."""
        return np.array([case.deployment.plan.gpus for case in self.cases], dtype=np.int64)

    @property
    def attention_dp(self) -> NDArray[np.bool_]:
        """Runs whose data-parallel ranks share experts."""
        return np.array([case.deployment.plan.attention_dp for case in self.cases], dtype=bool)


_NUMBERS: Final = ("time_per_token_s", "itl_s", "avg_power_w", "energy_per_output_token_j", "power_limit_w", "output_second_moment")
_ARRAYS: Final = (
    "time_per_token_s",
    "itl_s",
    "power_w",
    "energy_per_output_token_j",
    "base",
    "family",
    "gpu",
    "workload",
    "odd",
    "source",
)


def measured_runs(rows: Iterable[Mapping[str, Any]]) -> MeasuredRuns:
    """Runs from rows of an `end_to_end` table (or mappings with its column names).

    A row whose deployment or batch is not known is left out and named in `left_out`.

    Args:
        rows: mappings; needed are llm, gpu, batch, prompt_tokens, output_tokens; others default as in the table's schema.

    Raises:
        InputError: no row could be used.
    """
    kept: list[tuple[Case, Mapping[str, Any]]] = []
    left_out = []
    for number, row in enumerate(rows):
        case = _case_or_reason(row)
        if isinstance(case, Case):
            kept.append((case, row))
        else:
            left_out.append(f"row {number} ({row.get('llm', 'no llm')}): {case}")
    if not kept:
        raise InputError(f"no measured run could be used; {left_out[0] if left_out else 'there are no rows'}")
    return _assembled(kept, left_out)


def _case_or_reason(row: Mapping[str, Any]) -> Case | str:
    try:
        for name in _NUMBERS:
            _number(row, name)
        return _case(row)
    except PiePError as error:
        return str(error)
    except KeyError as error:
        return f"column {error} is missing"


def _case(row: Mapping[str, Any]) -> Case:
    limit_w = _number(row, "power_limit_w")
    gpu = load_gpu(row["gpu"])
    engine, version = row.get("engine") or "vllm", row.get("engine_version") or ""
    if not isinstance(version, str):
        raise InputError(f"engine_version = {shown(version)} is not a text; give one like '0.11.1'")
    return make_case(
        row["llm"],
        gpu=gpu,
        tp=_degree(row, "tp"),
        pp=_degree(row, "pp"),
        dp=_degree(row, "dp"),
        ep=_degree(row, "ep"),
        batch=max(1.0, as_float("batch", row["batch"], above=True)),
        prompt_tokens=row["prompt_tokens"],
        output_tokens=_output_tokens(row),
        dtype=row.get("dtype") if row.get("dtype") in DTYPES else None,
        kv_dtype=row.get("kv_dtype") if row.get("kv_dtype") in DTYPES else None,
        engine=f"{engine}=={version}" if version[:1].isdigit() else engine,
        mode=row.get("mode") or "steady",
        power_limit_w=limit_w if gpu.active_idle_w < limit_w < gpu.limit_w else None,
    )


def _output_tokens(row: Mapping[str, Any]) -> OutputTokens:
    second = _number(row, "output_second_moment")
    if math.isnan(second):
        return cast("OutputTokens", row["output_tokens"])
    return LengthDistribution(mean=row["output_tokens"], second_moment=second)


def _degree(row: Mapping[str, Any], name: str) -> int:
    return 1 if _absent(row.get(name)) else as_int(name, row[name])


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return math.nan if _absent(value) else as_float(name, value)


def _absent(value: object) -> bool:
    """Whether a cell says that nothing is known: None, or the NaN that stands for it in a column of numbers."""
    return value is None or (isinstance(value, (float, np.floating)) and math.isnan(value))


def _assembled(kept: Sequence[tuple[Case, Mapping[str, Any]]], left_out: list[str]) -> MeasuredRuns:
    cases = tuple(case for case, _ in kept)
    gpus = np.array([case.deployment.plan.gpus for case in cases], dtype=np.float64)
    share = np.array([case.request.batch * case.deployment.plan.dp for case in cases])
    rows = [row for _, row in kept]
    time_s = np.array([_number(row, "time_per_token_s") for row in rows])
    energy_j = np.array([_number(row, "energy_per_output_token_j") for row in rows])
    power_w = np.array([_number(row, "avg_power_w") for row in rows]) / gpus
    energy_j = np.where(np.isnan(energy_j), power_w * gpus * time_s / share, energy_j)
    power_w = np.where(np.isnan(power_w), energy_j * share / (gpus * time_s), power_w)
    names = [load_llm(case.deployment.llm).name for case in cases]
    return MeasuredRuns(
        cases=cases,
        time_per_token_s=time_s,
        itl_s=np.array([_number(row, "itl_s") for row in rows]),
        power_w=power_w,
        energy_per_output_token_j=energy_j,
        base=np.array([SAME_BASE.get(name, name) for name in names]),
        family=np.array([family_of(name) for name in names]),
        gpu=np.array([case.deployment.cluster.gpu.name for case in cases]),
        workload=np.array([str(row.get("workload", "")) for row in rows]),
        odd=np.array([str(row.get("odd_group", "") or "") for row in rows]),
        source=np.array([str(row.get("source", "") or "") for row in rows]),
        left_out=tuple(left_out),
    )


def family_of(name: str) -> str:
    """LLM family of a catalogue name.

    >>> family_of("llama-3.1-70b"), family_of("codellama-13b"), family_of("qwen3-8b")
    ('llama', 'llama', 'qwen')
    """
    word = name.split("-")[0].rstrip("0123456789.")
    return FAMILIES.get(word, word)
