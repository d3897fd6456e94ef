"""Predictor: regressors and serving costs that turn cases into predictions, and the function most people call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pie_p.accounting import Accounting, Scope
from pie_p.cases import make_case
from pie_p.cautions import cautions
from pie_p.checks import FrozenDict
from pie_p.energy import EnergyBreakdown
from pie_p.engine import Engine, load_engine
from pie_p.errors import InputError, PredictorError
from pie_p.hardware import Cluster, Gpu
from pie_p.intervals import Intervals
from pie_p.kernels import Wanted
from pie_p.llm import LLM
from pie_p.physics import Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.prediction import PHASES, Phase, Prediction, Working, case_sums, phase_energies, workings
from pie_p.quantities import as_float, as_int, shown
from pie_p.regressors import Learned, OperatorRegressors, Places, picked
from pie_p.serving import Assembly, Case, ServingCosts, assemble, expected_lag
from pie_p.settling import Run, settle
from pie_p.units import Dtype
from pie_p.what_if import Answerer, Asked
from pie_p.workload import Mode, OutputTokens

if TYPE_CHECKING:
    from pie_p.calibration import Calibration
    from pie_p.end_to_end import MeasuredRuns
    from pie_p.lateness import WaitTimes
    from pie_p.tables import Table

CASES_AT_ONCE: Final = 2000  # bounds the memory of a pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """What answers: times and powers of operators, and the serving costs of engines.

    `Predictor()` is the physical base with priors; trained ones are loaded by name.
    """

    name: str = "physics"
    roofline: Roofline = field(default_factory=Roofline)
    power: PowerLaw = field(default_factory=PowerLaw)
    serving: Mapping[str, ServingCosts] = field(default_factory=dict)
    operators: OperatorRegressors | None = None  # learned; None: the physical base answers
    intervals: Intervals | None = None  # tested widths; None: `Prediction.interval` is an error
    digest: str = ""  # checksum of the saved predictor that the regressors came from

    @property
    def sha256(self) -> str:
        """Hash of everything that enters an answer."""
        return _hash_of(repr((self.name, self.roofline, self.power, sorted(self.serving.items()), self.intervals, self.digest)))

    @classmethod
    def load(cls, name_or_path: str | Path) -> Predictor:
        """A saved predictor: a shipped one by name, or any by its folder. Nothing in it is executed.

        Raises:
            PredictorError: not there, damaged, or made for another version; one line says which.
        """
        from pie_p.model_files import load_parts

        return cls(**load_parts(name_or_path))

    def save(self, folder: str | Path) -> None:
        """Write this predictor into a folder, for `load`: a calibrated one for instance.

        Raises:
            PredictorError: the folder cannot be written.
        """
        from pie_p.model_files import save_parts

        save_parts(
            folder,
            name=self.name,
            roofline=self.roofline,
            power=self.power,
            serving=self.serving,
            operators=self.operators,
            intervals=self.intervals,
            note=f"saved from a predictor in memory, {self.sha256[:12]}; the errors of the one it was made from are on that one's card",
        )

    def costs_of(self, engine: Engine) -> ServingCosts:
        """Serving costs of an engine: of that version, of that engine, or the prior."""
        return self.serving.get(str(engine)) or self.serving.get(engine.name) or ServingCosts()

    def calibrate(self, rows: Iterable[Mapping[str, Any]] | Table | MeasuredRuns, *, name: str | None = None) -> Calibration[Predictor]:
        """A predictor fitted to a handful of measured rows, and whether that helped: `pie_p.calibration.calibrate`."""
        from pie_p.calibration import calibrate

        return calibrate(self, rows, name=name)

    def meeting_wait(self, *, work_s: float, group_size: int, engine: str | Engine = "vllm") -> WaitTimes:
        """How long a rank waits at a collective after some work: mean, p50, p90, p99, any quantile.

        The mean is the one that energies use, `jitter x expected_lag(group_size) x work_s`; the shape comes from order statistics of the
        ranks' lateness, fitted to the quantiles of a profile's waits where it was trained on one, else that of normal lateness.

        Args:
            work_s: of a rank since the last meeting [s].
            group_size: ranks that meet [-].
            engine: whose costs count.

        Raises:
            InputError: a number that cannot be.

        >>> wait = Predictor().meeting_wait(work_s=1e-3, group_size=4)
        >>> f"mean {1e6 * wait.mean_s:.1f} us, p99 {1e6 * wait.p99_s:.1f} us"
        'mean 10.3 us, p99 38.0 us'
        """
        from pie_p.lateness import waits_of

        ranks, costs = as_int("group_size", group_size, most=100_000), self.costs_of(load_engine(engine))
        mean_s = costs.jitter * float(expected_lag(np.array([ranks]))[0]) * as_float("work_s", work_s, most=1e6)
        return waits_of(mean_s, group_size=ranks, skew=costs.jitter_skew)

    def predict(self, cases: Sequence[Case], *, accounting: Accounting | None = None, keep_working: bool = True) -> list[Prediction]:
        """Answer many cases, `CASES_AT_ONCE` of them per vectorised pass.

        Args:
            cases: what to answer, from `make_case`.
            accounting: which watts are counted; default GPU boards.
            keep_working: keep the arrays behind `Prediction.operators` and `.tree()`, about 20 kB per case.
        """
        predictions: list[Prediction] = []
        for start in range(0, len(cases), CASES_AT_ONCE):
            run = self.run(assemble(cases[start : start + CASES_AT_ONCE]))
            predictions += _predictions(self, run, accounting or Accounting(), keep_working=keep_working)
        return predictions

    def light(self) -> Answerer:
        """What travels with a pickled prediction: itself, or its name where megabytes of regressors belong to it."""
        return self if self.operators is None else _Elsewhere(self.name, self.sha256)

    def run(self, assembly: Assembly) -> Run:
        """Times, waits and powers of flattened cases."""
        learned = self.learned(assembly)
        time_s = self.time_s(assembly) if learned is None else learned.time_s
        costs = [self.costs_of(case.deployment.engine) for case in assembly.cases]
        limits_w = [case.power_limit_w or math.inf for case in assembly.cases]
        run = settle(
            assembly,
            time_s,
            costs=costs,
            law=self.power,
            roofline=self.roofline,
            limits_w=np.array(limits_w),
            demand=None if learned is None else learned.demand,
        )
        return run if learned is None else replace(run, outside=learned.outside)

    def learned(self, assembly: Assembly) -> Learned | None:
        """What the learned regressors say about every row; None where nothing was learned."""
        if self.operators is None:
            return None
        where = [(case.deployment.engine, case.deployment.cluster) for case in assembly.cases]
        numbers = {place: number for number, place in enumerate(dict.fromkeys(where))}
        of_row = np.array([numbers[place] for place in where], dtype=np.int64)[assembly.row_case]
        _, first, again = np.unique(assembly.which * len(numbers) + of_row, return_index=True, return_inverse=True)
        wanted = [Wanted("", engine.name, engine.version, cluster.gpu, "", "") for engine, cluster in numbers]
        answers = self.operators.answer(picked(assembly.columns, first), Places(wanted=wanted, which=of_row[first]), self.power)
        return Learned(time_s=answers.time_s[again], demand=answers.demand[again], outside=answers.outside[again])

    def time_s(self, assembly: Assembly) -> Floats:
        """Seconds per call of every row at the board's own power limit."""
        return self.roofline.time_s(assembly.columns)


def _predictions(predictor: Predictor, run: Run, accounting: Accounting, *, keep_working: bool) -> list[Prediction]:
    """One prediction per case out of the arrays of all."""
    assembly, clock = run.assembly, run.clock
    energies = phase_energies(run, np.array([plan.sharing for plan in assembly.schedules]))
    prefill_s = case_sums(assembly.prefill_steps * clock.step_s, assembly.step_case, len(assembly.cases))
    decode_s = case_sums(assembly.decode_steps * clock.step_s, assembly.step_case, len(assembly.cases))
    identity = FrozenDict(name=predictor.name, sha256=predictor.sha256)
    return [
        _prediction(
            working,
            accounting,
            identity,
            predictor,
            energies={phase: energies[phase][number] for phase in PHASES},
            seconds={"prefill": prefill_s[number], "decode": decode_s[number]},
            keep_working=keep_working,
        )
        for number, working in enumerate(workings(run))
    ]


def _prediction(
    working: Working,
    accounting: Accounting,
    identity: Mapping[str, str],
    predictor: Predictor,
    *,
    energies: Mapping[Phase, tuple[float, float, float]],
    seconds: Mapping[Phase, float],
    keep_working: bool,
) -> Prediction:
    intervals = predictor.intervals
    case, plan = working.run.assembly.cases[working.case], working.run.assembly.schedules[working.case]
    step_s = working.run.clock.step_s[working.steps]
    running_s, tokens = seconds["prefill"] + seconds["decode"], plan.output_tokens
    latency_s = running_s * plan.crowding
    ttft_s = min(plan.ttft_steps * float(step_s[0]), latency_s)

    def counted(parts: tuple[float, float, float], seconds: float) -> EnergyBreakdown:
        return accounting.breakdown(parts, seconds=seconds / plan.sharing, deployment=case.deployment)

    compute_j, communication_j, wait_j = (sum(parts) for parts in zip(*energies.values(), strict=True))
    breakdown = counted((compute_j, communication_j, wait_j), running_s)
    return Prediction(
        request=case.request,
        deployment=case.deployment,
        breakdown=breakdown,
        prefill=counted(energies["prefill"], seconds["prefill"]),
        decode=counted(energies["decode"], seconds["decode"]),
        latency_s=latency_s,
        ttft_s=ttft_s,
        tpot_s=(latency_s - ttft_s) / (tokens - 1) if tokens >= 2 else None,
        itl_s=float(step_s[-1]) if seconds["decode"] > 0 else None,
        time_per_token_s=latency_s / tokens if tokens else None,
        avg_power_w=breakdown.gpu_j * plan.sharing / running_s,
        accounting=accounting,
        warnings=(*cautions(case, working), *(intervals.in_domain(case) if intervals else ())),
        predictor=identity,
        power_limit_w=case.power_limit_w or case.deployment.cluster.gpu.limit_w,
        spread=intervals.spread(case) if intervals else None,
        working=working if keep_working else None,
        asked=Asked(case=case, accounting=accounting, answerer=predictor),
    )


class _Elsewhere(NamedTuple):
    """A predictor that stayed where a prediction was pickled: found again by name and checksum."""

    name: str
    sha256: str

    def predict(self, cases: Sequence[Case], *, accounting: Accounting | None = None) -> list[Prediction]:
        """Answers of the predictor of that name, if it is the same one."""
        found = load_predictor(self.name)
        if found.sha256 != self.sha256:
            raise PredictorError(
                f"predictor {self.name!r} here has checksum {found.sha256[:8]}, the one that answered {self.sha256[:8]}; "
                "ask predict_energy(..., predictor=...) anew"
            )
        return found.predict(cases, accounting=accounting)

    def light(self) -> Answerer:
        """Itself."""
        return self


@lru_cache(maxsize=64)
def _hash_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def predict_many(
    configurations: Iterable[Mapping[str, Any]],
    *,
    predictor: str | Predictor | None = None,
    accounting: Accounting | None = None,
    keep_working: bool = True,
) -> list[Prediction]:
    """Predictions for many configurations, vectorised.

    Args:
        configurations: keyword arguments of `predict_energy`, one mapping each, without scope, pue, exclusive_host and predictor.
        predictor: as in `predict_energy`.
        accounting: which watts are counted; default GPU boards.
        keep_working: keep what `Prediction.operators` and `.tree()` read; without it 20,000 configurations take well under 1 GiB.
    """
    cases = [make_case(**configuration) for configuration in configurations]
    return load_predictor(predictor).predict(cases, accounting=accounting, keep_working=keep_working)


def predict_energy(
    llm: str | LLM | Mapping[str, object],
    *,
    gpu: str | Gpu | None = None,
    cluster: str | Cluster | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    micro_batches: int | None = None,
    batch: float = 1,
    prompt_tokens: float,
    output_tokens: OutputTokens,
    cached_prompt_tokens: float = 0,
    dtype: Dtype | None = None,
    kv_dtype: Dtype | None = None,
    engine: str | Engine = "vllm",
    mode: Mode | None = None,
    scope: Scope = "gpu",
    pue: float | None = None,
    exclusive_host: bool = False,
    power_limit_w: float | None = None,
    predictor: str | Predictor | None = None,
) -> Prediction:
    """Joules that one LLM request costs, split into compute, communication and wait.

    Args:
        llm: catalogue name in either spelling, path of a Hugging Face `config.json`, a dict, or an `LLM`.
        gpu: catalogue name or a `Gpu`; stands for the board's common host.
        cluster: name, TOML file or `Cluster`, instead of `gpu`.
        tp: tensor-parallel ranks; the deployment has `tp * pp * dp` GPUs [-].
        pp: pipeline stages [-].
        dp: data-parallel ranks: replicas, or attention-DP when `ep > 1` [-].
        ep: ranks the experts are spread over: 1 or a divisor of `tp * dp` [-].
        micro_batches: pieces of a batch in the pipeline; default `pp` [-].
        batch: requests in flight per data-parallel rank [-].
        prompt_tokens: tokens in, cached ones included [-].
        output_tokens: tokens out: a number, a list of observed lengths or a `LengthDistribution`; 0 is prefill only [-].
        cached_prompt_tokens: prompt tokens found in the prefix cache [-].
        dtype: storage of the weights; default as the checkpoint says.
        kv_dtype: storage of the KV cache; default as the checkpoint says.
        engine: "vllm", "sglang", "trtllm", optionally with a version.
        mode: "static" or "steady"; default static at batch 1, steady above.
        scope: "gpu" boards, "host" with CPU, memory, fans and PSU loss, "facility" with PUE.
        pue: power usage effectiveness, for scope "facility" [-].
        exclusive_host: count the whole host, idle neighbour boards included.
        power_limit_w: per board, below the board's own limit [W].
        predictor: name, path or `Predictor`; default the shipped one.

    Returns:
        A `Prediction`; `energy_j` in joules per request.

    Raises:
        PiePError: with one line that says what came, what is allowed and what to do.

    >>> p = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", batch=16, prompt_tokens=150, output_tokens=300)
    >>> p.mode, p.gpus
    ('steady', 1)
    >>> abs(p.breakdown.compute_j + p.breakdown.communication_j + p.breakdown.wait_j - p.energy_j) < 1e-9 * p.energy_j
    True
    """
    accounting = Accounting(scope=scope, pue=pue, exclusive_host=exclusive_host)
    case = make_case(
        llm, gpu=gpu, cluster=cluster, tp=tp, pp=pp, dp=dp, ep=ep, micro_batches=micro_batches, batch=batch, prompt_tokens=prompt_tokens,
        output_tokens=output_tokens, cached_prompt_tokens=cached_prompt_tokens, dtype=dtype, kv_dtype=kv_dtype, engine=engine, mode=mode,
        power_limit_w=power_limit_w,
    )  # fmt: skip
    return load_predictor(predictor).predict([case], accounting=accounting)[0]


_PHYSICS = Predictor()


def load_predictor(predictor: str | Predictor | None = None) -> Predictor:
    """The predictor of that name; the default when none is given."""
    if isinstance(predictor, Predictor):
        return predictor
    if predictor is None:
        return _default()
    if isinstance(predictor, str) and predictor == "physics":
        return _PHYSICS
    if isinstance(predictor, str | Path):
        from pie_p.model_files import find_predictor

        return _load(*_as_written(find_predictor(predictor).absolute()))
    raise InputError(f"no predictor {shown(predictor)}; give a name, a folder or a Predictor")


@lru_cache(maxsize=1)
def _default() -> Predictor:
    """The shipped default; never a folder of that name that happens to be where the user stands."""
    from pie_p.model_files import shipped

    place = shipped().get("default")
    return _PHYSICS if place is None else _load(*_as_written(place))


def _as_written(folder: Path) -> tuple[str, int]:
    """A folder and when its manifest was written [ns]: a predictor trained again in the same place is another one."""
    manifest = folder / "manifest.json"
    return str(folder), manifest.stat().st_mtime_ns if manifest.is_file() else 0


@lru_cache(maxsize=8)
def _load(folder: str, written: int) -> Predictor:  # noqa: ARG001  (the time is part of the key)
    return Predictor.load(folder)
