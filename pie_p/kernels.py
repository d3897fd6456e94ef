"""Kernels: which software ran an operator, as a number a tree can split on, and which one to expect on a deployment.

A kernel's label is "engine==version source format". Its code is its rank by how far it stays above the physical base, so neighbours in the
code are alike. A deployment names an engine, not a kernel: the book says what that engine ran in the profiles,
on that board or the nearest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import log2, nan
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_p.hardware import Gpu, gpu_names, load_gpu

LAUNCH_BOUND: Final = 4.0  # a kernel whose fastest runs take this many times those of another was timed with its launch, not in a graph
LEAST_SHARE: Final = 0.1  # of the rows of an engine's most profiled kernel: below it, a kernel for special shapes


class Use(NamedTuple):
    """One kernel as it was profiled for one kind of operator, board and format."""

    label: str  # "vllm==0.24.0 torch.nn.functional.linear bfloat16"
    kind: str
    gpu: str
    dtype: str
    kv_dtype: str
    rows: int  # measured [-]
    floor_s: float  # 2nd percentile of its times [s]

    @property
    def engine(self) -> str:
        """Name of the engine or library."""
        return self.label.partition("==")[0]

    @property
    def version(self) -> str:
        """Release of it."""
        return self.label.partition("==")[2].partition(" ")[0]


class Wanted(NamedTuple):
    """What a deployment says about an operator's kernel."""

    kind: str
    engine: str
    version: str
    gpu: Gpu
    dtype: str
    kv_dtype: str


@dataclass(frozen=True)
class KernelBook:
    """Labels in the order of their codes, and where each was profiled."""

    labels: tuple[str, ...]
    uses: tuple[Use, ...]

    @cached_property
    def _codes(self) -> dict[str, float]:
        return {label: float(code) for code, label in enumerate(self.labels)}

    @cached_property
    def _profiled(self) -> frozenset[tuple[str, str, str, str]]:
        return frozenset((use.kind, use.gpu, use.dtype, use.kv_dtype) for use in self.uses)

    def profiled(self, wanted: Wanted) -> bool:
        """Whether any engine ran this kind of operator in this format on this very board."""
        dtype, kv_dtype = _sixteen(wanted.dtype), _sixteen(wanted.kv_dtype)
        return (wanted.kind, wanted.gpu.name, dtype, kv_dtype) in self._profiled

    def codes(self, labels: Sequence[str]) -> NDArray[np.float64]:
        """Code of every label; NaN for one that is not in the book."""
        return np.array([self._codes.get(label, nan) for label in labels], dtype=np.float64)

    def default(self, wanted: Wanted) -> float:
        """Code of the kernel to expect: same engine and format, nearest board, newest release, not launch-bound, of middling speed.

        A checkpoint's format decides which of an engine's kernels runs, and a deployment does not say it. How many rows were swept is no
        sign of it: the most profiled kernel may be the slowest of all.

        Returns:
            NaN when the engine or the format was not profiled: the trees then answer with what holds over all kernels.
        """
        codes = sorted(self._codes[use.label] for use in _expected(self.uses, wanted))
        return codes[(len(codes) - 1) // 2] if codes else nan


@lru_cache(maxsize=4096)
def _expected(uses: tuple[Use, ...], wanted: Wanted) -> tuple[Use, ...]:
    """Kernels that may run a deployment's operator, as far as it says."""
    dtype, kv_dtype = _sixteen(wanted.dtype), _sixteen(wanted.kv_dtype)
    known = [use for use in uses if (use.kind, use.engine, use.dtype, use.kv_dtype) == (wanted.kind, wanted.engine, dtype, kv_dtype)]
    if not known:
        return ()
    near = min(_distance(use.gpu, wanted.gpu) for use in known)
    known = [use for use in known if _distance(use.gpu, wanted.gpu) == near]
    floor_s = min(use.floor_s for use in known)
    known = [use for use in known if use.floor_s <= LAUNCH_BOUND * floor_s]
    exact = [use for use in known if use.version == wanted.version]
    newest = max(version_order(use.version) for use in known)
    latest = exact or [use for use in known if version_order(use.version) == newest]
    most = max(use.rows for use in latest)
    return tuple(use for use in latest if use.rows >= LEAST_SHARE * most)


def _sixteen(dtype: str) -> str:
    """The 16-bit formats are one: kernels take as long in either."""
    return "bf16" if dtype == "fp16" else dtype


@lru_cache(maxsize=1024)
def _distance(name: str, gpu: Gpu) -> float:
    """How unlike two boards are: octaves between their peaks and bandwidths."""
    if name == gpu.name:
        return 0.0
    if name not in gpu_names():
        return 100.0
    other = load_gpu(name)
    return 1e-3 + abs(log2(other.peak("bf16") / gpu.peak("bf16"))) + abs(log2(other.hbm_bytes_per_s / gpu.hbm_bytes_per_s))


def version_order(version: str) -> tuple[int, ...]:
    """A release as something that sorts.

    >>> version_order("0.24.0") > version_order("0.5.10")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", version))


def make_book(uses: Sequence[Use], ratios: dict[str, float]) -> KernelBook:
    """A book whose codes follow the kernels' median log ratio to the base.

    >>> use = Use("vllm==0.24.0 a", "linear", "h100-sxm-80gb", "bf16", "bf16", 10, 5e-6)
    >>> make_book([use, use._replace(label="vllm==0.24.0 b")], {"vllm==0.24.0 a": 0.4, "vllm==0.24.0 b": 0.1}).labels
    ('vllm==0.24.0 b', 'vllm==0.24.0 a')
    """
    return KernelBook(tuple(sorted(ratios, key=lambda label: (ratios[label], label))), tuple(uses))
