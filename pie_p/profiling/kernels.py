"""Kernels as workloads: repeated calls on CPU or CUDA, timed on the device, with cold weights.

On CUDA the calls are captured into a graph, so that launches neither limit nor blur short kernels, and timed by events.
In an LLM every layer's weights come from HBM; one matrix called again and again would come from the cache. So a workload holds as many
copies of its tensors as fill the cache twice, and goes round them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from pie_p.extras import require
from pie_p.operators import Operator
from pie_p.profiling.design import signature, stored_bytes
from pie_p.profiling.measurement import Workload
from pie_p.profiling.samples import Floats
from pie_p.profiling.torch_kernels import make_call

DEFAULT_CACHE_BYTES: Final = 64e6  # where the device does not tell; above the L2 of any GPU up to H200 (50 MB)
MOST_COPIES: Final = 32
MOST_STORED_BYTES: Final = 20e9  # by all copies together; one copy may be larger
CPU_COPIES: Final = 2  # tests run here


class KernelWorkload(Workload):
    """Calls of one operator on one device.

    Raises:
        MissingExtraError: torch is not installed.
        UnsupportedKernelError: this torch has no such kernel there.
    """

    def __init__(self, operator: Operator, device: str = "cpu") -> None:
        self.operator, self.device = operator, device
        copies = cold_copies(operator, cache_bytes=cache_bytes(device), most=CPU_COPIES if device == "cpu" else MOST_COPIES)
        calls = [make_call(operator, device) for _ in range(copies)]
        self._round: _Round = _HostRound(calls) if device == "cpu" else _CudaRound(calls, device)

    @property
    def signature(self) -> str:
        """Operator and device."""
        return f"{self.device.partition(':')[0]} {signature(self.operator)}"

    def run(self, calls: int) -> float:
        """Time of `calls` calls, back to back [s]."""
        return self._round.run(calls)

    def time_each(self, calls: int) -> Floats:
        """Time of each single call [s]."""
        return np.array([self._round.run(1) for _ in range(calls)])


def cold_copies(operator: Operator, *, cache_bytes: float, most: int = MOST_COPIES) -> int:
    """Copies of the tensors whose calls move twice the cache, at least 1 and at most `most`, and no more than memory should hold.

    >>> from pie_p.operators import linear
    >>> cold_copies(linear("l", tokens=1, in_features=4096, out_features=4096), cache_bytes=50e6)  # 33.6 MB of weights
    3
    """
    wanted = int(np.ceil(2 * cache_bytes / max(operator.hbm_bytes, 1.0)))
    return max(1, min(most, wanted, int(MOST_STORED_BYTES / max(stored_bytes(operator), 1.0))))


def cache_bytes(device: str) -> float:
    """Last-level cache of the device [B]."""
    if device == "cpu":
        return DEFAULT_CACHE_BYTES
    properties = require("torch", extra="profile").cuda.get_device_properties(device)
    return float(getattr(properties, "L2_cache_size", 0) or DEFAULT_CACHE_BYTES)


class _Round:
    """Runs calls one after the other, in turns over the copies."""

    def run(self, calls: int) -> float:
        raise NotImplementedError


class _HostRound(_Round):
    """On the CPU: called from Python, timed by the clock of the host."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls, self._next = calls, 0
        self._grad = require("torch", extra="profile").inference_mode

    def run(self, calls: int) -> float:
        with self._grad():
            start_s = time.perf_counter()
            for index in range(calls):
                self._calls[(self._next + index) % len(self._calls)]()
            took_s = time.perf_counter() - start_s
        self._next = (self._next + calls) % len(self._calls)
        return took_s


class _CudaRound(_Round):
    """On CUDA: one graph per single call and one for a whole round, timed by events."""

    def __init__(self, calls: Sequence[Callable[[], object]], device: str) -> None:
        self._torch: Any = require("torch", extra="profile")
        self._device, self._next = device, 0
        with self._torch.cuda.device(device), self._torch.inference_mode():
            self._single = [self._capture([call]) for call in calls]
            self._whole = self._capture(list(calls) * max(1, 16 // len(calls)))
        self._whole_calls = len(calls) * max(1, 16 // len(calls))

    def _capture(self, calls: Sequence[Callable[[], object]]) -> Any:
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in calls:  # libraries choose their kernels and workspaces before the capture
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return graph

    def run(self, calls: int) -> float:
        torch = self._torch
        with torch.cuda.device(self._device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(calls // self._whole_calls):
                self._whole.replay()
            for _ in range(calls % self._whole_calls):
                self._single[self._next].replay()
                self._next = (self._next + 1) % len(self._single)
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3
