"""What came of a run: totals, figures, distributions, the prediction beside them, and a row that a predictor can learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pie_p.bench.beside import Beside, case_of, predict_beside
from pie_p.bench.figures import Quantiles, Totals
from pie_p.bench.folders import EnergySource, RunManifest, Window, load_rows, load_run_manifest, save_manifest
from pie_p.bench.plans import BenchPlan, Deployed
from pie_p.bench.rows import OK
from pie_p.errors import InputError, PiePError
from pie_p.hardware import load_cluster
from pie_p.predictor import Predictor
from pie_p.profile_manifest import Manifest, new_manifest
from pie_p.profiles import save_profile
from pie_p.tables import Origin, Table

FROM_METERS: Final[dict[str, EnergySource]] = {"measured": "measured", "replayed": "replayed", "simulated": "simulated"}
COUNTER_APART: Final = 0.05  # between counter and integrated power, from which on it is worth a note [-]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A run, as far as it has come. Scope of all energies: GPU boards."""

    folder: Path
    manifest: RunManifest
    rows: Mapping[str, NDArray[Any]] = field(repr=False)

    @property
    def totals(self) -> Totals:
        """The five totals; joules as `energy_source` says."""
        kept = self.manifest.totals
        joules = kept["joules"] if kept else _energy(self.manifest, [])[0]
        return totals_of(self.manifest.windows, joules)

    @property
    def energy_source(self) -> EnergySource:
        """Where the joules come from: "measured", "predicted", or "unknown" where there are none."""
        return self.manifest.energy_source if self.manifest.totals else _energy(self.manifest, [])[1]

    @property
    def prediction(self) -> dict[str, Any] | None:
        """`Beside` as plain values, with `errors` and `measured`; None where the plan says too little."""
        return self.manifest.prediction

    @property
    def whole(self) -> dict[str, NDArray[Any]]:
        """Rows of whole responses."""
        ok = self.rows["outcome"] == OK
        return {name: values[ok] for name, values in self.rows.items()}

    @property
    def times(self) -> dict[str, Quantiles | None]:
        """Distributions of `ttft_s`, `tpot_s` and `latency_s` over whole responses."""
        whole = self.whole
        return {name: Quantiles.of(whole[name].tolist()) for name in ("ttft_s", "tpot_s", "latency_s")}

    @property
    def concurrency(self) -> float:
        """Mean requests in flight [-]."""
        return concurrency_of(self.manifest.windows)

    @property
    def faults(self) -> dict[str, int]:
        """Failed attempts by kind, those that a retry mended included [-]."""
        return _summed(window.faults for window in self.manifest.windows)

    @property
    def failed(self) -> dict[str, int]:
        """Prompts that have no answer yet, by the fault of their last attempt [-]."""
        last: dict[tuple[float, float], str] = {}
        for repetition, prompt, outcome in zip(self.rows["repetition"], self.rows["prompt"], self.rows["outcome"], strict=True):
            if last.get((repetition, prompt)) != OK:
                last[repetition, prompt] = outcome
        return dict(Counter(outcome for outcome in last.values() if outcome != OK))

    @property
    def cut_off(self) -> int:
        """Requests that were in flight when the run was broken off: counted nowhere [-]."""
        return sum(window.cut_off for window in self.manifest.windows)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the rows, as plain values."""
        manifest = self.manifest
        return {
            "folder": str(self.folder),
            "state": manifest.state,
            "stopped_by": manifest.stopped_by,
            "scope": "gpu",
            "energy_source": self.energy_source,
            **self.totals.to_dict(),
            "concurrency": self.concurrency,
            **{name: None if times is None else times.to_dict() for name, times in self.times.items()},
            "token_sources": {str(name): int(count) for name, count in Counter(self.whole["token_source"].tolist()).items()},
            "faults": self.faults,
            "failed": self.failed,
            "cut_off": self.cut_off,
            "prediction": manifest.prediction,
            "plan": manifest.plan,
            "prompts": manifest.prompts,
            "served": manifest.served,
            "meters": [meter.model_dump() for meter in manifest.meters],
            "notes": list(manifest.notes),
            "plan_hash": manifest.plan_hash,
            "work_hash": manifest.work_hash,
        }

    def row(self) -> dict[str, Any]:
        """The run as a row of an `end_to_end` table: for `Predictor.calibrate`, or for a profile.

        Raises:
            InputError: no whole response, or the plan does not say on what the server stands.
        """
        plan = plan_of(self.manifest)
        deployed, totals, whole = plan.deployed, self.totals, self.whole
        _check_row(deployed, whole)
        engine, _, version = deployed.engine.partition("==")
        times = self.times
        measured = self.energy_source in FROM_METERS.values()
        figures = {
            "time_per_token_s": self.concurrency / totals.tokens_per_s if totals.tokens_per_s else None,
            "ttft_s": times["ttft_s"].mean_s if times["ttft_s"] else None,
            "tpot_s": times["tpot_s"].mean_s if times["tpot_s"] else None,
            "throughput_tokens_per_s": totals.tokens_per_s,
            "output_second_moment": float(np.mean(whole["output_tokens"] ** 2)),
            "power_limit_w": limit_of(self.manifest) or deployed.power_limit_w,
            "energy_per_output_token_j": totals.energy_per_output_token_j if measured else None,
            "avg_power_w": totals.power_w if measured else None,
            **{name: getattr(deployed, name) for name in ("dtype", "kv_dtype")},
        }
        return {
            "llm": deployed.llm,
            "gpu": _board(deployed),
            "engine": engine,
            "engine_version": version,
            "workload": self.manifest.prompts["name"],
            "mode": plan.load.mode,
            **{name: getattr(deployed, name) for name in ("tp", "pp", "dp", "ep")},
            "batch": self.concurrency / deployed.dp,
            "prompt_tokens": float(np.mean(whole["prompt_tokens"])),
            "output_tokens": float(np.mean(whole["output_tokens"])),
            "meter_scope": "gpu" if measured else "none",
            "origin": "simulated" if self.energy_source in ("simulated", "replayed") else "measured",
            "source": self.manifest.name,
            **{name: value for name, value in figures.items() if value is not None},
        }


def _check_row(deployed: Deployed, whole: Mapping[str, NDArray[Any]]) -> None:
    if not deployed.known:
        raise InputError("the run does not say which LLM the server has and on what; run with llm and gpu (or cluster) given")
    if not len(whole["output_tokens"]):
        raise InputError("the run has no whole response; there is nothing to learn from")
    if np.isnan(whole["prompt_tokens"]).any():
        raise InputError("the server does not say how many prompt tokens it read; run with a tokenizer given")


def _board(deployed: Deployed) -> str:
    return load_cluster(deployed.cluster).gpu.name if deployed.cluster else str(deployed.gpu)


def plan_of(manifest: RunManifest) -> BenchPlan:
    """The plan that a manifest was made for."""
    return BenchPlan(**manifest.plan)


def limit_of(manifest: RunManifest) -> float | None:
    """The one power limit of the boards that were read; None where it is not known or not one [W]."""
    limits = {meter.power_limit_w for meter in manifest.meters}
    return limits.pop() if len(limits) == 1 else None


def load_run(folder: str | Path) -> BenchResult:
    """A run from its folder.

    Raises:
        ProfileError: none there, or damaged; one line says what.
    """
    manifest = load_run_manifest(folder)
    return BenchResult(folder=Path(folder), manifest=manifest, rows=load_rows(Path(folder), manifest))


def concluded(folder: Path, manifest: RunManifest, plan: BenchPlan, predictor: str | Predictor | None) -> BenchResult:
    """The run with its totals, its prediction and the errors of it, written down."""
    rows, windows = load_rows(folder, manifest), manifest.windows
    ok = rows["outcome"] == OK
    whole = {name: values[ok] for name, values in rows.items()}
    seconds = sum(window.seconds for window in windows)
    notes = [note for note in manifest.notes if not note.startswith(("no prediction", "the meter", "the energy counter", "tokens"))]
    beside = _beside(manifest, plan, whole, predictor, notes)
    joules, source = _energy(manifest, notes)
    measured = source
    if source == "unknown" and beside is not None:
        joules, source = beside.power_w * seconds, "predicted"
    totals = totals_of(windows, joules)
    if "chunks" in whole["token_source"]:
        notes.append("tokens are counted as pieces of the stream, a lower bound: the server does not say, and no tokenizer was given")
    written = manifest.model_copy(update={"totals": totals.to_dict(), "energy_source": source, "notes": tuple(notes)})
    result = BenchResult(folder=folder, manifest=written, rows=rows)
    if beside is not None:
        prediction = {**beside.to_dict(), "errors": beside.errors(_seen(result, with_energy=measured != "unknown"))}
        result = BenchResult(folder=folder, manifest=written.model_copy(update={"prediction": prediction}), rows=rows)
    save_manifest(folder, result.manifest)
    return result


def _seen(result: BenchResult, *, with_energy: bool) -> dict[str, float | None]:
    """What was measured, by the names of a prediction's figures."""
    totals, times = result.totals, result.times
    seen: dict[str, float | None] = {"tokens_per_s": totals.tokens_per_s}
    seen |= {name: found.mean_s for name in ("ttft_s", "tpot_s") if (found := times[name]) is not None}
    if with_energy:
        seen |= {name: getattr(totals, name) for name in ("energy_per_output_token_j", "energy_per_response_j", "power_w")}
    return seen


def _beside(
    manifest: RunManifest, plan: BenchPlan, whole: Mapping[str, NDArray[Any]], predictor: str | Predictor | None, notes: list[str]
) -> Beside | None:
    """The prediction, or None with a note that says what it lacks."""
    if not plan.deployed.known or not len(whole["output_tokens"]):
        notes.append(
            "no prediction: say which LLM the server has and on what (llm, and gpu or cluster)"
        ) if not plan.deployed.known else None
        return None
    if np.isnan(whole["prompt_tokens"]).any():
        notes.append("no prediction: the server does not say how many prompt tokens it read; give a tokenizer")
        return None
    try:
        case = case_of(plan.deployed, plan.load, concurrency=concurrency_of(manifest.windows), limit_w=limit_of(manifest), ok=whole)
        return predict_beside(case, predictor)
    except PiePError as error:  # what was measured is not lost to a deployment that cannot be
        notes.append(f"no prediction: {error}")
        return None


def totals_of(windows: Sequence[Window], joules: float | None) -> Totals:
    """The five totals of some windows."""
    return Totals(
        words=sum(window.words for window in windows),
        tokens=sum(window.tokens for window in windows),
        responses=sum(window.responses for window in windows),
        seconds=sum(window.seconds for window in windows),
        joules=joules,
    )


def concurrency_of(windows: Sequence[Window]) -> float:
    """Mean requests in flight [-]."""
    seconds = sum(window.seconds for window in windows)
    return sum(window.request_s for window in windows) / seconds if seconds else 0.0


def _energy(manifest: RunManifest, notes: list[str]) -> tuple[float | None, EnergySource]:
    """Joules of all windows by the meters, where every window has them."""
    windows = [window for window in manifest.windows if window.responses]
    notes += [f"the meter failed in a window of {window.seconds:.1f} s: {window.meter_error}" for window in windows if window.meter_error]
    joules = [window.joules for window in windows]
    known = [value for value in joules if value is not None]
    if not manifest.meters or not known or len(known) < len(joules):
        return None, "unknown"
    counted = [(window.counter_j, window.joules) for window in windows if window.counter_j is not None and window.joules]
    if counted:
        ratio = sum(counter for counter, _ in counted if counter is not None) / sum(own for _, own in counted if own is not None)
        if abs(ratio - 1.0) > COUNTER_APART:
            notes.append(f"the energy counter says {ratio:.3f} times the integrated power")
    return sum(known), FROM_METERS[manifest.meters[0].origin]


def _summed(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def bench_profile(results: Sequence[BenchResult], out: str | Path, *, name: str = "bench") -> Manifest:
    """A profile with one `end_to_end` row per run, for `pie-p train` and `Predictor.calibrate`.

    Raises:
        InputError: a run that makes no row.
        ProfileError: the folder holds a profile already.
    """
    tables = [Table.from_columns("end_to_end", {column: [value] for column, value in result.row().items()}) for result in results]
    if not tables:
        raise InputError("no run to make a profile of; give at least one")
    origin: Origin = "simulated" if tables[0]["origin"][0] == "simulated" else "measured"
    return save_profile(out, new_manifest(name, origin=origin, source="pie-p bench"), [Table.concat(tables)])
