"""Placement: which system should answer which request, so that energy and accuracy are weighed as you wish, proven best or beside a bound.

from pie_p import place, predict_system, synthetic_trace
small = predict_system("llama-3.1-8b", gpu="l40s-48gb", batch=16, accuracy=0.66)
large = predict_system("llama-3.1-70b", gpu="h100-sxm-80gb", tp=4, batch=32, accuracy=0.79)
best = place(synthetic_trace(requests=200, rate_per_s=2, prompt_tokens=500, output_tokens=100), [small, large], zeta=0.6)
best.energy_j, best.gap
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError
from pie_p.frames import frame_of
from pie_p.placement_problem import PlacementProblem, Whole, make_problem
from pie_p.placement_rules import assign_online, rule_choices
from pie_p.placement_solver import solve
from pie_p.quantities import as_float, as_int
from pie_p.storage import write_atomically
from pie_p.systems import System
from pie_p.traces import RequestTrace

COLUMNS: Final = ("request", "arrival_s", "prompt_tokens", "output_tokens", "system", "llm", "energy_j", "time_s", "wait_s")
PROVEN: Final = 1e-9  # relative gap below which nothing is left but rounding


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Placement:
    """A system for every request, with what it costs and what is known about better ones.

    Energy and time are what the systems' fits say; waiting in a queue is counted where the rule that placed them sees one.
    """

    problem: PlacementProblem
    rule: str  # "integer program", "greedy", "round robin", ...
    system: Whole  # place in `problem.systems`, one per request
    bound: float  # no placement within the limits has a lower objective [-]
    broken: tuple[str, ...] = ()  # limits that it breaks, in words
    wait_s: NDArray[np.float64] | None = None  # in a queue, one per request; None where the rule knows no queue [s]

    def __len__(self) -> int:
        return len(self.system)

    def __repr__(self) -> str:
        return f"<Placement by {self.rule} of {len(self)} requests on {len(self.problem.systems)} systems: {self.energy_j:g} J>"

    @property
    def feasible(self) -> bool:
        """Whether it keeps every limit."""
        return not self.broken

    @property
    def objective(self) -> float:
        """What is made least: energy against accuracy, each over its largest value, summed over requests [-]."""
        return self.problem.objective(self.problem.counted(self.system))

    @property
    def gap(self) -> float:
        """How far the objective may be above the least one, relative; 0 is proven best [-]."""
        over = max(self.objective - self.bound, 0.0)
        gap = over / max(abs(self.bound), 1e-300)
        return 0.0 if gap <= PROVEN else gap

    @property
    def request_j(self) -> NDArray[np.float64]:
        """Joules of every request [J]."""
        return self.problem.energy_j[self.problem.type_of, self.system]

    @property
    def request_s(self) -> NDArray[np.float64]:
        """Seconds of every request in service [s]."""
        return self.problem.time_s[self.problem.type_of, self.system]

    @property
    def energy_j(self) -> float:
        """Joules of all requests [J]."""
        return float(self.request_j.sum())

    @property
    def mean_accuracy(self) -> float | None:
        """Mean accuracy of the LLMs that answer, over requests; None where one is not known."""
        given = [self.problem.systems[number].accuracy for number in np.unique(self.system)]
        if None in given:
            return None
        accuracy = np.array([np.nan if each.accuracy is None else each.accuracy for each in self.problem.systems])
        return float(accuracy[self.system].mean())

    def counts(self) -> dict[str, int]:
        """Requests per system."""
        counted = np.bincount(self.system, minlength=len(self.problem.systems)).tolist()
        return dict(zip((each.name for each in self.problem.systems), counted, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain data; the requests themselves are in `rows`."""
        return {
            "rule": self.rule,
            "zeta": self.problem.zeta,
            "requests": len(self),
            "types": len(self.problem.counts),
            "feasible": self.feasible,
            "broken": list(self.broken),
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "energy_j": self.energy_j,
            "mean_accuracy": self.mean_accuracy,
            "mean_time_s": float(self.request_s.mean()),
            "mean_wait_s": None if self.wait_s is None else float(self.wait_s.mean()),
            "counts": self.counts(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One row per request, units in the names."""
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        trace, systems = self.problem.trace, self.problem.systems
        waits: list[float | None] = [None] * len(self) if self.wait_s is None else self.wait_s.tolist()
        columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens, self.system, self.request_j, self.request_s)
        for number, (cells, wait_s) in enumerate(zip(zip(*(each.tolist() for each in columns), strict=True), waits, strict=True)):
            arrival_s, prompt, output, place, energy_j, time_s = cells
            values = (number, arrival_s, prompt, output, systems[place].name, systems[place].llm, energy_j, time_s, wait_s)
            yield dict(zip(COLUMNS, values, strict=True))

    def to_frame(self) -> Any:
        """The rows as a pandas DataFrame, or an Arrow table where pandas is missing.

        Raises:
            MissingExtraError: neither is installed.
        """
        return frame_of(COLUMNS, self.rows())

    def save(self, path: str | Path) -> None:
        """Write the rows as .csv, or figures and rows as .json; whole or not at all.

        Raises:
            InputError: another suffix, or the disk refuses.
        """
        place_of, suffix = Path(path), Path(path).suffix.lower()
        if suffix not in (".csv", ".json"):
            raise InputError(f"cannot save a placement as {str(path)!r:.200}: its suffix must be .csv or .json")
        if suffix == ".json":
            content = json.dumps(self.to_dict() | {"rows": self.rows()}, indent=1, allow_nan=False)
        else:
            text = io.StringIO(newline="")
            table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(self._rows())
            content = text.getvalue()
        write_atomically(place_of, content.encode(), error=InputError)


def place(
    trace: RequestTrace,
    systems: Sequence[System],
    *,
    zeta: float = 0.5,
    coverage: bool = True,
    least_share: Mapping[str, float] | None = None,
    most_share: Mapping[str, float] | None = None,
    max_latency_s: float | None = None,
    within_s: float | None = None,
    weigh_tokens: bool = False,
    time_limit_s: float = 60.0,
) -> Placement:
    """The placement of least cost, by an integer program (Wilkins et al., arXiv 2407.04014) that knows every request before it starts.

    Args:
        trace: requests; arrivals do not matter here.
        systems: where they may go; several may host one LLM.
        zeta: 1 makes energy least, 0 accuracy largest, in between the sum of both over their largest values is weighed [-].
        coverage: every LLM answers at least one request.
        least_share: of all requests that an LLM must answer, by LLM [-].
        most_share: of all requests that an LLM may answer, by LLM [-].
        max_latency_s: no request goes where it takes longer in service [s].
        within_s: each system serves at most `slots` times so many seconds of requests [s].
        weigh_tokens: accuracy counts per token, as in the paper, and not per request.
        time_limit_s: after that long the best placement found is the answer, with its gap; loosely kept [s].

    Raises:
        InputError: no placement keeps the limits, and which one is the cause; or a value that cannot be.
        MissingExtraError: scipy is not installed (extra `place`).
    """
    problem = make_problem(
        trace, systems, zeta=zeta, coverage=coverage, least_share=least_share, most_share=most_share, max_latency_s=max_latency_s,
        within_s=within_s, weigh_tokens=weigh_tokens,
    )  # fmt: skip
    solved = solve(problem, time_limit_s=as_float("time_limit_s", time_limit_s, above=True, most=1e6))
    return Placement(problem=problem, rule="integer program", system=problem.spelled_out(solved.placed), bound=solved.bound)


def baselines(problem: PlacementProblem, *, bound: float | None = None, seed: int = 0) -> list[Placement]:
    """Placements that know nothing of the workload: all on one system, round robin, random. Each says which limits it breaks.

    Args:
        problem: of a `Placement`.
        bound: a proven one (`Placement.bound`); default the sum of every request's least cost.
        seed: of the random one.
    """
    least = problem.lower_bound if bound is None else bound
    return [
        Placement(problem=problem, rule=rule, system=system, bound=least, broken=problem.broken(problem.counted(system)))
        for rule, system in rule_choices(problem, seed=as_int("seed", seed, least=0, most=10**18))
    ]


def place_online(problem: PlacementProblem, *, penalty: float = 1.0, bound: float | None = None) -> Placement:
    """The greedy rule that knows only the past: each request, as it comes, goes where cost and queue are least together.

        cost(q, s) + penalty * wait(s) / largest service time

    A system serves `slots` requests at once, the others wait in order. Coverage and shares are not looked after; `broken` says.

    Args:
        problem: of a `Placement`; its arrivals matter here.
        penalty: weight of waiting as long as the longest request takes; 0 knows no queue [-].
        bound: a proven one (`Placement.bound`); default the sum of every request's least cost.

    Raises:
        InputError: a penalty that cannot be, or a request too slow for every system.
    """
    system, wait_s = assign_online(problem, penalty=as_float("penalty", penalty))
    return Placement(
        problem=problem,
        rule="greedy",
        system=system,
        wait_s=wait_s,
        bound=problem.lower_bound if bound is None else bound,
        broken=problem.broken(problem.counted(system)),
    )
