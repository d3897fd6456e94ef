"""Starting a plan: which of the three campaigns a file asks for, on which boards, and what this host lacks for it.

`torchrun` starts the same campaigns on several hosts; the group of a `MeetingPlan` is then the world, and of a `RunPlan` the layouts that
need exactly as many ranks are run:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint HOST:29500 -m pie_p.profiling.start plan.toml --out profiles/two-hosts
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pie_p.errors import DeviceError, InputError
from pie_p.extras import require
from pie_p.profile_manifest import MANIFEST
from pie_p.profiling.benches import rank_bench, simulated_rank_bench, unmetered_bench
from pie_p.profiling.campaign import CampaignPlan, finished, run_campaign
from pie_p.profiling.design import signature
from pie_p.profiling.kernels import KernelWorkload
from pie_p.profiling.measurement import Bench
from pie_p.profiling.meetings import MeetingPlan, measure_group, points_of, run_meetings
from pie_p.profiling.plans import AnyPlan, checked_plan, read_plan
from pie_p.profiling.progress import OnProgress, Progress, first_guess_s
from pie_p.profiling.ranks import joined
from pie_p.profiling.rows import digest
from pie_p.profiling.runs import RunPlan, measure_layout, name_of, run_layouts
from pie_p.profiling.simulated_host import SimulatedGpu, SimulatedKernel, simulated_bench
from pie_p.profiling.single_gpu import cuda_host, timing_of
from pie_p.profiling.window import period_for
from pie_p.quantities import as_float
from pie_p.storage import check_target

# What a plan has and others have not, and the plan that it makes.
MARKS: Final[dict[str, type[AnyPlan]]] = {"kernels": CampaignPlan, "group_sizes": MeetingPlan, "layouts": RunPlan}
LONGEST_TIMING_S: Final = 30.0  # for finding out how the meter behaves


def load_any_plan(path: str | Path) -> AnyPlan:
    """The plan in a file: of kernels, of meetings or of parallel runs, told apart by what it has.

    Raises:
        InputError: no such file, no such plan, or a field that cannot be, named.
    """
    fields = read_plan(path)
    marks = [mark for mark in MARKS if mark in fields]
    if len(marks) != 1:
        found = f"it has {' and '.join(marks)}" if marks else f"it has {', '.join(map(str, fields)) or 'nothing'}"
        raise InputError(f"{path}: a plan has one of kernels, group_sizes and layouts; {found}")
    return checked_plan(path, fields, MARKS[marks[0]])


def with_samples_bound(plan: AnyPlan, bound_w: float) -> AnyPlan:
    """The plan with raw power samples kept, each power within `bound_w` [W] of what was read.

    Raises:
        InputError: not a plan of kernels, or no such bound.
    """
    bound_w = as_float("samples_bound_w", bound_w, above=True)
    if not isinstance(plan, CampaignPlan):
        raise InputError(
            f"samples_bound_w = {bound_w:g}: only a plan of kernels keeps raw samples, and {plan.name!r} is of ranks; leave it out"
        )
    return plan.model_copy(update={"samples_bound_w": bound_w})


def start(
    plan: AnyPlan, folder: str | Path, *, budget_s: float | None = None, simulated: bool = False, on_progress: OnProgress | None = None
) -> Progress:
    """Measure what is left of a plan, on this host; the state at the end.

    Args:
        plan: from `load_any_plan`.
        folder: a new profile, or one that the same plan began.
        budget_s: no point is begun that would not end within this [s].
        simulated: boards that follow a known law instead of real ones: tries a plan out anywhere.
        on_progress: told after every point; a function of a module, because ranks are other processes.

    Raises:
        DeviceError, ProfileError: what was measured before is safe.
    """
    check_target(folder)  # before minutes go into finding out how a meter behaves
    if not simulated:
        _check_backend(plan)
    if isinstance(plan, CampaignPlan):
        if simulated:
            bench, clock, board = simulated_bench(gpu := SimulatedGpu())
            make_simulated = partial(SimulatedKernel, gpu=gpu, clock=clock, board=board)
            return run_campaign(plan, folder, bench, make_simulated, budget_s=budget_s, on_progress=on_progress)
        bench, device = (unmetered_bench(), "cpu") if plan.gpu == "cpu" else (_cuda_bench(), "cuda:0")
        make = partial(KernelWorkload, device=device)
        return run_campaign(plan, folder, bench, make, budget_s=budget_s, on_progress=on_progress)
    make_bench = simulated_rank_bench if simulated else rank_bench
    if isinstance(plan, MeetingPlan):
        return run_meetings(plan, folder, make_bench=make_bench, budget_s=budget_s, on_progress=on_progress)
    assert isinstance(plan, RunPlan)
    return run_layouts(plan, folder, make_bench=make_bench, budget_s=budget_s, on_progress=on_progress)


def _check_backend(plan: AnyPlan) -> None:
    """Times of CPU ranks must not pass for those of a board."""
    if isinstance(plan, MeetingPlan) and (plan.backend == "gloo") != (plan.gpu == "cpu"):
        raise InputError(f"gloo ranks meet on the CPU and nccl ranks on GPUs: backend {plan.backend!r} with gpu {plan.gpu!r} is neither")


def _cuda_bench() -> Bench:
    """The first board, its meter's timing found by square waves."""
    host = cuda_host()
    timing = timing_of(host, longest_s=LONGEST_TIMING_S)
    return Bench(clock=host.clock, meter=host.meter, sampler=host.make_sampler(period_for(timing)), timing=timing)


def total_and_done(plan: AnyPlan, folder: str | Path) -> tuple[int, int]:
    """Points of a plan, and how many of them a profile holds already."""
    if isinstance(plan, CampaignPlan):
        names = {signature(operator) for operator in plan.points()}
    elif isinstance(plan, MeetingPlan):
        names = {point.name for group_size in plan.group_sizes for point in points_of(plan, group_size)}
    else:
        assert isinstance(plan, RunPlan)
        names = {name_of(layout) for layout in plan.layouts}
    return len(names), len({digest(name) for name in names} & finished(Path(folder))[0])


def expected_s(plan: AnyPlan, points: int, *, simulated: bool = False) -> float:
    """What so many points will take at least, by what the procedure asks for [s]."""
    metered = simulated or plan.gpu != "cpu"
    if isinstance(plan, CampaignPlan):
        return 0.0 if simulated else points * first_guess_s(plan.procedure)
    return points * (first_guess_s(plan.procedure) if metered else 1.0)


Finding = tuple[str, str, str]  # what, its state, what to do about it


def lacks(plan: AnyPlan, folder: str | Path, *, simulated: bool = False) -> list[Finding]:
    """What this host has for a plan and what it lacks, without measuring anything; an empty last field: nothing to do."""
    total, done = total_and_done(plan, folder)
    minutes = expected_s(plan, total - done, simulated=simulated) / 60
    begun = (Path(folder) / MANIFEST).exists()
    findings = [
        ("plan", f"{plan.name}: {total} points for {plan.gpu}, {done} of them measured, {minutes:.1f} min or more to go", ""),
        ("folder", f"{folder} {'holds a profile' if begun else 'is free'}", "add --resume to go on with it" if begun else ""),
    ]
    if isinstance(plan, CampaignPlan) and plan.samples_bound_w is not None and find_spec("pysz") is None:
        findings.append(("samples", "missing: pysz", "pip install 'pie_p[lossy]', or keep them exactly: keep_samples = true in the plan"))
    if simulated and isinstance(plan, CampaignPlan):
        return [*findings, ("boards", "simulated", "")]
    missing = [name for name in ("torch", "pyarrow") if find_spec(name) is None]
    state = f"missing: {', '.join(missing)}" if missing else "installed"
    findings.append(("packages", state, "pip install 'pie_p[profile]'" if missing else ""))
    if not missing and not simulated and plan.gpu != "cpu":
        findings.append(_boards(plan))
    return findings


def _boards(plan: AnyPlan) -> Finding:
    """How many boards are wanted, and how many there are."""
    wanted = 1
    if isinstance(plan, MeetingPlan):
        wanted = max(plan.group_sizes)
    elif isinstance(plan, RunPlan):
        wanted = max(layout.ranks for layout in plan.layouts)
    torch = require("torch", extra="profile")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count < wanted:
        return (
            "boards",
            f"{count} visible, {wanted} wanted",
            "a GPU host and a CUDA build of torch, or --simulated to try the plan",
        )
    try:
        cuda_host()
    except DeviceError as error:
        return ("boards", f"{count} visible to torch, no meter: {error}", "nvidia-smi must work for this user")
    return ("boards", f"{count} visible to torch and to NVML", "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry for `torchrun`: every rank of every host runs this; rank 0 writes the profile."""
    parser = argparse.ArgumentParser(description="Measure a plan of meetings or parallel runs on the ranks that torchrun started.")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    plan = load_any_plan(chosen.plan)
    _check_backend(plan)
    if isinstance(plan, MeetingPlan):
        with joined(backend=plan.backend) as rank:
            measure_group(rank, plan=plan, make_bench=rank_bench, folder=chosen.out)
    elif isinstance(plan, RunPlan):
        with joined(backend=plan.backend) as rank:
            done = rank.gather(finished(chosen.out)[0] if rank.index == 0 else set[str]())[0]
            for layout in plan.layouts:
                if layout.ranks == rank.size and digest(name_of(layout)) not in done:
                    measure_layout(rank, plan=plan, layout=layout, make_bench=rank_bench, folder=chosen.out)
    else:
        raise InputError(f"{chosen.plan} is a plan of kernels: one board measures it, pie-p profile {chosen.plan}")


if __name__ == "__main__":
    main()
