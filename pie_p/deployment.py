"""Deployment: an LLM under a plan on a cluster, checked once; what one rank holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from math import ceil
from typing import Any

from pie_p.engine import Engine
from pie_p.errors import MemoryFitError, PlanError
from pie_p.hardware import Cluster
from pie_p.llm import LLM
from pie_p.plan import ParallelPlan
from pie_p.shapes import Attention, DeltaNet, DenseFfn, LatentAttention, Layer, MoeFfn, StateSpace
from pie_p.units import BYTES_PER_VALUE, GIGA, Dtype

USABLE_MEMORY = 0.9  # share of a GPU's memory an engine may use: vLLM's gpu_memory_utilization default


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One or several pipeline stages that hold the same layers."""

    count: int  # stages of this kind [-]
    layers: tuple[tuple[Layer, int], ...]  # each distinct layer and how often a stage runs it
    first: bool  # holds the embedding
    last: bool  # holds the final norm and the LM head


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """LLM x plan x cluster x engine, with the formats in force. Make one with `deploy`, which checks it."""

    llm: LLM
    plan: ParallelPlan
    cluster: Cluster
    engine: Engine
    dtype: Dtype
    kv_dtype: Dtype

    def __getstate__(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # cached sums stay behind

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The pipeline, equal stages together."""
        return partition(self.llm, self.plan.pp)

    def dtype_of(self, part: str) -> Dtype:
        """Storage of a part of the LLM: parts the checkpoint keeps in high precision stay 16 bits wide."""
        if BYTES_PER_VALUE[self.dtype] >= 2:
            return self.dtype
        kept = self.llm.high_precision
        dense_kept = part == "ffn" and "dense_layers" in kept and self.llm.is_moe
        return "bf16" if part in kept or dense_kept else self.dtype

    @cached_property
    def experts_per_token(self) -> int:
        """Routed experts that run per token; 0 for a dense LLM [-]."""
        return max((layer.ffn.top_k for layer in self.llm.layer_counts if isinstance(layer.ffn, MoeFfn)), default=0)

    def group_hosts(self, ranks: int) -> int:
        """Hosts that `ranks` neighbouring ranks sit on [-]."""
        return ceil(ranks / self.cluster.gpus_per_host)

    def share_sent_across(self, start: int, end: int) -> float:
        """Of what the ranks of stages `start` to `end` (not included) send to the next stage, the share that leaves the host [-].

        Ranks are numbered stage by stage, so with TP4 on hosts of 8 every second boundary lies inside a host.
        """
        tp, per_host = self.plan.tp, self.cluster.gpus_per_host
        ranks = range(start * tp, end * tp)
        return sum(rank // per_host != (rank + tp) // per_host for rank in ranks) / len(ranks)

    @cached_property
    def weight_bytes_per_gpu(self) -> float:
        """Stored weights on the fullest GPU [B]."""
        return max(self._stage_weight_bytes(stage) for stage in self.stages)

    def _stage_weight_bytes(self, stage: Stage) -> float:
        layers = sum(count * self._layer_weight_bytes(layer) for layer, count in stage.layers)
        table = self.llm.vocab_size * self.llm.hidden_size / self.plan.tp
        head = BYTES_PER_VALUE[self.dtype_of("lm_head")] if stage.last and not (stage.first and self.llm.tied_embeddings) else 0.0
        return layers + table * (2.0 * stage.first + head)

    def _layer_weight_bytes(self, layer: Layer) -> float:
        hidden, plan, total = self.llm.hidden_size, self.plan, 0.0
        if layer.mixer is not None:
            total += layer.mixer.matrix_parameters(hidden) * BYTES_PER_VALUE[self.dtype_of("attention")] / plan.tp
        if isinstance(layer.ffn, DenseFfn):
            total += layer.ffn.matrix_parameters(hidden) * BYTES_PER_VALUE[self.dtype_of("ffn")] / plan.tp
        if isinstance(layer.ffn, MoeFfn):
            matrices = 3 if layer.ffn.gated else 2
            routed = matrices * hidden * layer.ffn.intermediate_size * layer.ffn.experts
            shared = matrices * hidden * layer.ffn.shared_intermediate_size
            total += routed * BYTES_PER_VALUE[self.dtype_of("experts")] / self.expert_ranks
            total += shared * BYTES_PER_VALUE[self.dtype_of("shared_expert")] / plan.tp
        return total

    @property
    def expert_ranks(self) -> int:
        """Ranks over which one copy of the routed experts is spread, whole or in shards [-]."""
        return self.plan.tp * (self.plan.dp if self.plan.ep > 1 else 1)

    def kv_bytes_per_gpu(self, *, sequences: float, context_tokens: float) -> float:
        """KV cache and recurrent states stored on the fullest GPU for that many sequences [B]."""
        return max(
            sum(count * _cache_bytes(layer, self, sequences, context_tokens) for layer, count in stage.layers) for stage in self.stages
        )

    @property
    def free_bytes_per_gpu(self) -> float:
        """Memory left for the KV cache on the fullest GPU [B]."""
        return USABLE_MEMORY * self.cluster.gpu.memory_bytes - self.weight_bytes_per_gpu

    def largest_batch(self, context_tokens: float) -> float:
        """Sequences per data-parallel rank whose KV cache fits at that context [-]."""
        per_sequence = self.kv_bytes_per_gpu(sequences=1.0, context_tokens=context_tokens)
        return max(0.0, self.free_bytes_per_gpu / per_sequence) if per_sequence else float("inf")


def deploy(
    llm: LLM, *, plan: ParallelPlan, cluster: Cluster, engine: Engine, dtype: Dtype | None = None, kv_dtype: Dtype | None = None
) -> Deployment:
    """A checked deployment.

    Raises:
        PlanError: the plan does not divide the LLM or the cluster is too small.
        MemoryFitError: the weights do not fit; the text says what would.
    """
    return _deployed(llm, plan, cluster, engine, dtype or llm.dtype, kv_dtype or llm.kv_dtype)


@lru_cache(maxsize=1024)
def _deployed(llm: LLM, plan: ParallelPlan, cluster: Cluster, engine: Engine, dtype: Dtype, kv_dtype: Dtype) -> Deployment:
    """One object for equal deployments: requests that differ in their tokens share its checks and its sums."""
    _check_division(llm, plan)
    available = cluster.gpus_per_host * cluster.hosts
    if plan.gpus > available:
        raise PlanError(
            f"the plan needs {plan.gpus} GPUs ({plan}), the cluster {cluster.name!r} has {available}; give more hosts or smaller degrees"
        )
    deployment = Deployment(llm=llm, plan=plan, cluster=cluster, engine=engine, dtype=dtype, kv_dtype=kv_dtype)
    _check_memory(deployment)
    return deployment


@lru_cache(maxsize=512)
def _check_division(llm: LLM, plan: ParallelPlan) -> None:
    if plan.pp > len(llm.layers):
        raise PlanError(f"pp = {plan.pp} is more than the {len(llm.layers)} layers of {llm.name}; give at most {len(llm.layers)}")
    for layer in llm.layer_counts:
        for name, size in _divided_by_tp(layer, plan):
            if size % plan.tp:
                raise PlanError(f"tp = {plan.tp} does not divide the {size} {name} of {llm.name}; allowed: divisors of {size}")
        if isinstance(layer.mixer, Attention) and layer.mixer.kv_heads % plan.tp and plan.tp % layer.mixer.kv_heads:
            raise PlanError(
                f"tp = {plan.tp} and the {layer.mixer.kv_heads} KV heads of {llm.name} do not divide each other; "
                f"allowed: divisors or multiples of {layer.mixer.kv_heads}"
            )
    experts = {layer.ffn.experts for layer in llm.layer_counts if isinstance(layer.ffn, MoeFfn)}
    if plan.ep > 1 and not experts:
        raise PlanError(f"ep = {plan.ep}, but {llm.name} has no experts; use ep=1")
    for count in experts:
        if count % plan.ep:
            raise PlanError(f"ep = {plan.ep} does not divide the {count} experts of {llm.name}; allowed: divisors of {count}")


def _divided_by_tp(layer: Layer, plan: ParallelPlan) -> list[tuple[str, int]]:
    sizes: list[tuple[str, int]] = []
    if isinstance(layer.mixer, Attention):
        sizes.append(("query heads", layer.mixer.heads))
    elif isinstance(layer.mixer, (LatentAttention, StateSpace)):
        sizes.append(("heads", layer.mixer.heads))
    elif isinstance(layer.mixer, DeltaNet):
        sizes.append(("key heads", layer.mixer.key_heads))
        sizes.append(("value heads", layer.mixer.value_heads))
    if isinstance(layer.ffn, DenseFfn):
        sizes.append(("feed-forward columns", layer.ffn.intermediate_size))
    elif isinstance(layer.ffn, MoeFfn):
        if plan.ep == 1:
            sizes.append(("columns per expert", layer.ffn.intermediate_size))
        if layer.ffn.shared_intermediate_size:
            sizes.append(("columns of the shared expert", layer.ffn.shared_intermediate_size))
    return sizes


def _check_memory(deployment: Deployment) -> None:
    held, gpu = deployment.weight_bytes_per_gpu, deployment.cluster.gpu
    if held <= gpu.memory_bytes * USABLE_MEMORY:
        return
    usable = gpu.memory_bytes * USABLE_MEMORY
    raise MemoryFitError(
        f"the {deployment.dtype} weights of {deployment.llm.name} take {held / GIGA:.1f} GB per GPU under {deployment.plan}, "
        f"{gpu.name} offers {usable / GIGA:.1f} GB ({USABLE_MEMORY:.0%} of its memory); {_what_fits(deployment, usable)}"
    )


def _what_fits(deployment: Deployment, usable: float) -> str:
    """The plan with the fewest GPUs per replica that divides and fits."""
    llm, plan = deployment.llm, deployment.plan
    powers = [1 << power for power in range(8)]
    for gpus, pp, tp in sorted((tp * pp, pp, tp) for tp in powers for pp in {plan.pp, *powers}):
        try:
            other = replace(plan, tp=tp, pp=pp)
            _check_division(llm, other)
        except PlanError:
            continue
        if gpus > plan.tp * plan.pp and replace(deployment, plan=other).weight_bytes_per_gpu <= usable:
            return f"tp={tp} would fit (with pp={pp}), or a smaller dtype"
    return f"it needs about {ceil(deployment.weight_bytes_per_gpu / usable)} times as many GPUs, or a smaller dtype"


@lru_cache(maxsize=1024)
def partition(llm: LLM, pp: int) -> tuple[Stage, ...]:
    """Layers over `pp` stages as vLLM does it: equal shares, the remainder to the stages before the last, from the back.

    Every layer is in exactly one stage; neighbouring equal stages are put together.
    """
    share, rest = divmod(len(llm.layers), pp)
    sizes = [share] * pp
    for index in range(rest):
        sizes[-2 - index if pp > 1 else 0] += 1
    stages: list[Stage] = []
    start = 0
    for index, size in enumerate(sizes):
        counts = tuple(Counter(llm.layers[start : start + size]).items())
        stage = Stage(count=1, layers=counts, first=index == 0, last=index == pp - 1)
        start += size
        if stages and stages[-1].layers == stage.layers and not (stages[-1].first or stage.last):
            stages[-1] = Stage(count=stages[-1].count + 1, layers=counts, first=False, last=False)
        else:
            stages.append(stage)
    return tuple(stages)


def _cache_bytes(layer: Layer, deployment: Deployment, sequences: float, context_tokens: float) -> float:
    mixer, tp = layer.mixer, deployment.plan.tp
    per_value = BYTES_PER_VALUE[deployment.kv_dtype]
    if isinstance(mixer, Attention):
        seen = min(context_tokens, mixer.window) if mixer.window else context_tokens
        return sequences * seen * 2 * max(1.0, mixer.kv_heads / tp) * mixer.head_dim * per_value
    if isinstance(mixer, LatentAttention):
        return sequences * context_tokens * mixer.cached_values * per_value
    if isinstance(mixer, StateSpace):
        return sequences * mixer.heads * mixer.head_dim * mixer.state_dim * 4.0 / tp
    if isinstance(mixer, DeltaNet):
        return sequences * mixer.value_heads * mixer.value_dim * mixer.key_dim * 4.0 / tp
    return 0.0
