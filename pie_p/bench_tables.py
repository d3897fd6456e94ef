"""Tables of a benchmark for a terminal: figures beside their prediction, times as distributions, and what to be careful about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pie_p.bench.plans import BenchPlan
from pie_p.bench.results import BenchResult, plan_of
from pie_p.wording import SCOPE_WORDS, change, degrees, quantity

RATES: Final = (("tokens_per_s", "tokens per second"), ("words_per_s", "words per second"), ("responses_per_s", "responses per second"))
ENERGIES: Final = (
    ("power_w", "power of all GPUs", "W"),
    ("energy_per_output_token_j", "energy per output token", "J"),
    ("energy_per_response_j", "energy per response", "J"),
)
TIMES: Final = (("ttft_s", "time to first token"), ("tpot_s", "time per output token"), ("latency_s", "latency"))
SOURCE_WORDS: Final = {
    "measured": "measured",
    "replayed": "replayed from a recording",
    "simulated": "simulated",
    "predicted": "predicted power x measured time",
    "unknown": "not known: give a meter, or llm and gpu to predict it",
}
MOST_NOTES: Final = 6
WHY_NOT_WHOLE: Final = {"incomplete": "prompts without an answer", "running": "it runs still, or was killed; the same command goes on"}


def bench_table(result: BenchResult) -> Group:
    """Six figures with their prediction, the distributions of times, and the totals behind them."""
    return Group(Text(_title(result)), _figures(result), Text(), _times(result), Text(), Text(_totals(result)))


def _title(result: BenchResult) -> str:
    plan, prompts = plan_of(result.manifest), result.manifest.prompts
    load = plan.load
    again = f" x {load.repetitions}" if load.repetitions > 1 else ""
    asked = f"batches of {load.batch}" if load.batch else f"{load.concurrency} in flight"
    now = result.manifest.state
    state = "" if now == "complete" else f"\n{now}: {result.manifest.stopped_by or WHY_NOT_WHOLE.get(now, 'not complete')}"
    return (
        f"{plan.target}\n{prompts['count']} prompts of {prompts['name']}{again}, {asked} (mean {result.concurrency:.1f}), "
        f"at most {load.max_tokens} tokens{_deployed(plan)}{state}"
    )


def _deployed(plan: BenchPlan) -> str:
    deployed = plan.deployed
    if not deployed.known:
        return ""
    plan_words = degrees(deployed.model_dump())
    where = deployed.gpu or deployed.cluster
    return f"\n{deployed.llm} on {deployed.gpus} x {where}{f', {plan_words}' if deployed.gpus > 1 else ''}, {deployed.engine}"


def _figures(result: BenchResult) -> Table:
    """One line per figure; predictions and errors only where there is a prediction."""
    totals, prediction = result.totals, result.prediction
    table = Table(box=None, pad_edge=False)
    heads = ("", "this run", *(("predicted", "error") if prediction else ()), "")
    for head in heads:
        table.add_column(
            head, justify="left" if not head else "right", no_wrap=bool(head), style="dim" if table.columns and not head else None
        )
    for name, words in RATES:
        table.add_row(words, _rate(getattr(totals, name)), *_beside(prediction, name, "/s"), "")
    for name, words, unit in ENERGIES:
        table.add_row(words, quantity(getattr(totals, name), unit), *_beside(prediction, name, unit), Text(result.energy_source))
    return table


def _beside(prediction: Mapping[str, Any] | None, name: str, unit: str) -> tuple[str, ...]:
    if prediction is None:
        return ()
    if prediction.get(name) is None:
        return "", ""
    error = prediction["errors"].get(name)
    figure = _rate(prediction[name]) if unit == "/s" else quantity(prediction[name], unit)
    return figure, "" if error is None else change(1.0 + error)


def _rate(value: float | None) -> str:
    """Per second, without a prefix: "712 m/s" would be a speed.

    >>> _rate(0.7119), _rate(12345.6), _rate(None)
    ('0.712 /s', '12,346 /s', '–')
    """
    if value is None:
        return "–"
    return f"{value:,.0f} /s" if value >= 999.5 else f"{value:.3g} /s"


def _times(result: BenchResult) -> Table:
    prediction = result.prediction
    table = Table(box=None, pad_edge=False)
    for head in ("", "mean", "p50", "p90", "p99", *(("predicted", "error") if prediction else ())):
        table.add_column(head, justify="left" if not head else "right", no_wrap=True)
    for name, words in TIMES:
        found = result.times[name]
        figures = [quantity(value, "s") for value in (found.mean_s, found.p50_s, found.p90_s, found.p99_s)] if found else ["–"] * 4
        table.add_row(words, *figures, *_beside(prediction, name, "s"))
    return table


def _totals(result: BenchResult) -> str:
    totals = result.totals
    joules = f"{quantity(totals.joules, 'J')} ({result.energy_source})" if totals.joules is not None else "energy not known"
    return (
        f"{totals.words:,} words · {totals.tokens:,} tokens · {totals.responses:,} responses · {quantity(totals.seconds, 's')} · {joules}"
    )


def bench_footer(result: BenchResult) -> list[str]:
    """What was lost and why, and what to be careful about; lines that begin with "warning" are worth a colour."""
    manifest = result.manifest
    lines = [f"energy: {SCOPE_WORDS['gpu']}, {SOURCE_WORDS[result.energy_source]}"]
    if result.prediction:
        lines.append(f"predictor {result.prediction['predictor']} ({result.prediction['predictor_sha256'][:8]})")
    if manifest.meters:
        boards = ", ".join(f"{meter.name} {meter.uuid}{_limit(meter.power_limit_w)}" for meter in manifest.meters)
        lines.append(f"meter {manifest.meters[0].kind}: {boards}")
    bad = manifest.prompts["bad_lines"]
    if bad:
        lines.append(f"warning: {len(bad)} bad lines of {manifest.prompts['name']} left out; the first: {bad[0]}")
    if result.failed:
        lines.append(f"warning: {_counts(result.failed)}: no answer after every retry; the same command asks again")
    if result.faults:
        lines.append(f"failed attempts, retries included: {_counts(result.faults)}")
    if result.cut_off:
        lines.append(f"warning: {result.cut_off} requests were cut off and count nowhere; the energy they took until then does")
    lines += [f"note: {note}" for note in manifest.notes[:MOST_NOTES]]
    return lines + [f"warning: {text}" for text in (result.prediction or {}).get("warnings", ())]


def _limit(limit_w: float | None) -> str:
    return f" at {quantity(limit_w, 'W')}" if limit_w is not None else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def against_table(result: BenchResult, other: BenchResult) -> Group:
    """Two runs side by side, and whether they were asked the same."""
    table = Table("", result.manifest.name, other.manifest.name, "change", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, words, unit in (*((name, words, "/s") for name, words in RATES), *ENERGIES):
        one, two = getattr(result.totals, name), getattr(other.totals, name)
        shown = [_rate(value) if unit == "/s" else quantity(value, unit) for value in (one, two)]
        table.add_row(words, *shown, change(one / two if one is not None and two else None))
    for name, words in TIMES:
        found = [run.times[name] for run in (result, other)]
        means = [times.mean_s if times else None for times in found]
        ratio = means[0] / means[1] if means[0] is not None and means[1] else None
        table.add_row(words, *(quantity(mean, "s") for mean in means), change(ratio))
    same = result.manifest.work_hash == other.manifest.work_hash
    words = "both were asked the same" if same else "they were not asked the same (prompts, lengths or load differ): compare with care"
    sources = f"energy: {result.energy_source} here, {other.energy_source} there"
    return Group(table, Text(words if result.energy_source == other.energy_source else f"{words}; {sources}"))
