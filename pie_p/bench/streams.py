"""Responses of OpenAI-compatible servers, put together from server-sent events or from one JSON body.

A response is whole when its `finish_reason` or `[DONE]` has come: some servers send one, some the other. What is not whole is a fault, and
so is every line that is no server-sent event: half a response is never taken for one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pie_p.bench.outcomes import Answer, FaultError, TokenSource
from pie_p.quantities import shown

MOST_LINE_BYTES: Final = 16 << 20  # more is no line of a stream
FIELDS: Final = (b"data", b"event", b"id", b"retry")
DONE: Final = "[DONE]"
CountTokens = Callable[[str], int]


class EventParser:
    r"""Bytes to the data of events, whatever the pieces they come in.

    >>> parser = EventParser()
    >>> parser.feed(b"data: one\n\nda"), parser.feed(b"ta: two\n\n: comment\n")
    (['one'], ['two'])
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """Data of the events that this piece completes. Raises `FaultError`: a line that no event has."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            raise FaultError("malformed", f"a line of more than {MOST_LINE_BYTES} bytes")
        return [data for line in lines if (data := self._line(line.removesuffix(b"\r"))) is not None]

    def _line(self, line: bytes) -> str | None:
        if not line:
            data, self._data = "\n".join(self._data), []
            return data or None
        name, _, value = line.partition(b":")
        if name == b"data":
            try:
                self._data.append(value.removeprefix(b" ").decode())
            except UnicodeDecodeError:
                raise FaultError("malformed", "an event that is not UTF-8") from None
        elif name and name not in FIELDS:
            raise FaultError("malformed", f"a line that is no server-sent event: {shown(line[:60])}")
        return None


@dataclass
class Assembly:
    """One response as it comes in.

    Args:
        start_s: when the request was sent, on a monotonic clock [s].
        count: counts tokens where the server does not.
    """

    start_s: float
    count: CountTokens | None = None
    texts: list[str] = field(default_factory=list)
    first_s: float | None = None  # first text [s]
    last_s: float = 0.0  # last text or finish [s]
    finish_reason: str = ""
    done: bool = False
    usage: dict[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the server has said that nothing more comes."""
        return self.done or bool(self.finish_reason)

    def take(self, data: str, at_s: float) -> None:
        """One event. Raises `FaultError` where it is not of the kind asked for."""
        if data.strip() == DONE:
            self.done, self.last_s = True, self.last_s or at_s
            return
        self._chunk(parsed(data), at_s, part="delta")

    def take_body(self, body: bytes, at_s: float) -> None:
        """A response that came as one JSON body, from a server that does not stream."""
        self._chunk(parsed(body.decode(errors="replace")), at_s, part="message")
        self.done, self.first_s, self.last_s = True, None, at_s

    def answer(self) -> Answer:
        """The whole response. Raises `FaultError`: it is not whole, or has no token in it."""
        if not self.whole:
            got = f"{len(self.texts)} pieces of text had come" if self.texts else "nothing had come"
            raise FaultError("disconnected" if self.texts else "empty", f"the stream ended without finish_reason or [DONE]; {got}")
        text = "".join(self.texts)
        tokens, source = self._tokens(text)
        if not tokens:
            raise FaultError("empty", "a response without a token")
        prompt_tokens = self.usage.get("prompt_tokens")
        return Answer(
            words=len(text.split()),
            output_tokens=tokens,
            token_source=source,
            prompt_tokens=prompt_tokens,
            cached_prompt_tokens=self.usage.get("cached_tokens"),
            chunks=len(self.texts),
            finish_reason=self.finish_reason,
            ttft_s=None if self.first_s is None else self.first_s - self.start_s,
            latency_s=self.last_s - self.start_s,
        )

    def _tokens(self, text: str) -> tuple[int, TokenSource]:
        if self.usage.get("completion_tokens"):  # some servers say 0 and send text
            return self.usage["completion_tokens"], "usage"
        if self.count is not None:
            return self.count(text), "tokenizer"
        return len(self.texts), "chunks"

    def _chunk(self, chunk: Mapping[str, Any], at_s: float, *, part: str) -> None:
        if chunk.get("error"):
            raise FaultError("server error", f"an error inside the response: {shown(chunk['error'], most=120)}")
        self.usage |= _usage(chunk.get("usage"))
        choices = chunk.get("choices", ())
        if not isinstance(choices, (list, tuple)) or not all(isinstance(choice, Mapping) for choice in choices):
            raise FaultError("malformed", f"choices = {shown(choices)} is not a list of objects")
        if not choices and "usage" not in chunk:
            raise FaultError("malformed", f"neither choices nor usage in {shown(dict(chunk), most=80)}")
        for choice in choices[:1]:
            self._choice(choice, at_s, part)

    def _choice(self, choice: Mapping[str, Any], at_s: float, part: str) -> None:
        text = _text(choice, part)
        if text:
            self.texts.append(text)
            self.first_s = at_s if self.first_s is None else self.first_s
            self.last_s = at_s
        if choice.get("finish_reason"):
            self.finish_reason, self.last_s = str(choice["finish_reason"]), at_s


def parsed(text: str) -> Mapping[str, Any]:
    """A JSON object. Raises `FaultError`: it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise FaultError("malformed", f"not JSON: {shown(text[:80], most=80)}") from None
    if not isinstance(value, Mapping):
        raise FaultError("malformed", f"{shown(value)} is not an object")
    return value


def _text(choice: Mapping[str, Any], part: str) -> str:
    """What a choice adds: of /v1/completions its `text`, of /v1/chat/completions the content, reasoning before it included."""
    source = choice.get(part, choice) if isinstance(choice.get(part, choice), Mapping) else {}
    pieces = [source.get(name) or "" for name in ("reasoning_content", "reasoning", "content", "text")]
    if not all(isinstance(piece, str) for piece in pieces):
        raise FaultError("malformed", f"the text of a choice is {shown(next(piece for piece in pieces if not isinstance(piece, str)))}")
    return "".join(pieces) if pieces[0] != pieces[1] else "".join(pieces[1:])  # both names for one reasoning: counted once


def _usage(usage: Any) -> dict[str, int]:
    """Token counts of a chunk, where it has them."""
    if usage is None:
        return {}
    if not isinstance(usage, Mapping):
        raise FaultError("malformed", f"usage = {shown(usage)} is not an object")
    details = usage.get("prompt_tokens_details")
    found = {**usage, **(details if isinstance(details, Mapping) else {})}
    counts = {name: found[name] for name in ("prompt_tokens", "completion_tokens", "cached_tokens") if found.get(name) is not None}
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise FaultError("malformed", f"{name} = {shown(count)} is no count of tokens")
    return counts
