"""What any engine step of one deployment costs: asked of the predictor directly, or read off tables that it filled once.

A step's operators are of four classes, each a function of few figures, so that few hundred steps asked of the predictor give all others:

    shared    norms, projections, experts, their collectives        tokens in the step
    sampled   LM head and its all-gather                            sequences that yield a token
    decode    attention over the cache, decoding                    sequences, mean context
    prefill   attention over prompts                                prompt tokens, mean context of a prompt token

Their sums go through the same serving layer as any prediction (`run_clock`), so a step read off the tables waits and overlaps as there.
Power is left open: a step answers with board-seconds and with what its boards ask for meanwhile, since the power limit acts on the mean
over many steps (`pie_p.settling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.deployment import Deployment
from pie_p.features import KIND_CODE
from pie_p.layers import Step
from pie_p.physics import Floats, is_collective
from pie_p.predictor import Predictor
from pie_p.serving import WAIT_CAUSES, Assembly, Case, ServingCosts, assemble, run_clock
from pie_p.tree import PlannedStep, Schedule
from pie_p.workload import Request

KINDS: Final = ("compute", "communication", "wait")
CLASSES: Final = ("shared", "sampled", "decode", "prefill")
LEAST_SAMPLED: Final = 0.25  # the LM head runs for no fewer rows
CHUNK: Final = 60_000  # steps per vectorised pass


class StepFigures(NamedTuple):
    """Time of steps, and what their boards do meanwhile. One entry per step."""

    step_s: Floats  # [s]
    board_s: Floats  # shape (steps, 3): board-seconds of compute, communication, wait [s]; they add up to GPUs times `step_s`
    demand_s: Floats  # shape (steps, 3): the same, each weighed with the share of the power room it asks for [s]


class Steps(NamedTuple):
    """Many steps as arrays of one length."""

    decode_sequences: Floats  # on one data-parallel rank [-]
    context_tokens: Floats  # mean KV positions a decoding sequence reads [tokens]
    prefill_tokens: Floats  # prompt tokens in the step, on the rank that has most [-]
    prefill_context: Floats  # mean KV positions a prompt token sees [tokens]
    prompts_ending: Floats  # prompts whose last token is in the step [-]


def step_of(decode_sequences: float, context: float, tokens: float, seen: float, ending: float = 1.0) -> Step:
    """The `Step` with these figures: one prompt after cached tokens, or several fresh ones where few positions are seen."""
    sequences = 0.0 if tokens <= 0 else max(1.0, tokens / (2.0 * max(seen, 0.5)))
    own = tokens / sequences if sequences else 0.0
    return Step(
        decode_sequences=decode_sequences,
        decode_start=context,
        prefill_sequences=sequences,
        prefill_tokens=own,
        prefill_cached=max(0.0, seen - own / 2.0),
        prefill_ends=ending / sequences if sequences else 0.0,
    )


def time_steps(predictor: Predictor, deployment: Deployment, steps: Sequence[Step]) -> StepFigures:
    """Figures of steps asked of the predictor directly, every operator expanded: about 0.3 ms per step.

    Args:
        predictor: what answers.
        deployment: where they run.
        steps: of one data-parallel rank.
    """
    assembly, time_s, demand = _asked(predictor, deployment, steps)
    return _figures(assembly, time_s, demand, costs=predictor.costs_of(deployment.engine), wait=predictor.power.wait)


def _asked(predictor: Predictor, deployment: Deployment, steps: Sequence[Step]) -> tuple[Assembly, Floats, Floats]:
    """Steps flattened, each a case of its own, with time and demand of every row."""
    case = Case(Request(prompt_tokens=1, output_tokens=0), deployment)
    plans = [
        Schedule(
            steps=(PlannedStep(step=step, decode_steps=1.0, prefill_steps=0.0),),
            sharing=1.0,
            crowding=1.0,
            ttft_steps=1.0,
            output_tokens=1.0,
        )
        for step in steps
    ]
    assembly = assemble([case] * len(plans), plans)
    learned = predictor.learned(assembly)
    if learned is not None:
        return assembly, learned.time_s, learned.demand
    time_s = predictor.time_s(assembly)
    return assembly, time_s, predictor.power.demand(assembly.columns, time_s)


def _figures(assembly: Assembly, time_s: Floats, demand: Floats, *, costs: ServingCosts, wait: float) -> StepFigures:
    count = len(assembly.step_case)
    clock = run_clock(assembly, time_s, [costs] * len(assembly.cases))
    row_step = assembly.stage_step[assembly.row_stage]
    spent = assembly.calls * time_s * assembly.stage_ranks[assembly.row_stage]
    moves = is_collective(assembly.columns)
    waited = np.sum([clock.waits_s[cause] for cause in WAIT_CAUSES], axis=0) * assembly.stage_ranks
    board = [np.bincount(row_step, weights=spent * rows, minlength=count) for rows in (~moves, moves)]
    asked = [np.bincount(row_step, weights=spent * demand * rows, minlength=count) for rows in (~moves, moves)]
    waits = np.bincount(assembly.stage_step, weights=waited, minlength=count)
    return StepFigures(clock.step_s, np.stack([*board, waits], axis=1), np.stack([*asked, wait * waits], axis=1))


GROUPS: Final = 3  # of rows that the clock tells apart: compute, experts, collectives
_GROUP_KIND: Final = np.array([KIND_CODE["linear"], KIND_CODE["experts"], KIND_CODE["all_reduce"]])
Sums = NDArray[np.float64]  # shape (..., stages, GROUPS, 4): calls, seconds, demand-seconds and launches per piece, on each rank


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTables:
    """Sums over the operators of a step's classes on grids, and the steps that are added up from them."""

    predictor: Predictor
    deployment: Deployment
    tokens: Floats  # axis of `shared`
    sampled_axis: Floats
    sequences: Floats
    contexts: Floats
    prompts: Floats  # prompt tokens
    reaches: Floats  # how far back prompt tokens see, as `reach_of` says
    shared: tuple[Sums, Sums]  # in a graph, launched one by one
    sampled: tuple[Sums, Sums]
    decode: Sums
    prefill: Sums

    def figures(self, steps: Steps) -> StepFigures:
        """Time and demand of many steps."""
        count = len(steps.decode_sequences)
        parts = [self._figures(Steps(*(one[first : first + CHUNK] for one in steps))) for first in range(0, count, CHUNK)]
        return StepFigures(*(np.concatenate(one) for one in zip(*parts, strict=True)))

    def _figures(self, steps: Steps) -> StepFigures:
        plan, engine = self.deployment.plan, self.deployment.engine
        decodes, prompts = steps.decode_sequences, steps.prefill_tokens
        reads = prompts > 0
        seen = np.maximum(steps.prefill_context, 0.5)
        reading = np.where(reads, np.maximum(1.0, prompts / (2.0 * seen)), 0.0)  # sequences
        pieces = np.clip(decodes + reading, 1.0, float(plan.pipeline_pieces)) if plan.pp > 1 else np.ones(len(decodes))
        eager = reads | (decodes > engine.graph_sequences)
        tokens = (decodes + prompts) / pieces
        sampled = np.maximum((decodes + steps.prompts_ending * reads) / pieces, LEAST_SAMPLED)
        sums = np.where(_wide(eager), _along(self.tokens, self.shared[1], tokens), _along(self.tokens, self.shared[0], tokens))
        sums += np.where(
            _wide(eager), _along(self.sampled_axis, self.sampled[1], sampled), _along(self.sampled_axis, self.sampled[0], sampled)
        )
        own = decodes / pieces
        sums += _wide(decodes > 0) * _across((self.sequences, self.contexts), self.decode, (own, steps.context_tokens))
        each = np.maximum(prompts / pieces, 1e-9)
        sums += _wide(reads) * _across((self.prompts, self.reaches), self.prefill, (each, reach_of(each, seen)))
        assembly, time_s, demand = self._assembly(steps, np.maximum(sums, 0.0), pieces, eager)
        return _figures(assembly, time_s, demand, costs=self.predictor.costs_of(engine), wait=self.predictor.power.wait)

    def _assembly(self, steps: Steps, sums: Sums, pieces: Floats, eager: NDArray[np.bool_]) -> tuple[Assembly, Floats, Floats]:
        """Steps whose stages have one row per group of operators."""
        deployment, count = self.deployment, len(pieces)
        plan, stages = deployment.plan, deployment.stages
        sharing = plan.dp if plan.attention_dp else 1
        calls, seconds, asked, launches = np.moveaxis(sums, -1, 0)
        once = np.maximum(calls, 1e-30)
        rows = count * len(stages) * GROUPS
        ranks = np.array([float(plan.tp * plan.dp * stage.count) for stage in stages])
        tokens = steps.decode_sequences + steps.prefill_tokens
        zeros, ones = np.zeros(count), np.ones(count)
        assembly = Assembly(
            cases=[Case(Request(prompt_tokens=1, output_tokens=0), deployment)],
            schedules=[],
            distinct=[],
            which=np.zeros(rows, dtype=np.int64),
            columns={"kind_code": np.tile(_GROUP_KIND, count * len(stages)), "launches": (launches / once).ravel()},
            row_case=np.zeros(rows, dtype=np.int64),
            row_stage=np.repeat(np.arange(count * len(stages)), GROUPS),
            calls=(calls * pieces[:, None, None]).ravel(),
            stage_step=np.repeat(np.arange(count), len(stages)),
            stage_ranks=np.tile(ranks, count),
            stage_count=np.tile(np.array([float(stage.count) for stage in stages]), count),
            step_case=np.zeros(count, dtype=np.int64),
            settles=np.arange(count),
            decode_steps=ones,
            prefill_steps=zeros,
            pieces=pieces,
            decode_sequences=steps.decode_sequences,
            prefill_sequences=zeros,
            prompts_ending=steps.prompts_ending,
            group_size=ones * plan.tp * sharing,
            expert_group=ones * plan.ep,
            expert_choices=tokens * sharing * deployment.experts_per_token,
            eager=eager,
        )
        return assembly, (seconds / once).ravel(), (asked / np.maximum(seconds, 1e-30)).ravel()


def reach_of(tokens: Floats, seen: Floats) -> Floats:
    """One over the number of fresh prompts where there are several, else 1 and the cached positions before the one prompt [-]."""
    return np.where(seen < tokens / 2.0, seen / (tokens / 2.0), 1.0 + np.maximum(seen - tokens / 2.0, 0.0))


def seen_of(tokens: Floats, reach: Floats) -> Floats:
    """Mean KV positions a prompt token sees at that reach [tokens]."""
    return np.asarray(np.where(reach < 1.0, reach * tokens / 2.0, tokens / 2.0 + reach - 1.0), dtype=np.float64)


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    return values[:, None, None, None]


def _between(axis: Floats, places: Floats) -> tuple[NDArray[np.int64], Floats]:
    """The node below each place and how far it is to the next, held at both ends."""
    low = np.clip(np.searchsorted(axis, places, side="right") - 1, 0, max(len(axis) - 2, 0))
    high = np.minimum(low + 1, len(axis) - 1)
    width = np.maximum(axis[high] - axis[low], 1e-30)
    return low, np.clip((places - axis[low]) / width, 0.0, 1.0)


def _along(axis: Floats, values: Sums, places: Floats) -> Sums:
    low, share = _between(axis, places)
    high = np.minimum(low + 1, len(axis) - 1)
    return np.asarray(values[low] + _wide(share) * (values[high] - values[low]))


def _across(axes: tuple[Floats, Floats], values: Sums, places: tuple[Floats, Floats]) -> Sums:
    (low, share), (left, part) = _between(axes[0], places[0]), _between(axes[1], places[1])
    high, right = np.minimum(low + 1, len(axes[0]) - 1), np.minimum(left + 1, len(axes[1]) - 1)
    below = values[low, left] + _wide(part) * (values[low, right] - values[low, left])
    above = values[high, left] + _wide(part) * (values[high, right] - values[high, left])
    return np.asarray(below + _wide(share) * (above - below))


def spaced(first: float, last: float, ratio: float, *, whole: int = 0) -> Floats:
    """Rising nodes: every whole number up to `whole`, then each at most `ratio` times the one before.

    >>> spaced(1, 10, 2.0, whole=3).tolist()
    [1.0, 2.0, 3.0, 6.0, 10.0]
    """
    nodes = [float(one) for one in range(int(first), int(min(whole, last)) + 1)] or [float(first)]
    while nodes[-1] * ratio < last:
        nodes.append(float(round(nodes[-1] * ratio)) if nodes[-1] * ratio > 4 else nodes[-1] * ratio)
    if nodes[-1] > last / 1.05 and len(nodes) > 1:
        nodes.pop()
    return np.array([*nodes, float(last)])


def step_tables(
    predictor: Predictor, deployment: Deployment, *, most_sequences: float, most_context: float, most_prompt: float
) -> StepTables:
    """Fill the tables of a deployment: some hundred steps asked of the predictor, about half a second.

    Args:
        predictor: what answers.
        deployment: one engine: data-parallel ranks only where they share experts.
        most_sequences: decoding sequences on one rank [-].
        most_context: longest sequence [tokens].
        most_prompt: prompt tokens in one step on one rank [-].
    """
    graph = float(min(deployment.engine.graph_sequences, most_sequences))
    tokens = spaced(1, most_prompt + most_sequences, 1.06, whole=16)
    sampled = spaced(1, most_sequences + 64, 1.3, whole=4)
    sequences = spaced(1, most_sequences, 1.25, whole=8)
    contexts = spaced(1, max(most_context, 2.0), 2.5)
    prompts = spaced(1, most_prompt, 1.3, whole=4)
    reaches = np.array([1 / 32, 1 / 8, 1 / 2, *(1.0 + np.array([0.0, *spaced(64, max(most_context, 128.0), 3.0)]))])
    pieces = deployment.plan.pipeline_pieces if deployment.plan.pp > 1 else 1

    in_graph = np.minimum(tokens, graph)
    probes = [step_of(n, 64.0, 0.0, 0.0) for n in in_graph]
    probes += [step_of(0.0, 0.0, t, t / 2) for t in tokens]
    probes += [step_of(min(n, graph), 64.0, 0.0, 0.0) for n in sampled]
    probes += [step_of(0.0, 0.0, 64.0, 32.0, ending=n) for n in sampled]
    probes += [step_of(n, c, 0.0, 0.0) for n in sequences for c in contexts]
    probes += [step_of(0.0, 0.0, t, float(seen_of(t, r))) for t in prompts for r in reaches]
    sums = _probed(predictor, deployment, [_times(probe, pieces) for probe in probes], pieces)
    shape = sums.shape[2:]
    ends = np.cumsum([len(tokens), len(tokens), len(sampled), len(sampled), len(sequences) * len(contexts)])
    graphs, eagers, heads, eager_heads, decodes, prefills = np.split(sums, ends)
    return StepTables(
        predictor=predictor,
        deployment=deployment,
        tokens=tokens,
        sampled_axis=sampled,
        sequences=sequences,
        contexts=contexts,
        prompts=prompts,
        reaches=reaches,
        shared=(graphs[:, 0], eagers[:, 0]),
        sampled=(heads[:, 1], eager_heads[:, 1]),
        decode=decodes[:, 2].reshape(len(sequences), len(contexts), *shape),
        prefill=prefills[:, 3].reshape(len(prompts), len(reaches), *shape),
    )


def _times(step: Step, pieces: int) -> Step:
    """A step whose micro-batches are each what was asked for."""
    return step if pieces == 1 else step.split(1.0 / pieces)


def _probed(predictor: Predictor, deployment: Deployment, steps: Sequence[Step], pieces: int) -> NDArray[np.float64]:
    """Sums over rows, shape (steps, classes, stages, groups, 4), per piece."""
    assembly, time_s, demand = _asked(predictor, deployment, steps)
    classes = _classes(deployment, pieces)
    place = np.array([CLASSES.index(classes[row.operator.path]) for row in assembly.distinct])[assembly.which]
    stages = len(deployment.stages)
    kind = assembly.columns["kind_code"]
    group = np.where(is_collective(assembly.columns), 2, np.where(kind == KIND_CODE["experts"], 1, 0))
    step = assembly.stage_step[assembly.row_stage]
    stage = assembly.row_stage - step * stages
    flat = ((step * len(CLASSES) + place) * stages + stage) * GROUPS + group
    calls = assembly.calls / pieces
    size = len(steps) * len(CLASSES) * stages * GROUPS
    figures = (calls, calls * time_s, calls * time_s * demand, calls * assembly.columns["launches"])
    columns = [np.bincount(flat, weights=values, minlength=size) for values in figures]
    return np.asarray(np.stack(columns, axis=-1), dtype=np.float64).reshape(len(steps), len(CLASSES), stages, GROUPS, len(figures))


def _classes(deployment: Deployment, pieces: int) -> dict[str, str]:
    """Class of every path, found by what it appears with and what it changes with."""
    probes = [step_of(8.0, 64.0, 0.0, 0.0), step_of(0.0, 0.0, 64.0, 32.0, ending=1.0), step_of(0.0, 0.0, 64.0, 32.0, ending=0.5)]
    case = Case(Request(prompt_tokens=1, output_tokens=0), deployment)
    plans = [
        Schedule(steps=(PlannedStep(step=_times(step, pieces), decode_steps=1.0, prefill_steps=0.0),), sharing=1.0, crowding=1.0,
                 ttft_steps=1.0, output_tokens=1.0)
        for step in probes
    ]  # fmt: skip
    rows = [assemble([case], [plan]).rows for plan in plans]
    decode, prefill = ({row.operator.path for row in some} for some in rows[:2])
    ending = {row.operator for row in rows[1]} ^ {row.operator for row in rows[2]}
    moved = {operator.path for operator in ending}
    return {
        path: "sampled" if path in moved else "decode" if path not in prefill else "prefill" if path not in decode else "shared"
        for path in decode | prefill
    }
