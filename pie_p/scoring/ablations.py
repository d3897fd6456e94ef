"""Ablations: the physics fitted again without one of its terms. What an error rises by is what the term is worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pie_p.features import KIND_CODE
from pie_p.fitting import POWER_WIDTHS, ROOFLINE_WIDTHS, SERVING_WIDTHS
from pie_p.physics import AnyColumns, Floats, Roofline, is_collective, soft_cap
from pie_p.power import PowerLaw
from pie_p.scoring.folds import TIME_SCALARS, Variant
from pie_p.serving import Assembly, Case, ServingCosts
from pie_p.shapes import MoeFfn
from pie_p.workload import LengthDistribution

HOST: Final = ("step_s", "sequence_s", "overlapped_sequence_s", "prompt_s")
DISPATCH: Final = ("dispatch_s", "dispatch_step_s")
UNEVEN: Final = ("jitter", "imbalance")
NO_LIMIT_BYTES: Final = 1e15  # memory that no cache fills [B]


def without_costs(name: str, *costs: str) -> Variant:
    """Some of the serving costs are zero and stay so."""
    nothing = ServingCosts()._replace(**dict.fromkeys(costs, 0.0))
    return Variant(name=name, costs=nothing, free=tuple(scalar for scalar in TIME_SCALARS if scalar not in costs))


def no_communication(assembly: Assembly) -> Assembly:
    """Collectives take neither time nor energy."""
    return replace(assembly, calls=np.where(is_collective(assembly.columns), 0.0, assembly.calls))


def every_expert(assembly: Assembly) -> Assembly:
    """Every expert's weights are read in every step, however few tokens there are."""
    return _scaled_expert_weights(assembly, 1.0 / _occupancy(assembly))


def chosen_experts(assembly: Assembly) -> Assembly:
    """Only the weights of one token's experts are read, however many tokens there are."""
    total, top_k, _ = _expert_counts(assembly)
    return _scaled_expert_weights(assembly, (top_k / total) / _occupancy(assembly))


def _expert_counts(assembly: Assembly) -> tuple[Floats, Floats, Floats]:
    """Experts of the layer, experts per token, and tokens routed, of each row (1, 1, 1 where there are none)."""
    layers = [[layer.ffn for layer in case.deployment.llm.layer_counts if isinstance(layer.ffn, MoeFfn)] for case in assembly.cases]
    total = np.array([max((ffn.experts for ffn in found), default=1) for found in layers], dtype=np.float64)[assembly.row_case]
    here = assembly.columns["kind_code"] == KIND_CODE["experts"]
    top_k = np.where(here, np.maximum(assembly.columns["top_k"], 1.0), 1.0)
    return np.where(here, total, 1.0), top_k, np.where(here, assembly.columns["tokens"], 1.0)


def _occupancy(assembly: Assembly) -> Floats:
    """Share of the experts that a step's tokens touch (`distinct_experts`), 1 for other rows [-]."""
    total, top_k, tokens = _expert_counts(assembly)
    return np.asarray(1.0 - (1.0 - top_k / total) ** tokens)


def _scaled_expert_weights(assembly: Assembly, factor: Floats) -> Assembly:
    columns = dict(assembly.columns)
    more = columns["weight_bytes"] * (factor - 1.0)
    columns["weight_bytes"], columns["hbm_bytes"] = columns["weight_bytes"] + more, columns["hbm_bytes"] + more
    return replace(assembly, columns=columns)


def cached_prompt(case: Case) -> Case:
    """The prompt is found in the cache: read, not computed."""
    request = replace(case.request, cached_prompt_tokens=case.request.prompt_tokens)
    return case._replace(request=request)


def no_mixed_steps(assembly: Assembly) -> Assembly:
    """No step waits for a prompt: all are replayed graphs."""
    columns = {**assembly.columns, "eager": np.zeros(len(assembly.row_case))}
    nothing = np.zeros(len(assembly.step_case))
    return replace(assembly, columns=columns, eager=nothing > 0, prompts_ending=nothing)


def no_cache_reads(assembly: Assembly) -> Assembly:
    """Decode attention and scans do no work beyond their floor."""
    columns = dict(assembly.columns)
    reading = np.isin(columns["kind_code"], [KIND_CODE["attention_decode"], KIND_CODE["scan"]])
    for name in ("kv_bytes", "hbm_bytes", "flops"):
        columns[name] = np.where(reading, 0.0, columns[name])
    return replace(assembly, columns=columns)


def endless_memory(case: Case) -> Case:
    """A batch's cache is never too large for the board."""
    cluster = case.deployment.cluster
    gpu = cluster.gpu.model_copy(update={"memory_bytes": NO_LIMIT_BYTES})
    return case._replace(deployment=replace(case.deployment, cluster=cluster.model_copy(update={"gpu": gpu})))


def equal_lengths(case: Case) -> Case:
    """All outputs have the mean length."""
    mean = case.request.mean_output_tokens
    return case._replace(request=replace(case.request, output_tokens=LengthDistribution(mean=mean, second_moment=mean**2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCap(PowerLaw):
    """The power limit bends every kernel's demand for itself, as if it acted faster than kernels follow each other."""

    def demand(self, columns: AnyColumns, time_s: Floats) -> Floats:
        """Share of the room, bent at the limit [-]."""
        limit_w, idle_w = columns["limit_w"], columns["active_idle_w"]
        most = (self.ceiling * limit_w - idle_w) / (limit_w - idle_w)
        return soft_cap(np.maximum(PowerLaw.demand(self, columns, time_s), 1e-12), most, knee=self.knee)

    def settled(self, demand: Floats, *, limit_w: Floats, idle_w: Floats) -> Floats:  # noqa: ARG002 - the law's signature
        """The mean as it is [-]."""
        return demand


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCap(PowerLaw):
    """There is no power limit."""

    def settled(self, demand: Floats, *, limit_w: Floats, idle_w: Floats) -> Floats:  # noqa: ARG002 - the law's signature
        """The mean as it is [-]."""
        return demand


def displaced_priors(seed: int = 0) -> Variant:
    """Every prior moved at random by half its width.

    Tells how much of the accuracy stands in the priors, which people set who knew the data, and not in what a fold's rows teach.
    """
    draw = np.random.default_rng(seed)

    def moved(widths: dict[str, float], start: object) -> dict[str, float]:
        return {name: float(getattr(start, name) * np.exp(0.5 * width * draw.standard_normal())) for name, width in widths.items()}

    return Variant(
        name="priors displaced by half their width",
        roofline=replace(Roofline(), **moved(ROOFLINE_WIDTHS, Roofline())),
        costs=ServingCosts()._replace(**moved(SERVING_WIDTHS, ServingCosts())),
        power=replace(PowerLaw(), **moved(POWER_WIDTHS, PowerLaw())),
    )


ABLATIONS: Final[tuple[Variant, ...]] = (
    without_costs("without any wait", *SERVING_WIDTHS),
    without_costs("without host gaps", *HOST),
    without_costs("without launch gaps", "launch_s"),
    without_costs("without dispatch of mixed steps", *DISPATCH),
    without_costs("without skew and imbalance", *UNEVEN),
    Variant(name="without communication", assembly=no_communication),
    replace(without_costs("without communication and its waits", *UNEVEN), assembly=no_communication),
    Variant(name="every expert read in every step", assembly=every_expert),
    Variant(name="one token's experts read", assembly=chosen_experts),
    Variant(name="without prefill", cases=cached_prompt, assembly=no_mixed_steps),
    Variant(name="without KV cache reads", assembly=no_cache_reads),
    Variant(name="cache never clipped to the memory", cases=endless_memory),
    Variant(name="outputs of equal length", cases=equal_lengths),
    Variant(name="power limit bends each kernel", power=KernelCap(), power_only=True),
    Variant(name="no power limit", power=NoCap(), power_only=True),
    Variant(name="a waiting board draws active idle", power=replace(PowerLaw(), wait=0.0), power_only=True),
    displaced_priors(),
)
