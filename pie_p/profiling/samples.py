"""Power over time: what a sampler brought home, and how it is kept."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_p.errors import InputError, ProfileError
from pie_p.extras import require
from pie_p.profiling.sample_codec import decode, encode
from pie_p.quantities import as_float
from pie_p.storage import sha256, write_atomically

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
    bound_w: float = 0.0  # a power reading may be this far from the one that was read; 0: as read

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

    def integral_error_j(self, start_s: float, end_s: float) -> float:
        """The most [J] by which `integral_j` can differ from that of the readings as they were read: `bound_w` times the seconds."""
        return self.bound_w * (end_s - start_s)

    def save(self, path: Path, *, bound_w: float | None = None) -> None:
        """Write as Parquet (zstd), atomically: rows of both readings, told apart by `reading`. Moments and counter are kept exactly.

        Args:
            path: of the file.
            bound_w: power readings may come back this far off [W], in fewer bytes (extra `lossy`); None: they come back exactly. Readings
                that were bounded before keep that bound too, so the two add up.

        Raises:
            InputError: a bound that is not above 0.
            MissingExtraError: a package is not installed.
            ProfileError: the disk refuses.
        """
        pa, parquet = require("pyarrow", extra="profile"), require("pyarrow.parquet", extra="profile")
        values, code, notes = np.concatenate((self.power_w, self.energy_j)), {}, {}
        coded = np.zeros(len(values), dtype=bool)
        if bound_w is not None:
            bound_w = as_float("bound_w", bound_w, above=True)
            content, coded[: len(self)] = encode(self.power_w, bound_w)
            code["code"] = pa.array([content, *[None] * len(values)][: len(values)], type=pa.binary())
            notes["code"] = f"SZ3 of the finite power values, sha256 {sha256(content if len(values) else b'')}"
        columns = {
            "reading": ["power"] * len(self.at_s) + ["counter"] * len(self.counter_at_s),
            "at_s": np.concatenate((self.at_s, self.counter_at_s)),
            "value": pa.array(values, mask=coded),
        }
        table = pa.table({**columns, **code}, metadata={**self._notes(self.bound_w + (bound_w or 0.0)), **notes})
        buffer = pa.BufferOutputStream()
        # Moments differ in every row: a dictionary of them is far longer than their bytes sorted by place.
        encodings = {"use_dictionary": ["reading", "value"], "column_encoding": {"at_s": "BYTE_STREAM_SPLIT"}}
        # Statistics would hold the whole code twice more, as its least and its greatest value.
        parquet.write_table(table, buffer, compression="zstd", write_statistics=False, **encodings)
        write_atomically(path, buffer.getvalue().to_pybytes())

    def _notes(self, bound_w: float) -> dict[str, str]:
        return {
            "wanted_period_s": repr(self.wanted_period_s),
            "dropped": str(self.dropped),
            "processor_s": repr(self.processor_s),
            "bound_w": repr(bound_w),
            "units": "power W, counter J",
        }

    @classmethod
    def load(cls, path: Path) -> Samples:
        """Read what `save` wrote, bounded or not.

        Raises:
            MissingExtraError: a package is not installed.
            ProfileError: not such a file, or a torn one.
        """
        pa, parquet = require("pyarrow", extra="profile"), require("pyarrow.parquet", extra="profile")
        try:
            table = parquet.read_table(path)
            kinds = table.column("reading").to_numpy(zero_copy_only=False)
            moments, values = table.column("at_s").to_numpy(), table.column("value").to_numpy()
            power, counter = kinds == "power", kinds == "counter"
            power_w = _power_w(table, values, power)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise ProfileError(f"{path} holds no power samples: {error}. Give a file written by Samples.save") from error
        notes = table.schema.metadata or {}
        return cls(
            at_s=moments[power],
            power_w=power_w,
            counter_at_s=moments[counter],
            energy_j=values[counter],
            wanted_period_s=float(notes.get(b"wanted_period_s", b"0.01")),
            dropped=int(notes.get(b"dropped", b"0")),
            processor_s=float(notes.get(b"processor_s", b"0.0")),
            bound_w=float(notes.get(b"bound_w", b"0.0")),
        )


def _power_w(table: Any, values: Floats, power: NDArray[np.bool_]) -> Floats:
    """Power readings [W] of a file: those that stand in it, and those in its code where they do not."""
    power_w = values[power]
    if "code" not in table.column_names:
        if table.column("value").null_count:
            raise ValueError("power values are missing, and there is no code of them")
        return power_w
    code = b"" if not len(table) else table.column("code")[0].as_py() or b""
    if sha256(code).encode() not in (table.schema.metadata or {}).get(b"code", b""):
        raise ValueError("the code of the power values is damaged")
    absent = table.column("value").is_null().to_numpy()[power]
    in_code = absent | np.isfinite(power_w)
    power_w = power_w.copy()
    power_w[absent] = decode(code, int(in_code.sum()))[absent[in_code]]
    return power_w
