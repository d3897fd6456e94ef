"""Readings: one scrape of a server, turned into a number per role and engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, NamedTuple

from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.quantities import shown
from pie_p.watch.dialects import DIALECTS, LOSSES, Dialect, Name, Role

ENGINE_LABELS: Final = ("engine", "dp_rank")  # vLLM's and SGLang's name for a data-parallel rank
SHARD_LABELS: Final = ("tp_rank", "pp_rank", "moe_ep_rank")  # SGLang's scheduler may speak once per shard of a rank; the first one counts
LLM_LABELS: Final = ("model_name", "model")  # the served name; behind NVIDIA Dynamo the second


class SeriesKey(NamedTuple):
    """Which engine of which served LLM a number belongs to; empty where the server does not say."""

    served_name: str
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One scrape: the numbers of every engine, and which metrics the server lacks."""

    dialect: Dialect
    series: Mapping[SeriesKey, Mapping[Role, float]]
    missing: Mapping[Role, str]  # role -> the newest name that was looked for


def read_metrics(text: str, *, served_name: str | None = None) -> Reading:
    """The numbers of one exposition.

    Args:
        text: what the server answered.
        served_name: the LLM to follow, where one address serves several.

    Raises:
        InputError: no metric of a known server, a line that is no metric, no running or token metric, or several LLMs and none chosen.
    """
    samples = [sample for sample in _samples(text) if _wanted_shard(sample.labels)]
    dialect, named = _spoken(samples)
    served = sorted({_label(sample.labels, LLM_LABELS) for sample in named.values() for sample in sample} - {""})
    if served_name is not None and served and served_name not in served:
        raise InputError(f"no LLM is served as {shown(served_name)} there; served: {', '.join(served)}")
    if served_name is None and len(served) > 1:
        raise InputError(f"{len(served)} LLMs are served there ({', '.join(served)}); choose one with served_name (--served-name)")
    chosen = served_name or (served[0] if served else "")
    found = {role: hits for role, names in dialect.names.items() if (hits := _first(named, names, chosen))}
    if "output_tokens" not in found and "running" not in found:
        raise InputError(f"{dialect.server} gives neither output tokens nor running requests; nothing can be estimated from the rest")
    missing = {role: dialect.prefixes[0] + names[0].metric for role, names in dialect.names.items() if role in LOSSES and role not in found}
    return Reading(dialect=dialect, series=_by_engine(found, chosen), missing=missing)


def _samples(text: str) -> list[Any]:
    """Samples of known servers; lines of others and of buckets are not parsed, which takes most of the time away."""
    prefixes = tuple(prefix for dialect in DIALECTS for prefix in dialect.prefixes)
    lines = [line for line in text.splitlines() if line.startswith(prefixes) and "_bucket{" not in line]
    if not lines:
        raise InputError("no metric of vLLM, SGLang or TensorRT-LLM there; is this the metrics address, and are metrics switched on?")
    parser = require("prometheus_client.parser", extra="watch")
    try:
        return [sample for family in parser.text_string_to_metric_families("\n".join(lines) + "\n") for sample in family.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise InputError(f"what the server answers is no Prometheus text: {' '.join(str(error).split())[:120]}") from None


def _wanted_shard(labels: Mapping[str, str]) -> bool:
    return all(labels.get(label, "0") in ("", "0") for label in SHARD_LABELS) and not labels.get("priority")


def _spoken(samples: Iterable[Any]) -> tuple[Dialect, dict[str, list[Any]]]:
    """The dialect with most of its metrics there, and its samples by metric name without the prefix."""
    best: tuple[int, Dialect, dict[str, list[Any]]] | None = None
    samples = list(samples)
    for dialect in DIALECTS:
        wanted = {name.metric for names in dialect.names.values() for name in names}
        named: dict[str, list[Any]] = {}
        for sample in samples:
            metric = next((sample.name[len(prefix) :] for prefix in dialect.prefixes if sample.name.startswith(prefix)), "")
            if metric in wanted:
                named.setdefault(metric, []).append(sample)
        if best is None or len(named) > best[0]:
            best = len(named), dialect, named
    assert best is not None
    if not best[0]:
        raise InputError("the server gives metrics, but none that is read; the names by version stand in docs/how-to/watch-a-server.md")
    return best[1], best[2]


def _first(named: Mapping[str, list[Any]], names: Iterable[Name], served_name: str) -> dict[str, float]:
    """Sum per engine of the first of the names that is there."""
    for name in names:
        sums: dict[str, float] = {}
        for sample in named.get(name.metric, ()):
            if served_name and _label(sample.labels, LLM_LABELS) not in ("", served_name):
                continue
            if name.label and not sample.labels.get(name.label, "").startswith(name.begins):
                continue
            if isfinite(sample.value) and sample.value >= 0.0:  # NaN: a gauge that was never set; below 0: nothing that can be counted
                engine = _label(sample.labels, ENGINE_LABELS)
                sums[engine] = sums.get(engine, 0.0) + float(sample.value)
        if sums:
            return sums
    return {}


def _label(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _by_engine(found: Mapping[Role, Mapping[str, float]], served_name: str) -> dict[SeriesKey, dict[Role, float]]:
    """One set of numbers per engine where every metric tells engines apart, else one for all together (shares: their mean)."""
    apart = {frozenset(values) for values in found.values()}
    if len(apart) == 1:
        [engines] = apart
        return {SeriesKey(served_name, engine): {role: values[engine] for role, values in found.items()} for engine in sorted(engines)}
    shares = ("kv_usage", "cache_hit_rate")
    whole = {role: sum(values.values()) / (len(values) if role in shares else 1) for role, values in found.items()}
    return {SeriesKey(served_name, ""): whole}
