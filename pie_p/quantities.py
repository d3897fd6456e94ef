"""Numbers at the border: what a user hands over becomes an int or a float, or one clear line says why not."""

from __future__ import annotations

import math
import numbers
from decimal import Decimal
from typing import Final, cast

from pie_p.errors import InputError
from pie_p.units import DTYPES, Dtype

# What other libraries call the formats: torch and numpy, vLLM's `--dtype` and `--kv-cache-dtype`, checkpoints.
_SPELLINGS: Final[dict[str, Dtype]] = {
    **{dtype: dtype for dtype in DTYPES},
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "float8e4m3fn": "fp8",
    "float8e4m3": "fp8",
    "float8e5m2": "fp8",
    "fp8e4m3": "fp8",
    "fp8e5m2": "fp8",
    "uint4": "int4",
}


def as_float(name: str, value: object, *, least: float = 0.0, above: bool = False, most: float = 1e18) -> float:
    """A finite number within bounds; scalars of numpy, pandas, polars, Arrow and torch and Decimal count, bools and strings do not.

    Args:
        name: the argument's name, for the message.
        value: what came.
        least: smallest allowed value.
        above: the value must be above `least`, not equal to it.
        most: largest allowed value.

    Raises:
        InputError: with the value that came and what is allowed.

    >>> as_float("batch", 8)
    8.0
    """
    value = _plain(value)
    if not _is_number(value):
        raise InputError(f"{name} = {shown(value)} is not a number; give one {_range(least, above, most)}")
    try:
        number = float(cast("float", value))
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):  # a duration calls itself an integer; a signalling NaN of Decimal
        raise InputError(f"{name} = {shown(value)} is not a number; give one {_range(least, above, most)}") from None
    if not math.isfinite(number) or number < least or number > most or (above and number == least):
        raise InputError(f"{name} = {shown(value)} is not allowed; give a finite number {_range(least, above, most)}")
    return number


def as_int(name: str, value: object, *, least: int = 1, most: int = 10**9) -> int:
    """A whole number within bounds; 4.0 counts as 4.

    >>> as_int("tp", 4.0)
    4
    """
    number = as_float(name, value, least=least, most=most)
    if number != int(number):
        raise InputError(f"{name} = {shown(value)} is not a whole number; give one {_range(least, False, most)}")
    return int(number)


def as_truth(name: str, value: object) -> bool:
    """True or False, of numpy, pandas or polars too; numbers and words are neither.

    >>> as_truth("exclusive_host", False)
    False
    """
    value = _plain(value)
    if not isinstance(value, bool):
        raise InputError(f"{name} = {shown(value)} is not a truth value; allowed: True, False")
    return value


def as_dtype(name: str, value: object) -> Dtype | None:
    """A storage format, however it is spelled: `"FP8"`, `"float16"`, `torch.bfloat16`, `numpy.float16`; None for None and "auto".

    Raises:
        InputError: with what came and what is allowed.

    >>> as_dtype("dtype", "torch.float16"), as_dtype("dtype", "FP8"), as_dtype("kv_dtype", "auto")
    ('fp16', 'fp8', None)
    """
    if value is None:
        return None
    foreign = type(value).__name__ == "dtype" or type(value).__module__.partition(".")[0] in ("torch", "numpy")
    text = value if isinstance(value, str) else value.__name__ if isinstance(value, type) else str(value) if foreign else None
    if text is not None:
        plain = text.strip().lower().removeprefix("torch.").removeprefix("numpy.").replace("_", "").replace("-", "")
        if plain == "auto":
            return None
        if plain in _SPELLINGS:
            return _SPELLINGS[plain]
    raise InputError(f"{name} = {shown(value)} is not known; allowed: {', '.join(DTYPES)}")


def _plain(value: object) -> object:
    """A scalar of another library - a 0-d array, a tensor, Arrow's - as Python's own; anything else as it came."""
    if _is_number(value) or isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) != 0:
        return value
    own = getattr(value, "item", None) or getattr(value, "as_py", None)
    try:
        return own() if callable(own) else value
    except Exception:  # noqa: BLE001  (a column has `item` too, and refuses in its own words)
        return value


def _is_number(value: object) -> bool:
    return isinstance(value, (numbers.Real, Decimal)) and not isinstance(value, bool)


def shown(value: object, *, most: int = 40) -> str:
    """What came, for a message: one short line whatever it is.

    >>> shown("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    >>> shown(10**5000)
    'a value of type int'
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # noqa: BLE001  (a repr may raise anything: an int of 5,000 digits, a foreign class)
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


def _range(least: float, above: bool, most: float) -> str:
    lower = f"above {least:g}" if above else f"of at least {least:g}"
    return lower if most >= 1e9 else f"{lower} and at most {most:g}"
