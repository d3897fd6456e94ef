"""The surface a replay reads: time and demand of every step of one engine, straight lines between nodes filled from `StepTables`.

Decode-only steps stand for every whole number of running sequences, so that thousands of like steps in a row are one closed form; steps
with prompts stand on four axes. The surface stays within 1 % of the default predictor, asked directly (tests/test_replay_surface.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.physics import Floats
from pie_p.step_costs import StepFigures, Steps, StepTables, reach_of, seen_of, spaced

WIDTH: Final = 7  # figures of a step: seconds, board-seconds and demand of compute, communication and wait


class Line(NamedTuple):
    """Decode-only steps in a row: the j-th takes `first_s + j * slope_s`, for at most `most` steps."""

    first_s: float
    slope_s: float
    most: int

    def time_s(self, steps: int) -> float:
        """Time of the first `steps` of them [s]."""
        return steps * (self.first_s + self.slope_s * (steps - 1) / 2.0)


@dataclass(frozen=True, kw_only=True)
class Surface:
    """Steps of one engine at any load."""

    tables: StepTables
    lanes: int  # data-parallel ranks that step together: attention-DP [-]
    contexts: Floats
    decode: NDArray[np.float64]  # shape (sequences of the whole engine, contexts, WIDTH); row 0 is not used
    axes: tuple[Floats, Floats, Floats, Floats]  # sequences on a rank, context, prompt tokens, reach
    mixed: NDArray[np.float64]  # shape (of the axes, WIDTH)

    @property
    def gpus(self) -> int:
        """Boards of the engine [-]."""
        return self.tables.deployment.plan.gpus

    @cached_property
    def prompt_s(self) -> float:
        """Host time of one more prompt that ends in a step [s]."""
        costs = self.tables.predictor.costs_of(self.tables.deployment.engine)
        return float(costs.prompt_s + costs.sequence_s)

    @cached_property
    def _nodes(self) -> list[float]:
        return [float(one) for one in self.contexts]

    @cached_property
    def _decode_s(self) -> list[list[float]]:
        return [[float(one) for one in row] for row in self.decode[:, :, 0]]

    @cached_property
    def _axis_nodes(self) -> list[list[float]]:
        return [[float(one) for one in axis] for axis in self.axes]

    @cached_property
    def _mixed_s(self) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.mixed[..., 0])

    def line(self, sequences: int, context: float) -> Line:
        """Steps of that many decoding sequences from a mean context on, until the surface bends."""
        nodes, row = self._nodes, self._decode_s[sequences]
        low = min(max(bisect_right(nodes, context) - 1, 0), len(nodes) - 2)
        slope = (row[low + 1] - row[low]) / (nodes[low + 1] - nodes[low])
        most = int(nodes[low + 1] - context) + 1 if low < len(nodes) - 2 else 1 << 40
        return Line(row[low] + slope * (context - nodes[low]), slope, max(most, 1))

    def mixed_s(self, sequences: float, context: float, tokens: float, seen: float, ending: int) -> float:
        """Time of one step that reads prompts [s].

        Args:
            sequences: decoding beside, on one rank [-].
            context: their mean context [tokens].
            tokens: prompt tokens on the rank that has most [-].
            seen: mean KV positions a prompt token sees [tokens].
            ending: prompts whose last token is in the step, on that rank [-].
        """
        reach = seen / (tokens / 2.0) if seen < tokens / 2.0 else 1.0 + seen - tokens / 2.0
        (i, a), (j, b), (k, c), (m, d) = map(_place, self._axis_nodes, (sequences, context, tokens, reach))
        block = self._mixed_s[i : i + 2, j : j + 2, k : k + 2, m : m + 2]
        block = block[0] + a * (block[1] - block[0])
        block = block[0] + b * (block[1] - block[0])
        block = block[0] + c * (block[1] - block[0])
        return float(block[0] + d * (block[1] - block[0])) + (ending - 1) * self.prompt_s

    def decode_figures(self, sequences: NDArray[np.int64], contexts: Floats) -> tuple[Floats, Floats]:
        """Figures of decode-only steps and how they rise per token of context, both of shape (steps, WIDTH)."""
        low = np.clip(np.searchsorted(self.contexts, contexts, side="right") - 1, 0, len(self.contexts) - 2)
        below, above = self.decode[sequences, low], self.decode[sequences, low + 1]
        slope = (above - below) / (self.contexts[low + 1] - self.contexts[low])[:, None]
        return below + slope * (contexts - self.contexts[low])[:, None], slope

    def mixed_figures(self, steps: Steps) -> NDArray[np.float64]:
        """Figures of steps that read prompts, shape (steps, WIDTH)."""
        reach = reach_of(steps.prefill_tokens, steps.prefill_context)
        places = (steps.decode_sequences, steps.context_tokens, steps.prefill_tokens, reach)
        low, share = zip(*(_places(axis, place) for axis, place in zip(self.axes, places, strict=True)), strict=True)
        total = np.zeros((len(reach), WIDTH))
        for corner in range(16):
            sides = [(corner >> bit) & 1 for bit in range(4)]
            weight = np.prod([part if side else 1.0 - part for side, part in zip(sides, share, strict=True)], axis=0)
            total += weight[:, None] * self.mixed[tuple(node + side for side, node in zip(sides, low, strict=True))]
        more = (steps.prompts_ending - 1.0) * self.prompt_s
        total[:, 0] += more
        total[:, 3] += more * self.gpus
        total[:, 6] += more * self.gpus * self.tables.predictor.power.wait
        return total


def _place(nodes: Sequence[float], value: float) -> tuple[int, float]:
    low = bisect_right(nodes, value) - 1
    if low >= len(nodes) - 1:
        return len(nodes) - 2, 1.0
    if low < 0:
        return 0, 0.0
    return low, (value - nodes[low]) / (nodes[low + 1] - nodes[low])


def _places(nodes: Floats, values: Floats) -> tuple[NDArray[np.int64], Floats]:
    low = np.clip(np.searchsorted(nodes, values, side="right") - 1, 0, len(nodes) - 2)
    return low, np.clip((values - nodes[low]) / (nodes[low + 1] - nodes[low]), 0.0, 1.0)


def make_surface(tables: StepTables, *, most_sequences: int, most_context: float, most_prompt: float, lanes: int = 1) -> Surface:
    """The surface of one engine.

    Args:
        tables: of its deployment.
        most_sequences: decoding sequences of the whole engine [-].
        most_context: longest sequence [tokens].
        most_prompt: prompt tokens in one step on one rank [-].
        lanes: data-parallel ranks that step together [-].
    """
    graph = tables.deployment.engine.graph_sequences
    contexts = spaced(1, max(most_context, 2.0), 2.5)
    totals = np.arange(1, most_sequences + 1)
    on_rank = np.maximum(totals / lanes, 1.0)
    nodes = np.unique(np.clip([*spaced(1, on_rank[-1], 1.04, whole=64), graph, graph + 1.0], 1.0, on_rank[-1]))
    solved = _solved(tables, nodes, contexts, np.zeros(1), np.zeros(1), ending=0.0)[:, :, 0, 0]
    flat = solved.reshape(len(nodes), -1)
    rows = np.stack([np.interp(on_rank, nodes, column) for column in flat.T], axis=1).reshape(len(totals), *solved.shape[1:])
    axes = (
        np.concatenate([[0.0], spaced(1, max(on_rank[-1], 2.0), 1.4, whole=4)]),
        spaced(1, max(most_context, 2.0), 5.0),
        spaced(1, max(most_prompt, 2.0), 1.3, whole=4),
        np.array([1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 2 / 3, *(1.0 + np.array([0.0, *spaced(256, max(most_context, 512.0), 6.0)]))]),
    )
    return Surface(
        tables=tables,
        lanes=lanes,
        contexts=contexts,
        decode=np.concatenate([np.zeros((1, *rows.shape[1:])), rows]),
        axes=axes,
        mixed=_solved(tables, *axes, ending=1.0),
    )


def _solved(tables: StepTables, sequences: Floats, contexts: Floats, tokens: Floats, reaches: Floats, *, ending: float) -> Floats:
    n, c, t, r = (one.ravel() for one in np.meshgrid(sequences, contexts, tokens, reaches, indexing="ij"))
    figures: StepFigures = tables.figures(Steps(n, c, t, seen_of(t, r), np.full(len(n), ending)))
    packed = np.concatenate([figures.step_s[:, None], figures.board_s, figures.demand_s], axis=1)
    return np.asarray(packed.reshape(len(sequences), len(contexts), len(tokens), len(reaches), WIDTH))
