"""Sweep: every feasible plan for a request with its energy, time and memory, and the choice among them.

from pie_p import sweep
plans = sweep("llama-3.1-70b", gpus=["h100-sxm-80gb"], prompt_tokens=500, output_tokens=300)
plans.best(max_tpot_s=0.05)   # least joules per output token with at most 50 ms per token
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from pie_p.accounting import Accounting, Scope
from pie_p.candidates import COLUMNS, Candidate, Infeasible, best_of, figure_of, limits_of, pareto_front
from pie_p.engine import Engine
from pie_p.errors import InputError
from pie_p.frames import frame_of
from pie_p.hardware import Cluster, Gpu
from pie_p.intervals import width_at
from pie_p.llm import LLMSource, load_llm
from pie_p.prediction import Prediction
from pie_p.predictor import Predictor, load_predictor
from pie_p.quantities import as_float
from pie_p.serving import Case
from pie_p.sweep_files import save_sweep
from pie_p.sweep_grid import context_tokens, make_grid
from pie_p.sweep_progress import progress_of
from pie_p.units import Dtype
from pie_p.workload import Mode, OutputTokens, Request

T = TypeVar("T")
LEVEL: Final = 0.9  # of the interval columns
CASES_AT_ONCE: Final = 1000  # per pass of the predictor: the steps of the progress bar, and the bound on memory
JOULES: Final = "energy_per_output_token_j"
COLUMNS_OF_ROWS: Final = ("llm", "prompt_tokens", "output_tokens", "scope", "predictor", *COLUMNS, "reason")

OneOrMore: TypeAlias = "T | Sequence[T]"


@dataclass(frozen=True, kw_only=True, repr=False)
class Sweep:
    """Every plan that was tried for one request: the feasible ones with their figures, the others with the reason."""

    llm: str
    request: Request  # tokens in and out; the batch differs by candidate
    scope: Scope
    candidates: tuple[Candidate, ...]
    infeasible: tuple[Infeasible, ...]
    predictor: Predictor = field(compare=False)
    accounting: Accounting

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self.candidates)

    def __repr__(self) -> str:
        return f"<Sweep of {self.title}: {len(self.candidates)} feasible, {self.refused} not; scope {self.scope}>"

    @property
    def title(self) -> str:
        """What was asked, in words."""
        return f"{self.llm}, {self.request.prompt_tokens:g} prompt + {self.request.mean_output_tokens:g} output tokens"

    @property
    def refused(self) -> int:
        """Configurations that cannot run [-]."""
        return sum(each.configurations for each in self.infeasible)

    @property
    def objective(self) -> str:
        """The figure to choose by where none is named: joules per output token, or per request where nothing goes out."""
        return JOULES if self.request.mean_output_tokens else "energy_j"

    def pareto(self, x: str = "latency_s", y: str | None = None) -> list[Candidate]:
        """The Pareto front: candidates that no other beats in one figure without being worse in the other, in order of `x`.

        Args:
            x: a figure (`pie_p.candidates.FIGURES`): "latency_s", "tpot_s", "tokens_per_s_per_gpu", "gpus", ...
            y: another; default joules per output token.

        Raises:
            InputError: an unknown figure, or one that a prefill-only request does not have.
        """
        return pareto_front(self.candidates, x, y or self.objective)

    def best(
        self,
        objective: str | None = None,
        *,
        max_tpot_s: float | None = None,
        max_ttft_s: float | None = None,
        max_latency_s: float | None = None,
        max_time_per_token_s: float | None = None,
        max_avg_power_w: float | None = None,
        max_gpus: float | None = None,
        min_tokens_per_s: float | None = None,
        min_requests_per_s: float | None = None,
        margin: float = 0.0,
    ) -> Candidate:
        """The best plan within limits; of equal ones that with the fewest GPUs, then the shortest latency.

        A predicted figure may be off. Measured on LLMs never seen, a choice "least energy with at most 50 ms per token" broke its limit in
        15 % of cases, in 9 to 12 % with a margin of 5 % or more, at a median cost of no energy up to 10 % (docs/accuracy.md, Decisions).

        Args:
            objective: figure to choose by (`pie_p.candidates.FIGURES`); default joules per output token.
            max_tpot_s: time per output token after the first, at most [s].
            max_ttft_s: time to first token without queueing, at most [s].
            max_latency_s: first prefill start to last token, at most [s].
            max_time_per_token_s: latency over output tokens, at most [s].
            max_avg_power_w: power of all GPUs, at most [W].
            max_gpus: GPUs of the deployment, at most [-].
            min_tokens_per_s: output tokens of the deployment, at least [1/s].
            min_requests_per_s: requests of the deployment, at least [1/s].
            margin: share by which predicted figures must stay clear of their limits; 0.05 is a good one [-].

        Raises:
            InputError: nothing is feasible, or nothing keeps the limits; the text names the nearest miss.
        """
        bounds = {name: value for name, value in locals().items() if name.startswith(("max_", "min_"))}
        figure_of(objective or self.objective)
        limits, clear = limits_of(bounds), as_float("margin", margin, most=10.0)
        if not self.candidates:
            raise InputError(self._nothing())
        return best_of(self.candidates, objective or self.objective, limits, margin=clear)

    def _nothing(self) -> str:
        first = f": {self.infeasible[0].reason}" if self.infeasible else ""
        return f"no plan of the sweep can run ({self.refused} tried); the first{first}"

    def predict(self, candidate: Candidate) -> Prediction:
        """The whole prediction of a candidate, with operators and tree."""
        return self.predictor.predict([candidate.case], accounting=self.accounting)[0]

    def rows(self, *, infeasible: bool = False) -> list[dict[str, Any]]:
        """Flat rows, the same columns in each; with the infeasible ones on request, whose `reason` is filled and whose figures are None."""
        shared = {
            "llm": self.llm, "prompt_tokens": self.request.prompt_tokens, "output_tokens": self.request.mean_output_tokens,
            "scope": self.scope, "predictor": self.predictor.name,
        }  # fmt: skip
        rows = [shared | candidate.to_dict() | {"warnings": "; ".join(candidate.warnings), "reason": None} for candidate in self.candidates]
        if infeasible:
            blank: dict[str, Any] = dict.fromkeys(COLUMNS_OF_ROWS)
            rows += [blank | shared | {key: value for key, value in each.to_dict().items() if key in blank} for each in self.infeasible]
        return rows

    def to_frame(self, *, infeasible: bool = False) -> Any:
        """A pandas DataFrame, or an Arrow table where pandas is missing: one row per candidate, columns with their units.

        Args:
            infeasible: also the plans that cannot run, with their `reason`.

        Raises:
            MissingExtraError: neither is installed.
        """
        return frame_of(COLUMNS_OF_ROWS, self.rows(infeasible=infeasible))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `pie-p sweep --json` prints it; `front` holds places of `candidates`, latency against joules."""
        places = {id(candidate): place for place, candidate in enumerate(self.candidates)}
        return {
            "llm": self.llm,
            "prompt_tokens": self.request.prompt_tokens,
            "cached_prompt_tokens": self.request.cached_prompt_tokens,
            "output_tokens": self.request.mean_output_tokens,
            "scope": self.scope,
            "pue": self.accounting.pue,
            "predictor": {"name": self.predictor.name, "sha256": self.predictor.sha256},
            "tried": len(self.candidates) + self.refused,
            "front": [places[id(candidate)] for candidate in self.pareto()],
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "infeasible": [each.to_dict() for each in self.infeasible],
        }

    def save(self, path: str | Path) -> None:
        """Write a CSV, JSON or Parquet file, by its suffix; whole or not at all. Tables hold the infeasible plans too, with their `reason`.

        Raises:
            InputError: another suffix, or the disk refuses.
            MissingExtraError: Parquet without pyarrow.
        """
        save_sweep(path, columns=COLUMNS_OF_ROWS, rows=lambda: self.rows(infeasible=True), plain=self.to_dict)

    def plot(self, x: str = "latency_s", y: str | None = None) -> Any:
        """A matplotlib `Figure`: every candidate, and the Pareto front.

        Raises:
            MissingExtraError: matplotlib is not installed (extra `plot`).
        """
        from pie_p.sweep_pictures import pareto_figure

        y = y or self.objective
        return pareto_figure(self.candidates, self.pareto(x, y), x=x, y=y, title=f"{self.title} (scope {self.scope})")

    def _repr_html_(self) -> str:
        from pie_p.sweep_pictures import sweep_html

        return sweep_html(self.candidates, self.pareto(), self.infeasible, objective=self.objective, title=self.title, scope=self.scope)


def sweep(
    llm: LLMSource,
    *,
    gpus: OneOrMore[str | Path | Gpu | Cluster],
    tp: OneOrMore[int] | None = None,
    pp: OneOrMore[int] | None = None,
    dp: OneOrMore[int] | None = None,
    ep: OneOrMore[int] | None = None,
    batch: OneOrMore[float] | None = None,
    dtype: OneOrMore[Dtype | None] | None = None,
    engine: OneOrMore[str | Engine] = "vllm",
    power_limit_w: OneOrMore[float | None] | None = None,
    prompt_tokens: float,
    output_tokens: OutputTokens | Sequence[float],
    cached_prompt_tokens: float = 0,
    kv_dtype: Dtype | None = None,
    mode: Mode | None = None,
    scope: Scope = "gpu",
    pue: float | None = None,
    exclusive_host: bool = False,
    predictor: str | Predictor | None = None,
    progress: bool = True,
) -> Sweep:
    """Try every combination of plans for one kind of request; nothing is left out without a reason, and nothing stands there twice.

    Args:
        llm: as in `predict_energy`.
        gpus: boards (each stands for its common host), TOML files or `Cluster`s; one or several, as in all that follow.
        tp: tensor-parallel ranks; left out, powers of two that keep a deployment on one host, or on as few as hold the weights [-].
        pp: pipeline stages; left out, the same [-].
        dp: data-parallel ranks; default 1, since replicas change no joule per request [-].
        ep: ranks the experts are spread over; default 1, and with experts also `tp * dp` [-].
        batch: requests in flight per data-parallel rank; default powers of two up to 256 [-].
        dtype: storage of the weights; default (and `None`) as the checkpoint says.
        engine: "vllm", "sglang", "trtllm", optionally with a version.
        power_limit_w: per board; `None` is the board's own limit [W].
        prompt_tokens: tokens in [-].
        output_tokens: tokens out: a number, observed lengths or a `LengthDistribution` [-].
        cached_prompt_tokens: prompt tokens found in the prefix cache [-].
        kv_dtype: storage of the KV cache.
        mode: "static" or "steady"; default static at batch 1, steady above.
        scope: "gpu", "host" or "facility".
        pue: power usage effectiveness, for scope "facility" [-].
        exclusive_host: count the whole host, idle neighbour boards included.
        predictor: name, path or `Predictor`; default the shipped one.
        progress: a bar on standard error after a second, where that is a terminal or a notebook.

    Returns:
        A `Sweep`. Plans that cannot run stand in `infeasible`; a batch whose KV cache does not fit is among them.

    Raises:
        PiePError: with one line that says what came, what is allowed and what to do.

    >>> plans = sweep("llama-3.1-70b", gpus=["h100-sxm-80gb"], prompt_tokens=500, output_tokens=300)
    >>> plans.best(max_tpot_s=0.05).tp >= 2  # 141 GB of weights need two boards
    True
    """
    shape, accounting = load_llm(llm), Accounting(scope=scope, pue=pue, exclusive_host=exclusive_host)
    answers = load_predictor(predictor)
    wanted: dict[str, Any] = {
        "prompt_tokens": prompt_tokens, "output_tokens": output_tokens, "cached_prompt_tokens": cached_prompt_tokens, "mode": mode,
    }  # fmt: skip
    request = Request(**wanted)
    grid = make_grid(
        shape, gpus=gpus, tp=tp, pp=pp, dp=dp, ep=ep, batch=batch, dtype=dtype, engine=engine, power_limit_w=power_limit_w,
        kv_dtype=kv_dtype, **wanted | {"output_tokens": request.output_tokens},
    )  # fmt: skip
    cases, infeasible = grid.cases()
    candidates: list[Candidate] = []
    with progress_of(f"sweep {shape.name}", len(cases), quiet=not progress) as done:
        for start in range(0, len(cases), CASES_AT_ONCE):
            part = cases[start : start + CASES_AT_ONCE]
            answered = answers.predict(part, accounting=accounting, keep_working=False)
            candidates += [_candidate(case, prediction) for case, prediction in zip(part, answered, strict=True)]
            done(len(candidates))
    return Sweep(
        llm=shape.name, request=request, scope=accounting.scope, candidates=tuple(candidates), infeasible=tuple(infeasible),
        predictor=answers, accounting=accounting,
    )  # fmt: skip


def _candidate(case: Case, p: Prediction) -> Candidate:
    deployment, request, plan = case.deployment, case.request, case.deployment.plan
    running, tokens = request.batch * plan.dp, request.mean_output_tokens
    factor = exp(width_at(p.spread, LEVEL)) if p.spread else None
    per_second = running / p.latency_s
    context = context_tokens(request)
    held = deployment.weight_bytes_per_gpu + deployment.kv_bytes_per_gpu(sequences=request.batch, context_tokens=context)
    gpu = deployment.cluster.gpu
    return Candidate(
        gpu=gpu.name,
        cluster=deployment.cluster.name,
        tp=plan.tp,
        pp=plan.pp,
        dp=plan.dp,
        ep=plan.ep,
        gpus=plan.gpus,
        batch=request.batch,
        dtype=deployment.dtype,
        kv_dtype=deployment.kv_dtype,
        engine=str(deployment.engine),
        power_limit_w=p.power_limit_w,
        energy_j=p.energy_j,
        interval_low_j=p.energy_j / factor if factor else None,
        interval_high_j=p.energy_j * factor if factor else None,
        energy_per_output_token_j=p.energy_per_output_token_j,
        latency_s=p.latency_s,
        ttft_s=p.ttft_s,
        tpot_s=p.tpot_s,
        itl_s=p.itl_s,
        time_per_token_s=p.time_per_token_s,
        tokens_per_s=per_second * tokens if tokens else None,
        tokens_per_s_per_gpu=per_second * tokens / plan.gpus if tokens else None,
        requests_per_s=per_second,
        avg_power_w=p.avg_power_w,
        memory_bytes_per_gpu=held,
        memory_share=held / gpu.memory_bytes,
        mode=p.mode,
        warnings=p.warnings,
        case=case,
    )
