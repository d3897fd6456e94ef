"""A prediction or a sweep as one HTML page: no network, no library, light and dark, for people who never saw pie_p."""

from __future__ import annotations

from pathlib import Path

from pie_p.errors import InputError
from pie_p.report_html.predictions import prediction_page
from pie_p.report_html.sweeps import sweep_page
from pie_p.result_files import Result, read_result
from pie_p.storage import write_atomically

__all__ = ["report_html", "write_page", "write_report"]


def report_html(result: Result, *, source: str = "") -> str:
    """The page.

    Args:
        result: what `pie_p.result_files.read_result` read.
        source: name of the file it came from, shown under provenance.
    """
    return sweep_page(result.data, source=source) if result.kind == "sweep" else prediction_page(result.data, source=source)


def write_report(path: str | Path, out: str | Path) -> Result:
    """Read a result, write its page, whole or not at all.

    Raises:
        InputError: no result at `path`, or no writing at `out`.
    """
    result, place = read_result(path), Path(out)
    if place.resolve() == Path(path).resolve():
        raise InputError(f"the page would overwrite {path}; give another name with -o, as report.html")
    write_page(result, place, source=Path(path).name)
    return result


def write_page(result: Result, out: Path, *, source: str) -> None:
    """Write the page of a result that was read, whole or not at all.

    Raises:
        InputError: the disk refuses.
    """
    write_atomically(out, report_html(result, source=source).encode(), error=InputError)
