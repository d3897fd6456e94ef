"""What becomes of one prompt: a whole response, or a fault with a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Fault = Literal["connect", "timeout", "stalled", "disconnected", "busy", "refused", "server error", "malformed", "empty"]
FAULTS: Final[dict[Fault, str]] = {
    "connect": "no connection to the server",
    "timeout": "no first byte, or no end, within the time allowed",
    "stalled": "the stream stopped for longer than allowed",
    "disconnected": "the stream ended before the response was whole",
    "busy": "429: too many requests",
    "refused": "another 4xx: the server does not accept the request",
    "server error": "5xx, or an error inside the stream",
    "malformed": "neither server-sent events nor JSON of the kind asked for",
    "empty": "a response without a token",
}
assert tuple(FAULTS) == get_args(Fault)
LASTING: Final[frozenset[Fault]] = frozenset({"refused"})  # asking again would change nothing
TokenSource = Literal["usage", "tokenizer", "chunks"]  # the server says; a tokenizer counts; pieces of the stream, a lower bound


class FaultError(Exception):
    """One attempt that gave no whole response."""

    def __init__(self, fault: Fault, detail: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(detail)
        self.fault, self.detail, self.retry_after_s = fault, " ".join(detail.split())[:200], retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole response, as it was seen from outside."""

    words: int  # [-]
    output_tokens: int  # [-]
    token_source: TokenSource
    prompt_tokens: int | None  # None: not known [-]
    cached_prompt_tokens: int | None = None  # None: not told [-]
    chunks: int = 1  # pieces with text in them [-]
    finish_reason: str = ""
    ttft_s: float | None = None  # request sent to first text; None: it came in one piece [s]
    latency_s: float = 0.0  # request sent to last text [s]

    @property
    def tpot_s(self) -> float | None:
        """`(latency_s - ttft_s) / (output_tokens - 1)`; None without a first token or without a second [s]."""
        if self.ttft_s is None or self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one prompt of one repetition, after all attempts."""

    repetition: int
    prompt: int  # its number in the file, from 0
    answer: Answer | None  # None: every attempt failed
    faults: tuple[Fault, ...] = ()  # of every failed attempt, the last one last
    detail: str = ""  # of the last fault
    start_s: float = 0.0  # of the first attempt, on the host's monotonic clock
    end_s: float = 0.0

    @property
    def fault(self) -> Fault | None:
        """Why there is no answer."""
        return self.faults[-1] if self.answer is None and self.faults else None
