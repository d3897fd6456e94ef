"""Placement solver: the integer program behind a placement, solved with HiGHS through scipy, and why it has no answer where it has none.

1. The linear relaxation. Without a limit on slot seconds the program is a flow of whole requests through systems and LLMs, so its corner
   is whole, and that is the optimum.
2. Where it is not whole, a core of requests that nearly tie between systems is decided exactly, all others stay where the relaxation put
   them: a good placement, of cost U.
3. A pair of request and system whose reduced cost exceeds U minus the relaxation's cost is in no better placement. Branch and bound over
   the pairs that are left finds the optimum and proves it, or says when time is up how far off it may be.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.physics import Floats
from pie_p.placement_problem import SLACK_S, PlacementProblem, Whole

SAMPLE: Final = 1500  # request types whose relaxation is solved in one piece [-]
CORE: Final = 60  # request types that are decided together in step 2 [-]
CORE_SHARE: Final = 0.25  # of the time limit, for step 2
WHOLE: Final = 1e-5  # a number of requests so near a whole one is it

# What may be taken away from a problem, and what to change when that makes it feasible.
RELAXATIONS: Final = {
    "max_latency_s": "raise max_latency_s, or add a faster system",
    "within_s": "give more time (within_s), more slots, or another system",
    "coverage": "give coverage=False",
    "least_share": "lower least_share",
    "most_share": "raise most_share",
}


class Solved(NamedTuple):
    """Requests per type and system, and what is proven about them."""

    placed: Whole
    objective: float
    bound: float  # no placement within the limits costs less [-]


class _Relaxed(NamedTuple):
    """The linear relaxation's answer."""

    requests: Floats  # (types, systems)
    bound: float  # its cost: no placement costs less [-]
    reduced: Floats  # (types, systems): what one request there would add to the bound; infinite where none may go [-]
    prices: Floats  # of the limits and of the slot seconds: what one more request or second would be worth [-]


def solve(problem: PlacementProblem, *, time_limit_s: float) -> Solved:
    """The placement of least cost, or the best one that was found in time, with what is proven about it.

    Raises:
        InputError: no placement keeps the limits (the text names the one to change), or none was found in time.
        MissingExtraError: scipy is not installed (extra `place`).
    """
    _refuse_late(problem)
    smaller, kind_of = _merged(problem)
    solved = _solve(smaller, time_limit_s=time_limit_s)
    return solved if smaller is problem else solved._replace(placed=_split(problem, kind_of, solved.placed))


def _merged(problem: PlacementProblem) -> tuple[PlacementProblem, Whole]:
    """Types that cost the same on every system as one, where seconds do not matter: at zeta = 0 all of them."""
    looks = np.concatenate([problem.cost, problem.allowed], axis=1)
    _, first, kind_of = np.unique(looks, axis=0, return_index=True, return_inverse=True)
    if problem.within_s is not None or len(first) == len(looks):
        return problem, np.arange(len(looks))
    return _some(problem, first, np.bincount(kind_of.ravel(), weights=problem.counts).astype(np.int64)), kind_of.ravel()


def _split(problem: PlacementProblem, kind_of: Whole, placed: Whole) -> Whole:
    """A placement of merged types, spread over the types themselves."""
    order = np.argsort(kind_of, kind="stable")
    types = np.repeat(order, problem.counts[order])
    systems = np.repeat(np.tile(np.arange(placed.shape[1]), len(placed)), placed.ravel())
    spread = np.zeros(problem.cost.shape, dtype=np.int64)
    np.add.at(spread, (types, systems), 1)
    return spread


def _some(problem: PlacementProblem, which: Whole, counts: NDArray[Any]) -> PlacementProblem:
    """The problem of some types, with other counts, at the same costs."""
    parts: dict[str, Any] = {
        name: getattr(problem, name)[which] for name in ("prompt_tokens", "output_tokens", "energy_j", "time_s", "accuracy")
    }
    fewer = replace(problem, counts=counts, **parts)
    vars(fewer)["cost"] = problem.cost[which]  # scaled by the largest values of all
    return fewer


def _solve(problem: PlacementProblem, *, time_limit_s: float) -> Solved:
    end_s = time.monotonic() + time_limit_s
    relaxed = _relax(problem)
    if relaxed is None:
        raise InputError(_why(problem))
    placed = _whole(problem, relaxed.requests)
    if placed is not None:
        objective = problem.objective(placed)
        return Solved(placed, objective, min(relaxed.bound, objective))
    second = np.partition(relaxed.reduced, 1, axis=1)[:, 1]  # more than one system: else the relaxation were whole
    near = np.sort(second)[min(CORE, len(second)) - 1]
    core = problem.allowed & (second <= near)[:, None] | (relaxed.requests > WHOLE)
    first = _branch(problem, core, time_limit_s=CORE_SHARE * time_limit_s)
    least = np.inf if first is None else first.objective
    open_pairs = problem.allowed & (relaxed.reduced <= least - relaxed.bound + 1e-9 * abs(relaxed.bound))
    last = _branch(problem, open_pairs, time_limit_s=max(end_s - time.monotonic(), 0.1 * time_limit_s))
    found = min((each for each in (first, last) if each is not None), key=lambda each: each.objective, default=None)
    if found is None:
        raise InputError(f"no placement was found in {time_limit_s:g} s, and none may exist; give a larger time_limit_s, or looser limits")
    proven = relaxed.bound if last is None else max(relaxed.bound, last.bound)
    return found._replace(bound=min(proven, found.objective))


def _refuse_late(problem: PlacementProblem) -> None:
    late = np.flatnonzero(~problem.allowed.any(axis=1))
    if len(late):
        first = late[0]
        raise InputError(
            f"max_latency_s: {int(problem.counts[late].sum())} requests take longer than {problem.max_latency_s:g} s on every system; the "
            f"first has {problem.prompt_tokens[first]:g} prompt and {problem.output_tokens[first]:g} output tokens and takes "
            f"{problem.time_s[first].min():g} s on the fastest; {RELAXATIONS['max_latency_s']}"
        )


class _Rows(NamedTuple):
    """The program over some pairs of type and system: types with one pair are settled, and `least <= matrix @ x <= most` for the rest.

    The first rows are one per type that has a choice, the others couple them: limits, then slot seconds.
    """

    settled: Floats  # (types, systems): requests of types without a choice
    types: Whole  # those with a choice
    pairs: tuple[Whole, Whole]
    matrix: Any  # sparse
    least: Floats
    most: Floats


def _rows(problem: PlacementProblem, open_pairs: NDArray[np.bool_]) -> _Rows:
    sparse = require("scipy.sparse", extra="place")
    choice = open_pairs.sum(axis=1) > 1
    settled = np.where(open_pairs & ~choice[:, None], problem.counts[:, None], 0).astype(np.float64)
    types = np.flatnonzero(choice)
    own, systems = np.nonzero(open_pairs[types])
    kinds, unknowns = types[own], len(own)
    rows: list[Any] = [sparse.csr_array((np.ones(unknowns), (own, np.arange(unknowns))), shape=(len(types), unknowns))]
    least, most = problem.counts[types].tolist(), problem.counts[types].tolist()
    for limit in problem.limits:
        rows.append(sparse.csr_array(limit.systems[systems].astype(np.float64)[None, :]))
        there = settled[:, limit.systems].sum()
        least.append(limit.least - there)
        most.append(limit.most - there)
    for system in np.flatnonzero(np.isfinite(problem.seconds)):
        time_s = problem.time_s[:, system]
        rows.append(sparse.csr_array(np.where(systems == system, time_s[kinds], 0.0)[None, :]))
        least.append(-np.inf)
        most.append(problem.seconds[system] - float(settled[:, system] @ time_s))
    matrix = sparse.vstack(rows, format="csr")
    return _Rows(settled, types, (kinds, systems), matrix, np.array(least, dtype=np.float64), np.array(most, dtype=np.float64))


def _relax(problem: PlacementProblem) -> _Relaxed | None:
    """The linear relaxation at a corner; None where there is no placement.

    Few rows couple the types, so most types go where they are cheapest at the right prices of those rows. Prices come from a sample; the
    types nearest to a tie are solved for; whoever would rather go elsewhere at the new prices joins them, until nobody would.
    """
    types = len(problem.counts)
    if types <= SAMPLE:
        return _corner(problem, problem.allowed)
    sampled = _corner(_sample(problem), problem.allowed[_places(types)])
    priced = _adjusted(problem, None if sampled is None else sampled.prices)
    place, second = priced.argmin(axis=1), np.partition(priced, 1, axis=1)
    closeness, many = second[:, 1] - second[:, 0], SAMPLE
    free = np.zeros(types, dtype=np.bool_)
    free[np.argsort(closeness, kind="stable")[:many]] = True
    while True:
        only = np.zeros_like(problem.allowed)
        only[np.arange(types), place] = True
        relaxed = _corner(problem, np.where(free[:, None], problem.allowed, only))
        if relaxed is None and free.all():
            return None
        before = int(free.sum())
        if relaxed is None:
            many *= 4
            free[np.argsort(closeness, kind="stable")[:many]] = True
            continue
        free |= (relaxed.reduced < -1e-9 * np.abs(problem.cost).max()).any(axis=1)
        if int(free.sum()) == before:
            return relaxed


def _places(types: int) -> Whole:
    return np.unique(np.linspace(0, types - 1, SAMPLE).astype(np.int64))


def _sample(problem: PlacementProblem) -> PlacementProblem:
    """Some types that stand for all; counts are whole no longer, which the relaxation bears."""
    some = _places(len(problem.counts))
    return _some(problem, some, problem.counts[some] * (len(problem) / problem.counts[some].sum()))


def _adjusted(problem: PlacementProblem, prices: Floats | None) -> Floats:
    """Costs less what the coupling rows pay; infinite where none may go."""
    cost = np.where(problem.allowed, problem.cost, np.inf)
    if prices is None:
        return cost
    for limit, price in zip(problem.limits, prices, strict=False):
        cost = cost - price * limit.systems
    for system, price in zip(np.flatnonzero(np.isfinite(problem.seconds)), prices[len(problem.limits) :], strict=True):
        cost[:, system] -= price * problem.time_s[:, system]
    return cost


def _corner(problem: PlacementProblem, open_pairs: NDArray[np.bool_]) -> _Relaxed | None:
    """The relaxation over these pairs, with the reduced costs of all pairs at its prices; None where there is no placement."""
    optimize, sparse = require("scipy.optimize", extra="place"), require("scipy.sparse", extra="place")
    settled, types, pairs, matrix, least, most = _rows(problem, open_pairs)
    own = len(types)
    if not own:
        held = ((least <= 0.0) & (most >= -SLACK_S)).all()
        return _Relaxed(settled, float((problem.cost * settled).sum()), _adjusted(problem, None), np.zeros(len(least))) if held else None
    at_least = np.flatnonzero(np.isfinite(least[own:])) + own
    answer = optimize.linprog(
        problem.cost[pairs],
        A_eq=matrix[:own],
        b_eq=most[:own],
        A_ub=sparse.vstack([matrix[own:], -matrix[at_least]], format="csr"),
        b_ub=np.concatenate([most[own:], -least[at_least]]),
        method="highs-ds",
    )
    if answer.status != 0:
        return None
    prices = np.array(answer.ineqlin.marginals[: len(most) - own])
    prices[at_least - own] -= answer.ineqlin.marginals[len(most) - own :]
    adjusted, at = _adjusted(problem, prices), settled.argmax(axis=1)
    worth = adjusted[np.arange(len(at)), at]
    worth[types] = answer.eqlin.marginals
    requests = settled.copy()
    requests[pairs] = answer.x
    return _Relaxed(requests, float((problem.cost * requests).sum()), adjusted - worth[:, None], prices)


def _branch(problem: PlacementProblem, open_pairs: NDArray[np.bool_], *, time_limit_s: float) -> Solved | None:
    """The best placement that uses these pairs alone; None where none was found."""
    optimize = require("scipy.optimize", extra="place")
    settled, types, pairs, matrix, least, most = _rows(problem, open_pairs)
    if not len(types):
        placed = _whole(problem, settled)
        return None if placed is None else Solved(placed, problem.objective(placed), problem.objective(placed))
    answer = optimize.milp(
        problem.cost[pairs],
        integrality=np.ones(len(pairs[0])),
        bounds=optimize.Bounds(0.0, problem.counts[pairs[0]].astype(np.float64)),
        constraints=[optimize.LinearConstraint(matrix, least, most)],
        options={"mip_rel_gap": 0.0, "time_limit": time_limit_s},
    )
    if answer.x is None:
        return None
    settled_cost = float((problem.cost * settled).sum())
    settled[pairs] = answer.x
    placed = _whole(problem, settled)
    return None if placed is None else Solved(placed, problem.objective(placed), settled_cost + float(answer.mip_dual_bound))


def _whole(problem: PlacementProblem, requests: Floats) -> Whole | None:
    """The same in whole requests, checked against every limit; None where it is not whole."""
    placed = np.rint(requests).astype(np.int64)
    if np.abs(placed - requests).max() > WHOLE or (placed.sum(axis=1) != problem.counts).any() or problem.broken(placed):
        return None
    return placed


def _why(problem: PlacementProblem) -> str:
    """The limits without which there is a placement."""
    names = [name for name in RELAXATIONS if _without(problem, name) is not problem]
    guilty = [name for name in names if _relax(_without(problem, name)) is not None]
    if not guilty:
        return f"no placement keeps the limits ({', '.join(names)}), and no single one of them is the cause; loosen several"
    reached = "; or ".join(f"{name}: {RELAXATIONS[name]}" for name in guilty)
    return f"no placement of {len(problem)} requests on {len(problem.systems)} systems keeps every limit; {reached}"


def _without(problem: PlacementProblem, name: str) -> PlacementProblem:
    """The problem without one kind of limit; itself where it has none of that kind."""
    if name == "max_latency_s":
        return problem if problem.max_latency_s is None else replace(problem, max_latency_s=None)
    if name == "within_s":
        return problem if problem.within_s is None else replace(problem, within_s=None)
    kept = tuple(limit for limit in problem.limits if limit.kind != name)
    return problem if len(kept) == len(problem.limits) else replace(problem, limits=kept)
