"""The prediction beside a measurement: the same deployment, the concurrency that was reached, the lengths that were seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.bench.plans import Deployed, Load
from pie_p.cases import make_case
from pie_p.hardware import load_cluster
from pie_p.predictor import Predictor, load_predictor
from pie_p.workload import LengthDistribution

if TYPE_CHECKING:
    from pie_p.serving import Case

COMPARED: Final = ("energy_per_output_token_j", "energy_per_response_j", "power_w", "tokens_per_s", "ttft_s", "tpot_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is predicted for the deployment of a run; scope: GPU boards."""

    predictor: str
    predictor_sha256: str
    batch: float  # requests in flight per data-parallel rank, as observed [-]
    energy_per_output_token_j: float
    energy_per_response_j: float
    power_w: float  # of all boards
    tokens_per_s: float  # output tokens of the whole deployment [1/s]
    ttft_s: float  # without queueing
    tpot_s: float | None
    warnings: tuple[str, ...]

    def errors(self, measured: Mapping[str, float | None]) -> dict[str, float]:
        """Relative error of each figure that was measured: predicted over measured, less 1 [-]."""
        pairs = {name: (getattr(self, name), measured.get(name)) for name in COMPARED}
        return {name: told / seen - 1.0 for name, (told, seen) in pairs.items() if told is not None and seen}

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "warnings": list(self.warnings)}


def case_of(deployed: Deployed, load: Load, *, concurrency: float, limit_w: float | None, ok: Mapping[str, NDArray[Any]]) -> Case:
    """The case that a run answers.

    Args:
        deployed: what the target stands on.
        load: static or steady.
        concurrency: mean requests in flight, whole deployment [-].
        limit_w: power limit in force per board; None: not read [W].
        ok: rows of whole responses, prompt tokens known.
    """
    board = (
        load_cluster(deployed.cluster or deployed.gpu or "", gpus=deployed.gpus)
        if deployed.cluster is None
        else load_cluster(deployed.cluster)
    )
    cap_w = limit_w if limit_w is not None else deployed.power_limit_w
    cached = ok["cached_prompt_tokens"]
    prompt_tokens = float(np.mean(ok["prompt_tokens"]))
    return make_case(
        deployed.llm or "",
        gpu=deployed.gpu,
        cluster=deployed.cluster,
        tp=deployed.tp,
        pp=deployed.pp,
        dp=deployed.dp,
        ep=deployed.ep,
        batch=max(1.0, concurrency / deployed.dp),
        prompt_tokens=prompt_tokens,
        output_tokens=LengthDistribution.from_lengths(ok["output_tokens"].tolist()),
        cached_prompt_tokens=min(prompt_tokens, float(np.nan_to_num(cached).mean())),
        dtype=deployed.dtype,
        kv_dtype=deployed.kv_dtype,
        engine=deployed.engine,
        mode=load.mode,
        power_limit_w=cap_w if cap_w is not None and cap_w < board.gpu.limit_w else None,
    )


def predict_beside(case: Case, predictor: str | Predictor | None = None) -> Beside:
    """What a predictor says about the case."""
    answers = load_predictor(predictor)
    prediction = answers.predict([case], keep_working=False)[0]
    request, plan = prediction.request, prediction.deployment.plan
    assert prediction.time_per_token_s is not None
    assert prediction.energy_per_output_token_j is not None
    return Beside(
        predictor=answers.name,
        predictor_sha256=answers.sha256,
        batch=request.batch,
        energy_per_output_token_j=prediction.energy_per_output_token_j,
        energy_per_response_j=prediction.energy_j,
        power_w=prediction.avg_power_w,
        tokens_per_s=request.batch * plan.dp / prediction.time_per_token_s,
        ttft_s=prediction.ttft_s,
        tpot_s=prediction.tpot_s,
        warnings=prediction.warnings,
    )
