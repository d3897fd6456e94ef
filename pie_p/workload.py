"""Request: how many tokens come in and go out, and how many requests run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Literal

from pie_p.errors import InputError
from pie_p.quantities import as_float, shown

Mode = Literal["static", "steady"]

MAX_TOKENS = 100_000_000
MIN_TOKENS = 1e-3  # the least mean of a request; below it, per-token figures lose their meaning before they overflow

# A number of output tokens in steady state means: requests of that mean length, spread like the exponential-to-uniform middle of public
# traffic. E[L^2] / E[L]^2 measured on ML.ENERGY v3's histograms: 1.5 (GPQA), 1.9 (chat), 3.3 (code completion).
DEFAULT_SPREAD = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """Output lengths by their first two moments: all that a mean over running sequences needs.

    A sequence is `L` steps in flight, so the running ones are length-biased: the mean context of a running sequence is
    `prompt + E[L^2] / (2 E[L])`.

    >>> LengthDistribution.from_lengths([100, 300]).mean
    200.0
    >>> LengthDistribution.from_lengths([100, 300]).spread  # (100^2 + 300^2) / 2 / 200^2
    1.25
    """

    mean: float  # E[L] [tokens]
    second_moment: float  # E[L^2] [tokens^2]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", as_float("mean of output_tokens", self.mean, least=MIN_TOKENS, most=MAX_TOKENS))
        least, most = self.mean**2 * (1 - 1e-9), self.mean * MAX_TOKENS  # no length is above MAX_TOKENS
        object.__setattr__(self, "second_moment", as_float("second moment of output_tokens", self.second_moment, least=least, most=most))

    @classmethod
    def from_lengths(cls, lengths: Sequence[float], counts: Sequence[float] | None = None) -> LengthDistribution:
        """From observed lengths, or from lengths and how often each occurred."""
        weights = [as_float("count", count) for count in counts] if counts is not None else [1.0] * len(lengths)
        values = [as_float("output length", length, most=MAX_TOKENS) for length in lengths]
        if len(weights) != len(values):
            raise InputError(f"{len(values)} output lengths but {len(weights)} counts; give one count per length")
        if sum(weights) <= 0:
            raise InputError(
                f"{len(values)} output lengths with counts that sum to {sum(weights):g}; give at least one length that occurred"
            )
        pairs = list(zip(values, weights, strict=True))
        total = sum(weights)
        return cls(mean=sum(v * w for v, w in pairs) / total, second_moment=sum(v * v * w for v, w in pairs) / total)

    @classmethod
    def from_histogram(cls, edges: Sequence[float], counts: Sequence[float]) -> LengthDistribution:
        """From bin edges (one more than counts); a bin stands for its middle, with the bin's own variance added.

        >>> LengthDistribution.from_histogram([0, 10], [7]).second_moment  # uniform on 0..10: 100 / 3
        33.333333333333336
        """
        if len(edges) != len(counts) + 1:
            raise InputError(f"{len(edges)} bin edges for {len(counts)} counts; a histogram has one more edge than counts")
        places = [as_float("bin edge", edge, most=MAX_TOKENS) for edge in edges]
        weights = [as_float("count", count) for count in counts]
        total = sum(weights)
        if total <= 0:
            raise InputError("a histogram of output lengths needs at least one count above 0; every count is 0")
        bins = list(zip(places[:-1], places[1:], weights, strict=True))
        fallen = next(((low, high) for low, high, _ in bins if high < low), None)
        if fallen:
            raise InputError(f"bin edge {fallen[1]:g} follows {fallen[0]:g}; the edges of a histogram rise")
        return cls(
            mean=sum((low + high) / 2 * count for low, high, count in bins) / total,
            second_moment=sum((low * low + low * high + high * high) / 3 * count for low, high, count in bins) / total,
        )

    @property
    def spread(self) -> float:
        """`E[L^2] / E[L]^2`: 1 when every request has the same length [-]."""
        return self.second_moment / self.mean**2


OutputTokens = float | LengthDistribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request among `batch` that run together on one data-parallel rank.

    Args:
        prompt_tokens: tokens that come in, cached ones included [-].
        output_tokens: tokens that go out: a number, or a `LengthDistribution`; 0 is a prefill-only request [-].
        batch: requests in flight per data-parallel rank; a measured mean may be a fraction [-].
        cached_prompt_tokens: prompt tokens found in the prefix cache: read, not computed [-].
        mode: "static" (all start together) or "steady" (a server kept at `batch`); default static at batch 1, steady above.

    Raises:
        InputError: with the value that came and what is allowed.
    """

    prompt_tokens: float
    output_tokens: OutputTokens
    batch: float = 1.0
    cached_prompt_tokens: float = 0.0
    mode: Mode | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "prompt_tokens", as_float("prompt_tokens", self.prompt_tokens, least=MIN_TOKENS, most=MAX_TOKENS))
        set_field(self, "output_tokens", _output_tokens(self.output_tokens))
        set_field(self, "batch", as_float("batch", self.batch, least=1, most=1e7))
        set_field(self, "cached_prompt_tokens", as_float("cached_prompt_tokens", self.cached_prompt_tokens, most=MAX_TOKENS))
        if self.cached_prompt_tokens > self.prompt_tokens:
            raise InputError(
                f"cached_prompt_tokens = {self.cached_prompt_tokens:g} is more than prompt_tokens = {self.prompt_tokens:g}; "
                "cached tokens are part of the prompt"
            )
        set_field(self, "mode", self._resolve_mode())

    def _resolve_mode(self) -> Mode:
        if self.mode is not None and (not isinstance(self.mode, str) or self.mode not in ("static", "steady")):
            raise InputError(
                f"mode = {shown(self.mode)} is not known; allowed: 'static' (all start together), 'steady' (a server kept at batch)"
            )
        if self.mean_output_tokens == 0:
            if self.mode == "steady":
                raise InputError("output_tokens = 0 is a prefill-only request, which has no steady state; use mode='static'")
            return "static"
        return self.mode or ("static" if self.batch <= 1 else "steady")

    @property
    def mean_output_tokens(self) -> float:
        """Mean tokens that go out [-]."""
        return self.output_tokens.mean if isinstance(self.output_tokens, LengthDistribution) else self.output_tokens

    @property
    def length_spread(self) -> float:
        """`E[L^2] / E[L]^2` of the requests that run together [-].

        A number means exactly that length in a static batch and at batch 1; in a steady state it implies the default spread.
        """
        if isinstance(self.output_tokens, LengthDistribution):
            return self.output_tokens.spread
        if self.mode == "static":
            return 1.0
        return 1.0 + (DEFAULT_SPREAD - 1.0) * (1.0 - 1.0 / max(self.batch, 1.0))

    @property
    def new_prompt_tokens(self) -> float:
        """Prompt tokens whose prefill is run [-]; at least one, since the last prompt token yields the first output."""
        return max(self.prompt_tokens - self.cached_prompt_tokens, min(1.0, self.prompt_tokens))


def _output_tokens(value: object) -> OutputTokens:
    if isinstance(value, LengthDistribution):
        return value
    if isinstance(value, Mapping):
        raise InputError("output_tokens is a mapping; use LengthDistribution.from_lengths(lengths, counts)")
    column = isinstance(value, Sized) and hasattr(value, "__iter__") and getattr(value, "ndim", 1) != 0  # of any library
    if column and not isinstance(value, (str, bytes)):
        return LengthDistribution.from_lengths(list(value))  # type: ignore[call-overload]
    tokens = as_float("output_tokens", value, most=MAX_TOKENS)
    return as_float("output_tokens", value, least=MIN_TOKENS, most=MAX_TOKENS) if tokens else tokens
