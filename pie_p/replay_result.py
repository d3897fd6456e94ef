"""Replay: the answer, a trace served by a fleet - times and joules of every request, what was idle, power over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_p.accounting import Scope
from pie_p.energy import EnergyBreakdown
from pie_p.physics import Floats
from pie_p.replay_energy import Attribution
from pie_p.replay_files import frame_of_columns, save_replay
from pie_p.replay_hosting import Hosted, Routing
from pie_p.replay_view import html_of
from pie_p.traces import RequestTrace


@dataclass(frozen=True, kw_only=True, eq=False)
class PowerBins:
    """Power over the time of a replay."""

    start_s: Floats  # of each bin, on the trace's clock [s]
    width_s: Floats  # the last may be shorter [s]
    power_w: Floats  # shape (bins, engines): of one GPU of each engine, mean over the bin; boards only [W]
    in_flight: Floats  # requests in flight, waiting ones included, mean over the bin [-]
    busy: Floats  # share of the GPU-time with a request in flight [-]

    def to_columns(self) -> dict[str, Any]:
        """One column per figure, one power column per engine."""
        powers = {f"power_w_engine_{number}": self.power_w[:, number] for number in range(self.power_w.shape[1])}
        return {"start_s": self.start_s, "width_s": self.width_s, "in_flight": self.in_flight, "busy": self.busy, **powers}


@dataclass(frozen=True, kw_only=True, eq=False)
class Replay:
    """A trace served by a fleet: times and joules of every request, what was idle, and power over time. Arrays are in order of arrival."""

    trace: RequestTrace
    fleet: tuple[Hosted, ...]
    engine: NDArray[np.int64]  # that served each request, counted through the fleet [-]
    queue_s: Floats  # from arrival to the start of its first iteration [s]
    ttft_s: Floats  # from arrival to the first token, waiting included [s]
    tpot_s: Floats  # (last token - first token) / (output tokens - 1); NaN below two output tokens [s]
    latency_s: Floats  # from arrival to the last token [s]
    compute_j: Floats  # of each request [J]
    communication_j: Floats
    wait_j: Floats
    host_j: Floats | None  # None where the scope does not count it
    facility_j: Floats | None
    preemptions: NDArray[np.int64]  # times each request gave way and was read again [-]
    idle_j: float  # of GPUs with no request in flight, within the scope; no request's [J]
    duration_s: float  # from the first arrival to the last token [s]
    iterations: int  # engine steps [-]
    segments: int  # runs of like steps they were simulated in [-]
    decoded_tokens: int  # output tokens served, counted in the engines [-]
    prefilled_tokens: int  # prompt tokens read, counted in the engines, those read again included [-]
    bins: PowerBins
    scope: Scope
    routing: Routing
    attribution: Attribution
    predictor: Mapping[str, str]
    warnings: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.engine)

    @property
    def gpus(self) -> int:
        """Boards of the fleet [-]."""
        return sum(one.gpus for one in self.fleet)

    @property
    def request_j(self) -> Floats:
        """Energy that each request answers for, within the scope [J]."""
        total = self.compute_j + self.communication_j + self.wait_j
        return total + (0.0 if self.host_j is None else self.host_j) + (0.0 if self.facility_j is None else self.facility_j)

    @property
    def breakdown(self) -> EnergyBreakdown:
        """All requests together, idle not among them."""
        return EnergyBreakdown(
            compute_j=float(self.compute_j.sum()),
            communication_j=float(self.communication_j.sum()),
            wait_j=float(self.wait_j.sum()),
            host_j=None if self.host_j is None else float(self.host_j.sum()),
            facility_j=None if self.facility_j is None else float(self.facility_j.sum()),
        )

    @property
    def energy_j(self) -> float:
        """Energy of the fleet: all requests and what was idle [J]."""
        return self.breakdown.total_j + self.idle_j

    @property
    def energy_per_output_token_j(self) -> float:
        """Energy of all requests over their output tokens; idle is not in it [J]."""
        return self.breakdown.total_j / float(self.trace.output_tokens.sum())

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens over the duration [1/s]."""
        return float(self.trace.output_tokens.sum()) / self.duration_s

    @property
    def avg_power_w(self) -> float:
        """Mean power of the fleet within the scope [W]."""
        return self.energy_j / self.duration_s

    def to_columns(self) -> dict[str, Any]:
        """One column per figure of the requests."""
        columns: dict[str, Any] = {name: getattr(self.trace, name) for name in ("arrival_s", "prompt_tokens", "output_tokens")}
        names = ("engine", "queue_s", "ttft_s", "tpot_s", "latency_s", "preemptions", "compute_j", "communication_j", "wait_j")
        columns |= {name: getattr(self, name) for name in names}
        columns |= {name: getattr(self, name) for name in ("host_j", "facility_j") if getattr(self, name) is not None}
        return columns | {"energy_j": self.request_j}

    def to_frame(self) -> Any:
        """Requests as a pandas DataFrame, or as an Arrow table where pandas is missing."""
        return frame_of_columns(self.to_columns())

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain data; units are in the keys."""
        return {
            "trace": self.trace.name,
            "requests": len(self),
            "fleet": [one.to_dict() for one in self.fleet],
            "gpus": self.gpus,
            "scope": self.scope,
            "routing": self.routing,
            "attribution": self.attribution,
            "duration_s": self.duration_s,
            "energy_j": self.energy_j,
            "idle_j": self.idle_j,
            "breakdown": self.breakdown.to_dict(),
            "energy_per_request_j": self.breakdown.total_j / len(self),
            "energy_per_output_token_j": self.energy_per_output_token_j,
            "avg_power_w": self.avg_power_w,
            "output_tokens_per_s": self.output_tokens_per_s,
            "request_j": _quantiles(self.request_j),
            "queue_s": _quantiles(self.queue_s),
            "ttft_s": _quantiles(self.ttft_s),
            "tpot_s": _quantiles(self.tpot_s[~np.isnan(self.tpot_s)]),
            "latency_s": _quantiles(self.latency_s),
            "preemptions": int(self.preemptions.sum()),
            "iterations": self.iterations,
            "segments": self.segments,
            "bad_rows": [str(rows) for rows in self.trace.bad_rows],
            "warnings": list(self.warnings),
            "predictor": dict(self.predictor),
        }

    def save(self, folder: str | Path, *, form: str = "csv") -> None:
        """Write requests, power bins and the summary into a folder, each file whole or not at all.

        Args:
            folder: made when it is not there.
            form: "csv" or "parquet".

        Raises:
            InputError: another form, or the disk refuses.
            MissingExtraError: Parquet without pyarrow.
        """
        save_replay(folder, requests=self.to_columns(), bins=self.bins.to_columns(), summary=self.to_dict(), form=form)

    def _repr_html_(self) -> str:
        return html_of(self.to_dict())


def _quantiles(values: Floats) -> dict[str, float] | None:
    if not len(values):
        return None
    p50, p90, p99 = (float(one) for one in np.percentile(values, [50, 90, 99]))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}
