"""What if: the same question with some arguments changed, asked of the same predictor, and the two answers side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from pie_p.accounting import Accounting
from pie_p.cases import ARGUMENTS, arguments_of, make_case
from pie_p.errors import InputError, did_you_mean
from pie_p.serving import Case
from pie_p.wording import change, deployment_words, quantity, request_words

ACCOUNTING: Final = ("scope", "pue", "exclusive_host")
CHANGEABLE: Final = (*ARGUMENTS, *ACCOUNTING)

# What the two answers are compared by, with unit and words.
COMPARED: Final[Mapping[str, tuple[str, str]]] = {
    "energy_j": ("J", "energy per request"),
    "energy_per_output_token_j": ("J", "energy per output token"),
    "latency_s": ("s", "latency"),
    "ttft_s": ("s", "time to first token"),
    "tpot_s": ("s", "time per output token"),
    "itl_s": ("s", "decode step"),
    "avg_power_w": ("W", "power of all GPUs"),
}
INPUTS: Final = (
    "llm", "gpu", "cluster", "engine", "tp", "pp", "dp", "ep", "dtype", "kv_dtype", "power_limit_w", "batch", "mode", "prompt_tokens",
    "cached_prompt_tokens", "output_tokens", "scope", "pue", "exclusive_host",
)  # fmt: skip


class Answer(Protocol):
    """A prediction, as far as comparing needs it."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""


P = TypeVar("P", bound=Answer)


class Answerer(Protocol):
    """A predictor, as far as asking again needs it."""

    def predict(self, cases: Sequence[Case], *, accounting: Accounting | None = None) -> list[Any]:
        """Answers in the order of the cases."""

    def light(self) -> Answerer:
        """Itself or what finds it again, small enough to travel with every answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked, and of whom: enough to ask again. A pickled or copied one takes a small stand-in of a large predictor along."""

    case: Case
    accounting: Accounting
    answerer: Answerer

    def __reduce__(self) -> tuple[Callable[..., Asked], tuple[Any, ...]]:
        return _asked, (self.case, self.accounting, self.answerer.light())

    def __copy__(self) -> Asked:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Asked:
        return self

    def again(self, changes: Mapping[str, Any]) -> Any:
        """The answer to the changed question.

        Args:
            changes: arguments of `predict_energy`, but for the predictor.

        Raises:
            InputError: no change, or an argument that `predict_energy` does not have.
            PiePError: what `predict_energy` says about the changed question.
        """
        strange = next((name for name in changes if name not in CHANGEABLE), None)
        if strange is not None:
            raise InputError(
                f"no argument {strange[:80]!r} to change.{did_you_mean(strange[:80], CHANGEABLE)} Known: {', '.join(CHANGEABLE)}"
            )
        if not changes:
            raise InputError(f"nothing was changed; give one of {', '.join(CHANGEABLE)}, for instance power_limit_w=500")
        given = {**arguments_of(self.case), **{name: value for name, value in changes.items() if name in ARGUMENTS}}
        if "gpu" in changes and "cluster" not in changes:
            given["cluster"] = None
        if "cluster" in changes and "gpu" not in changes:
            given["gpu"] = None
        return self.answerer.predict([make_case(**given)], accounting=self._accounting(changes))[0]

    def _accounting(self, changes: Mapping[str, Any]) -> Accounting:
        """The accounting with its changes; what a narrower scope cannot count goes with the scope."""
        counted = {name: changes.get(name, getattr(self.accounting, name)) for name in ACCOUNTING}
        if counted["scope"] != "facility" and "pue" not in changes:
            counted["pue"] = None
        if counted["scope"] == "gpu" and "exclusive_host" not in changes:
            counted["exclusive_host"] = False
        return Accounting(**counted)


def _asked(case: Case, accounting: Accounting, answerer: Answerer) -> Asked:
    return Asked(case=case, accounting=accounting, answerer=answerer)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Generic[P]):
    """Two answers: to the question as it was asked, and with some arguments changed.

    >>> from pie_p import predict_energy
    >>> p = predict_energy("llama-3.1-8b", gpu="h100-sxm-80gb", batch=32, prompt_tokens=200, output_tokens=300)
    >>> half = p.what_if(dtype="fp8")
    >>> half.changes["dtype"], half.ratio("energy_j") < 1.0
    (('bf16', 'fp8'), True)
    """

    before: P
    after: P

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Every input that differs, with its value before and after: what was changed, and what followed from it."""
        before, after = self.before.to_dict(), self.after.to_dict()
        return {name: (before[name], after[name]) for name in INPUTS if before[name] != after[name]}

    def ratio(self, figure: str = "energy_j") -> float | None:
        """A figure after over before; None where one of the two does not exist [-].

        Raises:
            InputError: no such figure.
        """
        if figure not in COMPARED:
            raise InputError(f"no figure {figure[:80]!r} to compare.{did_you_mean(figure[:80], COMPARED)} Known: {', '.join(COMPARED)}")
        before, after = self.before.to_dict()[figure], self.after.to_dict()[figure]
        return None if before is None or after is None else float(after / before)

    def rows(self) -> Iterator[tuple[str, float | None, float | None, float | None]]:
        """Name, value before, value after and ratio of every figure that is compared."""
        before, after = self.before.to_dict(), self.after.to_dict()
        for name in COMPARED:
            yield name, before[name], after[name], self.ratio(name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what changed, the ratios, and both answers in full."""
        return {
            "changes": {name: {"before": before, "after": after} for name, (before, after) in self.changes.items()},
            "ratio": {name: ratio for name, _, _, ratio in self.rows()},
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
        }

    def __str__(self) -> str:
        asked = self.before.to_dict()
        lines = [f"{deployment_words(asked)}; {request_words(asked)}", f"what if {changes_words(self.changes)}"]
        for name, before, after, ratio in self.rows():
            unit, words = COMPARED[name]
            lines.append(f"  {words}: {quantity(before, unit)} -> {quantity(after, unit)} ({change(ratio)})")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from pie_p.card import comparison_card

        figures = [(COMPARED[name][1], COMPARED[name][0], before, after, ratio) for name, before, after, ratio in self.rows()]
        return comparison_card(self.before.to_dict(), self.after.to_dict(), what=changes_words(self.changes), figures=figures)


def changes_words(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Changed inputs on one line; another board's common host goes without saying.

    >>> changes_words({"power_limit_w": (700.0, 500.0), "dtype": ("bf16", "fp8")})
    'power_limit_w 700 -> 500, dtype bf16 -> fp8'
    """
    told = {name: values for name, values in changes.items() if name != "cluster" or "gpu" not in changes}
    return ", ".join(f"{name} {_plain(before)} -> {_plain(after)}" for name, (before, after) in told.items()) or "nothing changes"


def _plain(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
