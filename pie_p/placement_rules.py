"""Placement rules that need no solver: one system for all, round robin, random, and the greedy online rule with a queue."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from pie_p.errors import InputError
from pie_p.physics import Floats
from pie_p.placement_problem import PlacementProblem, Whole


def rule_choices(problem: PlacementProblem, *, seed: int) -> Iterator[tuple[str, Whole]]:
    """Name and system of every request, for each rule that knows nothing of the workload."""
    requests, many = len(problem), len(problem.systems)
    for number, system in enumerate(problem.systems):
        yield f"all on {system.name}", np.full(requests, number, dtype=np.int64)
    yield "round robin", np.arange(requests, dtype=np.int64) % many
    yield "random", np.random.default_rng(seed).integers(0, many, size=requests)


def assign_online(problem: PlacementProblem, *, penalty: float) -> tuple[Whole, Floats]:
    """System and wait of every request, one after the other in order of arrival.

    Raises:
        InputError: a request that every system takes too long for.
    """
    stuck = np.flatnonzero(~problem.allowed.any(axis=1))
    if len(stuck):
        raise InputError(
            f"max_latency_s: {problem.prompt_tokens[stuck[0]]:g} prompt and {problem.output_tokens[stuck[0]]:g} output tokens take "
            f"longer than {problem.max_latency_s:g} s on every system; raise max_latency_s, or add a faster system"
        )
    cost = np.where(problem.allowed, problem.cost, np.inf).tolist()
    time_s, arrivals = problem.time_s.tolist(), problem.trace.arrival_s.tolist()
    weight = penalty / float(problem.time_s.max())
    free_s = [[0.0] * each.slots for each in problem.systems]  # heaps: when each slot is free again
    system, wait_s = np.empty(len(problem), dtype=np.int64), np.empty(len(problem))
    for number, (kind, now_s) in enumerate(zip(problem.type_of.tolist(), arrivals, strict=True)):
        waits = [max(slots[0] - now_s, 0.0) for slots in free_s]
        prices = [price + weight * wait for price, wait in zip(cost[kind], waits, strict=True)]
        chosen = prices.index(min(prices))
        heapq.heapreplace(free_s[chosen], now_s + waits[chosen] + time_s[kind][chosen])
        system[number], wait_s[number] = chosen, waits[chosen]
    return system, wait_s
