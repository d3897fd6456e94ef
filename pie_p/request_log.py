"""Energy of past work without meters: from when requests started and ended to joules per request.

How many requests ran together is read off their overlapping intervals. Within one,

    tokens      come evenly from start to end
    a moment    with n requests in flight costs what the predictor says of batch n / dp, at the mean lengths of those n
    a prompt    costs its increment at the batch that ran when it came
    the rest    of a busy stretch, beyond what its work takes, is waiting: at idle power, shared by the requests in flight
    idle        no request in flight while the boards were held; no request's

so that requests and idle add up to the total. Where the work would take longer than the stretch lasted, the server was faster than
predicted, and energy falls by what the boards did not idle.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.accounting import Accounting
from pie_p.checks import read_toml
from pie_p.errors import InputError
from pie_p.operating_points import KINDS, OperatingPoints, operating_points
from pie_p.parquet import write_columns
from pie_p.physics import Floats
from pie_p.predictor import Predictor
from pie_p.quantities import as_float, shown
from pie_p.request_log_files import BadRows, LogRows, read_log
from pie_p.storage import write_atomically

SLOW_RATIO: Final = 1.5  # of time in flight to time predicted; beyond, most of what waits is not the engine's
AT_ONCE: Final = 100_000  # places read off the grid together: bounds memory
UNITS: Final = {"start_s": "s", "end_s": "s"} | {f"{kind}_j": "J" for kind in ("energy", *KINDS, "host", "facility")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimatedLog:
    """Energy of every request of a log, and of the boards while they had none."""

    rows: LogRows
    batch: Floats  # requests in flight per data-parallel rank, mean over the request's life [-]
    parts_j: Mapping[str, Floats]  # compute, communication, wait, and host, facility within the scope, per request [J]
    idle_j: Mapping[str, float]  # by deployment, within the scope [J]
    idle_s: Mapping[str, float]  # by deployment [s]
    busy_s: Mapping[str, float]  # by deployment: at least one request in flight [s]
    time_ratio: Mapping[str, float]  # by deployment: busy time over the time predicted for the work [-]
    scope: str
    predictor: Mapping[str, str]
    bad_rows: tuple[BadRows, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def energy_j(self) -> Floats:
        """Energy of each request within the scope [J]."""
        return np.asarray(np.sum(list(self.parts_j.values()), axis=0))

    @property
    def total_j(self) -> float:
        """All requests and idle [J]."""
        return float(self.energy_j.sum()) + sum(self.idle_j.values())

    @property
    def energy_per_output_token_j(self) -> float | None:
        """Energy of requests over output tokens; None without any [J]."""
        tokens = float(self.rows.output_tokens.sum())
        return float(self.energy_j.sum()) / tokens if tokens else None

    def to_dict(self) -> dict[str, Any]:
        """The sums as plain data, as `pie-p estimate-log --json` prints them."""
        return {
            "requests": len(self.rows),
            "bad_rows": [{"reason": one.reason, "count": one.count, "first_line": one.first_line} for one in self.bad_rows],
            "prompt_tokens": float(self.rows.prompt_tokens.sum()),
            "output_tokens": float(self.rows.output_tokens.sum()),
            "total_j": self.total_j,
            "requests_j": float(self.energy_j.sum()),
            "breakdown": {f"{kind}_j": float(values.sum()) for kind, values in self.parts_j.items()},
            "idle_j": sum(self.idle_j.values()),
            "energy_per_output_token_j": self.energy_per_output_token_j,
            "deployments": [
                {
                    "deployment": name,
                    "busy_s": self.busy_s[name],
                    "idle_s": self.idle_s[name],
                    "idle_j": self.idle_j[name],
                    "time_ratio": self.time_ratio[name],
                }
                for name in self.idle_j
            ],
            "scope": self.scope,
            "predictor": dict(self.predictor),
            "warnings": list(self.warnings),
        }

    def save(self, path: str | Path) -> None:
        """Write one row per request into a .parquet, .csv or .jsonl file, whole or not at all.

        Raises:
            InputError: another suffix, or the disk refuses.
        """
        place, rows = Path(path), self.rows
        columns: dict[str, list[Any]] = {
            "id": rows.id,
            "deployment": rows.deployment,
            **{
                name: getattr(rows, name).tolist()
                for name in ("start_s", "end_s", "prompt_tokens", "cached_prompt_tokens", "output_tokens")
            },
            "batch": self.batch.tolist(),
            "energy_j": self.energy_j.tolist(),
            **{f"{kind}_j": values.tolist() for kind, values in self.parts_j.items()},
        }
        suffix = place.suffix.lower()
        if suffix == ".parquet":
            metadata = {"pie_p table": "request_log", "scope": self.scope, "idle_j": repr(sum(self.idle_j.values())), **self.predictor}
            write_columns(place, columns, units=UNITS, metadata=metadata, extra="watch")
        elif suffix in (".csv", ".jsonl"):
            write_atomically(place, _text(columns, suffix).encode(), error=InputError)
        else:
            raise InputError(f"cannot save a log as {shown(str(path))}; its name must end in .parquet, .csv or .jsonl")


def _text(columns: Mapping[str, list[Any]], suffix: str) -> str:
    rows = zip(*columns.values(), strict=True)
    if suffix == ".jsonl":
        return "".join(json.dumps(dict(zip(columns, row, strict=True)), allow_nan=False) + "\n" for row in rows)
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    return text.getvalue()


def estimate_log(
    log: str | Path | LogRows,
    deployment: Mapping[str, Any] | None = None,
    *,
    deployments: str | Path | Mapping[str, Mapping[str, Any]] | None = None,
    jobs: str | Path | LogRows | None = None,
    accounting: Accounting | None = None,
    idle_w: float | None = None,
    predictor: str | Predictor | None = None,
) -> EstimatedLog:
    """Energy of every request of a log.

    Args:
        log: a file that `read_log` reads, or its rows.
        deployment: keyword arguments of `predict_energy` that name the deployment: `llm`, `gpu`, `tp` and so on. Names that rows give are
            then copies of it.
        deployments: the same by the name that rows give, or a TOML file with one table per name.
        jobs: when the boards were held, as a table of jobs (Slurm's `sacct -P`): idle is the time of jobs without a request. By default
            from the first start to the last end.
        accounting: which watts are counted; default GPU boards.
        idle_w: power per board with the server up and nothing to do; default the board's active idle [W].
        predictor: as in `predict_energy`.

    Raises:
        PiePError: in one line, what came, what is allowed and what to do.
    """
    rows = log if isinstance(log, LogRows) else read_log(log)
    held = None if jobs is None else jobs if isinstance(jobs, LogRows) else read_log(jobs, jobs=True)
    idle_w = None if idle_w is None else as_float("idle_w", idle_w, most=1e5)
    known = _known(deployment, deployments, rows)
    names = np.array(rows.deployment, dtype=object)
    foreign = [name not in known for name in rows.deployment]
    bad_rows = list(rows.bad_rows)
    if any(foreign):
        first = foreign.index(True)
        bad_rows.append(BadRows(reason="a deployment that is not described", count=sum(foreign), first_line=rows.lines[first]))
        rows = _only(rows, np.flatnonzero(~np.array(foreign)))
        names = np.array(rows.deployment, dtype=object)
    if not len(rows):
        raise InputError(f"no row names a deployment that is described; described: {', '.join(map(repr, known))}")
    points: dict[str, OperatingPoints] = {}
    filled: dict[str, OperatingPoints] = {}
    for name in dict.fromkeys(rows.deployment):
        key = repr(sorted(known[name].items(), key=lambda item: item[0]))
        filled[key] = points[name] = filled.get(key) or operating_points(known[name], predictor=predictor)
    return _put_together(rows, names, points, held, accounting or Accounting(), idle_w, tuple(bad_rows))


def _known(
    deployment: Mapping[str, Any] | None, deployments: str | Path | Mapping[str, Mapping[str, Any]] | None, rows: LogRows
) -> Mapping[str, Mapping[str, Any]]:
    if (deployment is None) == (deployments is None):
        came = "neither a deployment nor a table of them" if deployment is None else "both a deployment and a table of them"
        raise InputError(f"{came} given; give one: {{'llm': ..., 'gpu': ...}} or a TOML file with a table per name")
    if deployment is not None:
        return dict.fromkeys([*rows.deployment, ""], deployment)
    table = read_toml(deployments) if isinstance(deployments, (str, Path)) else deployments
    assert table is not None
    wrong = next((name for name, entry in table.items() if not isinstance(entry, Mapping) or "llm" not in entry), None)
    if wrong is not None or not table:
        raise InputError(f"{shown(wrong or 'the table')} describes no deployment; give llm, gpu, tp and so on for every name")
    return table


def _only(rows: LogRows, which: NDArray[Any]) -> LogRows:
    numbers = {name: getattr(rows, name)[which] for name in ("start_s", "end_s", "prompt_tokens", "output_tokens", "cached_prompt_tokens")}
    return LogRows(
        **numbers, id=[rows.id[i] for i in which], deployment=[rows.deployment[i] for i in which],
        lines=[rows.lines[i] for i in which], bad_rows=rows.bad_rows,
    )  # fmt: skip


def _put_together(
    rows: LogRows,
    names: NDArray[Any],
    points: Mapping[str, OperatingPoints],
    held: LogRows | None,
    accounting: Accounting,
    idle_w: float | None,
    bad_rows: tuple[BadRows, ...],
) -> EstimatedLog:
    batch = np.zeros(len(rows))
    parts: dict[str, Floats] = {}
    idle_j, idle_s, busy_s, ratio, warnings = {}, {}, {}, {}, []
    for name, costs in points.items():
        own = np.flatnonzero(names == name)
        part = _one(_only(rows, own), costs, accounting, costs.deployment.cluster.gpu.active_idle_w if idle_w is None else idle_w)
        batch[own] = part.batch
        for kind, values in part.parts_j.items():
            parts.setdefault(kind, np.zeros(len(rows)))[own] = values
        spans, outside = _held(held, name, part.busy)
        if outside:
            warnings.append(f"{outside:.0f} s of requests of {name or 'the deployment'} lie outside every job; they count as busy")
        idle_s[name], busy_s[name], ratio[name] = spans, part.busy_s, part.time_ratio
        boards_j = spans * part.idle_w
        idle_j[name] = accounting.breakdown((0.0, 0.0, boards_j), seconds=spans, deployment=costs.deployment).total_j
        if part.busy_s > 0 and part.time_ratio < 0.67:
            warnings.append(f"{name or 'the deployment'} was {1 / part.time_ratio:.1f} times as fast as predicted; is it what ran?")
        if part.time_ratio > SLOW_RATIO:
            slow = f"{part.time_ratio:.1f} times as long as the work takes by prediction; the rest counts as waiting"
            warnings.append(f"{name or 'the deployment'} was busy {slow} (a queue, the network, or it is not what ran)")
    first = next(iter(points.values()))
    return EstimatedLog(
        rows=rows, batch=batch, parts_j=parts, idle_j=idle_j, idle_s=idle_s, busy_s=busy_s, time_ratio=ratio, scope=accounting.scope,
        predictor=first.predictor, bad_rows=bad_rows + (held.bad_rows if held else ()), warnings=tuple(warnings),
    )  # fmt: skip


class _Part(NamedTuple):
    """One deployment's requests."""

    batch: Floats
    parts_j: dict[str, Floats]
    busy: Floats  # stretches with a request in flight, shape (n, 2) [s]
    busy_s: float
    idle_w: float  # of all boards
    time_ratio: float


def _one(rows: LogRows, points: OperatingPoints, accounting: Accounting, idle_w: float) -> _Part:
    deployment = points.deployment
    dp, boards = deployment.plan.dp, deployment.plan.gpus
    flow = _Flow.of(rows)
    per_rank = np.clip(flow.running / dp, 1.0, deployment.engine.graph_sequences)  # more wait in a queue
    at = _read(points, per_rank, flow.mean_prompt, flow.mean_output)
    per_token_j, per_token_s = at[:, :3] / per_rank[:, None], at[:, 3] / per_rank / dp
    rate = rows.output_tokens / (rows.end_s - rows.start_s)
    decode_j = rate[:, None] * np.column_stack([flow.over_life(per_token_j[:, kind]) for kind in range(3)])
    decode_s = rate * flow.over_life(per_token_s)
    came = per_rank[flow.first]
    prompt = _read(points, came, rows.prompt_tokens, rows.output_tokens, new=rows.prompt_tokens - rows.cached_prompt_tokens)
    work_j, work_s = decode_j + prompt[:, 4:7], decode_s + prompt[:, 7] / dp
    stretch = flow.stretch[flow.first]
    count = int(flow.stretch.max()) + 1
    lasted_s = np.bincount(flow.stretch, weights=flow.seconds * (flow.running > 0), minlength=count)
    taken_s, taken_j = (
        np.bincount(stretch, weights=work_s, minlength=count),
        np.bincount(stretch, weights=work_j.sum(axis=1), minlength=count),
    )
    extra_j = (lasted_s - taken_s) * boards * idle_w
    lives_s = np.bincount(stretch, weights=rows.end_s - rows.start_s, minlength=count)
    least_j = np.where(extra_j < 0, np.maximum(taken_j + extra_j, 0.0), taken_j)
    factor = np.minimum(least_j, lasted_s * boards * points.most_power_w) / np.maximum(taken_j, 1e-30)
    parts = work_j * factor[stretch][:, None]
    parts[:, 2] += np.maximum(extra_j, 0.0)[stretch] * (rows.end_s - rows.start_s) / np.maximum(lives_s, 1e-30)[stretch]
    result = dict(zip(KINDS, parts.T, strict=True))
    if accounting.scope != "gpu":
        _add_host(result, flow.over_life(1.0 / np.maximum(flow.running, 1.0)), accounting, points)
    busy_s = float(lasted_s.sum())
    return _Part(
        batch=flow.over_life(flow.running) / (rows.end_s - rows.start_s) / dp,
        parts_j=result,
        busy=flow.busy(),
        busy_s=busy_s,
        idle_w=boards * idle_w,
        time_ratio=busy_s / float(taken_s.sum()) if taken_s.sum() > 0 else 1.0,
    )


def _add_host(parts: dict[str, Floats], seconds: Floats, accounting: Accounting, points: OperatingPoints) -> None:
    """Host and site: per second in equal shares to the requests in flight, per joule to who drew it."""
    deployment = points.deployment
    idle = accounting.breakdown((0.0, 0.0, 0.0), seconds=1.0, deployment=deployment)
    boards_j = np.sum(list(parts.values()), axis=0)
    parts["host"] = (idle.host_j or 0.0) * seconds + deployment.cluster.host_load_fraction * boards_j
    if accounting.scope == "facility":
        parts["facility"] = ((accounting.pue or 1.0) - 1.0) * (boards_j + parts["host"])


def _read(points: OperatingPoints, batch: Floats, prompt: Floats, output: Floats, *, new: Floats | None = None) -> Floats:
    """The eight figures at many places, a part of them at a time."""
    found = []
    for first in range(0, len(batch), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        costs = points.at(batch[part], prompt[part], output[part], new_prompt_tokens=None if new is None else new[part])
        found.append(np.column_stack([costs.step_j, costs.step_s, costs.prompt_j, costs.prompt_s]))
    return np.concatenate(found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Flow:
    """Requests in flight over time: segments between one start or end and the next."""

    edges: Floats  # times, rising [s]
    seconds: Floats  # length of each segment [s]
    running: Floats  # requests in flight [-]
    mean_prompt: Floats  # of those [-]
    mean_output: Floats  # of those [-]
    stretch: NDArray[np.int64]  # which busy stretch a segment belongs to; idle ones to the stretch before
    first: NDArray[np.int64]  # for each request the segment it starts with
    last: NDArray[np.int64]  # for each request the segment after its last

    @classmethod
    def of(cls, rows: LogRows) -> _Flow:
        """From starts and ends."""
        edges = np.unique(np.concatenate([rows.start_s, rows.end_s]))
        first, last = np.searchsorted(edges, rows.start_s), np.searchsorted(edges, rows.end_s)

        def summed(values: Floats) -> Floats:
            change = np.bincount(first, weights=values, minlength=len(edges)) - np.bincount(last, weights=values, minlength=len(edges))
            return np.cumsum(change)[:-1]

        running = np.round(summed(np.ones(len(rows))))
        shared = np.maximum(running, 1.0)
        begins = (running > 0) & (np.concatenate([[0.0], running[:-1]]) == 0)
        return cls(
            edges=edges,
            seconds=np.diff(edges),
            running=running,
            mean_prompt=np.maximum(summed(rows.prompt_tokens) / shared, 1.0),
            mean_output=np.maximum(summed(rows.output_tokens) / shared, 1.0),
            stretch=np.maximum(np.cumsum(begins) - 1, 0),
            first=first,
            last=last,
        )

    def over_life(self, per_second: Floats) -> Floats:
        """Integral of a figure per segment over each request's life."""
        total = np.concatenate([[0.0], np.cumsum(per_second * self.seconds)])
        return np.asarray(total[self.last] - total[self.first])

    def busy(self) -> Floats:
        """Stretches with a request in flight, shape (n, 2) [s]."""
        on = np.concatenate([[0.0], (self.running > 0).astype(np.float64), [0.0]])
        change = np.diff(on)
        return np.column_stack([self.edges[change > 0], self.edges[change < 0]])


def _held(held: LogRows | None, name: str, busy: Floats) -> tuple[float, float]:
    """Idle seconds of the boards, and seconds of requests outside every job."""
    if held is None:
        return float(busy[-1, 1] - busy[0, 0] - np.sum(busy[:, 1] - busy[:, 0])), 0.0
    own = np.array([one in (name, "") or not name for one in held.deployment])
    if not own.any():
        raise InputError(f"no job of deployment {name!r} in the table of jobs; its deployments: {', '.join(sorted(set(held.deployment)))}")
    spans = _union(np.column_stack([held.start_s[own], held.end_s[own]]))
    inside = _overlap(spans, busy)
    return float(np.sum(spans[:, 1] - spans[:, 0])) - inside, float(np.sum(busy[:, 1] - busy[:, 0])) - inside


def _union(spans: Floats) -> Floats:
    spans = spans[np.argsort(spans[:, 0])]
    reach = np.maximum.accumulate(spans[:, 1])
    begins = np.concatenate([[True], spans[1:, 0] > reach[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.column_stack([spans[begins, 0], reach[ends]])


def _overlap(a: Floats, b: Floats) -> float:
    """Seconds that two lists of rising, disjoint stretches have in common."""
    edges = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    middles = (edges[:-1] + edges[1:]) / 2

    def inside(spans: Floats) -> NDArray[np.bool_]:
        begun, ended = (np.searchsorted(spans[:, side], middles, side="right") for side in (0, 1))
        return np.asarray(begun > ended)

    return float(np.sum(np.diff(edges)[inside(a) & inside(b)]))
