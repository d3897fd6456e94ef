"""Cautions: what a prediction warns of - memory, context, formats the board lacks, versions that stand in, operators never profiled."""

from __future__ import annotations

from typing import Final

from pie_p.deployment import Deployment
from pie_p.prediction import Working
from pie_p.serving import Case
from pie_p.units import Dtype

# Formats that boards multiply in where they can; int4 and mxfp4 are storage, unpacked by design (AWQ, GPTQ, Marlin), and 16-bit formats
# stand in for each other at the same speed.
MULTIPLIED: Final[frozenset[Dtype]] = frozenset({"fp8", "int8", "nvfp4"})


def cautions(case: Case, working: Working) -> tuple[str, ...]:
    """Sentences on what the answer to a case leaves open, or stands on."""
    deployment, request, texts = case.deployment, case.request, []
    longest = request.prompt_tokens + request.mean_output_tokens
    context = request.prompt_tokens + request.mean_output_tokens * request.length_spread / 2
    fits = deployment.largest_batch(context)
    if fits < request.batch:
        texts.append(
            f"the KV cache of batch {request.batch:g} does not fit beside the weights; about {int(fits)} requests per data-parallel rank do"
        )
    if deployment.llm.max_context and longest > deployment.llm.max_context:
        texts.append(f"{longest:g} tokens are more than the {deployment.llm.max_context} that {deployment.llm.name} was trained for")
    texts += _foreign_format(deployment)
    if deployment.engine.asked:
        texts.append(f"{deployment.engine.name}=={deployment.engine.asked} was asked for; the costs are those of {deployment.engine}")
    texts += deployment.llm.notes
    texts += _unprofiled(working)
    return tuple(texts)


def _unprofiled(working: Working) -> list[str]:
    """A sentence that names the operators outside the profiled range, where there are any."""
    outside = working.run.outside
    if outside is None or not outside[working.rows].any():
        return []
    assembly = working.run.assembly
    places = assembly.which[working.rows][outside[working.rows]]
    paths = dict.fromkeys(assembly.distinct[place].operator.path for place in places.tolist())
    shown_paths = ", ".join(list(paths)[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return [f"outside what was profiled, so nearer to the physical base than to a measurement: {shown_paths}"]


def _foreign_format(deployment: Deployment) -> list[str]:
    """A sentence where the board cannot multiply in the format of the weights."""
    gpu, dtype = deployment.cluster.gpu, deployment.dtype
    computes_in = gpu.compute_dtype(dtype)
    if dtype not in MULTIPLIED or computes_in == dtype:
        return []
    return [f"{gpu.name} has no {dtype} arithmetic: weights are stored in {dtype}, unpacked and multiplied in {computes_in}"]
