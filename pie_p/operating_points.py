"""Operating points: what an engine step and a prompt cost at any load, read off a grid that the predictor filled once.

Watching a server or reading a log of requests asks for thousands of loads of one deployment. The costs per engine step and per prompt are
nearly straight lines in the running batch and in the token counts, so a coarse grid between which one draws straight lines answers in
microseconds what the predictor answers in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from pie_p.cases import OF_REQUEST, case_of
from pie_p.deployment import Deployment
from pie_p.errors import InputError
from pie_p.physics import Floats
from pie_p.prediction import PHASES, case_sums, phase_energies
from pie_p.predictor import CASES_AT_ONCE, Predictor, load_predictor
from pie_p.serving import Case, assemble

KINDS: Final = ("compute", "communication", "wait")

BATCHES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)  # running requests per data-parallel rank [-]
PROMPTS: Final = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 131072.0)  # prompt tokens [-]
OUTPUTS: Final = (2.0, 8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0)  # output tokens [-]


class Costs(NamedTuple):
    """Costs at one load or at many: of one step of one data-parallel rank, and of one prompt."""

    step_j: Floats  # compute, communication, wait of a step without a prompt in it, boards of one rank [J], last axis 3
    step_s: Floats  # its time [s]
    prompt_j: Floats  # compute, communication, wait that one prompt adds [J], last axis 3
    prompt_s: Floats  # time that one prompt adds to its rank [s]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoints:
    """Costs of one deployment on a grid of running batch, prompt tokens and output tokens."""

    deployment: Deployment
    most_power_w: float  # what one board draws at most, mean over steps [W]
    predictor: Mapping[str, str]  # name and sha256 of what filled the grid
    axes: tuple[Floats, Floats, Floats]  # batch per rank, prompt tokens, output tokens
    grid: Floats  # shape (batches, prompts, outputs, 8): step_j, step_s, prompt_j, prompt_s

    @property
    def gpus_per_rank(self) -> int:
        """GPUs of one data-parallel rank [-]."""
        return self.deployment.plan.gpus // self.deployment.plan.dp

    def at(self, batch: Any, prompt_tokens: Any, output_tokens: Any, *, new_prompt_tokens: Any = None) -> Costs:
        """Costs at a load: numbers, or arrays of one shape.

        Args:
            batch: running requests per data-parallel rank; below 1 counts as 1, above the grid the last straight line goes on [-].
            prompt_tokens: mean prompt of the running requests [-].
            output_tokens: mean output of the running requests [-].
            new_prompt_tokens: prompt tokens that are read, where a prefix cache holds the others; default all [-].
        """
        outputs = np.clip(np.asarray(output_tokens, dtype=np.float64), OUTPUTS[0], OUTPUTS[-1])
        running = np.maximum(np.asarray(batch, dtype=np.float64), 1.0)
        held = np.clip(np.asarray(prompt_tokens, dtype=np.float64), PROMPTS[0], PROMPTS[-1])
        steps = self._read(running, held, outputs)
        if new_prompt_tokens is None:
            return Costs(steps[..., :3], steps[..., 3], steps[..., 4:7], steps[..., 7])
        new = np.maximum(np.asarray(new_prompt_tokens, dtype=np.float64), 1.0)
        prompts = self._read(running, np.clip(new, PROMPTS[0], PROMPTS[-1]), outputs)
        return Costs(steps[..., :3], steps[..., 3], prompts[..., 4:7], prompts[..., 7])

    def _read(self, *places: Floats) -> Floats:
        """Straight lines between the eight corners around each place."""
        places = np.broadcast_arrays(*places)
        below, shares = zip(*(_between(axis, place) for axis, place in zip(self.axes, places, strict=True)), strict=True)
        total = np.zeros((*places[0].shape, self.grid.shape[-1]))
        for corner in product((0, 1), repeat=3):
            weight = np.prod([share if side else 1.0 - share for side, share in zip(corner, shares, strict=True)], axis=0)
            total += weight[..., None] * self.grid[tuple(low + side for low, side in zip(below, corner, strict=True))]
        return np.maximum(total, 0.0)


def _between(axis: Floats, place: Floats) -> tuple[Any, Floats]:
    low = np.clip(np.searchsorted(axis, place, side="right") - 1, 0, len(axis) - 2)
    return low, (place - axis[low]) / (axis[low + 1] - axis[low])


def operating_points(deployment: Mapping[str, Any], *, predictor: str | Predictor | None = None) -> OperatingPoints:
    """Fill the grid of a deployment: about half a second.

    Args:
        deployment: keyword arguments of `predict_energy` that name the deployment, `llm` among them; none about the request.
        predictor: as in `predict_energy`.

    Raises:
        PiePError: as `predict_energy` does.
    """
    stray = sorted(set(deployment) & set(OF_REQUEST))
    if stray:
        raise InputError(f"{stray[0]} is given for a deployment whose load is observed; leave it out")
    answering = load_predictor(predictor)
    loads = list(product(BATCHES, PROMPTS, OUTPUTS))
    cases = [case_of(deployment, batch=batch, prompt_tokens=prompt, output_tokens=output) for batch, prompt, output in loads]
    figures = [_figures(answering, cases[first : first + CASES_AT_ONCE]) for first in range(0, len(cases), CASES_AT_ONCE)]
    gpu = cases[0].deployment.cluster.gpu
    return OperatingPoints(
        deployment=cases[0].deployment,
        most_power_w=answering.power.ceiling * (cases[0].power_limit_w or gpu.limit_w),
        predictor={"name": answering.name, "sha256": answering.sha256},
        axes=(np.array(BATCHES), np.array(PROMPTS), np.array(OUTPUTS)),
        grid=np.concatenate(figures).reshape(len(BATCHES), len(PROMPTS), len(OUTPUTS), 8),
    )


def _figures(predictor: Predictor, cases: Sequence[Case]) -> Floats:
    """The eight figures of every case, in the order of `Costs`.

    What a life of a case holds is turned round: its decode steps give one step, its prompts' increments one prompt. Where the KV cache
    leaves requests waiting, costs grow in proportion to the batch asked for, so that a token costs what it costs at the batch that fits.
    """
    run = predictor.run(assemble(cases))
    assembly, count = run.assembly, len(cases)
    sharing = np.array([plan.sharing for plan in assembly.schedules])
    crowding = np.array([plan.crowding for plan in assembly.schedules])
    outputs = np.array([plan.output_tokens for plan in assembly.schedules])
    dp = cases[0].deployment.plan.dp
    energies = {phase: np.array(parts) for phase, parts in phase_energies(run, sharing).items()}
    lives = {"prefill": assembly.prefill_steps, "decode": assembly.decode_steps}
    seconds = {phase: np.array(case_sums(lives[phase] * run.clock.step_s, assembly.step_case, count)) for phase in PHASES}
    running = sharing / dp
    step_j = energies["decode"] * (running * crowding / outputs)[:, None]
    prompt_s = np.maximum(seconds["prefill"], 0.0) / running
    return np.column_stack([step_j, seconds["decode"] * crowding / outputs, np.maximum(energies["prefill"], 0.0), prompt_s])
