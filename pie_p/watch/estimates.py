"""Estimates: joules of a window, from what one engine did in it and what the predictor says that costs.

The work is known from counters: G tokens were made and R prompts read. At a batch of B they took G / B steps, so

    energy    = G / B * step_j + R * prompt_j          from the predictor, at the batch and lengths observed
    busy time = G / B * step_s + R * prompt_s          predicted, then corrected by measured time where the server gives it
    idle time = the rest, at idle power

B is tokens over engine steps where the server counts steps: a burst between two scrapes is then seen. Else it is what the gauges say at
both ends, and at least what the latencies add up to. Where time differs from what was predicted, the work's energy stays and the
difference is spent, or saved, at idle power.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import Final

import numpy as np

from pie_p.accounting import Accounting
from pie_p.energy import EnergyBreakdown
from pie_p.operating_points import Costs, OperatingPoints
from pie_p.physics import Floats
from pie_p.watch.windows import Window

ASSUMED_PROMPT_TOKENS: Final = 512.0  # until the server's counters say better [-]
ASSUMED_OUTPUT_TOKENS: Final = 256.0  # [-]
MEMORY_REQUESTS: Final = 64.0  # requests whose lengths are remembered [-]
MEMORY_S: Final = 60.0  # seconds for which measured time is remembered [s]
LEAST_RATIO, MOST_RATIO = 0.2, 5.0  # of measured to predicted time; beyond, the deployment named is not the one that runs


@dataclass(slots=True)
class Habits:
    """What the recent requests of an engine were like: means that fade."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    finished: float = 0.0
    output_tokens: float = 0.0
    measured_s: float = 0.0
    predicted_s: float = 0.0
    unmade_tokens: float = 0.0  # counted, but not yet in a window, where tokens count when a request ends; negative: the other way round

    def learn(self, window: Window) -> None:
        """Let a window in; older ones fade with every request."""
        read = window.prompts if window.live_tokens and window.new_prompt_tokens is not None else window.finished
        if read and window.prompt_tokens is not None:
            kept = exp(-read / MEMORY_REQUESTS)
            self.requests = self.requests * kept + read
            self.prompt_tokens = self.prompt_tokens * kept + window.prompt_tokens
            self.cached_tokens = self.cached_tokens * kept + window.cached_tokens
        if window.finished is not None and window.output_tokens is not None:
            kept = exp(-window.finished / MEMORY_REQUESTS)
            self.finished = self.finished * kept + window.finished
            self.output_tokens = self.output_tokens * kept + window.output_tokens

    def time(self, *, measured_s: float, predicted_s: float, over_s: float) -> None:
        """Let a measured time in beside the predicted one; older ones fade with the seconds."""
        kept = exp(-over_s / MEMORY_S)
        self.measured_s, self.predicted_s = self.measured_s * kept + measured_s, self.predicted_s * kept + predicted_s

    @property
    def prompt(self) -> float:
        """Mean prompt [tokens]."""
        return self.prompt_tokens / self.requests if self.requests >= 1.0 and self.prompt_tokens > 0 else ASSUMED_PROMPT_TOKENS

    @property
    def cached_share(self) -> float:
        """Share of the prompt found in the prefix cache [-]."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens > 0 else 0.0

    @property
    def output(self) -> float:
        """Mean output [tokens]."""
        return self.output_tokens / self.finished if self.finished >= 1.0 and self.output_tokens > 0 else ASSUMED_OUTPUT_TOKENS

    @property
    def time_ratio(self) -> float:
        """Measured over predicted time; 1 where nothing was measured [-]."""
        if self.predicted_s <= 0.0 or self.measured_s <= 0.0:
            return 1.0
        return min(max(self.measured_s / self.predicted_s, LEAST_RATIO), MOST_RATIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Energy of one engine in one window, within the scope. The parts of `busy` and `idle_j` add up to the total."""

    seconds: float  # [s]
    busy_s: float  # in which requests ran [s]
    busy: EnergyBreakdown  # of the requests [J]
    idle_j: float  # boards, and host and site within the scope, while nothing ran; no request's [J]
    batch: float  # running requests per data-parallel rank while busy; 0 when idle [-]
    time_ratio: float  # measured over predicted time [-]
    prompt_tokens: float  # read [-]
    output_tokens: float  # made [-]

    @property
    def energy_j(self) -> float:
        """All of it [J]."""
        return self.busy.total_j + self.idle_j

    @property
    def power_w(self) -> float:
        """Mean power [W]."""
        return self.energy_j / self.seconds

    def parts_j(self) -> dict[str, float]:
        """Energy by kind [J]; host and facility where the scope counts them."""
        return {name.removesuffix("_j"): value for name, value in self.busy.to_dict().items()} | {"idle": self.idle_j}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """Windows of one deployment to joules."""

    points: OperatingPoints
    accounting: Accounting = field(default_factory=Accounting)
    idle_w: float | None = None  # per board with the server up and nothing to do; default the board's active idle [W]

    @property
    def board_idle_w(self) -> float:
        """Idle power per board [W]."""
        return self.points.deployment.cluster.gpu.active_idle_w if self.idle_w is None else self.idle_w

    def estimate(self, window: Window, habits: Habits, *, ranks: float) -> Estimate:
        """Energy of one window; what the window teaches about lengths and times goes into `habits`.

        Args:
            window: what the engine did.
            habits: what its recent requests were like.
            ranks: data-parallel ranks that the window speaks for [-].
        """
        habits.learn(window)
        told = window.live_tokens and window.output_tokens is not None
        work = _counted(self, window, habits, ranks) if told else _sampled(self, window, habits, ranks)
        boards = ranks * self.points.gpus_per_rank
        energy_j = _at_measured_time(
            work.energy_j, extra_j=(work.busy_s - work.predicted_s) * boards * self.board_idle_w,
            most_j=work.busy_s * boards * self.points.most_power_w,
        )  # fmt: skip
        deployment = self.points.deployment
        part = ranks / deployment.plan.dp  # of the deployment's hosts
        compute_j, communication_j, wait_j = map(float, energy_j)
        idle_s = max(0.0, window.seconds - work.busy_s)
        idle = self.accounting.breakdown((0.0, 0.0, idle_s * boards * self.board_idle_w), seconds=idle_s * part, deployment=deployment)
        return Estimate(
            seconds=window.seconds,
            busy_s=work.busy_s,
            busy=self.accounting.breakdown((compute_j, communication_j, wait_j), seconds=work.busy_s * part, deployment=deployment),
            idle_j=idle.total_j,
            batch=work.batch if work.busy_s > 0 else 0.0,
            time_ratio=habits.time_ratio,
            prompt_tokens=window.prompt_tokens or 0.0,
            output_tokens=window.output_tokens or 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Predicted energy of what was done, the time predicted for it and the time it took."""

    energy_j: Floats  # compute, communication, wait [J]
    predicted_s: float
    busy_s: float
    batch: float


def _at_measured_time(energy_j: Floats, *, extra_j: float, most_j: float) -> Floats:
    """Energy when the work took longer (the boards wait, idle) or shorter; never more than the boards can draw in that time."""
    total = float(energy_j.sum())
    if extra_j >= 0.0:
        energy_j = energy_j + np.array([0.0, 0.0, extra_j])
    elif total > 0.0:
        energy_j = energy_j * max(0.0, 1.0 + extra_j / total)
    total = float(energy_j.sum())
    return energy_j * (most_j / total) if total > most_j else energy_j


def _counted(estimator: Estimator, window: Window, habits: Habits, ranks: float) -> _Work:
    """Work of an engine that counts tokens as it makes them."""
    tokens = window.output_tokens or 0.0
    prompts = window.prompts if window.prompts is not None else tokens / habits.output
    batch = _batch(window, ranks)
    new = (
        window.new_prompt_tokens / prompts
        if window.new_prompt_tokens is not None and prompts
        else habits.prompt * (1 - habits.cached_share)
    )
    costs = estimator.points.at(batch, habits.prompt, habits.output, new_prompt_tokens=new)
    steps = tokens / batch  # of all ranks together
    predicted_s = (steps * float(costs.step_s) + prompts * float(costs.prompt_s)) / ranks
    _learn_time(
        window, habits, costs, batch=batch, prompts_per_step=prompts / steps if steps else 0.0, predicted_s=predicted_s, ranks=ranks
    )
    busy_s = min(window.seconds, predicted_s * habits.time_ratio)
    if window.busy_s:
        busy_s = min(window.seconds, max(window.busy_s / ranks, 0.0))
    if tokens and window.waiting and min(window.waiting) > 0 and window.running and min(window.running) > 0:
        busy_s = window.seconds  # a queue at both ends: there was always something to do
    return _Work(energy_j=steps * costs.step_j + prompts * costs.prompt_j, predicted_s=predicted_s, busy_s=busy_s, batch=batch)


def _batch(window: Window, ranks: float) -> float:
    """Running requests per rank while the engine is busy, at least 1 [-]."""
    if window.steps:
        return max(1.0, (window.step_tokens or 0.0) / window.steps)
    ends = [count / ranks for count in window.running or () if count > 0]
    decoding = (window.itl_sum_s or 0.0) / window.seconds / ranks
    return max(1.0, sum(ends) / len(ends) if ends else 0.0, decoding)


def _learn_time(
    window: Window, habits: Habits, costs: Costs, *, batch: float, prompts_per_step: float, predicted_s: float, ranks: float
) -> None:
    """Measured beside predicted: the GPU's own seconds, else the time between tokens (others' prompts included, one's own not)."""
    if window.busy_s:
        habits.time(measured_s=window.busy_s / ranks, predicted_s=predicted_s, over_s=window.seconds)
    elif window.itl_count and window.itl_sum_s:
        between_s = float(costs.step_s) + prompts_per_step * float(costs.prompt_s) * (1.0 - 1.0 / batch)
        habits.time(measured_s=window.itl_sum_s, predicted_s=window.itl_count * between_s, over_s=window.seconds)


def _sampled(estimator: Estimator, window: Window, habits: Habits, ranks: float) -> _Work:
    """Work of an engine that counts tokens only when requests end: what ended, and what those that run have made by now.

    A running request is taken to be half done, so tokens made are tokens counted plus half an output for every request that more run than
    before: over time the sum is exact. What cannot have been made in this window waits for the next. Where tokens are not counted at all
    the gauges alone say how busy the engine was.
    """
    ends = window.running or (0.0, 0.0)
    up = sum(end > 0 for end in ends)
    batch = max(1.0, sum(ends) / max(1, up) / ranks)
    costs = estimator.points.at(batch, habits.prompt, habits.output, new_prompt_tokens=habits.prompt * (1 - habits.cached_share))
    if window.itl_count and window.itl_sum_s:
        habits.time(measured_s=window.itl_sum_s, predicted_s=window.itl_count * _cycle_s(costs, batch, habits), over_s=window.seconds)
    if window.output_tokens is None:
        tokens = window.seconds * up / 2 / habits.time_ratio / _cycle_s(costs, batch, habits) * batch * ranks
    else:
        tokens = max(0.0, window.output_tokens + (ends[1] - ends[0]) * habits.output / 2 + habits.unmade_tokens)
        habits.unmade_tokens += window.output_tokens + (ends[1] - ends[0]) * habits.output / 2 - tokens
        if not up:  # all came and went since the last scrape: the smallest batch that gets them done
            batch = max(1.0, tokens * _cycle_s(costs, 1.0, habits) / ranks / window.seconds)
            costs = estimator.points.at(batch, habits.prompt, habits.output)
    cycle_s = _cycle_s(costs, batch, habits)
    most = window.seconds / habits.time_ratio / cycle_s * batch * ranks  # tokens that fit the window
    if tokens > most:
        habits.unmade_tokens, tokens = habits.unmade_tokens + min(tokens - most, MEMORY_REQUESTS * habits.output), most
    steps, prompts = tokens / batch, tokens / habits.output
    predicted_s = steps * cycle_s / ranks
    busy_s = min(window.seconds, predicted_s * habits.time_ratio)
    return _Work(energy_j=steps * costs.step_j + prompts * costs.prompt_j, predicted_s=predicted_s, busy_s=busy_s, batch=batch)


def _cycle_s(costs: Costs, batch: float, habits: Habits) -> float:
    """One step with its share of prompts [s]."""
    return float(costs.step_s) + batch / habits.output * float(costs.prompt_s)
