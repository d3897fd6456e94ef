"""Power over time: what a sampler brought home, and how it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError, ProfileError
from pie_p.extras import require

Floats = NDArray[np.float64]


def _no_floats() -> Floats:
    return np.empty(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Readings of one meter on one monotonic clock, in the order of time."""

    at_s: Floats  # moment of each power reading
    power_w: Floats
    counter_at_s: Floats = field(default_factory=_no_floats)  # moment of each counter reading
    energy_j: Floats = field(default_factory=_no_floats)  # of the counter
    wanted_period_s: float = 0.01
    dropped: int = 0  # readings that were due and did not happen in time
    processor_s: float = 0.0  # processor time that sampling took

    def __post_init__(self) -> None:
        for moments, values, name in ((self.at_s, self.power_w, "power"), (self.counter_at_s, self.energy_j, "counter")):
            if len(moments) != len(values):
                raise InputError(f"{name} samples: {len(moments)} moments but {len(values)} values; give one value for each moment")
            if np.any(np.diff(moments) < 0):
                raise InputError(f"{name} samples run backwards in time; sort them by their moment")

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def achieved_hz(self) -> float:
        """Readings per second that really happened; an error where fewer than two did."""
        if len(self) < 2:
            raise InputError(f"a rate needs two samples or more, there are {len(self)}; sample for longer")
        return (len(self) - 1) / float(self.at_s[-1] - self.at_s[0])

    @property
    def dropped_share(self) -> float:
        """Share of the due readings that did not happen in time, 0..1."""
        return self.dropped / max(1, self.dropped + len(self))

    def shifted(self, by_s: float) -> Samples:
        """The same readings, each `by_s` [s] later; a negative shift undoes a meter's lag."""
        return replace(self, at_s=self.at_s + by_s)

    def between(self, start_s: float, end_s: float) -> Samples:
        """The readings in `[start_s, end_s)`."""
        power = (self.at_s >= start_s) & (self.at_s < end_s)
        counter = (self.counter_at_s >= start_s) & (self.counter_at_s < end_s)
        return replace(
            self,
            at_s=self.at_s[power],
            power_w=self.power_w[power],
            counter_at_s=self.counter_at_s[counter],
            energy_j=self.energy_j[counter],
        )

    def integral_j(self, start_s: float, end_s: float) -> float:
        """Energy [J] between two moments, each reading holding until the next.

        >>> two = Samples(at_s=np.array([0.0, 1.0]), power_w=np.array([100.0, 300.0]))
        >>> two.integral_j(0.5, 1.5)
        200.0
        """
        if not len(self) or start_s < self.at_s[0]:
            raise InputError(f"no power sample at or before {start_s} s; start the sampler before the work")
        edges = np.concatenate(([start_s], self.at_s[(self.at_s > start_s) & (self.at_s < end_s)], [end_s]))
        held = self.power_w[np.searchsorted(self.at_s, edges[:-1], side="right") - 1]
        return float(np.sum(held * np.diff(edges)))

    def save(self, path: Path) -> None:
        """Write as Parquet (zstd), atomically: rows of both readings, told apart by `reading`."""
        pa, parquet = require("pyarrow", extra="profile"), require("pyarrow.parquet", extra="train")
        table = pa.table(
            {
                "reading": ["power"] * len(self.at_s) + ["counter"] * len(self.counter_at_s),
                "at_s": np.concatenate((self.at_s, self.counter_at_s)),
                "value": np.concatenate((self.power_w, self.energy_j)),
            },
            metadata={
                "wanted_period_s": repr(self.wanted_period_s),
                "dropped": str(self.dropped),
                "processor_s": repr(self.processor_s),
                "units": "power W, counter J",
            },
        )
        torn = path.with_name(path.name + ".part")
        parquet.write_table(table, torn, compression="zstd")
        torn.replace(path)

    @classmethod
    def load(cls, path: Path) -> Samples:
        """Read what `save` wrote.

        Raises:
            ProfileError: not such a file, or a torn one.
        """
        pa, parquet = require("pyarrow", extra="profile"), require("pyarrow.parquet", extra="train")
        try:
            table = parquet.read_table(path)
            kinds = table.column("reading").to_numpy(zero_copy_only=False)
            moments, values = table.column("at_s").to_numpy(), table.column("value").to_numpy()
        except (OSError, pa.ArrowException, KeyError) as error:
            raise ProfileError(f"{path} holds no power samples: {error}. Give a file written by Samples.save") from error
        notes = table.schema.metadata or {}
        power, counter = kinds == "power", kinds == "counter"
        return cls(
            at_s=moments[power],
            power_w=values[power],
            counter_at_s=moments[counter],
            energy_j=values[counter],
            wanted_period_s=float(notes.get(b"wanted_period_s", b"0.01")),
            dropped=int(notes.get(b"dropped", b"0")),
            processor_s=float(notes.get(b"processor_s", b"0.0")),
        )
