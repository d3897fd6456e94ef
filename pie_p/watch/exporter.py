"""Exporter: the watcher's figures as Prometheus metrics, units in their names, read from the sums at the moment of asking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.quantities import shown
from pie_p.watch.estimates import Estimate
from pie_p.watch.ledger import Totals
from pie_p.watch.watcher import Moment, Watcher

PLACE: Final = ("server", "served_name", "engine")

# name, meaning, attribute of Totals; all are counters
COUNTERS: Final = (
    ("pie_p_prompt_tokens", "Prompt tokens of windows that were estimated.", "prompt_tokens"),
    ("pie_p_output_tokens", "Output tokens of windows that were estimated.", "output_tokens"),
    ("pie_p_observed_seconds", "Time that was estimated.", "seconds"),
    ("pie_p_busy_seconds", "Time in which requests ran, within the observed time.", "busy_s"),
    ("pie_p_bridged_seconds", "Observed time in which the server did not answer; its counters told afterwards.", "bridged_s"),
    ("pie_p_unknown_seconds", "Time that was not estimated: server or watcher down.", "unknown_s"),
    ("pie_p_server_restarts", "Times the server's counters began anew.", "resets"),
)


class Collector:
    """What Prometheus asks: it is registered, and yields families of metrics when they are collected."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self._core = require("prometheus_client.core", extra="watch")

    def collect(self) -> Iterator[Any]:
        """Every family, from one consistent look at the watcher."""
        with self.watcher.lock:
            families = [self._info(), *self._sums(), *self._now(), *self._servers()]
        yield from families

    def describe(self) -> list[Any]:
        """Nothing in advance: names are checked when they are collected."""
        return []

    def _info(self) -> Any:
        points = self.watcher.estimator.points
        labels = {name: str(value) for name, value in self.watcher.identity.items() if value is not None}
        labels |= {
            "predictor": points.predictor["name"],
            "predictor_sha256": points.predictor["sha256"],
            "engine": str(points.deployment.engine),
        }
        labels["gpus"] = str(points.deployment.plan.gpus)
        return self._core.InfoMetricFamily("pie_p_predictor", "The deployment watched, the scope of its watts and the predictor.", labels)

    def _sums(self) -> list[Any]:
        scope = self.watcher.estimator.accounting.scope
        energy = self._core.CounterMetricFamily(
            "pie_p_energy_joules", f"Estimated energy by kind, scope {scope}; idle is no request's.", labels=(*PLACE, "kind")
        )
        counters = [(self._core.CounterMetricFamily(name, text, labels=PLACE), name_of) for name, text, name_of in COUNTERS]
        for place, totals in self.watcher.ledger.totals.items():
            for kind, joules in totals.energy_j.items():
                energy.add_metric((*place, kind), joules)
            for family, name_of in counters:
                family.add_metric(place, getattr(totals, name_of))
        return [energy, *(family for family, _ in counters), self._per_token(self.watcher.ledger.totals)]

    def _per_token(self, all_totals: dict[Any, Totals]) -> Any:
        family = self._core.GaugeMetricFamily(
            "pie_p_joules_per_output_token", "Energy of requests over output tokens, since the sums began.", labels=PLACE
        )
        for place, totals in all_totals.items():
            if totals.output_tokens > 0:
                family.add_metric(place, totals.busy_j / totals.output_tokens)
        return family

    def _now(self) -> list[Any]:
        gauge = self._core.GaugeMetricFamily
        power = gauge("pie_p_power_watts", "Estimated power by kind over the last window; absent while unknown.", labels=(*PLACE, "kind"))
        figures: tuple[tuple[Any, Callable[[Estimate], float]], ...] = (
            (gauge("pie_p_busy_ratio", "Share of the last window in which requests ran.", labels=PLACE), lambda e: e.busy_s / e.seconds),
            (gauge("pie_p_running_requests", "Requests per data-parallel rank while busy.", labels=PLACE), lambda e: e.batch),
            (gauge("pie_p_time_ratio", "Measured over predicted time of the work.", labels=PLACE), lambda e: e.time_ratio),
        )
        for place, moment in self._moments():
            for kind, joules in moment.estimate.parts_j().items():
                power.add_metric((*place, kind), joules / moment.estimate.seconds)
            for family, figure in figures:
                family.add_metric(place, figure(moment.estimate))
        return [power, *(family for family, _ in figures)]

    def _moments(self) -> Iterator[tuple[Any, Moment]]:
        for server in self.watcher.servers.values():
            yield from server.moments.items()

    def _servers(self) -> list[Any]:
        up = self._core.GaugeMetricFamily("pie_p_server_up", "1 where the last scrape was answered.", labels=("server",))
        failures = self._core.CounterMetricFamily(
            "pie_p_scrape_failures", "Scrapes that failed since the exporter started.", labels=("server",)
        )
        missing = self._core.GaugeMetricFamily(
            "pie_p_missing_metric", "A metric the server does not give, and what is lost by it.", labels=("server", "metric", "lost")
        )
        for name, server in self.watcher.servers.items():
            up.add_metric((name,), float(server.up))
            failures.add_metric((name,), float(server.failures))
        for name, metric, lost in self.watcher.losses():
            missing.add_metric((name, metric, lost), 1.0)
        return [up, failures, missing]


def registry_of(watcher: Watcher) -> Any:
    """A registry with the watcher's metrics alone, for `prometheus_client`'s own ways of serving."""
    registry = require("prometheus_client", extra="watch").CollectorRegistry()
    registry.register(Collector(watcher))
    return registry


class Exporter:
    """The metrics over HTTP, in a thread, until `close`."""

    def __init__(self, watcher: Watcher, listen: str) -> None:
        host, port = listen_address(listen)
        client = require("prometheus_client", extra="watch")
        try:
            self._server, self._thread = client.start_http_server(port, addr=host, registry=registry_of(watcher))
        except OSError as error:
            raise InputError(f"cannot listen on {listen}: {error.strerror or error}; give another --listen ADDRESS:PORT") from None
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def listen_address(listen: str) -> tuple[str, int]:
    """Host and port of `ADDRESS:PORT`; a bare port listens on this machine alone.

    >>> listen_address("9401"), listen_address("0.0.0.0:9401"), listen_address("[::1]:0")
    (('127.0.0.1', 9401), ('0.0.0.0', 9401), ('::1', 0))
    """
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise InputError(f"listen = {shown(listen)} is no ADDRESS:PORT; give one like 127.0.0.1:9401")
    return host.strip("[]") or "127.0.0.1", int(port)
