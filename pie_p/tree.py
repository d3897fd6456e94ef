"""From a request on a deployment to operators: which engine steps run, and what each rank executes in one of them.

A serving engine works in steps. One step carries decoding sequences (one token each) and sequences whose prompt is being read; the rows
of both go through the dense layers together. `schedule` says which steps a request's life is made of, `expand` what runs in each.

The phases are told apart as the definitions ask: prefill's share of a mixed step is its increment over the same step without prefill.
So a mixed step X beside its decode-only twin D' enters the sums as  decode: + D',  prefill: + X - D'.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from math import ceil, exp
from typing import Final, NamedTuple

from pie_p.deployment import Deployment, Stage
from pie_p.layers import Step, head_operators, layer_operators
from pie_p.operators import Operator, embedding, send_recv
from pie_p.operators import all_reduce as reduce_over_ranks
from pie_p.workload import Request

# When the KV cache limits who runs: running sequences are at least this share as long as the mean context. The most crowded of the public
# runs (ML.ENERGY v3, gpt-oss-20b and Llama-3.1-70B on B200) hold 0.42 of theirs.
LEAST_HELD: Final = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step and how often it enters one request's life, per phase (negative where a twin is taken off)."""

    step: Step
    decode_steps: float  # [-]
    prefill_steps: float  # [-]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The steps of one request's life, the requests that share them, and what the clock needs besides."""

    steps: tuple[PlannedStep, ...]
    sharing: float  # requests that share every step, over all data-parallel ranks [-]
    crowding: float  # requests in flight per request that runs: above 1 where the KV cache leaves the others waiting [-]
    ttft_steps: float  # prefill steps until the first token [-]
    output_tokens: float  # [-]


class Row(NamedTuple):
    """An operator placed in its step: which stage, how often per step there."""

    operator: Operator
    stage: int  # index into the deployment's stages
    calls: float  # per step on each rank of the stage [-]


def schedule(request: Request, deployment: Deployment) -> Schedule:
    """The steps of one request's life.

    A batch whose KV cache exceeds the memory cannot hold that much context: the sequences that run are shorter, in the proportion that
    fits, down to `LEAST_HELD` of the mean context; what is beyond waits its turn and does not run.

    Static: every prompt is read first (in chunks the engine's token budget allows), then `L - 1` decode steps of the whole batch.
    Steady: at `batch` running requests a life has `c` prefill chunks and `L - 1` decode steps, and shares them with the others' chunks:
    of its `S = L - 1 + c` steps, `min(batch * c, S)` are mixed.
    """
    start, growth = request.prompt_tokens, max(0.0, request.mean_output_tokens * request.length_spread - 1.0)
    fits = max(1.0, deployment.largest_batch(start + growth / 2))
    running = request if request.batch <= fits / LEAST_HELD else replace(request, batch=fits / LEAST_HELD)
    held = min(1.0, fits / running.batch)
    plan = _static_steps if request.mode == "static" else _steady_steps
    steps, ttft_steps = plan(running, deployment, (start * held, growth * held))
    return Schedule(
        steps=tuple(steps),
        sharing=running.batch * deployment.plan.dp,
        crowding=request.batch / running.batch,
        ttft_steps=ttft_steps,
        output_tokens=request.mean_output_tokens,
    )


def _static_steps(request: Request, deployment: Deployment, running: tuple[float, float]) -> tuple[list[PlannedStep], float]:
    new, budget = request.new_prompt_tokens, deployment.engine.chunk_tokens
    chunks = max(1, ceil(new / budget))  # per sequence
    together = min(request.batch, max(1.0, budget // new)) if chunks == 1 else 1.0  # sequences per prefill step
    groups = request.batch / together
    prefill = _prefill_step(request, running, sequences=together, chunks=chunks, beside=0.0)
    steps = [PlannedStep(step=prefill, decode_steps=0.0, prefill_steps=groups * chunks)]
    decodes = max(0.0, request.mean_output_tokens - 1.0)
    if decodes:
        steps.append(PlannedStep(step=_decode_step(request.batch, running), decode_steps=decodes, prefill_steps=0.0))
    return steps, (groups + 1) / 2 * chunks


def _steady_steps(request: Request, deployment: Deployment, running: tuple[float, float]) -> tuple[list[PlannedStep], float]:
    """Mixed and decode-only steps of a life at `batch` running requests.

    Attention-DP ranks step together, and every rank's step is as large as the largest rank's (vLLM pads to it): a prompt on any rank makes
    the step a mixed one for all.
    """
    batch, decodes = request.batch, max(0.0, request.mean_output_tokens - 1.0)
    budget = max(1.0, deployment.engine.chunk_tokens - (batch - 1.0))  # the other running sequences take one token each
    chunks = max(1, ceil(request.new_prompt_tokens / budget), ceil(batch * request.new_prompt_tokens / budget - decodes))
    life = decodes + chunks
    mixed = min(batch * chunks * _stalled_ranks(request, deployment), life)
    own = batch * chunks / mixed  # of this rank's sequences in prefill per mixed step, mean over ranks
    beside = max(0.0, batch - own)
    ranks = deployment.plan.dp if deployment.plan.attention_dp else 1
    fullest = max(own, 1.0) if ranks == 1 else max(1.0, most_arrivals(own, ranks)) if deployment.engine.pads else own
    prefill = _prefill_step(request, running, sequences=fullest, chunks=chunks, beside=beside)
    steps = [PlannedStep(step=prefill, decode_steps=0.0, prefill_steps=mixed)]
    if beside > 1e-9:
        steps.append(PlannedStep(step=_decode_step(beside, running), decode_steps=mixed, prefill_steps=-mixed))
    if life - mixed > 1e-9:
        steps.append(PlannedStep(step=_decode_step(batch, running), decode_steps=life - mixed, prefill_steps=0.0))
    return steps, float(ceil(request.new_prompt_tokens / budget))


def most_arrivals(mean: float, ranks: int) -> float:
    """Expected largest of `ranks` independent Poisson counts of that mean: prompts on the fullest rank in one step [-].

    `E[max] = sum over k >= 0 of 1 - F(k)^ranks`; beyond a mean of 500 the largest is taken as the mean (less than 8 % apart for 8 ranks).

    >>> round(most_arrivals(1.0, 1), 6), round(most_arrivals(1.0, 8), 2)
    (1.0, 2.58)
    """
    if mean > 500.0:
        return mean
    term = below = exp(-mean)
    total = missing = 1.0 - below**ranks
    count = 0
    while missing > 1e-9:
        count += 1
        term *= mean / count
        below = min(1.0, below + term)
        missing = 1.0 - below**ranks
        total += missing
    return total


def _stalled_ranks(request: Request, deployment: Deployment) -> float:
    """Ranks whose prompts make a step of this rank a mixed one [-]: all attention-DP ranks; at batch 1 its own alone, as in static."""
    if not deployment.plan.attention_dp:
        return 1.0
    return 1.0 + (deployment.plan.dp - 1.0) * (1.0 - 1.0 / request.batch)


def _decode_step(sequences: float, running: tuple[float, float]) -> Step:
    return Step(decode_sequences=sequences, decode_start=running[0], decode_growth=running[1])


def _prefill_step(request: Request, running: tuple[float, float], *, sequences: float, chunks: int, beside: float) -> Step:
    tokens = request.new_prompt_tokens / chunks
    before = request.prompt_tokens - request.new_prompt_tokens + (chunks - 1) / 2 * tokens
    return Step(
        decode_sequences=beside,
        decode_start=running[0],
        decode_growth=running[1],
        prefill_sequences=sequences,
        prefill_tokens=tokens,
        prefill_cached=before,
        prefill_ends=1.0 / chunks,
    )


class Expansion(NamedTuple):
    """Rows of many steps, equal steps once."""

    rows: list[Row]
    spans: list[tuple[int, int]]  # for each step its first row, and how many it has


def expand(steps: Iterable[tuple[Step, Deployment]]) -> Expansion:
    """Every operator of every step, one row per distinct operator and stage."""
    rows: list[Row] = []
    known: dict[Hashable, tuple[int, int]] = {}
    spans = []
    for step, deployment in steps:
        work = _work(step, deployment)
        if work not in known:
            new = step_rows(step, deployment)
            known[work] = len(rows), len(new)
            rows += new
        spans.append(known[work])
    return Expansion(rows, spans)


def _work(step: Step, deployment: Deployment) -> Hashable:
    """All that the rows of a step depend on: of the cluster, only how many GPUs share a host."""
    return step, deployment.llm, deployment.plan, deployment.engine, deployment.dtype, deployment.kv_dtype, deployment.cluster.gpus_per_host


def step_rows(step: Step, deployment: Deployment) -> list[Row]:
    """What every rank executes in one step, its micro-batches included."""
    pieces = micro_batches(step, deployment)
    piece = step.split(pieces)
    rows: list[Row] = []
    layers: dict[int, list[Operator]] = {}
    begun = 0  # stages before this one
    for number, stage in enumerate(deployment.stages):
        for layer, count in stage.layers:
            if id(layer) not in layers:
                layers[id(layer)] = layer_operators(layer, piece, deployment)
            rows += [Row(op, number, op.calls * count * pieces) for op in layers[id(layer)]]
        edges = _edge_operators(stage, begun, piece, deployment)
        begun += stage.count
        rows += [Row(op, number, op.calls * pieces) for op in edges]
    return rows


def micro_batches(step: Step, deployment: Deployment) -> float:
    """Pieces the step is cut into for the pipeline: at most one per sequence [-]."""
    if deployment.plan.pp == 1:
        return 1.0
    return max(1.0, min(float(deployment.plan.pipeline_pieces), step.sequences))


def _edge_operators(stage: Stage, begun: int, step: Step, deployment: Deployment) -> list[Operator]:
    llm, plan = deployment.llm, deployment.plan
    operators: list[Operator] = []
    if stage.first:
        operators.append(embedding("embedding", tokens=step.tokens, width=llm.hidden_size))
        if plan.tp > 1:
            hosts = deployment.group_hosts(plan.tp)
            operators.append(
                reduce_over_ranks("embedding/all_reduce", tokens=step.tokens, width=llm.hidden_size, group_size=plan.tp, hosts=hosts)
            )
    if stage.last:
        operators += head_operators(step, deployment)
    else:  # hidden state and residual, each rank its share
        across = deployment.share_sent_across(begun, begun + stage.count)
        for hosts, share in ((1, 1.0 - across), (2, across)):
            if share:
                sent = send_recv("pipeline/send_recv", tokens=step.tokens, width=2 * llm.hidden_size / plan.tp, hosts=hosts)
                operators.append(sent._replace(calls=share))
    return operators
