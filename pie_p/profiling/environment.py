"""What a measurement was made under: everything that could explain a figure later, read once per measurement."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any, Final

from pie_p.errors import DeviceError
from pie_p.profiling.meters import BoardState, Meter, MeterIdentity
from pie_p.profiling.nvml_meter import nvml_boards, peers

# Variables that change what a collective or a kernel does.
WATCHED_PREFIXES: Final = ("NCCL_", "GLOO_", "CUDA_", "OMP_", "TORCH_NCCL_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Conditions of one measurement. An empty text or None means "not known"."""

    meter: MeterIdentity
    state: BoardState
    foreign_process_ids: tuple[int, ...]  # on the board, ours left out
    topology: dict[str, dict[str, str]]  # how boards are joined, by UUID; empty without NVML
    variables: dict[str, str]  # NCCL_*, GLOO_*, CUDA_*, OMP_*
    torch: str
    cuda: str
    nccl: str
    python: str
    system: str
    processor: str
    processor_count: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return dataclasses.asdict(self)


def read_environment(meter: Meter) -> Environment:
    """The conditions now; a running torch is asked for its versions, none is imported for it."""
    state = meter.read_state()
    torch_version, cuda, nccl = _torch_versions()
    return Environment(
        meter=meter.identity,
        state=state,
        foreign_process_ids=tuple(pid for pid in state.process_ids if pid != os.getpid()),
        topology=_topology(meter),
        variables={name: value for name, value in sorted(os.environ.items()) if name.startswith(WATCHED_PREFIXES)},
        torch=torch_version,
        cuda=cuda,
        nccl=nccl,
        python=platform.python_version(),
        system=f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",  # a full release can name a host
        processor=platform.processor() or platform.machine(),
        processor_count=os.cpu_count() or 1,
    )


def _topology(meter: Meter) -> dict[str, dict[str, str]]:
    if meter.identity.kind != "nvml":
        return {}
    try:
        return peers(nvml_boards())
    except DeviceError:
        return {}  # a container that shows one board may not ask about the others


def _torch_versions() -> tuple[str, str, str]:
    """Versions of torch, CUDA and NCCL, empty where not known."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "", "", ""
    cuda = torch.version.cuda or ""
    if not cuda or not torch.cuda.is_available():
        return str(torch.__version__), cuda, ""
    return str(torch.__version__), cuda, ".".join(str(part) for part in torch.cuda.nccl.version())
