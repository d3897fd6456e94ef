"""Watcher: scrapes in, moments out. It holds what was last read from every engine, and knows what a gap or a restart means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any, Final

from pie_p.accounting import Accounting
from pie_p.errors import InputError
from pie_p.operating_points import OperatingPoints
from pie_p.watch.dialects import LOSSES, Role
from pie_p.watch.estimates import ASSUMED_OUTPUT_TOKENS, Estimate, Estimator, Habits
from pie_p.watch.ledger import Ledger, Place, Totals
from pie_p.watch.readings import Reading, read_metrics
from pie_p.watch.windows import Window, between

LONGEST_BRIDGE_S: Final = 300.0  # a gap of up to this is estimated from the counters on both sides of it [s]
SHORTEST_S: Final = 1e-3  # two scrapes closer than this are one [s]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One engine between two scrapes, with the estimate."""

    place: Place
    wall_s: float  # end, in seconds since 1970 [s]
    window: Window
    estimate: Estimate
    bridged: bool  # the server did not answer in between
    gauges: Mapping[Role, float]  # at the end


@dataclass(slots=True)
class _Engine:
    """What is remembered of one engine between scrapes."""

    values: Mapping[Role, float]
    at_s: float
    habits: Habits


@dataclass(slots=True)
class Server:
    """One address: whether it answers, what it lacks, and its engines."""

    up: bool = False
    failures: int = 0  # since the watcher started [-]
    last_failure: str = ""
    missed: bool = False  # at least one scrape failed since the last answer
    dialect: str = ""
    missing: Mapping[Role, str] = field(default_factory=dict)
    moments: dict[Place, Moment] = field(default_factory=dict)
    engines: dict[Place, _Engine] = field(default_factory=dict)


class Watcher:
    """Estimates one deployment's energy from what its servers say about themselves.

    Several addresses are several copies of the deployment. Fetching is not done here: `take` gets what a server answered, `miss` that
    it did not. Both are safe to call beside readers in other threads that hold `lock`.

    Args:
        points: costs of the deployment, from `operating_points`.
        accounting: which watts are counted; default GPU boards.
        idle_w: power per board with the server up and nothing to do; default the board's active idle [W].
        served_name: the LLM to follow where an address serves several.
        state: file through which the sums survive a restart of the watcher.
        wall_s: time of the start in seconds since 1970; with a state file the time since its last save counts as unknown [s].
        on_moment: called with every moment.

    Raises:
        InputError: a state file that cannot be gone on with, or not be written.
    """

    def __init__(
        self,
        points: OperatingPoints,
        *,
        accounting: Accounting | None = None,
        idle_w: float | None = None,
        served_name: str | None = None,
        state: Path | None = None,
        wall_s: float | None = None,
        on_moment: Callable[[Moment], None] | None = None,
    ) -> None:
        self.estimator = Estimator(points=points, accounting=accounting or Accounting(), idle_w=idle_w)
        self.served_name, self.state, self.on_moment = served_name, state, on_moment
        self.servers: dict[str, Server] = {}
        self.not_kept = ""  # why sums or rows could not be written last time
        self.lock = RLock()
        self.identity = identity(points, self.estimator.accounting)
        self.ledger = Ledger(self.identity) if state is None else Ledger.load(state, self.identity)
        if wall_s is not None and self.ledger.saved_s is not None:
            for totals in self.ledger.totals.values():
                totals.unknown_s += max(0.0, wall_s - self.ledger.saved_s)
        if wall_s is not None:
            self.save(wall_s=wall_s)  # a path that cannot be written is told before anything is watched

    def take(self, server: str, text: str, *, now_s: float, wall_s: float) -> list[Moment]:
        """Let in what a server answered.

        Args:
            server: its address, as it shall be shown.
            text: the exposition.
            now_s: time on a clock that never jumps [s].
            wall_s: time in seconds since 1970, for tables [s].

        Raises:
            InputError: the text is no exposition of a known server; nothing changed, and the caller says `miss` if it gives up.
        """
        with self.lock:
            reading = read_metrics(text, served_name=self.served_name)
            ranks = self._ranks(server, reading)
            known = self.servers.setdefault(server, Server())
            known.dialect, known.missing = reading.dialect.server, reading.missing
            moments = []
            for key, values in reading.series.items():
                place = Place(server, *key)
                moment = self._advance(known, place, values, reading, ranks=ranks, now_s=now_s, wall_s=wall_s)
                moments += [moment] if moment else []
            self._drop_vanished(known, {Place(server, *key) for key in reading.series}, now_s)
            known.up, known.missed = True, False
        self._keep(moments, wall_s)
        return moments

    def _keep(self, moments: list[Moment], wall_s: float) -> None:
        """State file and rows. A disk that refuses is no fault of the server: it is remembered, and the watching goes on."""
        with self.lock:
            self.not_kept = _refused(self.save, wall_s=wall_s)
        for moment in moments if self.on_moment else ():
            self.not_kept = _refused(self.on_moment, moment) or self.not_kept

    def miss(self, server: str, reason: str, *, now_s: float) -> None:
        """A scrape failed: its engines have no power to show, and time beyond `LONGEST_BRIDGE_S` counts as unknown."""
        with self.lock:
            known = self.servers.setdefault(server, Server())
            known.up, known.missed, known.last_failure = False, True, reason
            known.failures += 1
            known.moments.clear()
            for place, engine in known.engines.items():
                if now_s - engine.at_s > LONGEST_BRIDGE_S:
                    self._forget(place, engine, now_s)

    def save(self, *, wall_s: float) -> None:
        """Write the state file, where there is one; before the sums are shown, so that they never fall back."""
        if self.state is not None:
            self.ledger.save(self.state, wall_s=wall_s)

    def losses(self) -> list[tuple[str, str, str]]:
        """Server, metric and what is lost, for everything the servers do not give."""
        with self.lock:
            return [(name, metric, LOSSES[role]) for name, one in self.servers.items() for role, metric in one.missing.items()]

    def totals(self) -> Totals:
        """Sums over all engines."""
        whole = Totals()
        with self.lock:
            for one in self.ledger.totals.values():
                for kind, joules in one.energy_j.items():
                    whole.energy_j[kind] = whole.energy_j.get(kind, 0.0) + joules
                for name in ("prompt_tokens", "output_tokens", "seconds", "busy_s", "bridged_s", "unknown_s", "resets"):
                    setattr(whole, name, getattr(whole, name) + getattr(one, name))
        return whole

    def to_dict(self) -> dict[str, Any]:
        """Sums over all engines, what they are for, and what is missing, as plain data."""
        totals = self.totals()
        points = self.estimator.points
        return {
            **self.identity,
            "engine": str(points.deployment.engine),
            "predictor": dict(points.predictor),
            "energy_j": dict(totals.energy_j),
            "total_j": totals.total_j,
            "energy_per_output_token_j": totals.busy_j / totals.output_tokens if totals.output_tokens else None,
            "prompt_tokens": totals.prompt_tokens,
            "output_tokens": totals.output_tokens,
            "observed_s": totals.seconds,
            "busy_s": totals.busy_s,
            "bridged_s": totals.bridged_s,
            "unknown_s": totals.unknown_s,
            "restarts": int(totals.resets),
            "scrape_failures": sum(server.failures for server in self.servers.values()),
            "missing": [{"server": server, "metric": metric, "lost": lost} for server, metric, lost in self.losses()],
        }

    def _ranks(self, server: str, reading: Reading) -> float:
        dp, engines = self.estimator.points.deployment.plan.dp, len(reading.series)
        if dp % engines:
            raise InputError(f"{server} shows {engines} engines, but dp = {dp}; give dp = {engines}, or a multiple of it")
        return dp / engines

    def _advance(
        self, known: Server, place: Place, values: Mapping[Role, float], reading: Reading, *, ranks: float, now_s: float, wall_s: float
    ) -> Moment | None:
        engine = known.engines.get(place)
        if engine is None:
            known.engines[place] = _Engine(values, now_s, _habits_so_far(values))
            self.ledger.of(place)
            return None
        if now_s - engine.at_s < SHORTEST_S:
            return None
        totals = self.ledger.of(place)
        window = between(engine.values, values, seconds=now_s - engine.at_s, dialect=reading.dialect)
        engine.values, engine.at_s = values, now_s
        totals.resets += 1 if window.resets else 0
        if known.missed and (window.resets or window.seconds > LONGEST_BRIDGE_S):
            totals.unknown_s += window.seconds
            return None
        estimate = self.estimator.estimate(window, engine.habits, ranks=ranks)
        totals.add(estimate, bridged=known.missed)
        moment = Moment(place=place, wall_s=wall_s, window=window, estimate=estimate, bridged=known.missed, gauges=_gauges(values))
        known.moments[place] = moment
        return moment

    def _drop_vanished(self, known: Server, seen: set[Place], now_s: float) -> None:
        for place in set(known.engines) - seen:
            known.moments.pop(place, None)
            if known.engines[place].at_s < now_s - LONGEST_BRIDGE_S:
                self._forget(place, known.engines[place], now_s)

    def _forget(self, place: Place, engine: _Engine, now_s: float) -> None:
        """Count the time since the last look as unknown, and begin anew from here: whatever comes back, this time is not estimated."""
        self.ledger.of(place).unknown_s += now_s - engine.at_s
        engine.at_s = now_s


def _refused(write: Callable[..., None] | None, *what: Any, **how: Any) -> str:
    """Why something could not be written; empty where it could."""
    try:
        if write:
            write(*what, **how)
    except InputError as error:
        return str(error)
    return ""


def identity(points: OperatingPoints, accounting: Accounting) -> dict[str, Any]:
    """What the sums are for: the deployment and the scope."""
    deployment = points.deployment
    plan = deployment.plan
    return {
        "llm": deployment.llm.name,
        "gpu": deployment.cluster.gpu.name,
        "cluster": deployment.cluster.name,
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "ep": plan.ep,
        "dtype": deployment.dtype,
        "scope": accounting.scope,
        "pue": accounting.pue,
    }


def _habits_so_far(values: Mapping[Role, float]) -> Habits:
    """Mean lengths over the server's life, as its first reading tells them."""
    habits = Habits()
    prompts = values.get("finished") or values.get("first_tokens") or 0.0
    if prompts >= 1.0:
        habits.requests = habits.finished = 1.0
        habits.prompt_tokens = values.get("prompt_tokens", 0.0) / prompts
        habits.cached_tokens = min(values.get("cached_tokens", 0.0) / prompts, habits.prompt_tokens)
        habits.output_tokens = values.get("output_tokens", ASSUMED_OUTPUT_TOKENS * prompts) / prompts
    return habits


def _gauges(values: Mapping[Role, float]) -> dict[Role, float]:
    shown: tuple[Role, ...] = ("running", "waiting", "kv_usage")
    return {role: values[role] for role in shown if role in values}
