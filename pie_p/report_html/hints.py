"""What would change a prediction: the same question asked again with one thing different.

A question out of a file can be asked again where its names are known and the predictor is the one that answered; the first answer must come
out the same, or there are no hints.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any, Final, NamedTuple

from pie_p.errors import PiePError
from pie_p.prediction import Prediction
from pie_p.predictor import load_predictor, predict_energy
from pie_p.units import BYTES_PER_VALUE

NAMES: Final = (
    "llm", "gpu", "tp", "pp", "dp", "ep", "batch", "prompt_tokens", "cached_prompt_tokens", "output_tokens", "dtype", "kv_dtype", "mode",
    "engine", "power_limit_w", "scope", "pue", "exclusive_host",
)  # fmt: skip
CAP: Final = 0.7  # of the power limit, for the hint on capping


class Hint(NamedTuple):
    """One change and what it does to energy and latency, as ratios; or why it cannot be."""

    what: str
    why: str
    energy_ratio: float | None
    latency_ratio: float | None
    refused: str = ""


def again(answer: Mapping[str, Any]) -> Prediction | None:
    """The prediction that a dictionary came from; None where the same figures do not come out here."""
    made = answer["predictor"]
    question: dict[str, Any] = {name: answer[name] for name in NAMES if answer.get(name) is not None}
    try:
        predictor = load_predictor(made["name"])
        repeated = predict_energy(**question, predictor=predictor)
    except PiePError:
        return None
    same = all(isclose(getattr(repeated, name), answer[name], rel_tol=1e-9) for name in ("energy_j", "latency_s"))
    return repeated if same and repeated.cluster == answer["cluster"] and predictor.sha256 == made["sha256"] else None


def hints(answer: Mapping[str, Any], repeated: Prediction | None) -> list[Hint]:
    """Changes worth a thought; none where the question cannot be asked again."""
    if repeated is None:
        return []
    return [_tried(repeated, what, why, changed) for what, why, changed in _changes(answer)]


def _changes(answer: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    batch, tp, cap_w = answer["batch"], answer["tp"], CAP * answer["power_limit_w"]
    changes: list[tuple[str, str, dict[str, Any]]] = [
        (f"twice the batch ({2 * batch:g})", "more requests share each reading of the weights", {"batch": 2 * batch, "mode": None})
    ]
    if tp > 1:
        fewer = {"tp": tp // 2, "ep": 1 if answer["ep"] == 1 else max(1, answer["ep"] // 2)}
        changes.append((f"half as many GPUs (TP{tp // 2})", "less communication and waiting, but each has more to do", fewer))
    changes.append((f"twice as many GPUs (TP{2 * tp})", "faster, at more communication and waiting", {"tp": 2 * tp}))
    if BYTES_PER_VALUE[answer["dtype"]] > 1.0:
        changes.append(("weights in fp8", "half the memory to read; check the quality of the answers", {"dtype": "fp8"}))
    changes.append((f"a power limit of {cap_w:.0f} W per GPU", "work that waits for memory hardly slows down", {"power_limit_w": cap_w}))
    return changes


def _tried(repeated: Prediction, what: str, why: str, changed: dict[str, Any]) -> Hint:
    try:
        other = repeated.what_if(**changed)
    except PiePError as error:
        return Hint(what, why, None, None, refused=f"cannot run: {error}")
    full = next((text for text in other.after.warnings if text.startswith("the KV cache")), "")
    if full:
        return Hint(what, why, None, None, refused=f"cannot run: {full}")
    return Hint(what, why, other.ratio("energy_j"), other.ratio("latency_s"))
