"""Which few points to measure so that little of the space lies far from one of them.

Each operator kind has a `Space`: ranges of its sizes, taken in logarithms, because time and power follow ratios. From a dense set of
candidates (a Halton sequence, rounded to sizes that occur) the points are taken greedily: first the one in the middle, then always the
one FARTHEST from all taken so far (maximin). So every beginning of the list covers the space as well as its length allows, and a
campaign that runs out of time has measured the most informative points. The choice is never more than twice as far from some place as the
best choice of as many points could be (Gonzalez 1985, doi:10.1016/0304-3975(85)90224-5). With 48 points the nearest one differs, at the
median place, by a factor of at most 1.5 in any of two sizes, 2.4 of three, 4 of five, 7 of six; a grid of 8 values of five sizes is 32,768.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from pie_p import operators
from pie_p.errors import InputError, UnknownNameError, did_you_mean
from pie_p.operators import Kind, Operator
from pie_p.profiling.samples import Floats
from pie_p.units import BYTES_PER_VALUE, Dtype

PRIMES: Final = (2, 3, 5, 7, 11, 13)
CANDIDATES: Final = 1024
EMBEDDING_ROWS: Final = 32768  # of the table that is measured: enough that the rows of any batch do not sit in a cache


@dataclass(frozen=True, slots=True)
class Range:
    """Values of one size, from `least` to `most`, in steps that occur in practice."""

    least: int
    most: int
    multiple: int = 1  # 1: powers of two and the like are rounded to whole numbers only

    def at(self, share: float) -> int:
        """The value at `share` (0..1) of the way, in logarithms.

        >>> Range(1, 1024).at(0.5), Range(256, 32768, 64).at(0.3)
        (32, 1088)
        """
        value = math.exp(math.log(self.least) + share * (math.log(self.most) - math.log(self.least)))
        return min(self.most, max(self.least, round(value / self.multiple) * self.multiple))


@dataclass(frozen=True, slots=True)
class Space:
    """Sizes of one kind, and the operator they make."""

    ranges: Mapping[str, Range]
    build: Callable[[Mapping[str, int]], Operator]


def _linear(kind: Kind) -> Callable[[Mapping[str, int]], Operator]:
    def build(size: Mapping[str, int]) -> Operator:
        return operators.linear(kind, tokens=size["tokens"], in_features=size["width"], out_features=size["out"], kind=kind)

    return build


def _attention_prefill(size: Mapping[str, int]) -> Operator:
    return operators.attention_prefill(
        "attention_prefill",
        sequences=size["sequences"],
        new_tokens=size["tokens"],
        cached_tokens=size["cached"] if size["cached"] >= 16 else 0,
        heads=size["kv_heads"] * size["ratio"],
        kv_heads=size["kv_heads"],
        head_dim=size["head_dim"],
    )


def _attention_decode(size: Mapping[str, int]) -> Operator:
    return operators.attention_decode(
        "attention_decode",
        sequences=size["sequences"],
        context_tokens=size["context"],
        heads=size["kv_heads"] * size["ratio"],
        kv_heads=size["kv_heads"],
        head_dim=size["head_dim"],
    )


def _experts(size: Mapping[str, int]) -> Operator:
    return operators.experts(
        "experts",
        tokens=size["tokens"],
        width=size["width"],
        intermediate=size["intermediate"],
        total_experts=size["experts"],
        local_experts=size["experts"],
        top_k=min(size["top_k"], size["experts"]),
        gated=True,
    )


def _scan(size: Mapping[str, int]) -> Operator:
    return operators.scan(
        "scan",
        sequences=size["sequences"],
        tokens=size["tokens"],
        heads=size["heads"],
        head_dim=64,
        state_dim=size["state"],
        decode=size["tokens"] == 1,
    )


SPACES: Final[dict[Kind, Space]] = {
    "embedding": Space(
        {"tokens": Range(1, 65536), "width": Range(1024, 16384, 128)},
        lambda size: operators.embedding("embedding", tokens=size["tokens"], width=size["width"]),
    ),
    "linear": Space({"tokens": Range(1, 16384), "width": Range(256, 32768, 64), "out": Range(256, 65536, 64)}, _linear("linear")),
    "attention_prefill": Space(
        {
            "sequences": Range(1, 64),
            "tokens": Range(16, 32768),
            "cached": Range(1, 16384),
            "kv_heads": Range(1, 16),
            "ratio": Range(1, 16),
            "head_dim": Range(64, 256, 64),
        },
        _attention_prefill,
    ),
    "attention_decode": Space(
        {
            "sequences": Range(1, 512),
            "context": Range(64, 131072),
            "kv_heads": Range(1, 16),
            "ratio": Range(1, 16),
            "head_dim": Range(64, 256, 64),
        },
        _attention_decode,
    ),
    "norm": Space(
        {"tokens": Range(1, 65536), "width": Range(1024, 16384, 128)},
        lambda size: operators.norm("norm", tokens=size["tokens"], width=size["width"]),
    ),
    "activation": Space(
        {"tokens": Range(1, 65536), "width": Range(512, 32768, 64)},
        lambda size: operators.activation("activation", tokens=size["tokens"], width=size["width"], gated=True),
    ),
    "router": Space({"tokens": Range(1, 65536), "width": Range(1024, 16384, 128), "out": Range(8, 512, 8)}, _linear("router")),
    "experts": Space(
        {
            "tokens": Range(1, 16384),
            "width": Range(512, 8192, 128),
            "intermediate": Range(256, 16384, 128),
            "experts": Range(8, 256, 8),
            "top_k": Range(1, 8),
        },
        _experts,
    ),
    "lm_head": Space({"tokens": Range(1, 1024), "width": Range(1024, 16384, 128), "out": Range(8192, 262144, 64)}, _linear("lm_head")),
    "scan": Space(
        {"sequences": Range(1, 256), "tokens": Range(1, 8192), "heads": Range(8, 128, 8), "state": Range(16, 256, 16)},
        _scan,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The largest operator worth measuring: what fits the memory and the time."""

    most_flops: float = 2e13  # per call: 25 ms at 800 TFLOP/s
    most_bytes: float = 2e10  # moved or stored per call


def choose(kind: Kind, count: int, *, budget: Budget | None = None, dtypes: Sequence[Dtype] = ("bf16",)) -> list[Operator]:
    """The `count` operators of a kind to measure, most informative first; the dtypes take turns.

    Raises:
        UnknownNameError: not a kind that runs on one rank.
        InputError: the budget leaves no point.
    """
    if kind not in SPACES:
        raise UnknownNameError(f"no kernel space for {kind!r}.{did_you_mean(kind, SPACES)} Kinds: {', '.join(SPACES)}")
    limits = budget or Budget()
    made = _candidates(kind, limits)
    if not made:
        raise InputError(f"no {kind} fits into {limits.most_flops:.3g} FLOP and {limits.most_bytes:.3g} bytes; allow more")
    places = np.array([place for _, place in made])
    chosen = [made[index][0] for index in farthest_first(places, min(count, len(made)))]
    return [_stored_as(operator, dtypes[turn % len(dtypes)]) for turn, operator in enumerate(chosen)]


def farthest_first(places: Floats, count: int) -> list[int]:
    """Indices of `count` rows: the one nearest to the middle, then always the one farthest from all taken so far.

    >>> farthest_first(np.array([[0.0], [0.4], [0.5], [1.0]]), 3)
    [2, 0, 3]
    """
    middle = (places.min(axis=0) + places.max(axis=0)) / 2
    taken = [int(np.argmin(np.linalg.norm(places - middle, axis=1)))]
    nearest = np.linalg.norm(places - places[taken[0]], axis=1)
    while len(taken) < count and nearest.max() > 0:
        taken.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, np.linalg.norm(places - places[taken[-1]], axis=1))
    return taken


@lru_cache(maxsize=64)
def _candidates(kind: Kind, budget: Budget) -> list[tuple[Operator, Floats]]:
    """Operators inside the budget, and their places in log space, each side scaled to 0..1."""
    space = SPACES[kind]
    made: dict[tuple[int, ...], tuple[Operator, Floats]] = {}
    for row in halton(CANDIDATES, len(space.ranges)):
        size = {name: extent.at(float(share)) for (name, extent), share in zip(space.ranges.items(), row, strict=True)}
        operator = space.build(size)
        if operator.flops <= budget.most_flops and max(operator.hbm_bytes, stored_bytes(operator)) <= budget.most_bytes:
            spans = [math.log(extent.most / extent.least) for extent in space.ranges.values()]
            place = [math.log(size[name] / extent.least) / span for (name, extent), span in zip(space.ranges.items(), spans, strict=True)]
            made[tuple(size.values())] = (operator, np.array(place))
    return list(made.values())


def halton(count: int, dimensions: int) -> Floats:
    """The first points of the Halton sequence in the unit cube: evener than random, and always the same.

    >>> halton(3, 2).round(3).tolist()
    [[0.5, 0.333], [0.25, 0.667], [0.75, 0.111]]
    """
    return np.array([[_radical_inverse(index, PRIMES[axis]) for axis in range(dimensions)] for index in range(1, count + 1)])


def _radical_inverse(index: int, base: int) -> float:
    """Digits of `index` in `base`, mirrored behind the point."""
    value, scale = 0.0, 1.0 / base
    while index:
        index, digit = divmod(index, base)
        value += digit * scale
        scale /= base
    return value


def _stored_as(operator: Operator, dtype: Dtype) -> Operator:
    """The same sizes with the weights in another dtype; kinds without weights stay as they are."""
    if dtype == operator.dtype or not operator.weight_bytes or operator.kind not in {"linear", "lm_head", "experts"}:
        return operator
    values = operator.weight_bytes / BYTES_PER_VALUE[operator.dtype]
    stored = values * BYTES_PER_VALUE[dtype]
    return operator._replace(dtype=dtype, weight_bytes=stored, hbm_bytes=operator.hbm_bytes - operator.weight_bytes + stored)


def stored_bytes(operator: Operator) -> float:
    """What the tensors of one call take up [B]: more than it moves where a call reads only some of them.

    >>> stored_bytes(operators.experts("e", tokens=1, width=10, intermediate=4, total_experts=8, local_experts=8, top_k=2, gated=True))
    2048.0
    """
    if operator.kind == "embedding":
        return max(operator.hbm_bytes, EMBEDDING_ROWS * operator.out_features * operators.ACTIVATION_BYTES)
    if operator.kind == "experts":
        weights = operator.experts * 3 * operator.in_features * operator.out_features * BYTES_PER_VALUE[operator.dtype]
        return weights + operator.hbm_bytes - operator.weight_bytes
    return operator.hbm_bytes


def signature(operator: Operator) -> str:
    """Everything that makes one call what it is; path and number of calls left out, so equal layers are measured once."""
    same = operator._replace(path="", calls=1.0)._asdict()
    return ",".join(f"{name}={value}" if isinstance(value, str) else f"{name}={value:g}" for name, value in same.items() if value)
