"""Checks at the border: frozen pydantic models whose errors are one clear line, and TOML files that may be anything.

`Noun` is the parent of whatever a user or a file describes. It refuses unknown fields, is equal by value, cheap to hash (it keys
caches), picklable, and never shows pydantic's multi-line report: what is wrong comes as one `InputError`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, ValidationError, ValidationInfo

from pie_p.errors import InputError, did_you_mean
from pie_p.quantities import as_float, as_int

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_TOML_BYTES = 1 << 20  # a hand-written file has a few kB

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", bound="Noun")


class FrozenDict(dict[K, V]):
    """A dict that cannot change, so that what holds it can be hashed and shared.

    >>> FrozenDict(a=1)["a"]
    1
    """

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InputError(f"this table of {len(self)} entries cannot be changed; build a new one")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenDict[K, V]], tuple[dict[K, V]]]:
        return FrozenDict, (dict(self),)

    def __copy__(self) -> FrozenDict[K, V]:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> FrozenDict[K, V]:
        return self


def _positive(value: object, info: ValidationInfo) -> float:
    return as_float(info.field_name or "value", value, above=True)


def _fraction(value: object, info: ValidationInfo) -> float:
    return as_float(info.field_name or "value", value, most=10)


def _count(value: object, info: ValidationInfo) -> int:
    return as_int(info.field_name or "value", value, most=10**6)


def _bytes(value: object, info: ValidationInfo) -> int:
    return as_int(info.field_name or "value", value, most=10**16)


Positive = Annotated[float, BeforeValidator(_positive)]  # finite, above 0
Fraction = Annotated[float, BeforeValidator(_fraction)]  # finite, 0..10
Count = Annotated[int, BeforeValidator(_count)]  # 1..a million
Bytes = Annotated[int, BeforeValidator(_bytes)]  # 1..10 PB
Text = Annotated[str, Field(strict=True, min_length=1, max_length=500)]
Flag = StrictBool
Frozen = AfterValidator(FrozenDict)


class Noun(BaseModel):
    """A checked, frozen value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise InputError(one_line(error, type(self), name=data.get("name"))) from None

    def __setattr__(self, name: str, value: object) -> None:
        raise InputError(f"{type(self).__name__} cannot be changed; make another with model_copy(update={{{name!r}: ...}})")

    def model_copy(self: N, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> N:  # noqa: ARG002  (frozen: nothing to deepen)
        """Another with some fields replaced, checked like the first."""
        return type(self)(**{**self._fields, **(update or {})})

    @property
    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    @cached_property
    def _values(self) -> tuple[object, ...]:
        return tuple(self._fields.values())

    @cached_property
    def _hash(self) -> int:
        return hash(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._hash == other._hash and self._values == other._values

    def __copy__(self: N) -> N:
        return self

    def __deepcopy__(self: N, memo: dict[int, Any] | None = None) -> N:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._fields)  # not the cached hash: text hashes differ between processes


def _rebuild(noun: type[N], fields: dict[str, Any]) -> N:
    return noun(**fields)


def one_line(error: ValidationError, noun: type[BaseModel], *, name: object = None) -> str:
    """A pydantic report as one line: what came, what is allowed, and how much else is wrong."""
    first, *others = error.errors(include_url=False)
    place = ".".join(str(part) for part in first["loc"] if part != "[key]")
    who = f"{noun.__name__} {_short(name)}" if isinstance(name, str) else noun.__name__
    if first["type"] == "value_error":
        text = str(first["ctx"]["error"])
    elif first["type"] == "missing":
        places = [".".join(str(part) for part in one["loc"]) for one in (first, *others) if one["type"] == "missing"]
        text, others = f"missing: {', '.join(places)}", []
    elif first["type"] == "extra_forbidden":
        text = f"no field {_short(place)}.{did_you_mean(place, noun.model_fields)}"
        text += "" if text.endswith("?") else f" It has: {', '.join(noun.model_fields)}"
    else:
        text = f"{place} = {_short(first['input'])} is not allowed: {first['msg'][0].lower()}{first['msg'][1:]}"
    more = f" (and {len(others)} more)" if others else ""
    return f"{who}: {' '.join(text.split())}{more}"


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        InputError: no such file, not a file, too large, not text or not TOML; one line that names the file.
    """
    try:
        file = Path(path)
        if not file.is_file():
            raise InputError(f"{_short(str(path))} is not a file" if file.exists() else f"no file {_short(str(path))}")
        if file.stat().st_size > MAX_TOML_BYTES:
            raise InputError(f"{_short(str(path))} has {file.stat().st_size} bytes; a hardware file has at most {MAX_TOML_BYTES}")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, a null byte in the path
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{_short(str(path))} cannot be read as TOML: {reason}") from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
