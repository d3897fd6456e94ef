"""The grid of a sweep: every combination of what was asked for, feasible or with the reason why not.

Degrees left out are powers of two that keep a deployment on one host; where the weights fit no such plan, on twice as many GPUs, and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

from pie_p.candidates import Infeasible, Why
from pie_p.cases import make_case
from pie_p.deployment import Deployment
from pie_p.engine import Engine, load_engine
from pie_p.errors import InputError, MemoryFitError, PlanError
from pie_p.hardware import Cluster, Gpu, load_cluster, load_gpu
from pie_p.llm import LLM
from pie_p.quantities import as_float, as_int, shown
from pie_p.serving import Case
from pie_p.shapes import MoeFfn
from pie_p.units import DTYPES, Dtype
from pie_p.workload import Request

BATCHES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
MOST_HOSTS: Final = 16  # to which degrees left out are tried where less is too small
MOST_CONFIGURATIONS: Final = 200_000  # about 1 kB each

Degrees = tuple[int, int, int, int]  # tp, pp, dp, ep
Place = tuple[Gpu | Cluster, Degrees, Dtype, Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What a sweep combines. A degree that is None is chosen here."""

    llm: LLM
    boards: tuple[Gpu | Cluster, ...]
    tp: tuple[int, ...] | None
    pp: tuple[int, ...] | None
    dp: tuple[int, ...] | None
    ep: tuple[int, ...] | None
    batch: tuple[float, ...]
    dtype: tuple[Dtype, ...]
    engine: tuple[Engine, ...]
    power_limit_w: tuple[float | None, ...]
    request: Mapping[str, Any]  # prompt_tokens, output_tokens, cached_prompt_tokens, mode, kv_dtype

    def cases(self) -> tuple[list[Case], list[Infeasible]]:
        """Every combination once: the feasible ones as cases, the others with their reason."""
        cases: list[Case] = []
        refused: list[Infeasible] = []
        for board in self.boards:
            for placed in self._placed(board):
                if isinstance(placed, Infeasible):
                    refused.append(placed)
                    continue
                for found in self._loaded(board, placed):
                    (cases if isinstance(found, Case) else refused).append(found)  # type: ignore[arg-type]
        return cases, refused

    def _placed(self, board: Gpu | Cluster) -> list[Deployment | Infeasible]:
        """Every plan on one board: deployed, or refused before any batch is looked at."""
        one_host = load_cluster(board).gpus_per_host
        reach, most = one_host, one_host * MOST_HOSTS if isinstance(board, Gpu) else board.gpus
        while True:
            plans = self._plans(reach)
            if len(plans) * len(self.dtype) * len(self.engine) * len(self.batch) * len(self.power_limit_w) > MOST_CONFIGURATIONS:
                raise InputError(f"the sweep has more than {MOST_CONFIGURATIONS:,} configurations on one board; give shorter lists")
            placed = [self._place(board, *each) for each in product(plans, self.dtype, self.engine)]
            left_out = self.tp is None or self.pp is None
            if not left_out or reach >= most or any(isinstance(each, Deployment) for each in placed):
                return placed
            reach = min(2 * reach, most)

    def _plans(self, reach: int) -> list[Degrees]:
        powers = [1 << power for power in range(reach.bit_length()) if 1 << power <= reach]
        experts = any(isinstance(layer.ffn, MoeFfn) for layer in self.llm.layer_counts)
        plans: dict[Degrees, None] = {}
        for tp, pp, dp in product(self.tp or powers, self.pp or powers, self.dp or (1,)):
            chosen_here = max(tp if self.tp is None else 1, pp if self.pp is None else 1)
            if chosen_here > 1 and tp * pp * dp > reach:
                continue
            for ep in self.ep or ((1, tp * dp) if experts else (1,)):
                plans[tp, pp, dp, ep] = None
        return list(plans)

    def _place(self, board: Gpu | Cluster, degrees: Degrees, dtype: Dtype, engine: Engine) -> Deployment | Infeasible:
        try:
            return self._case(board, degrees, dtype, engine, batch=self.batch[0], power_limit_w=None).deployment
        except PlanError as error:
            why: Why = "memory" if isinstance(error, MemoryFitError) else "plan"
            count = len(self.batch) * len(_limits(self.power_limit_w, _gpu(board)))
            return _refused(board, degrees, dtype, engine, why=why, reason=str(error), configurations=count)

    def _loaded(self, board: Gpu | Cluster, deployment: Deployment) -> Iterator[Case | Infeasible]:
        """Every batch and power limit of one deployment."""
        plan = deployment.plan
        where: Place = (board, (plan.tp, plan.pp, plan.dp, plan.ep), deployment.dtype, deployment.engine)
        limits = _limits(self.power_limit_w, _gpu(board))
        refusals = {limit_w: self._refusal_of_limit(where, limit_w) for limit_w in limits}
        yield from (
            _refused(*where, why="power_limit", reason=reason, limit_w=limit_w, configurations=len(self.batch))
            for limit_w, reason in refusals.items()
            if reason
        )
        allowed = [limit_w for limit_w, reason in refusals.items() if not reason]
        for batch in self.batch:
            case = self._case(*where, batch=batch, power_limit_w=None)
            fits = deployment.largest_batch(context_tokens(case.request))
            if fits >= batch:
                yield from (case._replace(power_limit_w=limit_w) for limit_w in allowed)
                continue
            reason = (
                f"the KV cache of batch {batch:g} does not fit beside the weights; about {int(fits)} requests per data-parallel rank do"
            )
            if allowed:
                yield _refused(*where, why="kv_cache", reason=reason, batch=batch, configurations=len(allowed))

    def _refusal_of_limit(self, where: Place, limit_w: float | None) -> str:
        """Why a board cannot hold a power limit; "" where it can."""
        try:
            self._case(*where, batch=self.batch[0], power_limit_w=limit_w)
        except InputError as error:
            return str(error)
        return ""

    def _case(self, board: Gpu | Cluster, degrees: Degrees, dtype: Dtype, engine: Engine, **more: Any) -> Case:
        tp, pp, dp, ep = degrees
        place: dict[str, Any] = {"gpu": board} if isinstance(board, Gpu) else {"cluster": board}
        return make_case(self.llm, tp=tp, pp=pp, dp=dp, ep=ep, dtype=dtype, engine=engine, **place, **self.request, **more)


def context_tokens(request: Request) -> float:
    """Mean context of a running sequence: what its KV cache holds [tokens]."""
    return request.prompt_tokens + request.mean_output_tokens * request.length_spread / 2


def make_grid(llm: LLM, *, gpus: object, batch: object, dtype: object, engine: object, power_limit_w: object, **more: Any) -> Grid:
    """A grid out of what a user gave, checked: numbers, names, lists of either. Equal entries count once.

    Raises:
        PiePError: an entry that can be nothing; plans that cannot run are no error.
    """
    degrees = {name: _degrees(name, more.pop(name)) for name in ("tp", "pp", "dp", "ep")}
    batches = BATCHES if batch is None else tuple(as_float("batch", each, least=1, most=1e7) for each in _listed("batch", batch))
    limits = tuple(
        None if each is None else as_float("power_limit_w", each, above=True)
        for each in ((None,) if power_limit_w is None else _listed("power_limit_w", power_limit_w))
    )
    return Grid(
        llm=llm,
        boards=_once(_board(each) for each in _listed("gpus", gpus)),
        batch=_once(batches),
        dtype=_once(_dtype(each, llm) for each in ((None,) if dtype is None else _listed("dtype", dtype))),
        engine=_once(load_engine(each) for each in _listed("engine", engine)),
        power_limit_w=_once(limits),
        request=more,
        **degrees,
    )


def _degrees(name: str, value: object) -> tuple[int, ...] | None:
    return None if value is None else _once(as_int(name, each, most=65536) for each in _listed(name, value))


def _board(value: object) -> Gpu | Cluster:
    if isinstance(value, Cluster):
        return value
    if isinstance(value, Path) or (isinstance(value, str) and value.lower().endswith(".toml")):
        return load_cluster(value)
    return load_gpu(cast("str | Gpu", value))


def _gpu(board: Gpu | Cluster) -> Gpu:
    return board if isinstance(board, Gpu) else board.gpu


def _dtype(value: object, llm: LLM) -> Dtype:
    if value is None:
        return llm.dtype
    if not isinstance(value, str) or value not in DTYPES:
        raise InputError(f"dtype = {shown(value)} is not known; allowed: {', '.join(DTYPES)}")
    return value


def _limits(limits: tuple[float | None, ...], gpu: Gpu) -> tuple[float | None, ...]:
    """Power limits of one board; its own limit and none are the same."""
    return _once(None if limit_w == gpu.limit_w else limit_w for limit_w in limits)


def _refused(
    board: Gpu | Cluster, degrees: Degrees, dtype: Dtype, engine: Engine, *, why: Why, reason: str, configurations: int,
    batch: float | None = None, limit_w: float | None = None,
) -> Infeasible:  # fmt: skip
    tp, pp, dp, ep = degrees
    return Infeasible(
        gpu=_gpu(board).name, tp=tp, pp=pp, dp=dp, ep=ep, batch=batch, dtype=dtype, engine=str(engine), power_limit_w=limit_w, why=why,
        reason=reason, configurations=configurations,
    )  # fmt: skip


def _listed(name: str, value: object) -> list[Any]:
    """One thing or several, as a list."""
    if isinstance(value, (str, bytes, Path, Gpu, Cluster, Engine, Mapping)) or not isinstance(value, Iterable):
        return [value]
    values = list(value) if getattr(value, "ndim", 1) else [value]
    if not values:
        raise InputError(f"{name} is an empty list; give at least one, or leave it out")
    return values


def _once(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
