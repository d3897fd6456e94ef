"""Plans: what a campaign is to measure, as written down in TOML (or YAML, where PyYAML is installed)."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pie_p.errors import InputError, MissingExtraError
from pie_p.extras import require
from pie_p.hardware import gpu_names, load_gpu
from pie_p.profiling.measurement import Procedure

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
YAML: Final = (".yaml", ".yml")


class AnyPlan(BaseModel):
    """What every plan has; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")  # becomes the `source` of every row
    gpu: str = Field(min_length=1)  # name in the catalogue, or "cpu"
    procedure: Procedure = Procedure()

    @field_validator("gpu")
    @classmethod
    def _in_the_catalogue(cls, name: str) -> str:
        """The catalogue's name, because training passes over rows of boards that it does not know."""
        if name == "cpu":
            return name
        found = load_gpu(name).name
        if found not in gpu_names():
            raise ValueError(f"{found!r} is described in a file and not in the catalogue; add it there: docs/how-to/add-a-gpu.md")
        return found

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when the plan does."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]


Plan = TypeVar("Plan", bound=AnyPlan)


def load_plan(path: str | Path, kind: type[Plan]) -> Plan:
    """Read a plan of a known kind: `load_plan("plan.toml", CampaignPlan)`.

    Raises:
        InputError: no such file, not TOML or YAML, or a field that cannot be, named.
    """
    return checked_plan(path, read_plan(path), kind)


def read_plan(path: str | Path) -> Mapping[str, Any]:
    """A plan's fields, not yet checked. Raises as `load_plan`."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        fields = _yaml(text) if Path(path).suffix.lower() in YAML else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"cannot read the plan {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; a plan is TOML or YAML") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    except MissingExtraError:
        raise InputError(f"{path} is YAML, and PyYAML is not installed: pip install pyyaml, or write the plan in TOML") from None
    if not isinstance(fields, Mapping):
        raise InputError(f"{path} holds no fields; a plan has at least name and gpu")
    return fields


def _yaml(text: str) -> Any:
    yaml = require("yaml", extra="profile")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {' '.join(str(error).split())}") from None


def checked_plan(path: str | Path, fields: Mapping[str, Any], kind: type[Plan]) -> Plan:
    """A plan from its fields; the first that cannot be is named."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')} (got {str(first['input'])[:40]!r})"
        ) from None


def parse_budget(text: str) -> float:
    """A time box [s].

    >>> parse_budget("8m"), parse_budget("1.5h"), parse_budget("90")
    (480.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if found is None or float(found[1]) <= 0:
        raise InputError(f"{text!r} is no time box; write 90s, 8m or 1.5h")
    return float(found[1]) * UNITS_S[found[2] or "s"]
