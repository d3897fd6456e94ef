"""Ledger: sums per engine that only grow, and a state file through which they outlive the exporter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

from pie_p.errors import InputError
from pie_p.storage import read_whole, write_atomically
from pie_p.watch.estimates import Estimate

SCHEMA: Final = 1
MOST_BYTES: Final = 1 << 24


class Place(NamedTuple):
    """One engine of one served LLM at one server."""

    server: str
    served_name: str
    engine: str


@dataclass(slots=True)
class Totals:
    """Sums of one engine since it was first seen."""

    energy_j: dict[str, float] = field(default_factory=dict)  # by kind [J]
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    seconds: float = 0.0  # estimated, of which: [s]
    busy_s: float = 0.0  # requests ran [s]
    bridged_s: float = 0.0  # the server did not answer, its counters told afterwards [s]
    unknown_s: float = 0.0  # not estimated: nobody knows what happened [s]
    resets: float = 0.0  # restarts of the server [-]

    def add(self, estimate: Estimate, *, bridged: bool = False) -> None:
        """Let one window in."""
        for kind, joules in estimate.parts_j().items():
            self.energy_j[kind] = self.energy_j.get(kind, 0.0) + joules
        self.prompt_tokens += estimate.prompt_tokens
        self.output_tokens += estimate.output_tokens
        self.seconds += estimate.seconds
        self.busy_s += estimate.busy_s
        self.bridged_s += estimate.seconds if bridged else 0.0

    @property
    def busy_j(self) -> float:
        """Energy of requests: all but idle [J]."""
        return sum(joules for kind, joules in self.energy_j.items() if kind != "idle")

    @property
    def total_j(self) -> float:
        """All energy [J]."""
        return sum(self.energy_j.values())


@dataclass(slots=True)
class Ledger:
    """Totals by place, for one deployment; saved whole or not at all."""

    deployment: Mapping[str, Any]  # what the sums are for: another deployment does not go on with them
    totals: dict[Place, Totals] = field(default_factory=dict)
    saved_s: float | None = None  # wall time of the last save, in seconds since 1970 [s]

    def of(self, place: Place) -> Totals:
        """Totals of a place, new ones if it was never seen."""
        return self.totals.setdefault(place, Totals())

    def save(self, path: Path, *, wall_s: float) -> None:
        """Write the state file.

        Raises:
            InputError: the disk refuses; what was there stays.
        """
        entries = [{**place._asdict(), "totals": asdict(totals)} for place, totals in self.totals.items()]
        state = {"schema": SCHEMA, "deployment": dict(self.deployment), "saved_s": wall_s, "engines": entries}
        write_atomically(path, json.dumps(state, indent=1, allow_nan=False).encode(), error=InputError)
        self.saved_s = wall_s

    @classmethod
    def load(cls, path: Path, deployment: Mapping[str, Any]) -> Ledger:
        """The ledger of a state file; a new one where there is no file yet.

        Raises:
            InputError: the file is damaged, of a newer version, or of another deployment.
        """
        if not path.exists():
            return cls(deployment)
        content = read_whole(path, what="state file", most=MOST_BYTES, error=InputError)
        try:
            state = json.loads(content)
            schema, owner = state["schema"], state["deployment"]
            totals = {Place(one["server"], one["served_name"], one["engine"]): _totals(one["totals"]) for one in state["engines"]}
            saved_s = float(state["saved_s"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{path} is no state file of pie-p watch, or a damaged one; move it away to begin anew") from None
        if schema != SCHEMA:
            raise InputError(f"{path} has schema {schema}; this version reads {SCHEMA}: move it away to begin anew")
        different = sorted(name for name in {*owner, *deployment} if owner.get(name) != deployment.get(name))
        if different:
            first, had, has = different[0], owner.get(different[0]), deployment.get(different[0])
            raise InputError(f"{path} holds the sums of another deployment ({first} = {had}, not {has}); give another --state")
        return cls(deployment, totals, saved_s)


def _totals(entry: Mapping[str, Any]) -> Totals:
    numbers = {one.name: float(entry[one.name]) for one in fields(Totals) if one.name != "energy_j"}
    energy_j = {str(kind): float(joules) for kind, joules in entry["energy_j"].items()}
    if not all(isfinite(value) and value >= 0.0 for value in (*numbers.values(), *energy_j.values())):
        raise ValueError("a sum that cannot be")
    return Totals(energy_j=energy_j, **numbers)
