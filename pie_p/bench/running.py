"""Running a benchmark: warm-up, repetitions, and what makes a second start go on where the first one stopped."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from pie_p.bench.folders import MeterRecord, RunManifest, load_rows, open_run, save_manifest
from pie_p.bench.in_flight import InFlight
from pie_p.bench.in_process import InProcess, transformers_module
from pie_p.bench.metering import Metering
from pie_p.bench.outcomes import Outcome
from pie_p.bench.plans import BenchPlan, InProcessTarget, Load, ServerTarget
from pie_p.bench.prompts import Prompts
from pie_p.bench.results import BenchResult, concluded
from pie_p.bench.rows import OK
from pie_p.bench.server import Item, Report, Server, all_of
from pie_p.bench.streams import CountTokens
from pie_p.bench.windows import OnProgress, Recorder, ServerGoneError
from pie_p.errors import InputError
from pie_p.predictor import Predictor
from pie_p.quantities import as_float
from pie_p.storage import locked

CUT_EVERY_S: Final = 120.0  # a crash costs at most this and what was in flight [s]
BY_HAND: Final = "stopped by hand"


class Target(Protocol):
    """What answers prompts: `Server` or `InProcess`."""

    in_flight: InFlight
    notes: dict[str, None]
    served: str

    async def answer(self, item: Item) -> Outcome:
        """One prompt."""

    async def together(self, items: Sequence[Item], report: Report) -> None:
        """Several at once."""


def bench(
    plan: BenchPlan,
    prompts: Prompts,
    folder: str | Path,
    *,
    metering: Metering | None = None,
    predictor: str | Predictor | None = None,
    on_progress: OnProgress | None = None,
    cut_every_s: float = CUT_EVERY_S,
) -> BenchResult:
    """Run a benchmark, or what is left of it, and say what came of it.

    Args:
        plan: whom to ask, how much, and on what it stands.
        prompts: from `load_prompts`.
        folder: new, or one that an equal plan began; it is written as the run goes on.
        metering: from `metering_of`; None: energy is predicted, where the plan says enough about the deployment.
        predictor: predicts beside the measurement; default the shipped one.
        on_progress: told after every outcome.
        cut_every_s: how often a long run is committed [s].

    Raises:
        InputError: the folder holds another run, or the server cannot be asked at all.
        DeviceError: a meter does not answer.
        KeyboardInterrupt: stopped by hand; what was whole is safe, and the same call goes on.
    """
    every_s = as_float("cut_every_s", cut_every_s, above=True)
    with locked(folder, error=InputError) as place:
        manifest = _begun(open_run(place, plan, prompts), metering)
        left = items_left(plan.load, len(prompts), _done(place, manifest))
        if any(left):
            total = plan.load.repetitions * len(prompts)
            done = total - sum(map(len, left))
            recorder = Recorder(place, manifest, metering, total=total, done=done, cut_every_s=every_s, on_progress=on_progress)
            try:
                manifest = _run_to_end(lambda: _run(plan, prompts, recorder, left))
            except KeyboardInterrupt:
                concluded(place, _stopped(recorder.manifest, BY_HAND), plan, predictor)
                raise
        return concluded(place, manifest, plan, predictor)


def items_left(load: Load, prompts: int, done: set[Item]) -> list[list[Item]]:
    """Per repetition, the prompts that have no answer yet, in the order they are asked.

    >>> items_left(Load(batch=2, repetitions=2), 3, {(0, 1)})
    [[(0, 0), (0, 2)], [(1, 0), (1, 1), (1, 2)]]
    """
    left = []
    for repetition in range(load.repetitions):
        order = list(range(prompts))
        if load.shuffled:
            random.Random(f"{load.seed} {repetition}").shuffle(order)
        left.append([(repetition, prompt) for prompt in order if (repetition, prompt) not in done])
    return left


def _done(folder: Path, manifest: RunManifest) -> set[Item]:
    rows = load_rows(folder, manifest)
    ok = rows["outcome"] == OK
    return {(int(repetition), int(prompt)) for repetition, prompt in zip(rows["repetition"][ok], rows["prompt"][ok], strict=True)}


def _begun(manifest: RunManifest, metering: Metering | None) -> RunManifest:
    """With the meters of this start; a run that was measured goes on being measured by the same boards."""
    boards = metering.boards if metering else ()
    limits_w = metering.limits_w if metering else ()
    meters = tuple(
        MeterRecord(kind=board.kind, origin=board.origin, uuid=board.uuid, name=board.name, power_limit_w=limit_w)
        for board, limit_w in zip(boards, limits_w, strict=True)
    )
    if manifest.windows and manifest.meters != meters and manifest.state != "complete":
        told = [
            " ".join(f"{meter.name} {meter.uuid} {meter.power_limit_w or ''}" for meter in each) or "none"
            for each in (manifest.meters, meters)
        ]
        raise InputError(
            f"the run was measured by other boards or at another power limit (there: {told[0]}; now: {told[1]}); use another folder"
        )
    return (
        manifest if manifest.state == "complete" else manifest.model_copy(update={"meters": meters, "state": "running", "stopped_by": ""})
    )


def _stopped(manifest: RunManifest, why: str) -> RunManifest:
    return manifest.model_copy(update={"state": "interrupted", "stopped_by": why})


async def _run(plan: BenchPlan, prompts: Prompts, recorder: Recorder, left: list[list[Item]]) -> RunManifest:
    """Warm-up and every repetition; the manifest at the end."""
    async with _target(plan, prompts) as target:
        recorder.gauge = target.in_flight
        recorder.manifest = save_manifest(recorder.folder, recorder.manifest.model_copy(update={"served": target.served}))
        why = ""
        try:
            await _warm_up(plan.load, target, len(prompts), recorder)
            for items in left:
                await _repetition(plan.load, target, items, recorder)
        except ServerGoneError as gone:
            why = str(gone)
        notes = tuple(dict.fromkeys([*recorder.manifest.notes, *target.notes]))
        manifest = recorder.manifest.model_copy(update={"notes": notes})
        whole = recorder.done == recorder.total
        return _stopped(manifest, why) if why else manifest.model_copy(update={"state": "complete" if whole else "incomplete"})


def _target(plan: BenchPlan, prompts: Prompts) -> Any:
    if isinstance(plan.target, InProcessTarget):
        return InProcess(plan.target, plan.load, prompts.texts)
    assert isinstance(plan.target, ServerTarget)
    return Server(plan.target, plan.load, prompts.texts, count=token_counter(plan.tokenizer) if plan.tokenizer else None)


def token_counter(tokenizer: str) -> CountTokens:
    """Counts tokens of a text as a checkpoint's tokenizer does, without special ones.

    Raises:
        InputError: no such tokenizer.
    """
    try:
        loaded = transformers_module().AutoTokenizer.from_pretrained(tokenizer)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot load the tokenizer {tokenizer}: {' '.join(str(error).split())[:200]}") from None
    return lambda text: len(loaded.encode(text, add_special_tokens=False))


async def _warm_up(load: Load, target: Target, prompts: int, recorder: Recorder) -> None:
    items = [(0, number % prompts) for number in range(load.warmup)]
    await _ask(load, target, items, report=recorder.check, begun=lambda: None)


async def _repetition(load: Load, target: Target, items: Sequence[Item], recorder: Recorder) -> None:
    """One repetition, in a window that is closed however it ends."""
    if not items:
        return
    await recorder.open(items[0][0])
    cuts, whole = asyncio.ensure_future(recorder.cuts()), False
    try:
        await _ask(load, target, items, report=recorder.report, begun=recorder.begun)
        whole = True
    finally:
        cuts.cancel()
        with suppress(asyncio.CancelledError):
            await cuts
        recorder.close(broken_off=not whole)


async def _ask(load: Load, target: Target, items: Sequence[Item], *, report: Report, begun: Callable[[], None]) -> None:
    """Batch after batch, or so many kept in flight."""
    if load.batch is not None:
        for first in range(0, len(items), load.batch):
            batch = items[first : first + load.batch]
            for _ in batch:
                begun()
            await target.together(batch, report)
        return
    waiting = deque(items)

    async def worker() -> None:
        while waiting:
            item = waiting.popleft()
            begun()
            report(await target.answer(item))

    await all_of([worker() for _ in range(min(load.together, len(items)))])


def _run_to_end(make: Callable[[], Coroutine[Any, Any, RunManifest]]) -> RunManifest:
    """`asyncio.run`, in a thread of its own where a loop runs already, as it does in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    return _run_in_thread(make)


def _run_in_thread(make: Callable[[], Coroutine[Any, Any, RunManifest]]) -> RunManifest:
    box: dict[str, Any] = {}

    async def body() -> None:
        box["loop"], box["task"] = asyncio.get_running_loop(), asyncio.current_task()
        box["manifest"] = await make()

    def run() -> None:
        try:
            asyncio.run(body())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            box["error"] = error

    thread = threading.Thread(target=run, name="pie-p bench")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        box["loop"].call_soon_threadsafe(box["task"].cancel)
        thread.join()
        raise
    if "error" in box:
        raise box["error"]
    manifest: RunManifest = box["manifest"]
    return manifest
