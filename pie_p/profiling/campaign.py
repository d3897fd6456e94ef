"""A campaign: a plan in TOML, measured point by point into a profile, most informative points first, until done or out of time.

    name = "h200-single"              # becomes the `source` of every row
    gpu = "h200-sxm-141gb"            # name in the catalogue
    dtypes = ["bf16", "fp8"]          # of weights; they take turns

    [kernels]                         # how many points of each kind
    linear = 48
    attention_decode = 32

    [procedure]                       # what differs from the published protocol
    enough_s = 2.0

The kinds take turns, each giving its most informative point that is left, so a campaign that ends early has covered all of them. Every
point is committed to the profile as it is measured, with an atomic write: a kill loses at most the point in flight, and the same command
resumes there. A point that cannot be trusted or cannot run is written down with its reason, and is not tried again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, field_validator

from pie_p.errors import DeviceError, ProfileError
from pie_p.operators import Kind, Operator
from pie_p.profile_manifest import MANIFEST, Rejected, load_manifest, new_manifest
from pie_p.profiles import append_profile, check_folder, load_profile, save_profile
from pie_p.profiling.design import CANDIDATES, Budget, choose, signature
from pie_p.profiling.environment import read_environment
from pie_p.profiling.measurement import Bench, Measurement, Workload, measure
from pie_p.profiling.meters import ClosedMeterError, DriverError, LostGpuError, MeterPermissionError
from pie_p.profiling.plans import AnyPlan
from pie_p.profiling.progress import OnProgress, Progress, TimeBox, first_guess_s
from pie_p.profiling.rows import ORIGIN, conditions, digest, operator_table
from pie_p.profiling.sample_codec import check_codec
from pie_p.storage import lock_file
from pie_p.units import Dtype

BROKEN: Final = (LostGpuError, DriverError, MeterPermissionError, ClosedMeterError)  # nothing more can be measured
HOPELESS: Final = 8  # points rejected one after the other, none of this run accepted: the rest would fare alike
LOCK: Final = ".campaign"  # held while a campaign measures into the folder
MakeWorkload = Callable[[Operator], Workload]


class CampaignPlan(AnyPlan):
    """Kernels to measure on one board, as read from TOML."""

    kernels: Mapping[Kind, Annotated[int, Field(ge=0, le=CANDIDATES)]]
    dtypes: tuple[Dtype, ...] = Field(default=("bf16",), min_length=1)
    most_flops: float = Field(default=Budget().most_flops, gt=0)
    most_bytes: float = Field(default=Budget().most_bytes, gt=0)
    keep_samples: bool = False
    # A bound [W] keeps samples too. How they are kept is no part of what is measured, so it may differ when a campaign goes on.
    samples_bound_w: float | None = Field(default=None, gt=0, allow_inf_nan=False, exclude=True)

    @field_validator("kernels")
    @classmethod
    def _some(cls, kernels: Mapping[Kind, int]) -> Mapping[Kind, int]:
        if not any(kernels.values()):
            raise ValueError("nothing to measure: give a kind of kernel one point or more, linear = 48")
        return kernels

    @property
    def keeps_samples(self) -> bool:
        """Whether raw power samples are kept, exactly or within a bound."""
        return self.keep_samples or self.samples_bound_w is not None

    def points(self) -> list[Operator]:
        """Every operator to measure, most informative first, equal ones once."""
        budget = Budget(most_flops=self.most_flops, most_bytes=self.most_bytes)
        by_kind = [choose(kind, count, budget=budget, dtypes=self.dtypes) for kind, count in self.kernels.items() if count]
        turns = (operator for turn in zip_longest(*by_kind) for operator in turn if operator is not None)
        return list({signature(operator): operator for operator in turns}.values())


def run_campaign(
    plan: CampaignPlan,
    folder: str | Path,
    bench: Bench,
    make_workload: MakeWorkload,
    *,
    budget_s: float | None = None,
    on_progress: OnProgress | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Progress:
    """Measure what is left of a plan into the profile at `folder`; the state at the end.

    Args:
        plan: what to measure.
        folder: a new profile, or one that an earlier run of the same plan began.
        bench: clock, meter and sampler.
        make_workload: an operator as something to run, `KernelWorkload` or a simulated one.
        budget_s: no point is begun that would not end within this [s].
        on_progress: told after every point.
        facts: what else is known about the place, kept in a new profile's notes.

    Raises:
        MissingExtraError: samples are to be kept within a bound, and the package for it is not installed.
        ProfileError: the folder holds another profile, or the disk refuses.
        DeviceError: the meter or the board failed; what was measured is safe.
    """
    points, place = plan.points(), Path(folder)
    if plan.samples_bound_w is not None:
        check_codec()
    with only_campaign(plan, place):
        return _run(plan, points, place, bench, make_workload, budget_s=budget_s, on_progress=on_progress, facts=facts or {})


def _run(
    plan: CampaignPlan,
    points: Sequence[Operator],
    place: Path,
    bench: Bench,
    make_workload: MakeWorkload,
    *,
    budget_s: float | None,
    on_progress: OnProgress | None,
    facts: Mapping[str, Any],
) -> Progress:
    open_profile(plan, place, bench, facts)
    done, rejected = finished(place)
    before = (len(done), rejected)
    box = TimeBox(bench.clock, budget_s, first_guess_s(plan.procedure))
    progress = Progress(done=len(done), total=len(points), rejected=rejected, left_s=None, now="nothing yet")
    for operator in points:
        if digest(signature(operator)) in done:
            continue
        if not box.has_room:
            break
        start_s = bench.clock.now_s()
        rejected += _measure_point(plan, place, bench, operator, make_workload)
        box.costs_s.append(bench.clock.now_s() - start_s)
        done.add(digest(signature(operator)))
        if len(done) - before[0] == rejected - before[1] >= HOPELESS:
            _give_up(place, rejected - before[1])
        left_s = (len(points) - len(done)) * box.point_s
        progress = Progress(done=len(done), total=len(points), rejected=rejected, left_s=left_s, now=signature(operator))
        if on_progress is not None:
            on_progress(progress)
    if progress.done == progress.total:
        compact(place)
    return progress


def _give_up(place: Path, count: int) -> None:
    """What the first points have in common will hold for the rest: an hour of it helps nobody."""
    reason = load_manifest(place).rejected[-1].reason
    raise DeviceError(f"the first {count} points were all rejected, the last because {reason}; mend that, and begin in another folder")


@contextmanager
def only_campaign(plan: AnyPlan, place: Path) -> Iterator[None]:
    """Make the folder, and hold it for one campaign at a time: two would measure the same points, on the same boards.

    Raises:
        ProfileError: another campaign is at work there, the profile is another plan's, or the folder cannot be written.
    """
    check_folder(place, replace_existing=True)
    path = place / LOCK
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle = path.open("wb")
    except OSError as error:
        raise ProfileError(f"cannot write into {place}: {error.strerror or error}") from None
    busy = f"another campaign is measuring into {place}; wait until it is done, or choose another folder"
    with handle:
        lock_file(handle.fileno(), busy=busy)
        if not os.fstat(handle.fileno()).st_nlink:  # opened just before the other one ended and removed it
            raise ProfileError(busy)
        try:
            if (place / MANIFEST).exists():
                _check_plan(plan, place)
            yield
        finally:
            path.unlink(missing_ok=True)


def open_profile(plan: AnyPlan, place: Path, bench: Bench, facts: Mapping[str, Any]) -> None:
    """Begin the profile, or check that it is this plan's."""
    if not (place / MANIFEST).exists():
        environment = read_environment(bench.meter)
        notes = json.dumps({"plan": plan.fingerprint, **facts, **environment.to_dict()})
        origin = ORIGIN[bench.meter.identity.origin]
        under = conditions(environment, gpu=plan.gpu, notes=notes)
        save_profile(place, new_manifest(plan.name, origin=origin, source=plan.name, conditions=under), [])
        return
    _check_plan(plan, place)


def _check_plan(plan: AnyPlan, place: Path) -> None:
    manifest = load_manifest(place)
    try:
        begun = json.loads(manifest.conditions.notes or "{}").get("plan")
    except (json.JSONDecodeError, AttributeError):
        begun = None
    if begun != plan.fingerprint:
        raise ProfileError(f"{place} was begun with another plan ({begun or manifest.name!r}, not {plan.fingerprint}); use another folder")


def finished(place: Path) -> tuple[set[str], int]:
    """Digests of points that need no more measuring, and how many of them were rejected."""
    if not (place / MANIFEST).exists():
        return set(), 0
    profile = load_profile(place)
    details = [text for table in profile.tables.values() for text in table["detail"]]
    measured = {found[1] for detail in details if (found := re.search(r"point=([0-9a-f]{12})", detail))}
    refused = {item.file.partition(" ")[0] for item in profile.manifest.rejected}
    return measured | refused, len(refused)


def _measure_point(plan: CampaignPlan, place: Path, bench: Bench, operator: Operator, make_workload: MakeWorkload) -> int:
    """Measure one operator and commit it; 1 if it was rejected, else 0."""
    point = digest(signature(operator))
    try:
        measured = measure(make_workload(operator), bench, plan.procedure, keep_samples=plan.keeps_samples)
    except BROKEN:
        raise
    except (DeviceError, RuntimeError) as error:  # no such kernel here, or out of memory: the next point may do
        reason = f"did not run: {type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else 'no text'}"
        append_profile(place, [], rejected=[Rejected(file=f"{point} {signature(operator)}", reason=reason, rows=1)])
        return 1
    if plan.keeps_samples:
        _keep_samples(place, point, measured, plan.samples_bound_w)
    if measured.rejected_because:
        reason = f"{measured.rejected_because} (time_s={measured.time_s:.6g}, power_w={measured.power_w})"
        append_profile(place, [], rejected=[Rejected(file=f"{point} {signature(operator)}", reason=reason, rows=1)])
        return 1
    table = operator_table(operator, measured, gpu=plan.gpu, source=plan.name)
    append_profile(place, [table.with_columns(detail=[f"point={point},{table['detail'][0]}"])])
    return 0


def _keep_samples(place: Path, point: str, measured: Measurement, bound_w: float | None) -> None:
    """Raw power samples, one file for each round of a point."""
    try:
        (place / "samples").mkdir(exist_ok=True)
    except OSError as error:
        raise ProfileError(f"cannot write into {place / 'samples'}: {error.strerror or error}") from None
    for number, samples in enumerate(measured.samples):
        samples.save(place / "samples" / f"{point}-{number}.parquet", bound_w=bound_w)


def compact(folder: str | Path) -> None:
    """Put the many small parts of a finished campaign into one per table; a kill leaves either the old parts or the new ones."""
    profile = load_profile(folder)
    if len(profile.manifest.parts) > len({part.table for part in profile.manifest.parts}):
        save_profile(folder, profile.manifest, list(profile.tables.values()), replace_existing=True)


def remaining(plan: CampaignPlan, folder: str | Path) -> Iterator[Operator]:
    """Points of a plan that a profile does not hold yet."""
    done, _ = finished(Path(folder))
    return (operator for operator in plan.points() if digest(signature(operator)) not in done)
