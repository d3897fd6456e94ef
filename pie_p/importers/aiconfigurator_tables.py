"""Every aiconfigurator table below a path, with or without power: what the two importers of that data set share."""

from __future__ import annotations

from pathlib import Path

from pie_p.importers.aiconfigurator_comm import COMM_READERS, comm_tables
from pie_p.importers.aiconfigurator_compute import READERS
from pie_p.importers.aiconfigurator_files import Columns, known_files, measured, measurements, place, usable
from pie_p.importers.gathering import Gathered, needed_columns, parquet_columns
from pie_p.tables import Table

OTHER_IMPORTER = {True: "no power column: see aiconfigurator_time", False: "power column: see aiconfigurator_power"}


def read_tables(gathered: Gathered, *, with_power: bool) -> None:
    """Read the tables that have a power column, or those that have none; the others are accounted for."""
    files = known_files(gathered, frozenset(READERS) | frozenset(COMM_READERS))
    for done, path in enumerate(files, start=1):
        content = gathered.read(path, what="aiconfigurator table")
        columns = parquet_columns(content, what=str(path), needed=("kernel_source",))
        rows = len(columns["kernel_source"])
        if ("power" in columns) is not with_power:
            gathered.reject(path, OTHER_IMPORTER[with_power], rows)
        elif not gathered.is_repeat(path, content, rows, measurements=measurements(path, columns)):
            _keep(gathered, path, gathered.unrepeated(path, columns))
        gathered.step(path, done, len(files))


def _keep(gathered: Gathered, path: Path, columns: Columns) -> None:
    if path.name in COMM_READERS:
        needed_columns(columns, what=str(path), needed=COMM_READERS[path.name].needed)
        for table in comm_tables(gathered, path, columns):
            gathered.add(table)
        return
    reader = READERS[path.name]
    needed_columns(columns, what=str(path), needed=(*reader.needed, "latency"))
    kept = usable(gathered, path, columns, formats=reader.formats)
    rows = len(kept["latency"])
    if rows:
        told = {**reader.counts(kept), **measured(kept), **place(gathered, path, kept, rows)}
        gathered.add(Table.from_columns("operators", told))
