"""A meter behind HTTP: boards of another host, as NVIDIA's DCGM exporter publishes them (dcgm-exporter 3 and 4, Prometheus text).

Power is `DCGM_FI_DEV_POWER_USAGE` [W], the counter `DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION` [mJ]. The exporter collects at its own interval,
by default every 30 s: start it with `--collect-interval 1000` or benchmarks shorter than some minutes are blurred at their edges.
"""

from __future__ import annotations

import re
from typing import Any, Final

from typing_extensions import override

from pie_p import units
from pie_p.errors import DeviceError
from pie_p.extras import require
from pie_p.profiling.meters import BoardState, Field, Meter, MeterIdentity, PowerField

POWER: Final = "DCGM_FI_DEV_POWER_USAGE"
COUNTER: Final = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
LIMIT: Final = "DCGM_FI_DEV_POWER_MGMT_LIMIT"
LINE: Final = re.compile(r"^(\w+)\{([^}]*)\}\s+([^\s]+)", re.MULTILINE)
LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
TIMEOUT_S: Final = 5.0
Published = tuple[dict[str, str], dict[str, float]]  # labels and values of one board


class RemoteMeter(Meter):
    """One board of a DCGM exporter, by its UUID or its number there.

    Raises:
        DeviceError: no answer, or no such board.
    """

    def __init__(self, url: str, board: str) -> None:
        self._url, self._client = url, require("httpx", extra="bench").Client(timeout=TIMEOUT_S)
        try:
            labels, values = _found(_boards(self._get()), url, board)
        except DeviceError:
            self.close()
            raise
        known: dict[Field, str] = {"average": POWER, "counter": COUNTER}
        self.fields = frozenset(name for name, metric in known.items() if metric in values)
        self.identity = MeterIdentity(
            kind="dcgm",
            origin="measured",
            uuid=labels.get("UUID", board),
            name=labels.get("modelName", "board"),
            driver=labels.get("DCGM_FI_DRIVER_VERSION", ""),
        )

    @override
    def read_power_w(self, power_field: PowerField = "average") -> float:
        if power_field not in self.fields:
            raise self.missing(power_field)
        return self._read(POWER, power_field)

    @override
    def read_energy_j(self) -> float:
        if "counter" not in self.fields:
            raise self.missing("counter")
        return units.from_milli(self._read(COUNTER, "counter"))

    @override
    def read_state(self) -> BoardState:
        return BoardState(limit_w=_boards(self._get()).get(self.identity.uuid, ({}, {}))[1].get(LIMIT))

    @override
    def close(self) -> None:
        self._client.close()

    def _read(self, metric: str, wanted: Field) -> float:
        values = _boards(self._get()).get(self.identity.uuid, ({}, {}))[1]
        if metric not in values:
            raise self.missing(wanted)
        return values[metric]

    def _get(self) -> str:
        return _text_of(self._url, self._client)


def _found(boards: dict[str, Published], url: str, board: str) -> Published:
    """A board by its UUID, or by its number at the exporter."""
    numbered = {labels.get("gpu", ""): (labels, values) for labels, values in boards.values()}
    found = boards.get(board) or numbered.get(board)
    if found is None:
        raise DeviceError(f"{url} has no board {board!r}; it has {', '.join(numbered) or 'none'}")
    return found


def remote_boards(url: str) -> list[str]:
    """UUIDs of the boards that an exporter publishes.

    Raises:
        DeviceError: no answer, or no power in it.
    """
    with require("httpx", extra="bench").Client(timeout=TIMEOUT_S) as client:
        found = [uuid for uuid, (_, values) in _boards(_text_of(url, client)).items() if POWER in values]
    if not found:
        raise DeviceError(f"{url} publishes no {POWER}; give the /metrics address of a DCGM exporter")
    return found


def _text_of(url: str, client: Any) -> str:
    httpx = require("httpx", extra="bench")
    try:
        response = client.get(url)
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise DeviceError(f"no power from {url}: {str(error)[:160] or type(error).__name__}") from None
    return str(response.text)


def _boards(text: str) -> dict[str, Published]:
    """Labels and values of each board, by UUID; lines of MIG instances repeat their board's."""
    found: dict[str, Published] = {}
    for metric, labels_text, value in LINE.findall(text):
        labels = dict(LABEL.findall(labels_text))
        if metric in (POWER, COUNTER, LIMIT) and "UUID" in labels:
            found.setdefault(labels["UUID"], (labels, {}))[1][metric] = _number(value, metric)
    return found


def _number(text: str, metric: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DeviceError(f"{metric} is {text[:40]!r}, which is no number") from None
