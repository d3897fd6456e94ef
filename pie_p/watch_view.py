"""What `pie-p watch` shows: a table that renews itself on a terminal, plain lines elsewhere. Like every report it rounds."""

from __future__ import annotations

from datetime import datetime, timezone

from rich.table import Table
from rich.text import Text

from pie_p.watch.ledger import Place
from pie_p.watch.watcher import Moment, Watcher
from pie_p.wording import SCOPE_WORDS, quantity, share

FAR_RATIO = 1.5  # measured over predicted time from which the deployment named is doubted


def watch_table(watcher: Watcher) -> Table:
    """Every engine now and since the sums began."""
    table = Table(title=Text(_title(watcher)), title_justify="left", box=None, pad_edge=False)
    table.add_column("server", overflow="fold")
    for name in ("power", "compute", "comm.", "wait", "idle", "batch", "busy", "energy", "J/token"):
        table.add_column(name, justify="right", no_wrap=True)
    with watcher.lock:
        for place, totals in sorted(watcher.ledger.totals.items()):
            server = watcher.servers.get(place.server)
            moment = server.moments.get(place) if server else None
            now = _figures(moment) if moment else ["unknown", *["–"] * 6]
            per_token = quantity(totals.busy_j / totals.output_tokens, "J") if totals.output_tokens else "–"
            table.add_row(Text(_name(place)), *now, quantity(totals.total_j, "J"), per_token)
    return table


def watch_footer(watcher: Watcher) -> list[str]:
    """What to be careful about: servers that do not answer, metrics that are missing, times that do not fit."""
    lines = []
    with watcher.lock:
        for name, server in watcher.servers.items():
            if not server.up:
                lines.append(f"warning: {name} does not answer: {server.last_failure}")
            engine = watcher.estimator.points.deployment.engine.name
            if server.dialect and server.dialect != engine:
                lines.append(f"warning: {name} is {server.dialect}, the costs are those of {engine}; give --engine {server.dialect}")
            for place, moment in server.moments.items():
                ratio = moment.estimate.time_ratio
                if not 1 / FAR_RATIO < ratio < FAR_RATIO:
                    lines.append(f"warning: {_name(place)} takes {ratio:.1f} times the predicted time; is it the deployment you named?")
        if watcher.not_kept:
            lines.append(f"warning: {watcher.not_kept}; the sums go on, and are lost when the watcher ends")
        unknown_s = sum(totals.unknown_s for totals in watcher.ledger.totals.values())
    if unknown_s:
        lines.append(f"not estimated, since nobody knows what happened: {quantity(unknown_s, 's')}")
    return lines + [f"{name} does not give {metric}; lost: {lost}" for name, metric, lost in watcher.losses()]


def moment_line(moment: Moment) -> str:
    """One engine in one window, as a line."""
    estimate = moment.estimate
    at = datetime.fromtimestamp(moment.wall_s, tz=timezone.utc).strftime("%H:%M:%SZ")
    parts = ", ".join(f"{kind} {quantity(joules / estimate.seconds, 'W')}" for kind, joules in estimate.parts_j().items())
    tokens = f"{quantity(estimate.busy.total_j / estimate.output_tokens, 'J')} per output token" if estimate.output_tokens else "no output"
    gap = "; bridged a gap" if moment.bridged else ""
    return f"{at} {_name(moment.place)}: {quantity(estimate.power_w, 'W')} ({parts}), batch {estimate.batch:.1f}, {tokens}{gap}"


def _figures(moment: Moment) -> list[str]:
    estimate = moment.estimate
    parts = estimate.parts_j()
    shown = [quantity(parts[kind] / estimate.seconds, "W") for kind in ("compute", "communication", "wait", "idle")]
    return [quantity(estimate.power_w, "W"), *shown, f"{estimate.batch:.1f}", share(estimate.busy_s, estimate.seconds)]


def _title(watcher: Watcher) -> str:
    points = watcher.estimator.points
    deployment, plan = points.deployment, points.deployment.plan
    return (
        f"{deployment.llm.name} ({deployment.dtype}) on {plan.gpus} x {deployment.cluster.gpu.name}, {plan}; "
        f"{SCOPE_WORDS[watcher.estimator.accounting.scope]}\n"
        f"estimated, not metered: predictor {points.predictor['name']} ({points.predictor['sha256'][:8]})"
    )


def _name(place: Place) -> str:
    return place.server + (f" engine {place.engine}" if place.engine else "")
