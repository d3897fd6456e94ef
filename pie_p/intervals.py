"""Intervals: how far the truth may lie from an answer, from errors on groups that were never seen.

The errors of a target are kept in logarithms, one per run, each predicted by a fit that knew nothing of the run's group. An interval of
energy `E` at level `l` is `E exp(-w)` to `E exp(+w)`, `w` the quantile of the absolute error that covers a share `l` of groups left out.
What lies outside the profiled domain gets the width that was measured for leaving that kind of thing out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import PredictorError
from pie_p.physics import Floats
from pie_p.serving import Case
from pie_p.shapes import StateSpace

LEVELS: Final = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
Kind = Literal["llm", "gpu", "gpus", "dtype", "range", "attention_dp", "untested"]
_GRID: Final = np.concatenate([np.arange(0.4, 0.99, 0.01), [0.995, 1.0]])  # of raw quantile levels


class Outside(NamedTuple):
    """One way in which a case lies outside what was measured end to end."""

    kind: Kind  # which measured width stands for it
    text: str  # warning


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """What was measured end to end."""

    gpus: tuple[str, ...]  # boards
    dtypes: tuple[str, ...]
    engines: tuple[str, ...]  # "vllm==0.11.1", those with measured energy
    most_gpus: int  # of one deployment [-]
    batch: tuple[float, float]  # least, most
    context: tuple[float, float]  # prompt and output tokens together: least, most
    state_space: bool = False  # LLMs with state-space layers among them

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Domain:
        """What the cases span; attention-DP, pipelines and several hosts are never inside."""
        batches = [case.request.batch for case in cases]
        contexts = [context_of(case) for case in cases]
        return cls(
            gpus=_names(case.deployment.cluster.gpu.name for case in cases),
            dtypes=_names(case.deployment.dtype for case in cases),
            engines=_names(str(case.deployment.engine) for case in cases),
            most_gpus=max(case.deployment.plan.gpus for case in cases),
            batch=(min(batches), max(batches)),
            context=(min(contexts), max(contexts)),
            state_space=any(has_state_space(case) for case in cases),
        )

    def outside(self, case: Case) -> list[Outside]:
        """Every way in which a case lies outside, each with its warning; empty inside."""
        deployment, found = case.deployment, []
        plan, board = deployment.plan, deployment.cluster.gpu.name
        if board not in self.gpus:
            found.append(Outside("gpu", f"{board} is not among the boards whose energy was measured ({', '.join(self.gpus)})"))
        if deployment.dtype not in self.dtypes:
            found.append(Outside("dtype", f"no run with {deployment.dtype} weights was measured"))
        if has_state_space(case) and not self.state_space:
            found.append(Outside("untested", "no LLM with state-space layers taught the predictor"))
        if plan.attention_dp:
            found.append(Outside("attention_dp", "attention-DP: only one LLM was measured, and its runs are not understood"))
        if plan.pp > 1:
            found.append(Outside("untested", "no run with pipeline parallelism was measured end to end"))
        if deployment.group_hosts(plan.tp * plan.pp) > 1 or (plan.attention_dp and deployment.group_hosts(plan.gpus) > 1):
            found.append(Outside("untested", "no run over several hosts was measured end to end"))
        if str(deployment.engine) not in self.engines:
            found.append(Outside("untested", f"no energy was measured under {deployment.engine}; measured: {', '.join(self.engines)}"))
        if plan.tp * plan.pp > self.most_gpus:
            found.append(Outside("gpus", f"{plan.tp * plan.pp} GPUs that work together are more than the {self.most_gpus} measured"))
        for name, value, (least, most) in (("batch", case.request.batch, self.batch), ("context", context_of(case), self.context)):
            if not least <= value <= most:
                found.append(Outside("range", f"{name} {_plain(value)} is outside the measured {_plain(least)} to {_plain(most)}"))
        return found


def _plain(number: float) -> str:
    """Four figures, without an exponent below 1e10.

    >>> _plain(4094.68), _plain(12180.9), _plain(7.81395), _plain(1e6)
    ('4095', '12180', '7.814', '1000000')
    """
    return f"{float(f'{number:.4g}'):.10g}"


def context_of(case: Case) -> float:
    """Prompt and mean output of a request together [tokens]."""
    return float(case.request.prompt_tokens + case.request.mean_output_tokens)


def has_state_space(case: Case) -> bool:
    """Whether the LLM has layers that carry a state in place of a KV cache."""
    return any(isinstance(layer.mixer, StateSpace) for layer in case.deployment.llm.layer_counts)


def _names(values: Any) -> tuple[str, ...]:
    return tuple(sorted(set(values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Half widths in logarithms, by target and by what was left out, at `LEVELS`."""

    widths: Mapping[str, Mapping[str, tuple[float, ...]]]  # target ("energy", "time", "power") -> kind -> one width per level
    domain: Domain

    def spread(self, case: Case, *, target: str = "energy") -> tuple[tuple[float, float], ...]:
        """(level, half width) of one case: the widest of the kinds it is outside of, an unseen LLM at least."""
        kinds: set[str] = {"llm", *(found.kind for found in self.domain.outside(case))}
        known = self.widths[target]
        if not kinds <= known.keys():  # never measured: the widest that was
            kinds = set(known)
        return tuple((level, max(known[kind][place] for kind in kinds)) for place, level in enumerate(LEVELS))

    def in_domain(self, case: Case) -> list[str]:
        """Warnings for what lies outside; empty inside.

        Each says what was not measured, and that the interval is less certain; `spread` takes the widest that was measured for it.
        """
        return [f"{found.text}: the interval is less certain" for found in self.domain.outside(case)]

    def to_plain(self) -> dict[str, Any]:
        """Plain data for a manifest."""
        domain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.domain).items()}
        return {
            "levels": list(LEVELS),
            "widths": {target: {kind: list(widths) for kind, widths in of.items()} for target, of in self.widths.items()},
            "domain": domain,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Intervals:
        """The same again.

        Raises:
            PredictorError: other levels, a missing field, or widths that are no numbers above 0.
        """
        try:
            stored = plain["domain"]
            domain = Domain(**{each.name: _tuple(stored[each.name]) for each in fields(Domain) if each.name in stored})
            widths = {t: {k: tuple(float(w) for w in of) for k, of in kinds.items()} for t, kinds in plain["widths"].items()}
            levels = tuple(plain["levels"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PredictorError(f"stored intervals cannot be read: {type(error).__name__} {str(error)[:80]}") from None
        counts = {len(of) for kinds in widths.values() for of in kinds.values()}
        if levels != LEVELS or counts != {len(LEVELS)} or "llm" not in widths.get("energy", {}):
            raise PredictorError(f"stored intervals have other levels than {', '.join(f'{level:g}' for level in LEVELS)}, or no widths")
        return cls(widths=widths, domain=domain)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def width_at(spread: Sequence[tuple[float, float]], level: float) -> float:
    """Half width in logarithms at a level, linear between the stored ones and from 0 at level 0.

    >>> round(width_at([(0.5, 0.1), (0.9, 0.3)], 0.7), 6)
    0.2

    Raises:
        PredictorError: a level beyond the largest that was tested, or not between 0 and 1.
    """
    most = spread[-1][0]
    if not 0.0 < level <= most:
        raise PredictorError(f"level = {level:g} was not tested; give one above 0 and at most {most:g}")
    levels, widths = zip((0.0, 0.0), *spread, strict=True)
    return float(np.interp(level, levels, widths))


def widths_of(errors: Floats, groups: NDArray[Any]) -> tuple[float, ...]:
    """Half widths at `LEVELS` that cover groups never seen.

    Every group weighs the same in a quantile. A quantile of few groups covers less than its level promises to the next group, so the raw
    level is raised until leaving each group out in turn shows the coverage asked for, over groups and over runs.

    Args:
        errors: logarithms of predicted over measured.
        groups: group of each error.
    """
    size = np.abs(errors)
    raw = _quantiles(size, groups, _GRID)
    covered = coverage(size, groups)
    picks = [int(np.argmax(covered >= min(level, covered[-1]) - 1e-9)) for level in LEVELS]
    return tuple(float(width) for width in np.maximum.accumulate(raw[picks]))


def coverage(size: Floats, groups: NDArray[Any]) -> Floats:
    """Share of what is left out that the others' quantile covers, over groups or over runs, the smaller; per raw level of the grid [-]."""
    names = np.unique(groups)
    if len(names) == 1:  # nothing to leave out: the raw level has to do
        return _GRID
    inside = np.zeros((len(size), len(_GRID)))
    for name in names:
        out = groups == name
        inside[out] = size[out, None] <= _quantiles(size[~out], groups[~out], _GRID)
    by_group = np.array([inside[groups == name].mean(axis=0) for name in names])
    return np.asarray(np.minimum(by_group.mean(axis=0), inside.mean(axis=0)))


def _quantiles(size: Floats, groups: NDArray[Any], levels: Floats) -> Floats:
    """Quantiles in which every group has the same weight."""
    _, member, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(size, kind="stable")
    reached = np.cumsum((1.0 / counts[member.ravel()] / len(counts))[order])
    return np.asarray(size[order][np.minimum(np.searchsorted(reached, levels - 1e-9), len(size) - 1)])


def nested_coverage(errors: Floats, groups: NDArray[Any], *, level: float) -> tuple[float, float, float]:
    """Coverage over runs, coverage over groups and median half width, each group answered by widths made from the others [-]."""
    place = LEVELS.index(level)
    inside, width = np.zeros(len(errors)), np.zeros(len(errors))
    for name in np.unique(groups):
        out = groups == name
        width[out] = widths_of(errors[~out], groups[~out])[place]
        inside[out] = np.abs(errors[out]) <= width[out]
    by_group = [inside[groups == name].mean() for name in np.unique(groups)]
    return float(inside.mean()), float(np.mean(by_group)), float(np.median(width))
