"""Joules of an engine's segments, and whose they are.

The power limit acts on the mean over many steps, so segments settle together in windows of `SETTLE_S`. Every joule of a segment goes to the
requests in it, by one of two rules (docs/method.md, "Replaying traffic"):

    marginal       prompts pay what the step costs beyond the same step without them; the decoding sequences share that step, each paying
                   for its own context
    proportional   every token that the step processes pays the same

What boards draw while nothing is in flight is idle, and nobody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from pie_p.physics import Floats
from pie_p.replay_engine import Chunk, Segment, Stay
from pie_p.replay_surface import Surface
from pie_p.step_costs import Steps

Attribution = Literal["marginal", "proportional"]
ATTRIBUTIONS: Final[tuple[Attribution, ...]] = get_args(Attribution)
SETTLE_S: Final = 2.0  # power limiters average over some hundred steps [s]


class Spent(NamedTuple):
    """What one engine took: per segment, and per request of the trace."""

    start_s: Floats  # of segments [s]
    end_s: Floats
    segment_j: Floats  # shape (segments, 3): compute, communication, wait [J]
    request_j: Floats  # shape (requests, 3) [J]
    request_s: Floats  # engine time that each request answers for [s]

    @property
    def busy_s(self) -> float:
        """Time in which a request was in flight [s]."""
        return float((self.end_s - self.start_s).sum())


def spend(
    surface: Surface, segments: Sequence[Segment], chunks: Sequence[Chunk], stays: Sequence[Stay], *, requests: int, rule: Attribution
) -> Spent:
    """Energies of an engine's segments and of the requests in them.

    Args:
        surface: of the engine.
        segments: in order.
        chunks: prompt tokens read.
        stays: who decoded when.
        requests: in the trace [-].
        rule: who pays for what.
    """
    if not segments:
        return Spent(np.zeros(0), np.zeros(0), np.zeros((0, 3)), np.zeros((requests, 3)), np.zeros(requests))
    start_s, end_s, steps, decoding, context, *prompts, done = np.array(segments, dtype=np.float64).T
    tokens, seen, ending = prompts
    which = decoding.astype(np.int64)
    twin, slope = surface.decode_figures(which, context)
    figures = twin * steps[:, None]
    reads = np.flatnonzero(tokens > 0)
    beside = np.where(decoding > 0, np.maximum(decoding / surface.lanes, 1.0), 0.0)
    figures[reads] = surface.mixed_figures(Steps(*(one[reads] for one in (beside, context, tokens, seen, ending))))
    board_s, demand_s = figures[:, 1:4], figures[:, 4:7]
    board_s = board_s * (surface.gpus * (end_s - start_s) / board_s.sum(axis=1))[:, None]
    segment_j, level = settled(surface, start_s, end_s, board_s, demand_s)
    idle_w = surface.tables.deployment.cluster.gpu.active_idle_w
    decode_j = level.joules(twin[:, 1:4], twin[:, 4:7])
    rise_j = (idle_w * slope[:, 1:4] + level.bent_w[:, None] * slope[:, 4:7]) * steps[:, None]
    read = _counted([one.segment for one in chunks], np.array([one.tokens for one in chunks], dtype=np.float64), len(segments))
    shared_j, rise_j = _decode_part(rule, segment_j, decode_j, rise_j, reads, decoding * steps, read, context)
    owed = _Owed(segment_j, shared_j, rise_j, end_s - start_s, np.maximum(decoding, 1.0), done + steps / 2.0 - context, read)
    request_j, request_s = owed.by_request(chunks, stays, requests)
    return Spent(start_s, end_s, segment_j, request_j, request_s)


def _decode_part(
    rule: Attribution,
    segment_j: Floats,
    twin_j: Floats,
    rise_j: Floats,
    reads: NDArray[np.int64],
    decoded: Floats,
    read: Floats,
    context: Floats,
) -> tuple[Floats, Floats]:
    """What the decoding sequences of each segment pay together, and how much more per token of context."""
    shared_j = segment_j.copy()
    if rule == "proportional":
        shared_j *= (decoded / np.maximum(decoded + read, 1.0))[:, None]
        return shared_j, np.zeros_like(rise_j)
    shared_j[reads] = np.minimum(twin_j[reads], segment_j[reads]) * (decoded[reads] > 0)[:, None]
    return shared_j, np.clip(rise_j, 0.0, shared_j / np.maximum(context, 1.0)[:, None])


class _Owed(NamedTuple):
    """Segments of an engine as running sums, so that a request's stay is a difference of two."""

    segment_j: Floats
    shared_j: Floats  # of it, what decoding sequences pay
    rise_j: Floats  # per token of mean context
    seconds: Floats
    sequences: Floats
    offset: Floats  # context of a sequence of base 0, less the mean context [tokens]
    read: Floats  # prompt tokens of each segment

    def by_request(self, chunks: Sequence[Chunk], stays: Sequence[Stay], requests: int) -> tuple[Floats, Floats]:
        """Joules by kind, and engine seconds, of every request."""
        each, own = 1.0 / self.sequences[:, None], self.segment_j.sum(axis=1)
        part = self.shared_j.sum(axis=1) / np.maximum(own, 1e-30)
        rise = self.rise_j * each
        columns = [self.shared_j * each + rise * self.offset[:, None], rise, (self.seconds * part)[:, None] * each]
        sums = np.concatenate([np.zeros((1, 7)), np.cumsum(np.concatenate(columns, axis=1), axis=0)])
        request_j, request_s = np.zeros((requests, 3)), np.zeros(requests)
        if stays:
            who, first, end, base = np.array(stays, dtype=np.float64).T
            gone = sums[end.astype(np.int64)] - sums[first.astype(np.int64)]
            paid = gone[:, :3] + base[:, None] * gone[:, 3:6]
            places = who.astype(np.int64)
            for kind in range(3):
                request_j[:, kind] += _counted(places, paid[:, kind], requests)
            request_s += _counted(places, gone[:, 6], requests)
        if chunks:
            segment, who_reads, tokens = np.array(chunks, dtype=np.int64).T
            share = tokens / self.read[segment]
            for kind in range(3):
                left = (self.segment_j - self.shared_j)[segment, kind] * share
                request_j[:, kind] += np.bincount(who_reads, weights=left, minlength=requests)
            request_s += np.bincount(who_reads, weights=(self.seconds * (1.0 - part))[segment] * share, minlength=requests)
        return request_j, request_s


class Level(NamedTuple):
    """Where power settles, one entry per span of time: how demand becomes watts, and where the excess of kernels over the limit goes."""

    idle_w: float  # of a board [W]
    most_w: float  # that a board can hold [W]
    bent_w: Floats  # per unit of demand [W]
    filled: Floats  # share of the room below the limit that the excess of other kernels fills [-]
    over_w: Floats  # what waits draw besides, where all kernels are at the limit [W]

    def joules(self, board_s: Floats, demand_s: Floats) -> Floats:
        """Energy by kind of board-seconds with their demand, both of shape (spans, 3) [J]."""
        joules = self.idle_w * board_s + self.bent_w[:, None] * demand_s
        most = self.most_w * board_s[:, :2]
        above, below = np.maximum(joules[:, :2] - most, 0.0), np.maximum(most - joules[:, :2], 0.0)
        joules[:, :2] += self.filled[:, None] * below - above
        joules[:, 2] += self.over_w * board_s[:, 2]
        return joules

    def at(self, places: NDArray[np.int64]) -> Level:
        """Of other spans: each takes one of these."""
        return self._replace(bent_w=self.bent_w[places], filled=self.filled[places], over_w=self.over_w[places])


def settled(surface: Surface, start_s: Floats, end_s: Floats, board_s: Floats, demand_s: Floats) -> tuple[Floats, Level]:
    """Energies of segments by kind [J], and their levels, settled in windows as `pie_p.settling` settles lives.

    Args:
        surface: whose power law and boards.
        start_s: of segments [s].
        end_s: of segments [s].
        board_s: board-seconds by kind, shape (segments, 3).
        demand_s: demand-seconds by kind, shape (segments, 3).
    """
    segment, window, seconds = cut(start_s, end_s, SETTLE_S)
    share = (seconds / np.maximum(end_s - start_s, 1e-30)[segment])[:, None]
    boards, asked = board_s[segment] * share, demand_s[segment] * share
    level = _level(surface, window, boards, asked).at(window)
    joules = level.joules(boards, asked)
    columns = [_counted(segment, joules[:, kind], len(start_s)) for kind in range(3)]
    means = [_counted(segment, values * share[:, 0], len(start_s)) for values in (level.bent_w, level.filled, level.over_w)]
    return np.stack(columns, axis=1), level._replace(bent_w=means[0], filled=means[1], over_w=means[2])


def _level(surface: Surface, window: NDArray[np.int64], boards: Floats, asked: Floats) -> Level:
    """The level of every window."""
    law, gpu = surface.tables.predictor.power, surface.tables.deployment.cluster.gpu
    windows = int(window.max()) + 1

    def per_window(values: Floats) -> Floats:
        return _counted(window, values, windows)

    mean = per_window(asked.sum(axis=1)) / np.maximum(per_window(boards.sum(axis=1)), 1e-30)
    limit_w, idle_w = np.full(windows, gpu.limit_w), np.full(windows, gpu.active_idle_w)
    bent_w = law.settled(mean, limit_w=limit_w, idle_w=idle_w) / np.maximum(mean, 1e-30) * (gpu.limit_w - gpu.active_idle_w)
    most_w = law.ceiling * gpu.limit_w
    drawn, most = gpu.active_idle_w * boards[:, :2] + bent_w[window][:, None] * asked[:, :2], most_w * boards[:, :2]
    excess, room = (per_window(np.maximum(one, 0.0).sum(axis=1)) for one in (drawn - most, most - drawn))
    over_w = np.maximum(excess - room, 0.0) / np.maximum(per_window(boards[:, 2]), 1e-30)
    return Level(gpu.active_idle_w, most_w, bent_w, np.minimum(excess / np.maximum(room, 1e-30), 1.0), over_w)


def _counted(places: Any, weights: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(np.asarray(places, dtype=np.int64), weights=weights, minlength=count), dtype=np.float64)


def cut(start_s: Floats, end_s: Floats, width_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """Spans cut at multiples of a width: for each piece its span, its cell and its seconds; they add up to the spans.

    >>> span, cell, seconds = cut(np.array([0.5]), np.array([2.25]), 1.0)
    >>> seconds.tolist()
    [0.5, 1.0, 0.25]
    """
    first = np.floor(start_s / width_s).astype(np.int64)
    last = np.maximum(np.ceil(end_s / width_s).astype(np.int64) - 1, first)
    pieces = last - first + 1
    span = np.repeat(np.arange(len(start_s)), pieces)
    cell = first[span] + np.arange(len(span)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    seconds = np.minimum(end_s[span], (cell + 1) * width_s) - np.maximum(start_s[span], cell * width_s)
    return span, cell, np.maximum(seconds, 0.0)
