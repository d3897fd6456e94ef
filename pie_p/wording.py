"""Wording: rounded figures with SI prefixes, and the words for scopes, parts of energy and what was asked.

Whatever people read - tables, cards, pictures, pages - takes its figures and its words from here; files and `to_dict` never round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

SCOPE_WORDS: Final = {
    "gpu": "GPU boards only",
    "host": "GPU boards and their share of the host (CPU, memory, fans, power supply)",
    "facility": "GPU boards, host share and the site's overhead (PUE)",
}
PART_WORDS: Final = {
    "compute_j": ("compute", "a compute kernel runs"),
    "communication_j": ("communication", "bytes move between GPUs"),
    "wait_j": ("wait", "powered, neither of the two"),
    "host_j": ("host", "CPU, memory, fans, power supply"),
    "facility_j": ("facility", "PUE beyond 1"),
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


def change(ratio: float | None) -> str:
    """A ratio as more or less in percent, as a factor from two on.

    >>> change(1.061), change(0.7398), change(1.0), change(2.5), change(None)
    ('+6.1 %', '-26.0 %', 'the same', 'x 2.50', '–')
    """
    if ratio is None:
        return "–"
    if abs(ratio - 1.0) < 5e-4:
        return "the same"
    return f"x {ratio:.2f}" if ratio >= 2.0 or ratio <= 0.005 else f"{100 * (ratio - 1.0):+.1f} %"


def degrees(plan: Mapping[str, Any]) -> str:
    """A parallel plan as it is written, from its degrees.

    >>> degrees({"tp": 4, "pp": 1, "dp": 2, "ep": 1}), degrees({"tp": 1, "pp": 1, "dp": 1, "ep": 1})
    ('TP4 DP2', 'one GPU')
    """
    return " ".join(f"{name.upper()}{plan[name]}" for name in ("tp", "pp", "dp", "ep") if plan[name] > 1) or "one GPU"


def deployment_words(answer: Mapping[str, Any]) -> str:
    """What runs where, out of `Prediction.to_dict()`."""
    plan = f", {degrees(answer)}" if answer["gpus"] > 1 else ""
    return f"{answer['llm']} ({answer['dtype']}) on {answer['gpus']} x {answer['gpu']}{plan}"


def request_words(answer: Mapping[str, Any]) -> str:
    """What was asked of it, out of `Prediction.to_dict()`."""
    cached = f" ({answer['cached_prompt_tokens']:g} cached)" if answer["cached_prompt_tokens"] else ""
    tokens = f"{answer['prompt_tokens']:g} prompt{cached} + {answer['output_tokens']:g} output tokens"
    return f"{tokens}, batch {answer['batch']:g}, {answer['mode']}"


def interval_words(answer: Mapping[str, Any]) -> str:
    """The interval with its level, or the empty string where the predictor has none."""
    interval = answer["interval"]
    if interval is None:
        return ""
    return f"{100 * interval['level']:g} % interval {quantity(interval['low_j'], 'J')} to {quantity(interval['high_j'], 'J')}"
