"""The serving layer: from times of operators to times of engine steps, and the waits that fill the gaps.

One pipeline stage in one step, all its micro-batches:

    | kernels and collectives | launch gaps | skew at collectives | expert imbalance |  bubble  |  host gap |
    |<------------------- busy with this step -------------------->|
    |<------------------------------ round of the pipeline --------------------->|
    |<---------------------------------------- one engine step ------------------------------------------>|

What is neither compute nor communication is wait, and each wait has its cause. All arrays cover many configurations at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from pie_p.deployment import Deployment
from pie_p.features import KIND_CODE, Columns, featurize
from pie_p.hardware import Cluster
from pie_p.layers import Step
from pie_p.physics import Floats, is_collective, smooth_max
from pie_p.tree import Row, Schedule, expand, micro_batches, schedule
from pie_p.workload import Request

WaitCause = Literal["launch", "skew", "expert_imbalance", "bubble", "host"]
WAIT_CAUSES: Final[tuple[WaitCause, ...]] = get_args(WaitCause)

# Expected largest of 1 to 8 standard normals (H. L. Harter, Biometrika 48, 1961, table 1).
LARGEST_OF_NORMALS: Final = (0.0, 0.5641896, 0.8462844, 1.0293754, 1.1629645, 1.2672064, 1.3521784, 1.4236003)


class ServingCosts(NamedTuple):
    """What an engine's host side and its launches cost. Priors from fits on ML.ENERGY (method page); calibration replaces them.

    A field holds one number, or one per case or step once `gather_costs` has spread them.
    """

    launch_s: Any = 1.0e-6  # gap between kernels of a replayed graph [s]
    dispatch_s: Any = 4.4e-5  # host time to launch one kernel of a step that holds prompts and so is no graph [s]
    dispatch_step_s: Any = 1.0e-3  # host time such a step takes besides [s]
    step_s: Any = 1.5e-3  # scheduler and sampler, once per step, not overlapped [s]
    sequence_s: Any = 3.6e-5  # per running sequence and step, not overlapped [s]
    overlapped_sequence_s: Any = 2.6e-5  # per running sequence and step, overlapped with the GPU's work [s]
    prompt_s: Any = 4.9e-4  # per prompt that enters [s]
    overlap_power: Any = 3.0  # exponent of the smooth maximum of GPU and host time [-]
    jitter: Any = 0.01  # spread of a rank's compute time between collectives, as a share of it [-]
    imbalance: Any = 1.9  # how much more uneven experts are loaded than by chance [-]
    jitter_skew: Any = 0.0  # shape of lateness at meetings, for quantiles of waits alone: 0 a normal one (`pie_p.lateness`) [-]


def gather_costs(costs: Sequence[ServingCosts], which: NDArray[np.int64]) -> ServingCosts:
    """Costs per case spread to steps: every field becomes an array."""
    table = np.array(costs, dtype=np.float64).reshape(len(costs), len(ServingCosts._fields))
    return ServingCosts(*table[which].T)


class Case(NamedTuple):
    """One configuration to answer."""

    request: Request
    deployment: Deployment
    power_limit_w: float | None = None


STEP_FIGURES: Final = (
    "decode_steps", "prefill_steps", "pieces", "decode_sequences", "prefill_sequences", "prompts_ending", "group_size", "expert_group",
    "expert_choices", "eager",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Many cases flattened: rows (operators), stages (pipeline stage x step) and steps, each pointing to its owner."""

    cases: Sequence[Case]
    schedules: list[Schedule]
    distinct: list[Row]  # rows, equal ones once
    which: NDArray[np.int64]  # for each row its place in `distinct`
    columns: Columns
    row_case: NDArray[np.int64]
    row_stage: NDArray[np.int64]
    calls: Floats  # per step on each rank of the stage [-]
    stage_step: NDArray[np.int64]
    stage_ranks: Floats  # ranks of the stages together, data-parallel ones included [-]
    stage_count: Floats  # stages of this kind [-]
    step_case: NDArray[np.int64]
    settles: NDArray[np.int64]  # for each step the group of steps whose power settles together
    decode_steps: Floats  # per request's life [-]
    prefill_steps: Floats  # per request's life [-]
    pieces: Floats  # micro-batches [-]
    decode_sequences: Floats
    prefill_sequences: Floats
    prompts_ending: Floats
    group_size: Floats  # ranks that meet at tensor-parallel collectives [-]
    expert_group: Floats  # ranks that hold the experts [-]
    expert_choices: Floats  # tokens times experts per token, of one step, over all those ranks [-]
    eager: NDArray[np.bool_]  # steps whose kernels the host launches one by one

    @property
    def rows(self) -> list[Row]:
        """The operator of every row."""
        return [self.distinct[place] for place in self.which.tolist()]

    def only(self, case: int) -> Assembly:
        """One case alone."""
        steps, rows = np.flatnonzero(self.step_case == case), np.flatnonzero(self.row_case == case)
        stages = np.flatnonzero(self.step_case[self.stage_step] == case)
        places, which = np.unique(self.which[rows], return_inverse=True)
        return replace(
            self,
            cases=[self.cases[case]],
            schedules=[self.schedules[case]],
            distinct=[self.distinct[place] for place in places.tolist()],
            which=which,
            columns={name: values[rows] for name, values in self.columns.items()},
            row_case=np.zeros_like(rows),
            row_stage=self.row_stage[rows] - stages[0],
            calls=self.calls[rows],
            stage_step=self.stage_step[stages] - steps[0],
            stage_ranks=self.stage_ranks[stages],
            stage_count=self.stage_count[stages],
            step_case=np.zeros_like(steps),
            settles=self.settles[steps] - self.settles[steps[0]],
            **{name: getattr(self, name)[steps] for name in STEP_FIGURES},
        )


def assemble(cases: Sequence[Case], schedules: list[Schedule] | None = None) -> Assembly:
    """Expand every case and flatten the result; steps that several cases have in common are expanded once.

    Args:
        cases: what to answer.
        schedules: the steps of each case, where they are not those of its request's life.
    """
    schedules = schedules or [schedule(case.request, case.deployment) for case in cases]
    distinct, spans = expand((planned.step, case.deployment) for case, plan in zip(cases, schedules, strict=True) for planned in plan.steps)
    first_row, rows = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    first_stage: list[int] = []
    stages: list[tuple[int, float, float]] = []
    steps: list[tuple[float, ...]] = []
    for number, (case, plan) in enumerate(zip(cases, schedules, strict=True)):
        for planned in plan.steps:
            first_stage.append(len(stages))
            stages += [(len(steps), _ranks(case.deployment) * stage.count, float(stage.count)) for stage in case.deployment.stages]
            steps.append((number, *_step_figures(case.deployment, planned.step), planned.decode_steps, planned.prefill_steps))
    stage_table = np.array(stages, dtype=np.float64).reshape(-1, 3)
    table = np.array(steps, dtype=np.float64).reshape(len(steps), -1)
    row_step = np.repeat(np.arange(len(steps)), rows)
    which = np.arange(len(row_step)) + (first_row - (np.cumsum(rows) - rows))[row_step]
    row_case = table[row_step, 0].astype(np.int64)
    case_cluster, clusters = _clusters(cases)
    columns = featurize([row.operator for row in distinct], clusters, case_cluster[row_case], which)
    columns["eager"] = table[row_step, 8]
    return Assembly(
        cases=cases,
        schedules=schedules,
        distinct=distinct,
        which=which,
        columns=columns,
        row_case=row_case,
        row_stage=np.array(first_stage, dtype=np.int64)[row_step] + np.array([row.stage for row in distinct], dtype=np.int64)[which],
        calls=np.array([row.calls for row in distinct], dtype=np.float64)[which],
        stage_step=stage_table[:, 0].astype(np.int64),
        stage_ranks=stage_table[:, 1],
        stage_count=stage_table[:, 2],
        step_case=table[:, 0].astype(np.int64),
        pieces=table[:, 1],
        decode_sequences=table[:, 2],
        prefill_sequences=table[:, 3],
        prompts_ending=table[:, 4],
        group_size=table[:, 5],
        expert_group=table[:, 6],
        expert_choices=table[:, 7],
        eager=table[:, 8] > 0,
        settles=_settling_groups(schedules),
        decode_steps=table[:, 9],
        prefill_steps=table[:, 10],
    )


def _settling_groups(schedules: Sequence[Schedule]) -> NDArray[np.int64]:
    """Steps of a life settle together where prompts come in between decode steps, and each for itself where phases follow each other."""
    groups: list[int] = []
    for plan in schedules:
        start = groups[-1] + 1 if groups else 0
        apart = plan.steps[0].step.decode_sequences == 0
        groups += [start + number * apart for number in range(len(plan.steps))]
    return np.array(groups, dtype=np.int64)


def _ranks(deployment: Deployment) -> float:
    return float(deployment.plan.tp * deployment.plan.dp)


def _step_figures(deployment: Deployment, step: Step) -> tuple[float, ...]:
    plan = deployment.plan
    sharing = plan.dp if plan.attention_dp else 1
    return (
        micro_batches(step, deployment),
        step.decode_sequences,
        step.prefill_sequences,
        step.prefill_sequences * step.prefill_ends,
        float(plan.tp * sharing),
        float(plan.ep),
        step.tokens * sharing * deployment.experts_per_token,
        float(step.prefill_sequences > 0 or step.decode_sequences > deployment.engine.graph_sequences),
    )


def _clusters(cases: Sequence[Case]) -> tuple[NDArray[np.int64], list[Cluster]]:
    """The distinct clusters, and for each case which one."""
    numbers: dict[Cluster, int] = {}
    which = [numbers.setdefault(case.deployment.cluster, len(numbers)) for case in cases]
    return np.array(which, dtype=np.int64), list(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Seconds per step and per stage; the waits by cause."""

    step_s: Floats  # one engine step [s]
    waits_s: dict[WaitCause, Floats]  # per stage and step, on each of its ranks [s]

    def only(self, *, steps: NDArray[np.bool_], stages: NDArray[np.bool_]) -> Clock:
        """The chosen steps and stages alone."""
        return Clock(step_s=self.step_s[steps], waits_s={cause: waits_s[stages] for cause, waits_s in self.waits_s.items()})


def run_clock(assembly: Assembly, time_s: Floats, case_costs: Sequence[ServingCosts]) -> Clock:
    """Times of steps and the waits inside them, from the times of the operators.

    Args:
        assembly: the flattened cases.
        time_s: seconds per call of each row.
        case_costs: host and launch costs of each case's engine.
    """
    costs = gather_costs(case_costs, assembly.step_case)
    stages, of_step = len(assembly.stage_step), assembly.stage_step
    spent = assembly.calls * time_s
    collective = is_collective(assembly.columns)

    def per_stage(values: Floats) -> Floats:
        return np.asarray(np.bincount(assembly.row_stage, weights=values, minlength=stages), dtype=np.float64)

    experts = assembly.columns["kind_code"] == KIND_CODE["experts"]
    running = per_stage(spent)
    launch = per_stage(assembly.calls) * costs.launch_s[of_step]
    skew = per_stage(spent * ~collective) * (costs.jitter * expected_lag(assembly.group_size))[of_step]
    imbalance = per_stage(spent * experts) * (costs.imbalance * expert_imbalance(assembly))[of_step]
    busy = running + launch + skew + imbalance
    dispatch = per_stage(assembly.calls * assembly.columns["launches"]) * costs.dispatch_s[of_step] + costs.dispatch_step_s[of_step]
    busy = np.where(assembly.eager[of_step], smooth_max(busy, dispatch, power=costs.overlap_power[of_step]), busy)
    round_s = _pipeline_round(assembly, busy)
    sequences = assembly.decode_sequences + assembly.prompts_ending
    step_s = smooth_max(round_s, costs.overlapped_sequence_s * sequences, power=costs.overlap_power)
    step_s = step_s + costs.step_s + costs.sequence_s * sequences + costs.prompt_s * assembly.prompts_ending
    waits: dict[WaitCause, Floats] = {
        "launch": busy - running - skew - imbalance,
        "skew": skew,
        "expert_imbalance": imbalance,
        "bubble": np.maximum(round_s[of_step] - busy, 0.0),
        "host": (step_s - round_s)[of_step],
    }
    return Clock(step_s=step_s, waits_s=_without_twins_excess(assembly, waits))


def _without_twins_excess(assembly: Assembly, waits: dict[WaitCause, Floats]) -> dict[WaitCause, Floats]:
    """Waits in which a decode-only twin never waits longer than its mixed step, so that prefill's increment is no negative wait.

    A twin enters both phases with opposite signs; its waits move joules between them and never change a total.
    """
    twin = np.flatnonzero(assembly.prefill_steps[assembly.stage_step] < 0)
    mixed = twin - np.bincount(assembly.stage_step)[assembly.stage_step[twin]]  # the same stage, one step earlier
    return {cause: _replaced(values, twin, np.minimum(values[twin], values[mixed])) for cause, values in waits.items()}


def _replaced(values: Floats, places: NDArray[np.int64], by: Floats) -> Floats:
    changed = values.copy()
    changed[places] = by
    return changed


def _pipeline_round(assembly: Assembly, busy: Floats) -> Floats:
    """Time of one step through the pipeline [s].

    With m micro-batches and stage times t per micro-batch: a decode step can start again when its first micro-batch has come through,
    so a round takes `max(m max t, sum t)`; a step of prompts alone fills and drains, `(m - 1) max t + sum t`.
    """
    steps, of_step = len(assembly.step_case), assembly.stage_step
    per_piece = busy / assembly.pieces[of_step]
    slowest = np.zeros(steps)
    np.maximum.at(slowest, of_step, per_piece)
    through = np.bincount(of_step, weights=per_piece * assembly.stage_count, minlength=steps)
    decoding = assembly.decode_sequences > 0
    return np.where(decoding, np.maximum(assembly.pieces * slowest, through), (assembly.pieces - 1) * slowest + through)


def expected_lag(group: Floats) -> Floats:
    """Expected largest of g standard normals: how far the last of g equal ranks lags behind the mean, in spreads [-].

    Exact up to g = 8 (Harter 1961, table 1); beyond, Blom's approximation of normal order statistics (1958), within 1 %.

    >>> tuple(round(float(lag), 3) for lag in expected_lag(np.array([1.0, 2.0, 8.0])))
    (0.0, 0.564, 1.424)
    """
    size = np.maximum(group, 1.0)
    exact = np.interp(size, np.arange(1, 9), LARGEST_OF_NORMALS)
    share = (size - 0.375) / (size + 0.25)  # Blom's plotting position of the largest
    tail = np.sqrt(-2.0 * np.log(np.maximum(1.0 - share, 1e-12)))  # Hastings' rational quantile, Abramowitz & Stegun 26.2.23
    quantile = tail - (2.515517 + 0.802853 * tail + 0.010328 * tail**2) / (1.0 + 1.432788 * tail + 0.189269 * tail**2 + 0.001308 * tail**3)
    return np.where(size <= 8, exact, quantile)


def expert_imbalance(assembly: Assembly) -> Floats:
    """Extra time of the fullest expert rank, as a share of the mean rank's expert time [-].

    Tokens fall on ranks like a multinomial draw of n over g: as g independent counts of relative spread sqrt(g / n), less their mean.
    """
    group, choices = assembly.expert_group, np.maximum(assembly.expert_choices, 1.0)
    spread = np.sqrt(group / choices)
    return np.where(group > 1, np.minimum(expected_lag(group) * spread, group - 1.0), 0.0)
