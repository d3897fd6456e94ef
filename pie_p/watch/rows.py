"""Rows: every moment as a row of a Parquet file; files are whole at any time, and a new one begins when one is full."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from pie_p.errors import InputError
from pie_p.parquet import write_columns
from pie_p.watch.watcher import Moment

ROWS_PER_FILE: Final = 17_280  # a day of one engine at 5 s
ROWS_PER_WRITE: Final = 60  # five minutes of one engine: what a crash loses at most

# column -> unit; shares and counts have none
UNITS: Final = {
    "time_s": "s since 1970-01-01 UTC",
    "seconds_s": "s",
    "busy_s": "s",
    "energy_j": "J",
    "compute_j": "J",
    "communication_j": "J",
    "wait_j": "J",
    "host_j": "J",
    "facility_j": "J",
    "idle_j": "J",
    "power_w": "W",
}


def row_of(moment: Moment) -> dict[str, Any]:
    """One moment as plain data; None where the scope or the server does not give a figure."""
    estimate, parts = moment.estimate, moment.estimate.parts_j()
    return {
        "time_s": moment.wall_s,
        **moment.place._asdict(),
        "seconds_s": estimate.seconds,
        "busy_s": estimate.busy_s,
        "energy_j": estimate.energy_j,
        **{f"{kind}_j": parts.get(kind) for kind in ("compute", "communication", "wait", "host", "facility", "idle")},
        "power_w": estimate.power_w,
        "prompt_tokens": estimate.prompt_tokens,
        "output_tokens": estimate.output_tokens,
        "batch": estimate.batch,
        "time_ratio": estimate.time_ratio,
        "running": moment.gauges.get("running"),
        "waiting": moment.gauges.get("waiting"),
        "kv_usage": moment.gauges.get("kv_usage"),
        "bridged": float(moment.bridged),
        "restarted": float(moment.window.resets > 0),
    }


class RowWriter:
    """Collects moments and keeps them in a folder: `watch-20261201T120000Z.parquet` and so on.

    Args:
        folder: made when it is not there.
        identity: what the rows are for; stands in every file's metadata.
    """

    def __init__(
        self, folder: Path, identity: dict[str, Any], *, rows_per_file: int = ROWS_PER_FILE, rows_per_write: int = ROWS_PER_WRITE
    ) -> None:
        self.folder, self.identity = folder, {name: str(value) for name, value in identity.items() if value is not None}
        self.rows_per_file, self.rows_per_write = rows_per_file, rows_per_write
        self._rows: list[dict[str, Any]] = []
        self._written = 0
        self._path: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot write rows into {folder}: {error.strerror or error}; give another folder") from None

    def add(self, moment: Moment) -> None:
        """Keep one moment."""
        self._rows.append(row_of(moment))
        if len(self._rows) - self._written >= self.rows_per_write or len(self._rows) >= self.rows_per_file:
            self.flush()
        if len(self._rows) >= self.rows_per_file:
            self._rows, self._written, self._path = [], 0, None

    def flush(self) -> None:
        """Write the file that is being filled, whole."""
        if len(self._rows) == self._written:
            return
        self._path = self._path or self._new_path(self._rows[0]["time_s"])
        columns = {name: [row[name] for row in self._rows] for name in self._rows[0]}
        write_columns(self._path, columns, units=UNITS, metadata={"pie_p table": "watch", **self.identity}, extra="watch")
        self._written = len(self._rows)

    def _new_path(self, wall_s: float) -> Path:
        stamp = datetime.fromtimestamp(wall_s, tz=timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        names = (f"watch-{stamp}{suffix}.parquet" for suffix in ("", *(f"-{number}" for number in range(2, 10_000))))
        return next(path for name in names if not (path := self.folder / name).exists())
