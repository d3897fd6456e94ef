"""Measurements as rows of a profile. What was not measured is NaN; every row names the board by its UUID."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from pie_p.operators import COLLECTIVES, Operator
from pie_p.profile_manifest import Conditions
from pie_p.profiling.environment import Environment
from pie_p.profiling.measurement import Measurement
from pie_p.profiling.meters import Origin as MeterOrigin
from pie_p.profiling.waits import Distribution
from pie_p.tables import Origin, Table, TableName, schema_of

ORIGIN: Final[dict[MeterOrigin, Origin]] = {"measured": "measured", "replayed": "measured", "simulated": "simulated", "absent": "measured"}


def digest(signature: str) -> str:
    """Twelve hex digits that stand for a signature in a row.

    >>> digest("")
    'e3b0c44298fc'
    """
    return hashlib.sha256(signature.encode()).hexdigest()[:12]


def operator_table(operator: Operator, measured: Measurement, *, gpu: str, source: str, kernel_source: str = "torch") -> Table:
    """One row of `operators` or `collectives`."""
    meter = measured.environment.meter
    shares = f"spread={measured.spread:.4f}"
    ratio = "" if measured.counter_ratio is None else f",counter_ratio={measured.counter_ratio:.4f}"
    name: TableName = "collectives" if operator.kind in COLLECTIVES else "operators"
    counted = {column.name for column in schema_of(name)}
    columns = {
        **{field: value for field, value in operator._asdict().items() if field in counted},
        "time_s": measured.time_s,
        "spread_s": measured.spread_s,
        "power_w": np.nan if measured.power_w is None else measured.power_w,
        "power_limit_w": measured.environment.state.limit_w or np.nan,
        "samples": float(sum(trial.calls for trial in measured.trials)),
        "gpu": gpu,
        "engine": "torch",
        "engine_version": measured.environment.torch,
        "kernel_source": kernel_source,
        "detail": f"uuid={meter.uuid},signature={digest(measured.signature)},{shares}{ratio}",
        "origin": ORIGIN[meter.origin],
        "source": source,
    }
    return Table.from_columns(name, columns)


def wait_table(
    *,
    cause: str,
    wait: Distribution,
    group_size: int,
    gpu: str,
    origin: Origin,
    source: str,
    kind: str = "",
    payload_bytes: float = 0.0,
    preceding: str = "",
    preceding_s: float = np.nan,
    power_w: float | None = None,
    detail: str = "",
) -> Table:
    """One row of `waits`: one distribution.

    Args:
        cause: "skew", "bubble", "launch_gap" or "host_gap".
        wait: the distribution.
        group_size: ranks that meet [-].
        gpu: catalogue name.
        origin: measured or simulated.
        source: the campaign's name.
        kind: collective the ranks wait at.
        payload_bytes: one rank's [B].
        preceding: kind of the work before.
        preceding_s: mean time of that work [s].
        power_w: of a waiting board [W]; None: not measured.
        detail: key=value pairs.
    """
    columns = {
        "cause": cause,
        "kind": kind,
        "preceding": preceding,
        "preceding_s": preceding_s,
        "group_size": float(group_size),
        "payload_bytes": payload_bytes,
        "mean_s": wait.mean_s,
        "p50_s": wait.p50_s,
        "p90_s": wait.p90_s,
        "p99_s": wait.p99_s,
        "spread_s": wait.spread_s,
        "count": float(wait.count),
        "power_w": np.nan if power_w is None else power_w,
        "gpu": gpu,
        "detail": detail,
        "origin": origin,
        "source": source,
    }
    return Table.from_columns("waits", columns)


def conditions(environment: Environment, *, gpu: str, sampler_period_s: float | None = None, notes: str = "") -> Conditions:
    """The conditions of a campaign, for its manifest."""
    state, meter = environment.state, environment.meter
    joins = sorted({join for others in environment.topology.values() for join in others.values()})
    return Conditions(
        gpu=gpu,
        topology=", ".join(joins) or None,
        driver=meter.driver or None,
        cuda=environment.cuda or None,
        nccl=environment.nccl or None,
        torch=environment.torch or None,
        sm_clock_hz=state.sm_clock_hz,
        memory_clock_hz=state.memory_clock_hz,
        power_limit_w=state.limit_w,
        least_temperature_c=state.temperature_c,
        most_temperature_c=state.temperature_c,
        sampler_period_s=sampler_period_s,
        sampler_field=None if meter.origin == "absent" else f"instant, scope {meter.scope}",
        notes=notes or None,
    )
