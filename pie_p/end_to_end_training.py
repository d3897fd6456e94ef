"""From measured runs to the constants and intervals of a shipped predictor.

Time is fitted on the engine version whose energy was measured most, power on every run that has both; the host costs of other engine
versions follow with shares and floors held. What is left out for the intervals and the card's errors is never seen by the fit that
predicts it: one base LLM, GPU count or range of batches at a time; one board or format together with one LLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.end_to_end import MeasuredRuns, measured_runs
from pie_p.errors import ProfileError
from pie_p.fitting import SERVING_WIDTHS, Physics, fit_physics, fit_time, power_at, seconds_per_token
from pie_p.intervals import Domain, Intervals, widths_of
from pie_p.physics import Floats, Roofline
from pie_p.power import PowerLaw
from pie_p.profiles import load_tables
from pie_p.serving import Assembly, ServingCosts, assemble, run_clock
from pie_p.shapes import StateSpace

Progress = Callable[[str, int, int], None]
Mask = NDArray[np.bool_]

LEAST_RUNS: Final = 30  # of one engine version, to fit its host costs
EDGE: Final = 0.2  # share of runs at either end of the batches that "range" leaves out
JOINT: Final = frozenset({"gpu", "dtype"})  # left out together with the LLM: who asks about a new board mostly asks about a new LLM too


@dataclass(frozen=True, kw_only=True)
class EndToEnd:
    """What a predictor ships of the end-to-end fit."""

    roofline: Roofline
    power: PowerLaw
    serving: dict[str, ServingCosts]  # by engine and version
    intervals: Intervals
    errors: dict[str, dict[str, Floats]]  # split -> target -> predicted over measured, less 1, of runs left out
    left_out: tuple[str, ...]  # rows that could not be used, and why


def train_end_to_end(profiles: Sequence[str | Path], *, progress: Progress | None = None) -> EndToEnd:
    """Fit constants and intervals on the `end_to_end` tables of profiles.

    Raises:
        ProfileError: no run with measured time and power.
    """
    runs = measured_runs(_rows(profiles))
    engine = np.array([str(case.deployment.engine) for case in runs.cases])
    main = _main_runs(runs, engine)
    usable = main | (np.isfinite(runs.power_w) & ~_odd(runs) & ~_hybrid(runs) & (engine != engine[main][0]))
    steps = 3 + len(_splits(runs, main))
    tell = _teller(progress, steps)
    whole = _fit(runs, usable, main)
    tell("constants of time and power")
    assembly = assemble(runs.cases)
    left = {name: _left_out(runs, assembly, usable, main, groups, tell, name) for name, groups in _splits(runs, main).items()}
    serving = {str(engine[main][0]): whole.costs, **_other_engines(runs, engine, main, whole.roofline)}
    tell("host costs of other engines")
    intervals = Intervals(widths=_widths(left, runs), domain=Domain.of(runs.take(main).cases))
    tell("intervals")
    errors = {name: {target: ratio[np.isfinite(ratio)] - 1.0 for target, ratio in of.items()} for name, of in left.items()}
    return EndToEnd(
        roofline=whole.roofline,
        power=whole.power,
        serving=serving,
        intervals=intervals,
        errors=errors,
        left_out=(*runs.left_out, *_untaught(runs, usable, serving)),
    )


def _rows(profiles: Sequence[str | Path]) -> Iterable[Mapping[str, Any]]:
    table = load_tables(profiles, "end_to_end")
    if not len(table):
        raise ProfileError("none of the profiles has end-to-end rows; import mlenergy_v3 for instance, or profile a deployment")
    return table.iter_rows()


def _odd(runs: MeasuredRuns) -> Mask:
    return np.asarray(runs.odd != "")


def _hybrid(runs: MeasuredRuns) -> Mask:
    """LLMs with state-space layers, scored apart: their public B200 runs hold unexplained waiting."""
    return np.array([any(isinstance(layer.mixer, StateSpace) for layer in case.deployment.llm.layer_counts) for case in runs.cases])


def _main_runs(runs: MeasuredRuns, engine: NDArray[Any]) -> Mask:
    known = np.isfinite(runs.power_w) & np.isfinite(runs.time_per_token_s) & ~_odd(runs) & ~_hybrid(runs)
    known &= np.array([case.power_limit_w is None for case in runs.cases]) & np.isfinite(runs.itl_s)
    if not known.any():
        raise ProfileError("no run of the profiles has measured time per token, power and step time; nothing can be fitted end to end")
    names, counts = np.unique(engine[known], return_counts=True)
    return np.asarray(known & (engine == names[np.argmax(counts)]))


def _fit(runs: MeasuredRuns, usable: Mask, timed: Mask) -> Physics:
    return fit_physics(runs.take(usable), timed=timed[usable])


def _untaught(runs: MeasuredRuns, usable: Mask, serving: Mapping[str, ServingCosts]) -> tuple[str, ...]:
    """Runs that moved no constant, counted by reason."""
    engine = np.array([str(case.deployment.engine) for case in runs.cases])
    hybrid, odd = _hybrid(runs), _odd(runs)
    rest = ~usable & ~hybrid & ~odd & ~(np.isin(engine, list(serving)) & np.isfinite(runs.time_per_token_s))
    names = ", ".join(str(name) for name in np.unique(runs.odd[odd & ~hybrid]))
    counts = {
        "of LLMs with state-space layers: scored by pie-p evaluate, taught nothing": hybrid,
        f"of groups marked odd ({names}): predicted as a test, taught nothing": odd & ~hybrid,
        "without the times and the power that a fit needs, or of an engine with too few": rest,
    }
    return tuple(f"{which.sum()} runs {reason}" for reason, which in counts.items() if which.any())


def _splits(runs: MeasuredRuns, main: Mask) -> dict[str, NDArray[Any]]:
    """For each way of leaving out: the group of every run; "" is never left out."""
    batch = np.array([case.request.batch * case.deployment.plan.dp for case in runs.cases])
    least, most = np.quantile(batch[main], [EDGE, 1.0 - EDGE])
    low = np.array(["low" if case.deployment.dtype not in ("bf16", "fp16") else "" for case in runs.cases])
    groups = {
        "llm": runs.base,
        "gpus": runs.gpus.astype(str),
        "gpu": runs.gpu,
        "dtype": low,
        "range": np.where(batch < least, "small", np.where(batch > most, "large", "")),
    }
    return {name: of for name, of in groups.items() if len(np.unique(of[main])) > 1}


def _left_out(
    runs: MeasuredRuns, assembly: Assembly, usable: Mask, main: Mask, groups: NDArray[Any], tell: Callable[[str], None], name: str
) -> dict[str, Floats]:
    """Predicted over measured of every run, by a fit that knew nothing of its group; NaN where it is never left out."""
    answers = {target: np.full(len(runs), np.nan) for target in ("energy", "time", "power")}
    scored = main | (_odd(runs) & np.isin(runs.source, np.unique(runs.source[main])) & ~_hybrid(runs))
    for group, base in _held(groups, runs.base, main, joint=name in JOINT):
        train = usable & (groups != group) & (runs.base != base)
        if not (train & main).any():
            continue
        out = scored & (groups == group) & ((runs.base == base) | (base == ""))
        time_s, power_w = predicted(assembly, _fit(runs, train, main))
        answers["time"][out] = (time_s / runs.time_per_token_s)[out]
        answers["power"][out] = (power_w / runs.power_w)[out]
    answers["energy"] = answers["time"] * answers["power"]
    tell(f"left out: {name}")
    return answers


def _held(groups: NDArray[Any], base: NDArray[Any], main: Mask, *, joint: bool) -> list[tuple[str, str]]:
    """What is left out at once: a group, and with `joint` one LLM beside it; "" stands for none."""
    return sorted({(str(group), str(llm) if joint else "") for group, llm in zip(groups[main], base[main], strict=True) if group != ""})


def predicted(assembly: Assembly, physics: Physics) -> tuple[Floats, Floats]:
    """Time per output token [s] and power of one board [W] of each case."""
    kernel_s = physics.roofline.time_s(assembly.columns)
    clock = run_clock(assembly, kernel_s, [physics.costs] * len(assembly.cases))
    time_s, _ = seconds_per_token(assembly, clock)
    return time_s, power_at(time_s, assembly, clock, kernel_s, physics.power)


def _other_engines(runs: MeasuredRuns, engine: NDArray[Any], main: Mask, roofline: Roofline) -> dict[str, ServingCosts]:
    costs: dict[str, ServingCosts] = {}
    for name in np.unique(engine[~main]):
        own = (engine == name) & np.isfinite(runs.time_per_token_s) & ~runs.attention_dp & ~_odd(runs)
        if name != engine[main][0] and own.sum() >= LEAST_RUNS:
            _, costs[str(name)] = fit_time(runs.take(own), roofline=roofline, free=tuple(SERVING_WIDTHS))
    return costs


def _widths(left: Mapping[str, Mapping[str, Floats]], runs: MeasuredRuns) -> dict[str, dict[str, tuple[float, ...]]]:
    widths: dict[str, dict[str, tuple[float, ...]]] = {}
    for target in ("energy", "time", "power"):
        kinds = {name: _width(answers[target], runs.base, ~runs.attention_dp) for name, answers in left.items()}
        attention_dp = runs.attention_dp & np.isfinite(left["llm"][target])
        if attention_dp.any():
            kinds["attention_dp"] = _width(left["llm"][target], runs.base, attention_dp)
        widths[target] = {name: tuple(max(pair) for pair in zip(width, kinds["llm"], strict=True)) for name, width in kinds.items()}
    return widths


def _width(ratio: Floats, groups: NDArray[Any], which: Mask) -> tuple[float, ...]:
    known = which & np.isfinite(ratio)
    return widths_of(np.log(ratio[known]), groups[known])


def _teller(progress: Progress | None, steps: int) -> Callable[[str], None]:
    done = 0

    def tell(text: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(text, done, steps)

    return tell
