"""pie_p: joules per LLM request on multi-GPU clusters, split into compute, communication and wait, predicted without a GPU.

    from pie_p import predict_energy
    predict_energy("llama-3.1-70b", gpu="h100-sxm-80gb", tp=4, batch=32, prompt_tokens=500, output_tokens=300)

Reading order, each module knowing only those above it:

1. `units`, `errors`, `quantities`, `checks`: conversions, error texts, numbers at the border.
2. `shapes`, `llm`, `hardware`, `plan`, `workload`, `engine`, `energy`: the nouns.
3. `deployment`, `operators`, `layers`, `tree`: what runs on which rank, counted.
4. `features`, `physics`, `power`, `serving`, `settling`: operators as columns, their time and power, and the waits between them.
5. `accounting`, `cases`, `prediction`, `predictor`: which watts count, checked arguments, the answer with its working, what answers.
6. `report`, `cli`: what people see.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pie_p.accounting import Accounting
    from pie_p.candidates import Candidate, Infeasible
    from pie_p.cases import make_case
    from pie_p.energy import EnergyBreakdown
    from pie_p.engine import Engine
    from pie_p.errors import PiePError
    from pie_p.footprint import Footprint, Grid, grid_names, load_grid
    from pie_p.hardware import Cluster, Gpu, Host, Link, gpu_names, load_cluster, load_gpu
    from pie_p.llm import LLM, llm_names, load_llm
    from pie_p.placement import Placement, place
    from pie_p.plan import ParallelPlan
    from pie_p.prediction import OperatorEnergy, Prediction
    from pie_p.predictor import Predictor, load_predictor, predict_energy, predict_many
    from pie_p.replay_result import PowerBins, Replay
    from pie_p.replaying import replay, replay_fleet
    from pie_p.request_log import EstimatedLog, estimate_log
    from pie_p.serving import Case
    from pie_p.sweeping import Sweep, sweep
    from pie_p.system_files import load_systems
    from pie_p.systems import System, fit_system, predict_system, save_systems
    from pie_p.traces import RequestTrace, load_trace, synthetic_trace
    from pie_p.watch.watcher import Watcher
    from pie_p.what_if import WhatIf
    from pie_p.workload import LengthDistribution, Request

__version__ = "0.1.0"

__all__ = [
    "predict_energy",
    "predict_many",
    "estimate_log",
    "sweep",
    "replay",
    "replay_fleet",
    "place",
    "predict_system",
    "fit_system",
    "load_systems",
    "save_systems",
    "make_case",
    "load_trace",
    "synthetic_trace",
    "load_predictor",
    "load_llm",
    "load_gpu",
    "load_cluster",
    "load_grid",
    "llm_names",
    "gpu_names",
    "grid_names",
    "Prediction",
    "OperatorEnergy",
    "EnergyBreakdown",
    "WhatIf",
    "Footprint",
    "Grid",
    "EstimatedLog",
    "Watcher",
    "Predictor",
    "Replay",
    "PowerBins",
    "Placement",
    "System",
    "Sweep",
    "Candidate",
    "Infeasible",
    "Case",
    "Accounting",
    "LLM",
    "Gpu",
    "Link",
    "Host",
    "Cluster",
    "Engine",
    "ParallelPlan",
    "Request",
    "RequestTrace",
    "LengthDistribution",
    "PiePError",
    "__version__",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())

# Where each public name is made: it is imported when it is first asked for.
_HOMES = {
    "accounting": ("Accounting",),
    "candidates": ("Candidate", "Infeasible"),
    "cases": ("make_case",),
    "energy": ("EnergyBreakdown",),
    "engine": ("Engine",),
    "errors": ("PiePError",),
    "footprint": ("Footprint", "Grid", "grid_names", "load_grid"),
    "hardware": ("Cluster", "Gpu", "Host", "Link", "gpu_names", "load_cluster", "load_gpu"),
    "llm": ("LLM", "llm_names", "load_llm"),
    "plan": ("ParallelPlan",),
    "prediction": ("OperatorEnergy", "Prediction"),
    "predictor": ("Predictor", "load_predictor", "predict_energy", "predict_many"),
    "request_log": ("EstimatedLog", "estimate_log"),
    "serving": ("Case",),
    "sweeping": ("Sweep", "sweep"),
    "replay_result": ("PowerBins", "Replay"),
    "replaying": ("replay", "replay_fleet"),
    "placement": ("Placement", "place"),
    "system_files": ("load_systems",),
    "systems": ("System", "fit_system", "predict_system", "save_systems"),
    "traces": ("RequestTrace", "load_trace", "synthetic_trace"),
    "what_if": ("WhatIf",),
    "watch.watcher": ("Watcher",),
    "workload": ("LengthDistribution", "Request"),
}

if not TYPE_CHECKING:  # so that a type checker still finds a name that does not exist

    def __getattr__(name: str) -> Any:
        for module, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"pie_p.{module}"), name)
                return value
        raise AttributeError(f"module 'pie_p' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
