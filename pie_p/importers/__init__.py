"""Importers of public measurements: one module per data set, one function to call.

`import_source("mlenergy_v3", path, out)` reads a clone of the public repository (or any folder that holds its files) and writes a
profile. The registry below and `profiles/sources.toml` name the same sources; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from pie_p.errors import ProfileError, did_you_mean
from pie_p.importers.gathering import Gathered, Progress
from pie_p.profile_manifest import Manifest, new_manifest
from pie_p.profiles import check_folder, save_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A public data set: where it comes from, and what it holds."""

    name: str
    where: str  # repository or package
    version: str  # commit or release the importer was written against
    licence: str
    holds: str


SOURCES: Final[dict[str, Source]] = {
    source.name: source
    for source in (
        Source(
            name="mlenergy_v3",
            where="https://github.com/ml-energy/leaderboard",
            version="0cd52dab",
            licence="Apache-2.0",
            holds="end-to-end energy of vLLM 0.11.1 on H100 and B200, GPU boards",
        ),
        Source(
            name="mlenergy_v2",
            where="https://github.com/ml-energy/leaderboard-v2",
            version="c3af7f31",
            licence="Apache-2.0",
            holds="end-to-end energy of vLLM 0.5.4 on H100, GPU boards",
        ),
        Source(
            name="aiconfigurator_power",
            where="https://github.com/ai-dynamo/aiconfigurator",
            version="095f58a5 (main) and dcc4320ed (branch)",
            licence="Apache-2.0",
            holds="time and board power per operator on H200 and B200",
        ),
        Source(
            name="aiconfigurator_time",
            where="https://pypi.org/project/aiconfigurator-core",
            version="0.12.0",
            licence="Apache-2.0",
            holds="time per operator and collective on nine systems, no power",
        ),
        Source(
            name="aiconfigurator_e2e",
            where="https://pypi.org/project/aiconfigurator-core",
            version="0.12.0",
            licence="Apache-2.0",
            holds="TTFT and TPOT of whole deployments on H100, H200 and B200, no power",
        ),
        Source(
            name="vidur",
            where="https://github.com/microsoft/vidur",
            version="7d475133",
            licence="MIT",
            holds="time of dense operators, all-reduce and send/recv on A100, H100 and A40, no power",
        ),
        Source(
            name="mlperf_power",
            where="https://github.com/mlcommons/inference_results_v4.1",
            version="198fc467",
            licence="Apache-2.0",
            holds="wall power of an 8 x H200 server under three LLM benchmarks",
        ),
    )
}


def import_source(
    name: str, path: str | Path, out: str | Path, *, progress: Progress | None = None, replace_existing: bool = False
) -> Manifest:
    """Read a public data set below `path` and write it as a profile into `out`.

    Args:
        name: one of `SOURCES`.
        path: a clone of the public repository, an unpacked wheel, or any folder with the same files.
        out: folder of the new profile.
        progress: called as `(file, done, total)`.
        replace_existing: a profile in `out` is replaced, once the new one is complete.

    Raises:
        UnknownNameError: no such source.
        ProfileError: the files are missing, torn or foreign; nothing is written then.
    """
    source = source_named(name)
    check_folder(out, replace_existing=replace_existing)
    gather: Callable[[Gathered], None] = import_module(f"pie_p.importers.{source.name}").gather
    gathered = Gathered(source.name, Path(path), progress)
    gather(gathered)
    tables = gathered.whole()
    manifest = new_manifest(
        source.name,
        origin="imported",
        source=source.name,
        source_version=f"{source.where} @ {source.version}",
        licence=source.licence,
        inputs=tuple(gathered.inputs),
        rejected=tuple(gathered.rejected),
    )
    return save_profile(out, manifest, tables, replace_existing=replace_existing)


def source_named(name: str) -> Source:
    """The source of that name.

    >>> source_named("mlenergy_v3").licence
    'Apache-2.0'
    """
    if name not in SOURCES:
        raise ProfileError(f"no importer for {name!r}.{did_you_mean(name, SOURCES)} Importers: {', '.join(SOURCES)}")
    return SOURCES[name]
