"""Scale out: the same answers from many processes or hosts, through dask.distributed (extra `dask`).

with workers(4) as crew:                                  # or workers(scheduler="tcp://head:8786")
    plans = sweep("llama-3.1-70b", gpus=["h100-sxm-80gb"], prompt_tokens=500, output_tokens=300, predictor=crew.predictor())
    served = crew.replay([{"trace": trace, "fleet": [...]}, ...])

Work is cut into tasks that depend on their arguments alone, so what a lost worker had done or held is done again elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from math import ceil
from typing import Any, Final

from pie_p.accounting import Accounting
from pie_p.errors import InputError
from pie_p.extras import require
from pie_p.prediction import Prediction
from pie_p.predictor import Predictor, load_predictor
from pie_p.quantities import as_int, shown
from pie_p.replay_result import Replay
from pie_p.replaying import replay_fleet
from pie_p.serving import Case

PARTS_PER_THREAD: Final = 4  # so that a slow or lost worker does not hold up the rest
LEAST_PART: Final = 50  # cases of a task: below that the way there costs more than the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadPredictor(Predictor):
    """A predictor whose cases are answered by a crew; its answers, name and hash are those of the predictor it was made of.

    Predictions come without their working: ask `Prediction.asked`'s predictor, or the plain one, for operators.
    """

    crew: Crew | None = field(default=None, compare=False, repr=False)

    def predict(self, cases: Sequence[Case], *, accounting: Accounting | None = None, keep_working: bool = True) -> list[Prediction]:  # noqa: ARG002  (working does not travel)
        """Answer many cases, in parts."""
        if self.crew is None:
            raise InputError("this SpreadPredictor has no crew; make one with workers(...).predictor()")
        return self.crew.predict(cases, predictor=self.plain(), accounting=accounting)

    def plain(self) -> Predictor:
        """The predictor it was made of."""
        return Predictor(**{one.name: getattr(self, one.name) for one in fields(Predictor)})


class Crew:
    """Workers of a dask cluster that answer, sweep and replay."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @property
    def threads(self) -> int:
        """Tasks that run at once [-]."""
        return max(1, sum(int(threads) for threads in self.client.nthreads().values()))

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        """`function` of every job, in order; a task whose worker is lost runs again."""
        futures = [self.client.submit(function, job, pure=False) for job in jobs]
        try:
            return list(self.client.gather(futures))
        finally:
            self.client.cancel(futures)

    def predictor(self, predictor: str | Predictor | None = None) -> SpreadPredictor:
        """A predictor that this crew answers for: `predict_many`, `sweep` and all else that takes a predictor take it."""
        answering = load_predictor(predictor)
        return SpreadPredictor(**{one.name: getattr(answering, one.name) for one in fields(Predictor)}, crew=self)

    def predict(
        self, cases: Sequence[Case], *, predictor: str | Predictor | None = None, accounting: Accounting | None = None
    ) -> list[Prediction]:
        """Predictions of many cases, in parts, without their working."""
        answering = load_predictor(predictor)
        size = max(LEAST_PART, ceil(len(cases) / (PARTS_PER_THREAD * self.threads)))
        shared = self.client.submit(_itself, answering, pure=False)  # a task, not scattered data: it can be made again
        parts = [cases[start : start + size] for start in range(0, len(cases), size)]
        futures = [self.client.submit(_answer, shared, part, accounting, pure=False) for part in parts]
        try:
            return [answer for part in self.client.gather(futures) for answer in part]
        finally:
            self.client.cancel([shared, *futures])

    def replay(self, jobs: Sequence[Mapping[str, Any]]) -> list[Replay]:
        """Replays that do not know each other - deployments, seeds, routings, traces that were placed - one task each.

        Args:
            jobs: arguments of `replay_fleet` (`trace`, `fleet`, `routing`, ...), one mapping per replay.

        Raises:
            InputError: a job without a trace and a fleet.
            PiePError: what `replay_fleet` refuses.
        """
        for job in jobs:
            if not isinstance(job, Mapping) or not {"trace", "fleet"} <= set(job):
                raise InputError(f"{shown(job)} is not a replay; give mappings with `trace` and `fleet`, as replay_fleet takes them")
        return self.map(_replay, [dict(job) for job in jobs])


@contextmanager
def workers(count: int | None = None, *, scheduler: str | None = None, processes: bool = True) -> Iterator[Crew]:
    """A crew for the time of a `with` block: a local cluster, or the workers of a running one.

    Args:
        count: workers of the local cluster; default one per core [-].
        scheduler: address of a running cluster instead, "tcp://host:8786"; pie_p must be installed on its workers.
        processes: local workers are processes, not threads of this one.

    Raises:
        InputError: no scheduler at that address, or both a count and an address.
        MissingExtraError: dask is not installed (extra `dask`).
    """
    distributed = require("distributed", extra="dask")
    if scheduler is not None and count is not None:
        raise InputError(f"count = {count} beside scheduler {scheduler!r}: a running cluster has its own workers; give one of the two")
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler, timeout="5s", set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"no dask scheduler at {shown(scheduler)}: {type(error).__name__}; start one with: dask scheduler") from None
        with client:
            yield Crew(client)
        return
    many = None if count is None else as_int("count", count, most=10_000)
    with (
        distributed.LocalCluster(n_workers=many, threads_per_worker=1, processes=processes, dashboard_address=":0") as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield Crew(client)


def _itself(value: Any) -> Any:
    return value


def _answer(predictor: Predictor, cases: Sequence[Case], accounting: Accounting | None) -> list[Prediction]:
    return predictor.predict(cases, accounting=accounting, keep_working=False)


def _replay(job: dict[str, Any]) -> Replay:
    return replay_fleet(job.pop("trace"), job.pop("fleet"), **job)
