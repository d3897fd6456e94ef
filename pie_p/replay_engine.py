"""One serving engine through a trace: continuous batching, iteration by iteration.

Every iteration holds one token of each decoding sequence and, within the engine's token budget, chunks of prompts: those being read first,
then waiting requests in order of arrival, as far as sequences and KV cache allow. When a decoding batch outgrows the cache, the request
admitted last gives way; its prompt and what it had written are read again.

    iteration   |  prompt chunk + 3 decode  |  4 decode  |  4 decode  | ... 57 like steps ... |  3 decode  |
    segment     |             0             |                       1                        |     2      |

Decode-only iterations between two events (an arrival, a last token, a full cache) are one segment, whose time is a closed form.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from pie_p.replay_surface import Surface

WATERMARK: Final = 0.01  # of the KV cache, kept free when a request is admitted beside others, so that it is not put out at once


class Segment(NamedTuple):
    """One iteration that reads prompts, or like decode-only iterations in a row."""

    start_s: float
    end_s: float
    steps: int  # iterations [-]
    decoding: int  # sequences of the whole engine [-]
    context: float  # their mean, at the middle of the segment [tokens]
    tokens: float  # prompt tokens on the rank that has most [-]
    seen: float  # mean KV positions a prompt token sees [tokens]
    ending: int  # prompts that end, on that rank [-]
    done: int  # decode iterations of the engine before this segment [-]


class Chunk(NamedTuple):
    """Prompt tokens of a request that were read in a segment."""

    segment: int
    request: int
    tokens: int


class Stay(NamedTuple):
    """A request among the decoding ones from one segment to before another."""

    request: int
    first: int
    end: int
    base: float  # its context is `base` plus the engine's decode iterations [tokens]


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """What an engine may do."""

    surface: Surface
    max_sequences: int  # decoding or being read at once on one rank [-]
    chunk_tokens: int  # tokens in one iteration on one rank [-]
    capacity_bytes: float  # KV cache of a rank's fullest board, over all lanes [B]
    sequence_bytes: float  # of one sequence, whatever its length [B]
    token_bytes: float  # of each position of it [B]
    reserves: bool  # a request enters when its whole life fits, so that none ever gives way

    def held_bytes(self, tokens: float) -> float:
        """Cache that a sequence of that length takes [B]."""
        return self.sequence_bytes + self.token_bytes * tokens


@dataclass(slots=True)
class _Life:
    """A request in an engine."""

    request: int
    prompt: int
    cached: int
    output: int
    written: int = 0  # output tokens so far
    left: int = 0  # prompt tokens to read before it decodes
    read: int = 0  # positions in the cache while its prompt is read
    base: float = 0.0
    entered: int = -1  # segment in which it began to decode; -1: not decoding
    ends_at: int = 0  # decode iteration after which it is done
    reading: bool = False
    lane: int = 0  # data-parallel rank it is on


@dataclass(slots=True)
class _Pending:
    segment: Segment
    first_s: float = 0.0
    slope_s: float = 0.0
    chunks: list[tuple[_Life, int]] = field(default_factory=list)


class Engine:
    """A running engine. `submit` requests in order of arrival, each after `advance` to its arrival; `advance(math.inf)` ends it."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        self.now_s = 0.0
        self.segments: list[Segment] = []
        self.chunks: list[Chunk] = []
        self.stays: list[Stay] = []
        self.started_s: dict[int, float] = {}
        self.first_s: dict[int, float] = {}
        self.finished_s: dict[int, float] = {}
        self.given_way: dict[int, int] = {}
        self.prompts_read = 0
        self._waiting: deque[_Life] = deque()
        self._reading: list[_Life] = []
        self._heap: list[tuple[int, int, _Life]] = []  # decode iteration after which one is done; stale entries are passed over
        self._pushed = 0
        self._order: list[_Life] = []  # by admission; those that left are passed over
        self._decoding = 0
        self._base_sum = 0.0
        self._count = 0
        self._held_bytes = 0.0
        self._on_lane = [0] * setup.surface.lanes  # requests that decode or are read, by rank
        self._pending: _Pending | None = None

    @property
    def load(self) -> int:
        """Requests in flight [-]."""
        return self._decoding + len(self._reading) + len(self._waiting)

    def submit(self, request: int, at_s: float, *, prompt: int, cached: int, output: int) -> None:
        """A request arrives."""
        if self.load == 0:
            self.now_s = max(self.now_s, at_s)
        elif not self._waiting:
            self._cut_short(at_s)
        self._waiting.append(_Life(request, prompt, cached, output))

    def advance(self, until_s: float) -> None:
        """Run every iteration that begins before `until_s`."""
        while True:
            if self._pending is not None:
                if self._pending.segment.end_s > until_s:
                    return
                self._commit(self._pending)
                self._pending = None
            if self.load == 0 or self.now_s >= until_s:
                return
            self._pending = self._plan()

    def _cut_short(self, at_s: float) -> None:
        """A run of decode-only iterations stops after the one in which a request arrives."""
        pending = self._pending
        if pending is None or pending.segment.steps == 1 or pending.segment.end_s <= at_s:
            return
        whole, first_s, slope_s = pending.segment, pending.first_s, pending.slope_s
        gone_s = at_s - whole.start_s
        half = slope_s / 2.0
        lead = first_s - half
        root = lead * lead + 4.0 * half * gone_s
        steps = math.ceil(2.0 * gone_s / (lead + math.sqrt(root)) - 1e-9) if root > 0 else math.ceil(gone_s / first_s)
        steps = min(max(steps, 1), whole.steps)
        if steps < whole.steps:
            spent_s = steps * (first_s + slope_s * (steps - 1) / 2.0)
            context = whole.context - (whole.steps - steps) / 2.0
            pending.segment = whole._replace(end_s=whole.start_s + spent_s, steps=steps, context=context)

    def _plan(self) -> _Pending:
        self._make_room()
        chunks = self._chunks()
        setup, decoding, start_s = self.setup, self._decoding, self.now_s
        context = self._base_sum / decoding + self._count + 0.5 if decoding else 1.0
        if chunks:
            tokens, seen, ending = _fullest(chunks)
            beside = max(decoding / setup.surface.lanes, 1.0) if decoding else 0.0
            step_s = setup.surface.mixed_s(beside, context, tokens, seen, ending)
            segment = Segment(start_s, start_s + step_s, 1, decoding, context, tokens, seen, ending, self._count)
            return _Pending(segment, chunks=chunks)
        line = setup.surface.line(decoding, context)
        steps = min(self._next_end() - self._count, line.most)
        if not setup.reserves and setup.token_bytes:
            steps = min(steps, int((setup.capacity_bytes - self._used_bytes()) / (decoding * setup.token_bytes) + 1e-9))
        steps = max(steps, 1)
        middle = context + (steps - 1) / 2.0
        segment = Segment(start_s, start_s + line.time_s(steps), steps, decoding, middle, 0.0, 0.0, 0, self._count)
        return _Pending(segment, line.first_s, line.slope_s)

    def _commit(self, pending: _Pending) -> None:
        segment, number = pending.segment, len(self.segments)
        self.segments.append(segment)
        self.now_s = segment.end_s
        if segment.decoding:
            self._count += segment.steps
            while self._heap and (self._heap[0][2].entered < 0 or self._heap[0][0] <= self._count):
                due, _, life = heappop(self._heap)
                if life.entered >= 0 and due == life.ends_at:
                    self._finish(life, number + 1)
        for life, tokens in pending.chunks:
            self.chunks.append(Chunk(number, life.request, tokens))
            life.left -= tokens
            life.read += tokens
            if life.left == 0:
                self._begin_decoding(life, number + 1)

    def _begin_decoding(self, life: _Life, segment: int) -> None:
        """Its prompt is read: the first token (or the next one, after it gave way) is there."""
        self._reading.remove(life)
        life.reading = False
        self.first_s.setdefault(life.request, self.now_s)
        life.written += 1
        self.prompts_read += 1
        if not self.setup.reserves:
            self._held_bytes -= self.setup.held_bytes(life.read)
        life.base = life.read - self._count
        life.entered = segment
        life.ends_at = self._count + life.output - life.written
        self._decoding += 1
        self._base_sum += life.base
        if life.written >= life.output:
            self._finish(life, segment)
        else:
            self._pushed += 1
            heappush(self._heap, (life.ends_at, self._pushed, life))

    def _finish(self, life: _Life, end: int) -> None:
        self._leave(life, end)
        if self.setup.reserves:
            self._held_bytes -= self.setup.held_bytes(life.prompt + life.output)
        self.finished_s[life.request] = self.now_s

    def _leave(self, life: _Life, end: int) -> None:
        if end > life.entered:
            self.stays.append(Stay(life.request, life.entered, end, life.base))
        life.entered = -1
        self._on_lane[life.lane] -= 1
        self._decoding -= 1
        self._base_sum = self._base_sum - life.base if self._decoding else 0.0

    def _next_end(self) -> int:
        while self._heap[0][2].entered < 0 or self._heap[0][0] != self._heap[0][2].ends_at:
            heappop(self._heap)
        return self._heap[0][0]

    def _used_bytes(self) -> float:
        setup, decoding = self.setup, self._decoding
        if setup.reserves:
            return self._held_bytes
        return self._held_bytes + decoding * setup.sequence_bytes + setup.token_bytes * (self._base_sum + decoding * self._count)

    def _make_room(self) -> None:
        """The request admitted last gives way while the next token of all would not fit."""
        setup = self.setup
        if setup.reserves:
            return
        while self._decoding and self._used_bytes() + self._decoding * setup.token_bytes > setup.capacity_bytes * (1.0 + 1e-12):
            if self._decoding + len(self._reading) == 1:
                return
            life = self._order.pop()
            if life.reading:
                self._reading.remove(life)
                life.reading = False
                self._on_lane[life.lane] -= 1
                self._held_bytes -= setup.held_bytes(life.read + life.left)
            elif life.entered >= 0:
                life.written = life.output - (life.ends_at - self._count)
                self._leave(life, len(self.segments))
            else:
                continue
            self.given_way[life.request] = self.given_way.get(life.request, 0) + 1
            self._waiting.appendleft(life)

    def _chunks(self) -> list[tuple[_Life, int]]:
        """Prompt tokens of the next iteration, by request; waiting requests enter as far as there is room."""
        if not self._reading and not self._waiting:
            return []
        setup, lanes = self.setup, self.setup.surface.lanes
        left = [setup.chunk_tokens - self._decoding // lanes] * lanes  # a decoding sequence takes one token
        chunks: list[tuple[_Life, int]] = []
        for life in self._reading:
            _take(life, left, chunks)
        while self._waiting:
            life = self._waiting[0]
            life.lane = 0 if lanes == 1 else self._on_lane.index(min(self._on_lane))
            if left[life.lane] <= 0 or self._on_lane[life.lane] >= setup.max_sequences or not self._admit(life):
                break
            _take(life, left, chunks)
        return chunks

    def _admit(self, life: _Life) -> bool:
        setup = self.setup
        known = life.prompt + life.written  # positions to be in the cache before it decodes on
        held = setup.held_bytes(life.prompt + life.output if setup.reserves else known)
        alone = self._decoding + len(self._reading) == 0
        growth = 0.0 if setup.reserves else (self._decoding + 1) * setup.token_bytes
        spare = 0.0 if alone else setup.capacity_bytes * (0.0 if setup.reserves else WATERMARK)
        if not alone and self._used_bytes() + held + growth + spare > setup.capacity_bytes:
            return False
        self._waiting.popleft()
        cached = min(life.cached, known - 1)
        life.left, life.read, life.reading = known - cached, cached, True
        self._held_bytes += held
        self._reading.append(life)
        self._on_lane[life.lane] += 1
        self._order.append(life)
        if len(self._order) > 4 * (self.load + 64):
            self._order = [one for one in self._order if one.reading or one.entered >= 0]
        self.started_s.setdefault(life.request, self.now_s)
        return True


def _take(life: _Life, left: list[int], chunks: list[tuple[_Life, int]]) -> None:
    tokens = min(life.left, left[life.lane])
    if tokens > 0:
        chunks.append((life, tokens))
        left[life.lane] -= tokens


def _fullest(chunks: Sequence[tuple[_Life, int]]) -> tuple[float, float, int]:
    """Prompt tokens, the KV positions each sees on average and the prompts that end, on the rank that has most."""
    ranks: dict[int, list[float]] = {}
    for life, tokens in chunks:
        rank = ranks.setdefault(life.lane, [0.0, 0.0, 0.0])
        rank[0] += tokens
        rank[1] += tokens * (life.read + tokens / 2.0)
        rank[2] += life.left == tokens
    most = max(ranks.values())
    return most[0], most[1] / most[0], int(most[2])
