"""Source: where a number comes from, and Sourced: a noun that knows it for each of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from pie_p.checks import Frozen, FrozenDict, Noun, Text
from pie_p.errors import InputError

SourceKind = Literal["datasheet", "measured", "published", "inferred", "given"]


class Source(Noun):
    """Where a number comes from."""

    kind: SourceKind
    cite: Text  # title, and link or DOI
    date: Annotated[str, Field(strict=True, pattern=r"^(\d{4}(-\d\d(-\d\d)?)?|undated)$")]  # of the document or of reading


GIVEN = Source(kind="given", cite="given by the user", date="undated")


def _is_given(source: object) -> bool:
    return isinstance(source, Mapping) and source.get("kind") == "given"


class Sourced(Noun):
    """A noun whose numbers name their sources; one without is 'given by the user'."""

    NUMBERS: ClassVar[tuple[str, ...]] = ()

    sources: Annotated[dict[str, Source], Frozen] = Field(default=FrozenDict(), repr=False)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("sources", {}), Mapping):
            return data
        filled, sources = dict(data), dict(data.get("sources", {}))
        cls._derive(filled, sources)
        strangers = [key for key in sources if str(key).split(".")[0] not in cls.NUMBERS]
        strange = next((key for key in strangers if not _is_given(sources.pop(key))), None)  # a file's unknown field is reported as such
        if strange is not None:
            raise InputError(f"a source for {str(strange)[:80]!r}, which is no number of a {cls.__name__}; it has {', '.join(cls.NUMBERS)}")
        for number in cls.NUMBERS:
            stated = number in filled and filled[number] != cls.model_fields[number].default
            if stated and not any(str(key).split(".")[0] == number for key in sources):
                sources[number] = GIVEN
        return {**filled, "sources": sources}

    @classmethod
    def _derive(cls, data: dict[str, Any], sources: dict[str, Any]) -> None:
        """Fill what can be inferred, in place."""

    def numbers(self) -> dict[str, float]:
        """Every number by name, peaks as `peak_flops_per_s.bf16`; not a default that nobody stated."""
        flat: dict[str, float] = {}
        for name in self.NUMBERS:
            value = getattr(self, name)
            if isinstance(value, dict):
                flat |= {f"{name}.{key}": part for key, part in value.items()}
            elif name in self.sources:
                flat[name] = value
        return flat

    def source_of(self, number: str) -> Source:
        """The source of a number.

        >>> from pie_p.hardware import load_gpu
        >>> load_gpu("h100-sxm-80gb").source_of("limit_w").kind
        'datasheet'
        """
        if number in self.sources:
            return self.sources[number]
        if number in self.numbers():
            return self.sources[number.split(".")[0]]
        raise InputError(f"no number {number!r} in a {type(self).__name__}; it has {', '.join(self.numbers())}")
