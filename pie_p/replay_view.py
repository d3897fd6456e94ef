"""A replay as people read it: rounded figures with units, out of `Replay.to_dict()`."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from pie_p.wording import PART_WORDS, SCOPE_WORDS, degrees, quantity, share


def fleet_words(summary: Mapping[str, Any]) -> str:
    """What served: deployments, engines and boards."""
    return "; ".join(
        f"{one['engines']} engine{'s' * (one['engines'] != 1)} of {one['llm']} ({one['dtype']}, {degrees(one)}) on {one['gpus']} x "
        f"{one['gpu']}"
        for one in summary["fleet"]
    )


def replay_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of the summary table: name, figure, what it is."""
    total, idle = summary["energy_j"], summary["idle_j"]
    rows = [
        ("energy of the fleet", quantity(total, "J"), f"in {quantity(summary['duration_s'], 's')}, {summary['gpus']} GPUs"),
        ("  requests", quantity(total - idle, "J"), share(total - idle, total)),
    ]
    for name, joules in summary["breakdown"].items():
        word, meaning = PART_WORDS[name]
        rows.append((f"    {word}", quantity(joules, "J"), f"{share(joules, total)}, {meaning}"))
    rows += [
        ("  idle", quantity(idle, "J"), f"{share(idle, total)}, no request in flight"),
        ("energy per request", quantity(summary["energy_per_request_j"], "J"), "mean, idle not in it"),
        ("energy per output token", quantity(summary["energy_per_output_token_j"], "J"), "idle not in it"),
        ("mean power", quantity(summary["avg_power_w"], "W"), "of the fleet"),
        ("output tokens", quantity(summary["output_tokens_per_s"], "/s"), ""),
    ]
    for name, word in (("queue_s", "queueing"), ("ttft_s", "time to first token"), ("tpot_s", "time per token"), ("latency_s", "latency")):
        figures = summary[name]
        if figures is not None:
            spread = f"p50 {quantity(figures['p50'], 's')}, p99 {quantity(figures['p99'], 's')}"
            rows.append((word, quantity(figures["mean"], "s"), spread))
    if summary["preemptions"]:
        rows.append(("gave way", str(summary["preemptions"]), "times a request left a full KV cache and was read again"))
    return rows


def replay_notes(summary: Mapping[str, Any]) -> list[str]:
    """Lines below the table: scope, rules, what answered, warnings."""
    rules = f"routing {summary['routing'].replace('_', ' ')}, attribution {summary['attribution']}"
    lines = [f"scope: {SCOPE_WORDS[summary['scope']]}; {rules}", f"predictor: {summary['predictor']['name']}"]
    return lines + [f"warning: {text}" for text in summary["warnings"]]


def html_of(summary: Mapping[str, Any]) -> str:
    """The table for a notebook."""
    body = "".join(
        f"<tr><td style='text-align:left'>{escape(name).replace('  ', '&emsp;')}</td><td>{escape(figure)}</td>"
        f"<td style='text-align:left'>{escape(meaning)}</td></tr>"
        for name, figure, meaning in replay_rows(summary)
    )
    head = f"{summary['requests']} requests of {summary['trace']}: {fleet_words(summary)}"
    notes = "<br>".join(escape(line) for line in replay_notes(summary))
    return f"<table><caption>{escape(head)}</caption>{body}</table><small>{notes}</small>"
