"""Prediction: joules of one request with the working kept, down to the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.accounting import Accounting, Scope
from pie_p.deployment import Deployment
from pie_p.energy import EnergyBreakdown
from pie_p.errors import InputError, PredictorError
from pie_p.footprint import Footprint, Grid, footprint_of
from pie_p.frames import frame_of
from pie_p.intervals import width_at
from pie_p.operators import COLLECTIVES
from pie_p.physics import Floats
from pie_p.quantities import as_int
from pie_p.serving import WAIT_CAUSES
from pie_p.settling import Run
from pie_p.what_if import Asked, WhatIf
from pie_p.wording import SCOPE_WORDS, deployment_words, interval_words, quantity, request_words
from pie_p.workload import Request

Phase = Literal["prefill", "decode"]
PHASES: Final[tuple[Phase, ...]] = ("prefill", "decode")


class OperatorEnergy(NamedTuple):
    """One operator's part of a request's energy in one phase. A wait has the cause as the last part of its path."""

    path: str  # "decode/layer/mlp/down_proj", "decode/wait/host"
    energy_kind: Literal["compute", "communication", "wait"]
    kind: str  # operator kind, or "wait"
    stage: int  # pipeline stage (equal ones together) [-]
    calls: float  # runs per request's life and rank; negative where a mixed step's decode-only twin is taken off [-]
    ranks: float  # ranks that run it [-]
    time_s: float  # per call [s]
    power_w: float  # of one board while it runs [W]
    energy_j: float  # per request, over all ranks [J]
    flops: float  # per call and rank [FLOP]
    hbm_bytes: float  # per call and rank [B]
    payload_bytes: float  # per call and rank [B]


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Arrays behind one prediction: its part of the run it was computed in. Pickled and copied, it takes only that part along."""

    run: Run
    case: int  # its number in the run
    rows: slice
    stages: slice
    steps: slice

    def __reduce__(self) -> tuple[Callable[[Run], Working], tuple[Run]]:
        return _first_working, (self.run.only(self.case),)


def workings(run: Run) -> list[Working]:
    """The part of every case in a run."""
    assembly, cases = run.assembly, len(run.assembly.cases)
    parts = [
        [slice(first, end) for first, end in pairwise(np.searchsorted(of_case, np.arange(cases + 1)).tolist())]
        for of_case in (assembly.row_case, assembly.step_case[assembly.stage_step], assembly.step_case)
    ]
    return [Working(run=run, case=case, rows=own[0], stages=own[1], steps=own[2]) for case, own in enumerate(zip(*parts, strict=True))]


def _first_working(run: Run) -> Working:
    return workings(run)[0]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prediction:
    """Energy and time of one request on a deployment. Units are in the names; the scope says which watts are counted.

    `energy_j` is what one request answers for, prefill included, of all GPUs of the deployment (definitions: docs/glossary.md).
    """

    request: Request
    deployment: Deployment
    breakdown: EnergyBreakdown  # the whole request [J]
    prefill: EnergyBreakdown  # prefill's increment [J]
    decode: EnergyBreakdown  # the rest [J]
    latency_s: float  # first prefill start to last token [s]
    ttft_s: float  # time to first token without queueing [s]
    tpot_s: float | None  # (latency - ttft) / (output tokens - 1); None below two output tokens [s]
    itl_s: float | None  # one decode-only step; None without decode [s]
    time_per_token_s: float | None  # latency / output tokens; None without output [s]
    avg_power_w: float  # of all GPUs, over the request's life [W]
    accounting: Accounting  # which watts are counted
    warnings: tuple[str, ...]
    predictor: Mapping[str, str]  # name and sha256 of what answered
    power_limit_w: float  # per board, in force [W]
    spread: tuple[tuple[float, float], ...] | None = None  # (level, half width in logarithms) of `energy_j`: see `interval`
    working: Working | None = field(default=None, compare=False)
    asked: Asked | None = field(default=None, compare=False)  # what was asked, and of whom: see `what_if`

    @property
    def energy_j(self) -> float:
        """Energy of the request within the scope [J]."""
        return self.breakdown.total_j

    @property
    def energy_per_output_token_j(self) -> float | None:
        """`energy_j / output_tokens`; None for a prefill-only request [J]."""
        tokens = self.request.mean_output_tokens
        return self.energy_j / tokens if tokens else None

    @property
    def scope(self) -> Scope:
        """Which watts are counted: "gpu", "host" or "facility"."""
        return self.accounting.scope

    @property
    def gpus(self) -> int:
        """GPUs of the deployment [-]."""
        return self.deployment.plan.gpus

    @property
    def cluster(self) -> str:
        """Name of the cluster the answer is for."""
        return self.deployment.cluster.name

    @property
    def engine(self) -> str:
        """Engine and version the answer is for."""
        return str(self.deployment.engine)

    @property
    def mode(self) -> str:
        """What the batch does: "static" (all start together) or "steady" (a server kept at `batch`)."""
        return str(self.request.mode)

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Bounds of `energy_j` that hold for a share `level` of deployments never seen [J].

        Raises:
            PredictorError: the predictor has no tested interval, or none at that level.
        """
        if self.spread is None:
            raise PredictorError(f"predictor {self.predictor['name']!r} has no tested interval (level {level:g} was asked)")
        factor = exp(width_at(self.spread, level))
        return self.energy_j / factor, self.energy_j * factor

    def _interval_dict(self) -> dict[str, float] | None:
        if self.spread is None:
            return None
        low_j, high_j = self.interval(0.9)
        return {"level": 0.9, "low_j": low_j, "high_j": high_j}

    @property
    def operators(self) -> list[OperatorEnergy]:
        """Every operator and wait with its time, power and energy; their energies add up to the GPU energy."""
        return list(self._operators())

    def _operators(self) -> Iterator[OperatorEnergy]:
        if self.working is None:
            raise InputError("this prediction was made without its working; predict it alone to get operators")
        work, run = self.working, self.working.run
        assembly, steps, sharing = run.assembly, run.assembly.stage_step, self._sharing
        for index in range(work.rows.start, work.rows.stop):
            row, stage = assembly.distinct[assembly.which[index]], assembly.row_stage[index]
            op, ranks = row.operator, float(assembly.stage_ranks[stage])
            kind: Literal["compute", "communication"] = "communication" if op.kind in COLLECTIVES else "compute"
            time_s, power_w = float(run.time_s[index]), float(run.power_w[index])
            for phase, count in self._phases(steps[stage]):
                calls = row.calls * count
                yield OperatorEnergy(
                    f"{phase}/{op.path}", kind, op.kind, row.stage, calls, ranks, time_s, power_w,
                    calls * ranks * time_s * power_w / sharing, op.flops, op.hbm_bytes, op.payload_bytes,
                )  # fmt: skip
        for stage in range(work.stages.start, work.stages.stop):
            ranks, power_w = float(assembly.stage_ranks[stage]), float(run.wait_power_w[stage])
            number = (stage - work.stages.start) % len(self.deployment.stages)
            for cause in WAIT_CAUSES:
                time_s = float(run.clock.waits_s[cause][stage])
                if time_s <= 0.0:
                    continue
                for phase, calls in self._phases(steps[stage]):
                    yield OperatorEnergy(
                        f"{phase}/wait/{cause}", "wait", "wait", number, calls, ranks, time_s, power_w,
                        calls * ranks * time_s * power_w / sharing, 0.0, 0.0, 0.0,
                    )  # fmt: skip

    @property
    def _sharing(self) -> float:
        return self.request.batch * self.deployment.plan.dp

    def _phases(self, step: int) -> list[tuple[Phase, float]]:
        assert self.working is not None
        assembly = self.working.run.assembly
        crowding = assembly.schedules[self.working.case].crowding  # steps in which others run belong to a life that waits its turn
        counts: list[tuple[Phase, float]] = [
            ("prefill", float(assembly.prefill_steps[step])),
            ("decode", float(assembly.decode_steps[step])),
        ]
        return [(phase, count * crowding) for phase, count in counts if count]

    def tree(self, depth: int = 3) -> dict[str, float]:
        """GPU energy by path, cut after `depth` parts [J]; the values add up to the GPU energy.

        Waits are leaves of their own, e.g. "decode/wait/host".
        """
        depth = as_int("depth", depth, most=100)
        sums: dict[str, float] = {}
        for operator in self._operators():
            place = "/".join(operator.path.split("/")[:depth])
            sums[place] = sums.get(place, 0.0) + operator.energy_j
        return sums

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `pie-p predict --json` prints it. Keys are attribute names, units are in them."""
        plan, request = self.deployment.plan, self.request
        return {
            "llm": self.deployment.llm.name,
            "gpu": self.deployment.cluster.gpu.name,
            "tp": plan.tp,
            "pp": plan.pp,
            "dp": plan.dp,
            "ep": plan.ep,
            "batch": request.batch,
            "prompt_tokens": request.prompt_tokens,
            "cached_prompt_tokens": request.cached_prompt_tokens,
            "output_tokens": request.mean_output_tokens,
            "dtype": self.deployment.dtype,
            "kv_dtype": self.deployment.kv_dtype,
            "energy_j": self.energy_j,
            "energy_per_output_token_j": self.energy_per_output_token_j,
            "latency_s": self.latency_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "itl_s": self.itl_s,
            "time_per_token_s": self.time_per_token_s,
            "avg_power_w": self.avg_power_w,
            "interval": self._interval_dict(),
            "power_limit_w": self.power_limit_w,
            "breakdown": self.breakdown.to_dict(),
            "prefill": self.prefill.to_dict(),
            "decode": self.decode.to_dict(),
            "gpus": self.gpus,
            "cluster": self.cluster,
            "engine": self.engine,
            "scope": self.scope,
            "pue": self.accounting.pue,
            "exclusive_host": self.accounting.exclusive_host,
            "mode": self.mode,
            "warnings": list(self.warnings),
            "predictor": dict(self.predictor),
        }

    def what_if(self, **changes: Any) -> WhatIf[Prediction]:
        """The same question with some arguments changed, asked of the same predictor: before, after and their ratio.

        What was left to its default - mode, formats, the board's common host - is chosen again and listed among the changes.

        Args:
            changes: arguments of `predict_energy`, but for the predictor: `power_limit_w=500`, `gpu="..."`, `dtype="fp8"`, `batch=64`.

        Raises:
            InputError: no change, or no such argument.
            PiePError: the changed question has no answer; the text says why.

        >>> from pie_p import predict_energy
        >>> p = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", batch=8, prompt_tokens=200, output_tokens=300)
        >>> p.what_if(batch=16).ratio("energy_j") < 1.0  # two requests share the weights that one had to itself
        True
        """
        if self.asked is None:
            raise InputError("this prediction does not know what was asked; predict_energy's answers do")
        return WhatIf(before=self, after=self.asked.again(changes))

    def footprint(
        self,
        *,
        grid: str | Grid | None = None,
        grid_g_per_kwh: float | None = None,
        price_per_kwh: float | None = None,
        currency: str = "",
    ) -> Footprint:
        """Carbon and cost of the request within its scope, from factors that you give.

        Args:
            grid: a yearly mean of the catalogue by country and year, "DE-2024"; its source is in the result.
            grid_g_per_kwh: an intensity of your own instead [g/kWh].
            price_per_kwh: of the electricity [currency/kWh].
            currency: what the price is in.

        Raises:
            InputError: no factor given, or one that cannot be.
            UnknownNameError: no grid of that name.
        """
        return footprint_of(
            self.energy_j,
            scope=self.scope,
            pue=self.accounting.pue,
            interval_j=None if self.spread is None else self.interval(0.9),
            grid=grid,
            grid_g_per_kwh=grid_g_per_kwh,
            price_per_kwh=price_per_kwh,
            currency=currency,
        )

    def to_frame(self) -> Any:
        """Operators and waits as rows, units in the names of the columns: a pandas DataFrame, or an Arrow table where pandas is missing.

        Raises:
            MissingExtraError: neither is installed.
        """
        return frame_of([COLUMN_UNITS.get(name, name) for name in OperatorEnergy._fields], [_row_of(each) for each in self._operators()])

    def plot(self) -> Any:
        """A matplotlib figure: the parts of the energy as bars, and the operator tree as an icicle. Nothing is shown or saved.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from pie_p.pictures import prediction_figure

        return prediction_figure(self.to_dict(), self._places(depth=100))

    def _places(self, *, depth: int) -> dict[str, tuple[str, float]]:
        """Energy kind and energy by path, cut after `depth` parts; the kind with most of the energy there [J]."""
        kinds: dict[str, dict[str, float]] = {}
        for operator in self._operators():
            place = kinds.setdefault("/".join(operator.path.split("/")[:depth]), {})
            place[operator.energy_kind] = place.get(operator.energy_kind, 0.0) + operator.energy_j
        return {path: (max(sums, key=lambda kind: sums[kind]), sum(sums.values())) for path, sums in kinds.items()}

    def __repr__(self) -> str:
        answer = self.to_dict()
        return f"<Prediction: {quantity(self.energy_j, 'J')} per request, scope {self.scope}; {deployment_words(answer)}>"

    def __str__(self) -> str:
        answer = self.to_dict()
        bounds = interval_words(answer)
        figures = [quantity(self.energy_j, "J") + " per request" + (f" ({bounds})" if bounds else "")]
        if self.energy_per_output_token_j is not None:
            figures.append(f"{quantity(self.energy_per_output_token_j, 'J')} per output token")
        figures.append(f"latency {quantity(self.latency_s, 's')}")
        return f"{deployment_words(answer)}; {request_words(answer)}\n{', '.join(figures)}; {SCOPE_WORDS[self.scope]}"

    def _repr_html_(self) -> str:
        from pie_p.card import prediction_card

        return prediction_card(self.to_dict(), places=self._places(depth=4) if self.working else None)


# Columns of `Prediction.to_frame` whose name alone does not say the unit.
COLUMN_UNITS: Final[Mapping[str, str]] = {
    "time_s": "time_s_per_call",
    "energy_j": "energy_j_per_request",
    "flops": "flops_per_call",
    "hbm_bytes": "hbm_bytes_per_call",
    "payload_bytes": "payload_bytes_per_call",
}


def _row_of(operator: OperatorEnergy) -> dict[str, Any]:
    return {COLUMN_UNITS.get(name, name): value for name, value in operator._asdict().items()}


def phase_energies(run: Run, sharing: Floats) -> dict[Phase, list[tuple[float, float, float]]]:
    """Compute, communication and wait energy per phase of every case [J per request].

    Args:
        run: times and powers of the flattened cases.
        sharing: requests that share each case's steps [-].
    """
    assembly, cases = run.assembly, len(run.assembly.cases)
    row_step, stage_case = assembly.stage_step[assembly.row_stage], assembly.step_case[assembly.stage_step]
    spent = assembly.calls * run.time_s * run.power_w * assembly.stage_ranks[assembly.row_stage] / sharing[assembly.row_case]
    waited = np.sum([run.clock.waits_s[cause] for cause in WAIT_CAUSES], axis=0)
    waited = waited * run.wait_power_w * assembly.stage_ranks / sharing[stage_case]
    communicates = assembly.columns["payload_bytes"] > 0
    result: dict[Phase, list[tuple[float, float, float]]] = {}
    for phase in PHASES:
        counts = assembly.prefill_steps if phase == "prefill" else assembly.decode_steps
        energy = spent * counts[row_step]
        computed, communicated = (
            case_sums(energy[rows], assembly.row_case[rows], cases)
            for rows in (np.flatnonzero(~communicates), np.flatnonzero(communicates))
        )
        result[phase] = list(zip(computed, communicated, case_sums(waited * counts[assembly.stage_step], stage_case, cases), strict=True))
    return result


def case_sums(values: Floats, of_case: NDArray[np.int64], cases: int) -> list[float]:
    """Sum of each case's values, which stand together; 0.0 for a case without any."""
    bounds = np.searchsorted(of_case, np.arange(cases + 1)).tolist()
    return [float(np.add.reduce(values[first:end])) for first, end in pairwise(bounds)]
