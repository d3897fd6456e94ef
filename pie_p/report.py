"""What a person sees: tables with units and scope. The only module that rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from pie_p.prediction import Prediction

if TYPE_CHECKING:
    from rich.console import RenderableType

SCOPE_WORDS: Final = {
    "gpu": "GPU boards only",
    "host": "GPU boards and their share of the host (CPU, memory, fans, power supply)",
    "facility": "GPU boards, host share and the site's overhead (PUE)",
}
_PREFIXES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))


def quantity(value: float | None, unit: str) -> str:
    """Three significant figures with an SI prefix.

    >>> quantity(0.00643, "s"), quantity(51535.4, "J"), quantity(0.0, "J"), quantity(None, "s")
    ('6.43 ms', '51.5 kJ', '0 J', '–')
    """
    if value is None:
        return "–"
    if value == 0:
        return f"0 {unit}"
    size = abs(value)
    factor, prefix = next(((f, p) for f, p in _PREFIXES if size >= f * 0.9995), _PREFIXES[-1])
    scaled = value / factor
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f} {prefix}{unit}"


def share(part: float, whole: float) -> str:
    """A part in percent.

    >>> share(1.0, 8.0)
    '12.5 %'
    """
    return f"{100 * part / whole:.1f} %" if whole else "–"


def prediction_lines(prediction: Prediction) -> list[tuple[str, str, str]]:
    """Name, figure and remark of each line of the summary."""
    p, total = prediction, prediction.energy_j
    lines = [
        ("energy per request", quantity(total, "J"), SCOPE_WORDS[p.scope]),
        *_interval_line(p),
        ("energy per output token", quantity(p.energy_per_output_token_j, "J"), "prefill included"),
    ]
    words = {
        "compute_j": ("  compute", "a compute kernel runs"),
        "communication_j": ("  communication", "bytes move between GPUs"),
        "wait_j": ("  wait", "powered, neither of the two"),
        "host_j": ("  host", "CPU, memory, fans, power supply"),
        "facility_j": ("  facility", "PUE beyond 1"),
    }
    for name, value in p.breakdown.to_dict().items():
        label, meaning = words[name]
        lines.append((label, quantity(value, "J"), f"{share(value, total)}, {meaning}"))
    lines += [
        ("prefill", quantity(p.prefill.total_j, "J"), f"{share(p.prefill.total_j, total)}, reading the prompt"),
        ("decode", quantity(p.decode.total_j, "J"), f"{share(p.decode.total_j, total)}, writing the answer"),
        ("latency", quantity(p.latency_s, "s"), "first prefill start to last token"),
        ("time to first token", quantity(p.ttft_s, "s"), "without queueing"),
        ("time per output token", quantity(p.tpot_s, "s"), "after the first"),
        ("decode step", quantity(p.itl_s, "s"), "no prompt in it"),
        ("power of all GPUs", quantity(p.avg_power_w, "W"), f"mean over the request's life; {p.gpus} x {p.deployment.cluster.gpu.name}"),
    ]
    return lines


def _interval_line(p: Prediction) -> list[tuple[str, str, str]]:
    if p.spread is None:
        return []
    low, high = p.interval(0.9)
    return [("  90 % interval", f"{quantity(low, 'J')} to {quantity(high, 'J')}", "from errors on LLMs the fit never saw")]


def prediction_table(prediction: Prediction) -> Table:
    """The summary a terminal shows."""
    p = prediction
    request, plan = p.request, p.deployment.plan
    title = (
        f"{p.deployment.llm.name} ({p.deployment.dtype}) on {p.gpus} x {p.deployment.cluster.gpu.name}, {plan}\n"
        f"{request.prompt_tokens:g} prompt + {request.mean_output_tokens:g} output tokens, batch {request.batch:g}, {p.mode}"
    )
    table = Table(title=Text(title), title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for name, figure, remark in prediction_lines(p):
        table.add_row(name, figure, Text(remark))
    return table


def prediction_footer(prediction: Prediction) -> list[str]:
    """Where the figures come from, and what to be careful about."""
    p = prediction
    lines = [f"cluster {p.cluster} · engine {p.engine} · predictor {p.predictor['name']} ({p.predictor['sha256'][:8]})"]
    return lines + [f"warning: {text}" for text in p.warnings]


def tree_table(prediction: Prediction, *, depth: int) -> Table:
    """GPU energy by place in the operator tree, largest first."""
    sums = prediction.tree(depth)
    whole = sum(sums.values())
    table = Table(title="GPU energy by operator", title_justify="left", box=None, pad_edge=False)
    table.add_column("path", no_wrap=True)
    table.add_column("energy", justify="right")
    table.add_column("share", justify="right")
    for path, energy_j in sorted(sums.items(), key=lambda item: -item[1]):
        table.add_row(Text(path), quantity(energy_j, "J"), share(energy_j, whole))
    return table


def names_table(title: str, header: Iterable[str], rows: Iterable[Iterable[str]]) -> RenderableType:
    """A plain table of catalogue entries; brackets in names are no markup."""
    table = Table(*header, title=Text(title), title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    return table
