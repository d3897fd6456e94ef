"""The constants that profiles of operators, collectives and waits measure directly: no serving run is needed for them.

- shares and floors of the roofline from times of operators and collectives; demands of the power law from their powers;
- `jitter` from waits at meetings: order statistics say how far the last of g ranks lags (`expected_lag`), the profile says how much of the
  work before that was; the base of the distribution is `spread = jitter x work`, its mean wait `jitter x expected_lag(g) x work`;
- `jitter_skew` from the quantiles of those waits: the shape of the distribution (`pie_p.lateness`);
- the demand of a rank that waits from the power of waiting; launch and host gaps where they were measured.

What a profile does not hold keeps its prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from pie_p.features import Columns, featurize
from pie_p.fitting import Physics
from pie_p.hardware import Cluster, gpu_names, load_cluster
from pie_p.lateness import LEVELS, fitted_skew
from pie_p.least_squares import least_squares
from pie_p.operators import COLLECTIVES, KINDS, Operator
from pie_p.physics import Floats, Roofline, soft_cap
from pie_p.power import PowerLaw
from pie_p.profiles import load_tables
from pie_p.serving import ServingCosts, expected_lag
from pie_p.tables import COUNTED, Table

LEAST_ROWS: Final = 8  # of one kind, before its constants move
PRIOR_WEIGHT: Final = 0.02  # of one e-fold away from a prior, beside a relative error of a row
TIME: Final[dict[str, frozenset[str]]] = {  # constants, and the kinds whose rows tell them
    "weight_share": frozenset({"linear", "lm_head"}),
    "flop_share": frozenset({"linear", "lm_head"}),
    "linear_floor_s": frozenset({"linear", "lm_head", "router"}),
    "low_flop_share": frozenset({"linear", "lm_head"}),
    "kv_share": frozenset({"attention_decode"}),
    "attention_flop_share": frozenset({"attention_prefill"}),
    "attention_floor_s": frozenset({"attention_decode", "attention_prefill"}),
    "expert_share": frozenset({"experts"}),
    "expert_flop_share": frozenset({"experts"}),
    "low_expert_flop_share": frozenset({"experts"}),
    "expert_floor_s": frozenset({"experts"}),
    "activation_share": frozenset({"norm", "activation", "embedding", "scan"}),
    "other_floor_s": frozenset({"norm", "activation", "embedding", "scan"}),
    "link_share": COLLECTIVES,
    "collective_floor_s": COLLECTIVES,
}
POWER: Final[dict[str, frozenset[str]]] = {
    "kernel": frozenset(KINDS) - COLLECTIVES,
    "weight": frozenset({"linear", "lm_head"}),
    "expert_weight": frozenset({"experts"}),
    "kv": frozenset({"attention_decode"}),
    "activation": frozenset({"norm", "activation", "embedding", "scan"}),
    "flop": frozenset({"linear", "lm_head"}),
    "expert_flop": frozenset({"experts"}),
    "attention_flop": frozenset({"attention_prefill", "attention_decode"}),
    "flop_exponent": frozenset({"linear", "lm_head"}),
    "collective": COLLECTIVES,
    "link": COLLECTIVES,
}
Constants = TypeVar("Constants", Roofline, PowerLaw)


def constants_of(
    profiles: Sequence[str | Path], *, start: Physics | None = None, time_only: bool = False, with_simulated: bool = False
) -> Physics:
    """Constants fitted to the rows of profiles, each as far as there are rows that tell it.

    Args:
        profiles: folders.
        start: priors; default those of the package.
        time_only: powers keep their priors, even where there are some.
        with_simulated: simulated rows beside others.

    Raises:
        ProfileError: a profile that cannot be read, or simulated ones among others.
    """
    prior = start or Physics(roofline=Roofline(), costs=ServingCosts(), power=PowerLaw())
    tables = [load_tables(profiles, name, with_simulated=with_simulated) for name in ("operators", "collectives")]
    waits = known(load_tables(profiles, "waits", with_simulated=with_simulated))
    roofline, law = prior.roofline, prior.power
    for table in tables:
        part = known(table)
        part = part.select(np.isin(part["kind"], KINDS))
        if len(part):
            columns = columns_of(part)
            roofline = _fitted_time(roofline, part, columns)
            law = law if time_only else _fitted_power(law, part, columns)
    law = law if time_only else replace(law, wait=_waiting_demand(waits, law.wait))
    return Physics(roofline=roofline, costs=wait_costs(waits, prior.costs), power=law)


def known(table: Table) -> Table:
    """Rows of boards that are in the catalogue; those of a CPU host are not."""
    return table.select(np.isin(table["gpu"], gpu_names()))


def columns_of(table: Table) -> Columns:
    """Rows of `operators` or `collectives` as the columns of a prediction."""
    names = [name for name in COUNTED if name in Operator._fields]
    rows = [Operator(**_exact(dict(zip(names, values, strict=True)))) for values in zip(*(table[name] for name in names), strict=True)]
    places = [f"{gpu} {int(hosts)}" for gpu, hosts in zip(table["gpu"], table["hosts"], strict=True)]
    keys, which = np.unique(np.array(places, dtype=str), return_inverse=True)
    return featurize(rows, [_cluster(*key.split()) for key in keys], which)


def _exact(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "group_size": int(fields["group_size"]), "hosts": int(fields["hosts"])}


def _cluster(gpu: str, hosts: str) -> Cluster:
    one = load_cluster(gpu)
    return one if hosts == "1" else load_cluster(gpu, gpus=int(hosts) * one.gpus_per_host)


def _fitted_time(roofline: Roofline, table: Table, columns: Columns) -> Roofline:
    def errors(moved: Roofline) -> Floats:
        return np.log(moved.time_s(columns) / table["time_s"])

    return _fitted(roofline, _told(TIME, table, np.ones(len(table), dtype=bool)), errors)


def _fitted_power(law: PowerLaw, table: Table, columns: Columns) -> PowerLaw:
    measured = np.isfinite(table["power_w"])
    part, own = table.select(measured), {name: values[measured] for name, values in columns.items()}
    idle_w, limit_w = own["active_idle_w"], own["limit_w"]

    def errors(moved: PowerLaw) -> Floats:
        most = (moved.ceiling * limit_w - idle_w) / (limit_w - idle_w)
        share = soft_cap(np.maximum(moved.demand(own, part["time_s"]), 1e-6), most, knee=moved.knee)
        return np.log((idle_w + (limit_w - idle_w) * share) / part["power_w"])

    return _fitted(law, _told(POWER, table, measured), errors)


def _told(telling: Mapping[str, frozenset[str]], table: Table, which: NDArray[np.bool_]) -> list[str]:
    """Constants that enough rows tell."""
    kinds = table["kind"][which]
    return [name for name, own in telling.items() if np.isin(kinds, list(own)).sum() >= LEAST_ROWS]


def _fitted(start: Constants, names: Sequence[str], errors: Any) -> Constants:
    """The constants whose named fields, multiplied by factors, make the errors least."""
    if not names:
        return start

    def moved(logs: Floats) -> Constants:
        return replace(start, **{name: getattr(start, name) * float(np.exp(log)) for name, log in zip(names, logs, strict=True)})

    logs = least_squares(lambda logs: np.concatenate([errors(moved(logs)), PRIOR_WEIGHT * logs]), len(names))
    return moved(logs)


def wait_costs(waits: Table, prior: ServingCosts) -> ServingCosts:
    """Host and launch costs, and jitter, from measured waits.

    A host gap that was measured as a whole holds everything the host does in a step, so the parts of it that a serving run would tell apart
    are none.
    """
    changed: dict[str, float] = {}
    skew = waits.select((waits["cause"] == "skew") & np.isfinite(waits["preceding_s"]) & (waits["group_size"] > 1))
    if len(skew):
        lag_s = skew["preceding_s"] * expected_lag(skew["group_size"])
        changed["jitter"] = float(np.median(skew["mean_s"] / lag_s))
        changed["jitter_skew"] = _lateness_skew(skew)
    launch, host = (waits.select(waits["cause"] == cause) for cause in ("launch_gap", "host_gap"))
    if len(launch):
        changed["launch_s"] = float(np.average(launch["mean_s"], weights=launch["count"]))
    if len(host):
        changed["step_s"] = float(np.average(host["mean_s"], weights=host["count"]))
        changed |= dict.fromkeys(("dispatch_s", "dispatch_step_s", "sequence_s", "overlapped_sequence_s", "prompt_s"), 0.0)
    return prior._replace(**changed)


def _lateness_skew(skew: Table) -> float:
    """Shape of the ranks' lateness from the quantiles of their waits; a quantile beyond which fewer than one wait lies says nothing."""
    figures, weights = [], []
    for row in skew.iter_rows():
        for level in LEVELS:
            ratio = row[f"p{100 * level:.0f}_s"] / row["mean_s"] if row["mean_s"] > 0 else 0.0
            if row["count"] * (1.0 - level) >= 1.0 and np.isfinite(ratio):
                figures.append((level, int(row["group_size"]), float(ratio)))
                weights.append(float(np.sqrt(row["count"] * (1.0 - level))))
    return fitted_skew(figures, weights)


def _waiting_demand(waits: Table, prior: float) -> float:
    """Share of the room that a waiting rank draws, over the time that was waited."""
    measured = waits.select(np.isfinite(waits["power_w"]) & (waits["count"] * waits["mean_s"] > 0))
    if not len(measured):
        return prior
    boards = {name: load_cluster(name).gpu for name in set(measured["gpu"])}
    idle_w, limit_w = (np.array([getattr(boards[name], figure) for name in measured["gpu"]]) for figure in ("active_idle_w", "limit_w"))
    shares = (measured["power_w"] - idle_w) / (limit_w - idle_w)
    return max(0.0, float(np.average(shares, weights=measured["count"] * measured["mean_s"])))
