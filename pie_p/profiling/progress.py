"""How far a campaign is, and whether the next point still fits into its time box."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pie_p.profiling.clocks import Clock
from pie_p.profiling.measurement import Procedure


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a campaign is."""

    done: int  # measured or rejected, earlier runs included
    total: int
    rejected: int
    left_s: float | None  # until the end, at the pace so far; None before the first point
    now: str  # the point that was just finished

    def __str__(self) -> str:
        left = "?" if self.left_s is None else f"{self.left_s / 60:.1f} min"
        return f"{self.done}/{self.total} points, {self.rejected} rejected, {left} left: {self.now}"


OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class TimeBox:
    """Points are begun as long as one like those before would end inside the box; without one, always."""

    clock: Clock
    budget_s: float | None
    first_s: float  # what the first point is expected to take [s]
    costs_s: list[float] = field(default_factory=list)
    end_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.end_s = float("inf") if self.budget_s is None else self.clock.now_s() + self.budget_s

    @property
    def point_s(self) -> float:
        """What the next point will take: the mean so far [s]."""
        return sum(self.costs_s) / len(self.costs_s) if self.costs_s else self.first_s

    @property
    def has_room(self) -> bool:
        """Whether the next point would end inside the box."""
        return self.clock.now_s() + self.point_s <= self.end_s


def first_guess_s(procedure: Procedure) -> float:
    """What a point takes before one was measured: what the procedure asks for [s]."""
    return procedure.cool_down_s + procedure.warm_up_s + procedure.trials * (procedure.enough_s + procedure.longest_pause_s / 2)
