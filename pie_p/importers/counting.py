"""Counted columns of many rows at once, by the same functions that count a prediction's operators.

The counting functions are plain arithmetic, so they take whole columns. What they branch on (windows, dtypes, token counts of a mixture)
is the same within a group of rows; groups are counted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from pie_p.operators import Operator
from pie_p.tables import COUNTED, Array

_TEXTS: Final = frozenset({"path", "kind", "dtype", "kv_dtype"})


def counted(count: Callable[..., Operator], *, same: Mapping[str, Array], each: Mapping[str, Array]) -> dict[str, Array]:
    """Counted columns of `Operator` for every row.

    Args:
        count: a counting function of `pie_p.operators`, its path bound.
        same: arguments it branches on: rows are grouped by them and a group's value is handed over as one plain value.
        each: arguments it only computes with: handed over as columns.

    >>> from pie_p.operators import linear
    >>> rows = {"tokens": np.array([1.0, 8.0]), "in_features": np.array([2.0, 2.0]), "out_features": np.array([3.0, 3.0])}
    >>> dtypes = np.array(["bf16", "fp8"], dtype=object)
    >>> counted(lambda **by: linear("", **by), same={"dtype": dtypes}, each=rows)["weight_bytes"]
    array([12.,  6.])
    """
    rows = len(next(iter([*each.values(), *same.values()])))
    columns = {name: np.empty(rows, dtype=object if name in _TEXTS else np.float64) for name in COUNTED}
    for members, values in grouped(same, rows):
        operator = count(**values, **{name: column[members] for name, column in each.items()})
        for name in COUNTED:
            columns[name][members] = getattr(operator, name)
    return columns


def grouped(same: Mapping[str, Array], rows: int) -> list[tuple[Array, dict[str, Any]]]:
    """Rows that agree in every column: their indices, and the values they share as plain Python values."""
    if rows == 0:
        return []
    key = np.zeros(rows, dtype=np.int64)
    for column in same.values():
        codes = np.unique(column.astype(str) if column.dtype == object else column, return_inverse=True)[1]
        key = np.unique(key * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    return [(members, {name: _plain(column[members[0]]) for name, column in same.items()}) for members in np.split(order, bounds)]


def summed(parts: list[dict[str, Array]], *, kind: str) -> dict[str, Array]:
    """One block measured as a whole: work and bytes add up, the shape is the first part's."""
    block = dict(parts[0])
    for name in ("flops", "hbm_bytes", "weight_bytes", "kv_bytes"):
        block[name] = np.sum([part[name] for part in parts], axis=0)
    block["kind"] = np.full(len(block["flops"]), kind, dtype=object)
    return block


def details(**columns: Array) -> Array:
    """`key=value` pairs of every row, those without a value left out.

    >>> details(window=np.array([128.0, np.nan]), backend=np.array(["ht", "ll"], dtype=object)).tolist()
    ['window=128; backend=ht', 'backend=ll']
    """
    texts = [[_pair(name, value) for value in column] for name, column in columns.items()]
    return np.array(["; ".join(filter(None, pairs)) for pairs in zip(*texts, strict=True)], dtype=object)


def _pair(name: str, value: object) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{name}={value:g}"
    return f"{name}={value}" if value else ""


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number
