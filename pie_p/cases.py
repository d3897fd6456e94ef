"""Cases: the arguments people give, checked and put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, Final, cast

from pie_p.deployment import deploy
from pie_p.engine import Engine, load_engine
from pie_p.errors import InputError, did_you_mean
from pie_p.hardware import Cluster, Gpu, load_cluster
from pie_p.llm import LLM, load_llm
from pie_p.plan import ParallelPlan
from pie_p.quantities import as_dtype, as_float, shown
from pie_p.serving import Case
from pie_p.units import Dtype
from pie_p.workload import Mode, OutputTokens, Request

LEAST_CAP = 0.25  # boards accept no cap below about this share of their limit (A100 SXM 100 of 400 W, H100 SXM 200 of 700 W)


def make_case(
    llm: str | LLM | Mapping[str, object],
    *,
    gpu: str | Gpu | None = None,
    cluster: str | Cluster | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    micro_batches: int | None = None,
    batch: float = 1,
    prompt_tokens: float,
    output_tokens: OutputTokens,
    cached_prompt_tokens: float = 0,
    dtype: Dtype | None = None,
    kv_dtype: Dtype | None = None,
    engine: str | Engine = "vllm",
    mode: Mode | None = None,
    power_limit_w: float | None = None,
) -> Case:
    """Check the arguments of `predict_energy` and put them together; `predict` answers a list of these at once."""
    plan = ParallelPlan(tp=tp, pp=pp, dp=dp, ep=ep, micro_batches=micro_batches)
    request = Request(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, batch=batch, cached_prompt_tokens=cached_prompt_tokens, mode=mode
    )
    stored, cached = as_dtype("dtype", dtype), as_dtype("kv_dtype", kv_dtype)
    where = _cluster_for(gpu, cluster, plan.gpus)
    deployment = deploy(load_llm(llm), plan=plan, cluster=where, engine=load_engine(engine), dtype=stored, kv_dtype=cached)
    if power_limit_w is not None:
        power_limit_w = _power_limit(power_limit_w, where.gpu)
    return Case(request, deployment, power_limit_w)


ARGUMENTS: Final = tuple(signature(make_case).parameters)
OF_REQUEST: Final = ("batch", "prompt_tokens", "output_tokens", "cached_prompt_tokens", "mode")  # the other arguments name a deployment


def case_of(deployment: Mapping[str, Any], **request: Any) -> Case:
    """A case from a deployment's arguments as a table: names are checked, since they come from files and by hand.

    Args:
        deployment: arguments of `make_case` by name, `llm` among them.
        request: the other arguments.

    Raises:
        InputError: no table, a name that is no argument, or no `llm`.
        PiePError: as `make_case` does.
    """
    if not isinstance(deployment, Mapping):
        raise InputError(f"{shown(deployment)} is no deployment; give a table like {{'llm': 'llama-3.1-8b', 'gpu': 'h100-sxm-80gb'}}")
    strange = next((name for name in deployment if name not in ARGUMENTS), None)
    if strange is not None:
        near = did_you_mean(str(strange)[:80], ARGUMENTS)
        known = ", ".join(name for name in ARGUMENTS if name not in OF_REQUEST)
        raise InputError(f"a deployment has no argument {str(strange)[:80]!r}.{near} Known: {known}")
    if "llm" not in deployment:
        raise InputError("a deployment without llm; give llm = 'llama-3.1-8b', for instance")
    return make_case(**deployment, **request)


def arguments_of(case: Case) -> dict[str, Any]:
    """Arguments of `make_case` that give this case again.

    What equals the default - the common host of the board, the formats of the checkpoint, the mode that goes with the batch - is left to be
    chosen again, so that it follows a change of what it goes with.
    """
    request, deployment = case.request, case.deployment
    plan, llm, cluster = deployment.plan, deployment.llm, deployment.cluster
    common = cluster == load_cluster(cluster.gpu, gpus=plan.gpus)
    usual = replace(request, mode=None).mode == request.mode
    return {
        "llm": llm,
        "gpu": cluster.gpu if common else None,
        "cluster": None if common else cluster,
        **{name: getattr(plan, name) for name in ("tp", "pp", "dp", "ep", "micro_batches")},
        "batch": request.batch,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "cached_prompt_tokens": request.cached_prompt_tokens,
        "dtype": None if deployment.dtype == llm.dtype else deployment.dtype,
        "kv_dtype": None if deployment.kv_dtype == llm.kv_dtype else deployment.kv_dtype,
        "engine": deployment.engine,
        "mode": None if usual else request.mode,
        "power_limit_w": case.power_limit_w,
    }


def _power_limit(value: float, gpu: Gpu) -> float:
    limit_w = as_float("power_limit_w", value, above=True)
    least_w = max(gpu.active_idle_w, LEAST_CAP * gpu.limit_w)
    if not least_w < limit_w <= gpu.limit_w:
        raise InputError(
            f"power_limit_w = {limit_w:g} W is outside what {gpu.name} can hold; allowed: above {least_w:g} W (a quarter of its limit, or "
            f"active idle) and at most {gpu.limit_w:g} W"
        )
    return limit_w


def _cluster_for(gpu: str | Gpu | None, cluster: str | Cluster | None, gpus: int) -> Cluster:
    if (gpu is None) == (cluster is None):
        came = "both gpu and cluster" if gpu is not None else "neither gpu nor cluster"
        raise InputError(
            f"{came} given; give one: gpu='h100-sxm-80gb' (its common host) or cluster=Cluster(...) or a TOML file; "
            "on the command line: --gpu or --cluster"
        )
    if cluster is not None:
        return load_cluster(cluster)
    return load_cluster(cast("str | Gpu", gpu), gpus=gpus)
