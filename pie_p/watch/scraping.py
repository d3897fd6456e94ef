"""Scraping: fetch every server's metrics on time, and leave one that does not answer in peace for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final
from urllib.parse import urlsplit

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.quantities import shown
from pie_p.watch.dialects import METRICS_PATHS
from pie_p.watch.readings import read_metrics
from pie_p.watch.watcher import Watcher

LONGEST_WAIT_S: Final = 60.0  # between two tries at a server that does not answer [s]
MOST_BYTES: Final = 1 << 25  # of an answer; vLLM's has about 100 kB


@dataclass(slots=True)
class Target:
    """One address, and how it has answered so far."""

    address: str  # as the user gave it; how the server is called in every output
    url: str = ""  # where its metrics were found; empty until then
    failures: int = 0  # in a row [-]
    due_s: float = 0.0  # not before this [s]

    def urls(self) -> Iterable[str]:
        """Where to look."""
        if self.url:
            return (self.url,)
        parts = urlsplit(self.address)
        base = f"{parts.scheme}://{parts.netloc}"
        return (self.address,) if parts.path.strip("/") else tuple(base + path for path in METRICS_PATHS)

    def failed(self, *, now_s: float, every_s: float) -> None:
        """Wait longer after every failure, up to a minute: 1, 2, 4, ... periods."""
        self.failures += 1
        self.due_s = now_s + min(max(LONGEST_WAIT_S, every_s), every_s * 2 ** min(self.failures - 1, 10))

    def answered(self, url: str) -> None:
        """Remember where the metrics were."""
        self.url, self.failures, self.due_s = url, 0, 0.0


def targets(addresses: Iterable[str]) -> list[Target]:
    """Checked addresses.

    Raises:
        InputError: not an http address, given twice, or none.

    >>> [list(target.urls()) for target in targets(["http://localhost:8000"])]
    [['http://localhost:8000/metrics', 'http://localhost:8000/prometheus/metrics']]
    """
    found: dict[str, Target] = {}
    for address in addresses:
        full = address if "://" in address else f"http://{address}"
        try:
            parts = urlsplit(full)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            sound = False
        if not sound:
            raise InputError(f"{shown(address)} is no address of a server; give one like http://localhost:8000")
        if full in found:
            raise InputError(f"{shown(address)} is given twice; its energy would count twice")
        found[full] = Target(full)
    if not found:
        raise InputError("no address of a server; give one like http://localhost:8000")
    return list(found.values())


class Scraper:
    """Fetches all targets together, every `every_s` seconds, into a watcher. A context manager: it holds connections open.

    Args:
        watcher: where answers go.
        targets: from `targets`.
        every_s: time between rounds [s].
        timeout_s: for one answer, whole [s].
        clock: time that never jumps [s].
        wall: time in seconds since 1970 [s].
        after: called after every round.
    """

    def __init__(
        self,
        watcher: Watcher,
        targets: list[Target],
        *,
        every_s: float = 5.0,
        timeout_s: float = 4.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        after: Callable[[], None] | None = None,
    ) -> None:
        self.watcher, self.targets, self.every_s, self.timeout_s = watcher, targets, every_s, timeout_s
        self.clock, self.wall, self.after = clock, wall, after
        self._httpx: Any = None

    def __enter__(self) -> Scraper:
        self._httpx = require("httpx", extra="watch")
        limits = self._httpx.Limits(max_connections=2 * len(self.targets), max_keepalive_connections=len(self.targets))
        self._client = self._httpx.Client(timeout=self.timeout_s, follow_redirects=True, limits=limits)
        self._pool = ThreadPoolExecutor(max_workers=min(32, len(self.targets)), thread_name_prefix="pie_p-scrape")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(wait=True)
        self._client.close()

    def run(self, *, stop: Callable[[], bool], pause: Callable[[float], None] = time.sleep) -> None:
        """Scrape until `stop()` is true; rounds keep their beat, and one that comes late is not made up for."""
        due_s = self.clock()
        while not stop():
            self.round()
            due_s = max(due_s + self.every_s, self.clock())
            while not stop() and (left_s := due_s - self.clock()) > 0:
                pause(min(left_s, 0.5))

    def round(self) -> None:
        """One scrape of every target that is due."""
        due = [target for target in self.targets if target.due_s <= self.clock()]
        list(self._pool.map(self._fetch, due))
        if self.after:
            self.after()

    def _fetch(self, target: Target) -> None:
        reasons = []
        for url in target.urls():
            try:
                text = _body(self._client, url, timeout_s=self.timeout_s, clock=self.clock)
                self.watcher.take(target.address, text, now_s=self.clock(), wall_s=self.wall())
            except (self._httpx.HTTPError, self._httpx.InvalidURL, UnicodeDecodeError, InputError) as error:
                reasons.append(" ".join(str(error).split())[:200] or type(error).__name__)
                continue
            target.answered(url)
            return
        now_s = self.clock()
        self.watcher.miss(target.address, reasons[0], now_s=now_s)
        target.failed(now_s=now_s, every_s=self.every_s)


def _body(client: Any, url: str, *, timeout_s: float, clock: Callable[[], float]) -> str:
    """The body of an answer, which must be one of success, of bounded size and whole in time."""
    late_s, parts, size = clock() + timeout_s, [], 0
    with client.stream("GET", url, headers={"Accept": "text/plain"}) as answer:
        if answer.status_code != 200:
            raise InputError(f"{url} answers with HTTP status {answer.status_code}")
        for part in answer.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise InputError(f"{url} answers with more than {MOST_BYTES} bytes; that is no metrics page")
            if clock() > late_s:
                raise InputError(f"{url} was still answering after {timeout_s:g} s")
    return b"".join(parts).decode("utf-8")


def detect(targets: Iterable[Target], *, served_name: str | None = None, timeout_s: float = 4.0) -> str | None:
    """Which server answers first: vllm, sglang or trtllm; None where none answers as one of them.

    Args:
        targets: from `targets`; where metrics were found is remembered in them.
        served_name: as for `read_metrics`.
        timeout_s: for one answer [s].
    """
    httpx = require("httpx", extra="watch")
    with httpx.Client(timeout=timeout_s, follow_redirects=True) as client:
        for target in targets:
            for url in target.urls():
                try:
                    text = _body(client, url, timeout_s=timeout_s, clock=time.monotonic)
                    server = read_metrics(text, served_name=served_name).dialect.server
                except (httpx.HTTPError, httpx.InvalidURL, UnicodeDecodeError, InputError):
                    continue
                target.answered(url)
                return server
    return None
