"""Numbers at the border: what a user hands over becomes an int or a float, or one clear line says why not."""

from __future__ import annotations

import math
import numbers
from decimal import Decimal
from typing import cast

from pie_p.errors import InputError


def as_float(name: str, value: object, *, least: float = 0.0, above: bool = False, most: float = 1e18) -> float:
    """A finite number within bounds; numpy, pandas and polars scalars and Decimal count as numbers, bools and strings do not.

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
    if not _is_number(value):
        item = getattr(value, "item", None)  # a 0-d array or a scalar of another library
        if not isinstance(value, (str, bytes)) and callable(item) and getattr(value, "ndim", 0) == 0:
            value = item()
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
