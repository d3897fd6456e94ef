"""Results on disk: what `pie-p predict --json` and `pie-p sweep --json` wrote, read again and checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pie_p.errors import InputError
from pie_p.storage import read_whole

MOST_BYTES: Final = 1 << 28  # a sweep of 200,000 plans
HOW: Final = "make one with: pie-p predict ... --json > result.json, or pie-p sweep ... --json > plans.json"

Amount = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False, strict=True)]
Positive = Annotated[float, Field(gt=1e-30, le=1e30, allow_inf_nan=False, strict=True)]
Signed = Annotated[float, Field(ge=-1e30, le=1e30, allow_inf_nan=False, strict=True)]
Whole = Annotated[int, Field(ge=1, le=10**9, strict=True)]
Word = Annotated[str, Field(strict=True, max_length=2000)]


class _Read(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)  # a newer version may say more


class _Interval(_Read):
    level: Annotated[float, Field(gt=0, lt=1)]
    low_j: Amount
    high_j: Positive


class _Made(_Read):
    name: Word
    sha256: Word


class _Change(_Read):
    before: Any
    after: Any


class _Ratio(_Read):
    energy_j: Amount | None
    latency_s: Amount | None


class _WhatIf(_Read):
    changes: dict[Word, _Change]
    ratio: _Ratio


class _Footprint(_Read):
    carbon_g: Amount | None
    grid_g_per_kwh: Amount | None
    grid: Word
    cost: Amount | None
    price_per_kwh: Amount | None
    currency: Word

    @model_validator(mode="after")
    def _with_factors(self) -> _Footprint:
        for figure, factor in ((self.carbon_g, self.grid_g_per_kwh), (self.cost, self.price_per_kwh)):
            if figure is not None and factor is None:
                raise ValueError("a figure stands without its factor")
        return self


class _Prediction(_Read):
    llm: Word
    gpu: Word
    tp: Whole
    pp: Whole
    dp: Whole
    ep: Whole
    gpus: Whole
    batch: Amount
    prompt_tokens: Amount
    output_tokens: Amount
    cached_prompt_tokens: Amount = 0.0
    dtype: Word
    kv_dtype: Word = ""
    pue: Amount | None = None
    energy_j: Positive
    energy_per_output_token_j: Amount | None
    latency_s: Positive
    ttft_s: Amount
    tpot_s: Amount | None
    time_per_token_s: Amount | None = None
    avg_power_w: Amount
    power_limit_w: Amount
    interval: _Interval | None = None
    breakdown: dict[Word, Amount]
    prefill: dict[Word, Signed]
    decode: dict[Word, Signed]
    cluster: Word
    engine: Word
    mode: Word
    scope: Literal["gpu", "host", "facility"]
    warnings: list[Word]
    predictor: _Made
    tree: dict[Word, Signed] | None = None
    what_if: list[_WhatIf] | None = None
    footprint: _Footprint | None = None


class _Candidate(_Read):
    gpu: Word
    tp: Whole
    pp: Whole
    dp: Whole
    ep: Whole
    gpus: Whole
    batch: Amount
    dtype: Word
    engine: Word
    power_limit_w: Amount
    energy_j: Positive
    energy_per_output_token_j: Positive | None
    interval_low_j: Amount | None
    interval_high_j: Amount | None
    latency_s: Positive
    ttft_s: Amount
    tpot_s: Amount | None
    tokens_per_s: Amount | None
    tokens_per_s_per_gpu: Amount | None
    avg_power_w: Amount
    memory_share: Amount
    warnings: list[Word]


class _Infeasible(_Read):
    gpu: Word
    tp: Whole
    pp: Whole
    dp: Whole
    ep: Whole
    batch: Amount | None
    dtype: Word
    why: Word
    reason: Word
    configurations: Whole


class _Sweep(_Read):
    llm: Word
    prompt_tokens: Amount
    cached_prompt_tokens: Amount = 0.0
    output_tokens: Amount
    scope: Literal["gpu", "host", "facility"]
    pue: Amount | None = None
    predictor: _Made
    tried: Annotated[int, Field(ge=0, strict=True)]
    front: list[Annotated[int, Field(ge=0, strict=True)]]
    candidates: list[_Candidate]
    infeasible: list[_Infeasible]


class Result(NamedTuple):
    """A result that was read."""

    kind: Literal["prediction", "sweep"]
    data: dict[str, Any]


def read_result(path: str | Path) -> Result:
    """A prediction or a sweep, told apart by what stands in the file.

    Raises:
        InputError: no such file, no JSON, another thing, or a field that cannot be; one line says which.
    """
    place = Path(path)
    return parsed(read_whole(place, what="result", most=MOST_BYTES, error=InputError), what=str(place))


def parsed(content: bytes, *, what: str) -> Result:
    """A result out of its bytes, from a file or a pipe.

    Args:
        content: JSON in UTF-8.
        what: where it comes from, for messages.

    Raises:
        InputError: as `read_result`.
    """
    try:
        data = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{what} is not text, so no result; {HOW}") from None
    except (json.JSONDecodeError, RecursionError) as error:
        fault = "is empty" if not content.strip() else f"is not whole JSON ({_where(error)})"
        raise InputError(f"{what} {fault}; {HOW}") from None
    return checked(data, what=what)


def checked(data: object, *, what: str) -> Result:
    """What a file or a program handed over, as a result.

    Raises:
        InputError: neither a prediction nor a sweep, or a field that cannot be.
    """
    if not isinstance(data, dict) or not ({"energy_j", "breakdown"} <= data.keys() or {"candidates", "infeasible"} <= data.keys()):
        raise InputError(f"{what} is neither a prediction nor a sweep of pie_p; {HOW}")
    kind: Literal["prediction", "sweep"] = "sweep" if "candidates" in data else "prediction"
    try:
        (_Sweep if kind == "sweep" else _Prediction).model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"{what} is a damaged {kind}: {field or 'it'}: {first['msg']}; {HOW}") from None
    fault = _contradiction(data) if kind == "sweep" else ""
    if fault:
        raise InputError(f"{what} is a damaged sweep: {fault}; {HOW}")
    return Result(kind, data)


def _contradiction(data: dict[str, Any]) -> str:
    """What in a sweep cannot go together; "" where nothing does."""
    if any(place >= len(data["candidates"]) for place in data["front"]):
        return "front names a candidate that is not there"
    if data["output_tokens"] and any(each["energy_per_output_token_j"] is None for each in data["candidates"]):
        return "a candidate has no energy_per_output_token_j"
    return ""


def _where(error: Exception) -> str:
    return f"line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deep"
