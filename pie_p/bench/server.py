"""Asking an OpenAI-compatible server over HTTP, with time-outs, retries and a count of everything that failed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, TypeVar

from pie_p.bench.in_flight import InFlight
from pie_p.bench.outcomes import LASTING, Answer, Fault, FaultError, Outcome
from pie_p.bench.plans import Load, ServerTarget
from pie_p.bench.streams import Assembly, CountTokens, EventParser, parsed
from pie_p.errors import InputError
from pie_p.extras import require

Item = tuple[int, int]  # repetition, number of the prompt
Report = Callable[[Outcome], None]
MOST_BODY_BYTES: Final = 64 << 20
LINGER_S: Final = 1.0  # that a stream may stay open after [DONE]: read to its end, a connection can be used again
T = TypeVar("T")


class Server:
    """A server that answers prompts. Use it as an asynchronous context manager.

    Args:
        target: whom, and how patiently.
        load: lengths, seed and temperature of each request.
        texts: the prompts.
        count: counts tokens where the server does not.
    """

    def __init__(self, target: ServerTarget, load: Load, texts: Sequence[str], *, count: CountTokens | None = None) -> None:
        self._httpx = require("httpx", extra="bench")
        self.target, self.load, self.texts, self.count = target, load, texts, count
        self.in_flight = InFlight()
        self.notes: dict[str, None] = {}  # what the server does not do, in the order it was found
        self.served = target.served
        self._usage_asked = True
        self._random = random.Random(load.seed)
        self._client: Any = None

    async def __aenter__(self) -> Server:
        target = self.target
        timeout = self._httpx.Timeout(None, connect=target.connect_s)
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=self.load.together)
        key = _key(target.api_key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = self._httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers)
        try:
            self.served = target.served or await self._only_one()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.aclose()

    async def together(self, items: Sequence[Item], report: Report) -> None:
        """Ask for several at once; each outcome is reported as it comes."""

        async def one(item: Item) -> None:
            report(await self.answer(item))

        await all_of([one(item) for item in items])

    async def answer(self, item: Item) -> Outcome:
        """One prompt, asked until it is answered or the attempts are used up."""
        repetition, prompt = item
        start_s, faults, detail, answer = time.monotonic(), list[Fault](), "", None
        for attempt in range(self.target.retries + 1):
            try:
                with self.in_flight.one():
                    answer = await self._attempt(self.texts[prompt])
                break
            except FaultError as error:
                faults.append(error.fault)
                detail = error.detail
                if error.fault in LASTING or attempt == self.target.retries:
                    break
                await asyncio.sleep(self._pause_s(attempt, error.retry_after_s))
        return Outcome(
            repetition=repetition,
            prompt=prompt,
            answer=answer,
            faults=tuple(faults),
            detail=detail,
            start_s=start_s,
            end_s=time.monotonic(),
        )

    def _pause_s(self, attempt: int, asked_s: float | None) -> float:
        """Before the next attempt: what the server asked for, else doubling with a random part so that clients do not march in step [s]."""
        most_s = self.target.most_backoff_s
        if asked_s is not None:
            return min(asked_s, most_s)
        return min(self.target.backoff_s * 2.0 ** min(attempt, 30), most_s) * self._random.uniform(0.5, 1.0)

    async def _attempt(self, text: str) -> Answer:
        try:
            return await asyncio.wait_for(self._exchange(text), self.target.total_s)
        except asyncio.TimeoutError:
            raise FaultError("timeout", f"no whole response within {self.target.total_s:g} s") from None
        except (self._httpx.ConnectError, self._httpx.ConnectTimeout, self._httpx.PoolTimeout) as error:
            raise FaultError("connect", str(error) or type(error).__name__) from None
        except self._httpx.HTTPError as error:
            raise FaultError("disconnected", str(error) or type(error).__name__) from None

    async def _exchange(self, text: str) -> Answer:
        path, body = self._body(text)
        request = self._client.build_request("POST", f"{self.target.base}{path}", json=body)
        assembly = Assembly(start_s=time.monotonic(), count=self.count)
        response = await _within(self._client.send(request, stream=True), self.target.first_byte_s, "timeout")
        try:
            if response.status_code != 200:
                refusal = await self._refusal(response)
                if "stream_options" not in body or "stream_options" not in refusal.detail:
                    raise refusal
                self._usage_asked = False
                self.notes["the server does not know stream_options: tokens are counted here"] = None
                return await self._exchange(text)
            await self._read(response, assembly)
        except (self._httpx.HTTPError, FaultError):
            if not assembly.whole:  # else all of it had come before the line broke
                raise
        finally:
            await response.aclose()
        return assembly.answer()

    async def _read(self, response: Any, assembly: Assembly) -> None:
        """A stream, or the one JSON body of a server that does not stream."""
        pieces = response.aiter_bytes()
        if "json" in response.headers.get("content-type", "").partition(";")[0]:
            body = await self._whole_body(pieces)
            assembly.take_body(body, time.monotonic())
            self.notes["the server sent whole responses and no stream: no time to first token"] = None
            return
        parser, limit_s = EventParser(), self.target.first_byte_s
        fault: Fault = "timeout"
        while (piece := await _within(_next(pieces), limit_s, fault)) is not None:
            at_s = time.monotonic()
            for data in parser.feed(piece):
                assembly.take(data, at_s)
            limit_s, fault = LINGER_S if assembly.done else self.target.stall_s, "stalled"

    async def _whole_body(self, pieces: AsyncIterator[bytes]) -> bytes:
        body = b""
        while (piece := await _within(_next(pieces), self.target.first_byte_s, "timeout")) is not None:
            body += piece
            if len(body) > MOST_BODY_BYTES:
                raise FaultError("malformed", f"a body of more than {MOST_BODY_BYTES} bytes")
        return body

    async def _refusal(self, response: Any) -> FaultError:
        """The fault behind a status that is not 200, with what the server says about it."""
        status = response.status_code
        said = (await self._whole_body(response.aiter_bytes())).decode(errors="replace")
        detail = f"HTTP {status}: {said}" if said.strip() else f"HTTP {status}"
        if status == 429:
            return FaultError("busy", detail, retry_after_s=seconds_of(response.headers.get("retry-after")))
        if status >= 500:
            return FaultError("server error", detail, retry_after_s=seconds_of(response.headers.get("retry-after")))
        return FaultError("refused" if status >= 400 else "malformed", detail)

    def _body(self, text: str) -> tuple[str, dict[str, Any]]:
        """Path and fields of a request."""
        load, chat = self.load, self.target.api == "chat"
        fields = {"model": self.served, "max_tokens": load.max_tokens, "temperature": load.temperature, "seed": load.seed, "stream": True}
        if self._usage_asked:
            fields["stream_options"] = {"include_usage": True}
        asked = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        return "/chat/completions" if chat else "/completions", {**fields, **asked, **self.target.fields}

    async def _only_one(self) -> str:
        """The name of the LLM that the server lists, where it lists one."""
        url = f"{self.target.base}/models"
        try:
            response = await self._client.get(url, timeout=self.target.connect_s)
        except self._httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise InputError(f"no answer from {url}: {reason}; is the server up, and the address right?") from None
        if response.status_code in (401, 403):
            raise InputError(f"{url} answers with HTTP status {response.status_code}; {_key_advice(self.target.api_key_env)}")
        names = _listed(response)
        if len(names) != 1:
            raise InputError(f"{url} (HTTP {response.status_code}) lists {', '.join(names[:5]) or 'no LLM'}; name one with --served")
        return names[0]


def _key(name: str) -> str:
    """The key in an environment variable, "" where there is none. Raises `InputError`, without the key in it: no header can hold it."""
    key = os.environ.get(name, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(f"the key in {name} holds characters that no HTTP header can; give printable ASCII, on one line")
    return key


def _key_advice(name: str) -> str:
    given = "the key in it is not accepted" if os.environ.get(name, "").strip() else "it is not set"
    return f"the server wants a key from the environment variable {name}, and {given}; choose another variable with --api-key-env"


def _listed(response: Any) -> list[str]:
    try:
        entries = parsed(response.text).get("data") or []
        return [str(entry["id"]) for entry in entries]
    except (FaultError, TypeError, KeyError):
        return []


def seconds_of(retry_after: str | None) -> float | None:
    """What a Retry-After header asks for: seconds, or the time until a date; None where it says nothing [s].

    >>> seconds_of("2"), seconds_of("soon"), seconds_of(None)
    (2.0, None, None)
    """
    if not retry_after:
        return None
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


async def _within(waiting: Awaitable[T], limit_s: float, fault: Fault) -> T:
    """What comes within the limit.

    Not by `asyncio.wait_for`: up to Python 3.11 it swallows a cancellation that comes when a piece has just arrived, and a stream that
    never pauses then outlives every limit on the whole response.
    """
    task = asyncio.ensure_future(waiting)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if not done:
        raise FaultError(fault, f"{'no byte' if fault == 'timeout' else 'nothing more'} within {limit_s:g} s")
    return task.result()


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def all_of(waiting: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all; when one fails or the run is stopped, the others are ended before this returns."""
    tasks = [asyncio.ensure_future(one) for one in waiting]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
