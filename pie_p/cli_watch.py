"""`pie-p watch`: watts and joules of a running server, from its own metrics."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pie_p.cli_options import complete_dtype, complete_engine, complete_gpu, complete_llm, complete_predictor, complete_scope, figure
from pie_p.console import console
from pie_p.errors import InputError
from pie_p.quantities import as_float

if TYPE_CHECKING:
    from pie_p.watch.watcher import Moment, Watcher


def watch(
    servers: Annotated[list[str], typer.Argument(help="Addresses, as http://localhost:8000; several are copies of the deployment.")],
    llm: Annotated[str, typer.Option(help="Name of the LLM (pie-p llms), or path of a config.json.", autocompletion=complete_llm)],
    gpu: Annotated[str | None, typer.Option(help="GPU board (pie-p hardware).", autocompletion=complete_gpu)] = None,
    cluster: Annotated[str | None, typer.Option(help="TOML file of an own cluster, instead of --gpu.")] = None,
    tp: Annotated[float, figure("Tensor-parallel ranks.")] = 1,
    pp: Annotated[float, figure("Pipeline stages.")] = 1,
    dp: Annotated[float, figure("Data-parallel ranks behind one address.")] = 1,
    ep: Annotated[float, figure("Ranks the experts are spread over.")] = 1,
    dtype: Annotated[str | None, typer.Option(help="Storage of the weights.", autocompletion=complete_dtype)] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Storage of the KV cache.", autocompletion=complete_dtype)] = None,
    engine: Annotated[
        str | None, typer.Option(help="vllm, sglang or trtllm, optionally ==VERSION; default what answers.", autocompletion=complete_engine)
    ] = None,
    power_limit_w: Annotated[float | None, figure("Power cap per board [W].")] = None,
    idle_w: Annotated[float | None, figure("Power per board with nothing to do [W]; default the catalogue's active idle.")] = None,
    scope: Annotated[str, typer.Option(help="gpu, host or facility.", autocompletion=complete_scope)] = "gpu",
    pue: Annotated[float | None, figure("Power usage effectiveness, for --scope facility.")] = None,
    exclusive_host: Annotated[bool, typer.Option(help="Count the whole host, idle neighbour boards included.")] = False,
    predictor: Annotated[str | None, typer.Option(help="Name or path of a predictor.", autocompletion=complete_predictor)] = None,
    served_name: Annotated[str | None, typer.Option(help="The LLM to follow, where an address serves several.")] = None,
    every: Annotated[float, figure("Time between scrapes [s].")] = 5,
    stop_after: Annotated[float | None, figure("Stop after so long [s]; default never.")] = None,
    listen: Annotated[str | None, typer.Option(help="Serve Prometheus metrics on ADDRESS:PORT.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for Parquet rows.")] = None,
    state: Annotated[Path | None, typer.Option(help="File through which the sums survive a restart.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line: each scrape's row, then the totals.")] = False,
) -> None:
    """Estimate power and energy of a running server live, without a meter."""
    every = as_float("every", every, least=0.1, most=3600)
    seconds = None if stop_after is None else as_float("stop_after", stop_after, above=True)
    idle_w = None if idle_w is None else as_float("idle_w", idle_w, most=1e5)
    from pie_p.accounting import Accounting
    from pie_p.operating_points import operating_points
    from pie_p.watch.exporter import Exporter
    from pie_p.watch.rows import RowWriter
    from pie_p.watch.scraping import Scraper, detect, targets
    from pie_p.watch.watcher import Watcher, identity

    accounting = Accounting(scope=scope, pue=pue, exclusive_host=exclusive_host)  # type: ignore[arg-type]
    addresses = targets(servers)
    deployment: dict[str, Any] = {
        "llm": llm, "gpu": gpu, "cluster": cluster, "tp": tp, "pp": pp, "dp": dp, "ep": ep, "dtype": dtype, "kv_dtype": kv_dtype,
        "power_limit_w": power_limit_w, "engine": engine or detect(addresses, served_name=served_name) or "vllm",
    }  # fmt: skip
    points = operating_points(deployment, predictor=predictor)
    with ExitStack() as stack:
        view = stack.enter_context(_lines(as_json=as_json) if as_json or not console().is_terminal else _live())
        rows = RowWriter(out, identity(points, accounting)) if out else None

        def seen(moment: Moment) -> None:
            if rows:
                rows.add(moment)
            view.moment(moment)

        watcher = Watcher(
            points, accounting=accounting, idle_w=idle_w, served_name=served_name, state=state, wall_s=time.time(), on_moment=seen
        )
        if rows:
            stack.callback(rows.flush)
        if listen:
            exporter = Exporter(watcher, listen)
            stack.callback(exporter.close)
            sys.stderr.write(f"metrics on port {exporter.port}\n")
        scraper = Scraper(watcher, addresses, every_s=every, timeout_s=min(4.0, every), after=lambda: view.after(watcher))
        stack.enter_context(scraper)
        scraper.run(stop=stack.enter_context(_until(seconds)))
        view.end(watcher)
    if not any(server.engines for server in watcher.servers.values()):
        reason = next((server.last_failure for server in watcher.servers.values() if server.last_failure), "no answer")
        raise InputError(f"nothing was estimated: {reason}")


@contextmanager
def _until(seconds: float | None) -> Iterator[Callable[[], bool]]:
    """True once the time is over or somebody asked to stop (Ctrl-C, SIGTERM)."""
    end_s = None if seconds is None else time.monotonic() + seconds
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)} if _in_main_thread() else {}
    try:
        yield lambda: bool(asked) or (end_s is not None and time.monotonic() >= end_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    from threading import current_thread, main_thread

    return current_thread() is main_thread()


class _View:
    """What people see: lines, of text or JSON. Warnings once each, on standard error."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json, self.said = as_json, set[str]()

    def moment(self, moment: Moment) -> None:
        """One engine in one window."""
        if self.as_json:
            from pie_p.watch.rows import row_of

            sys.stdout.write(json.dumps(row_of(moment), allow_nan=False) + "\n")
        else:
            from pie_p.watch_view import moment_line

            sys.stdout.write(moment_line(moment) + "\n")
        sys.stdout.flush()

    def after(self, watcher: Watcher) -> None:
        """A round is over."""
        from pie_p.watch_view import watch_footer

        for line in watch_footer(watcher):
            if line not in self.said and not line.startswith("not estimated"):
                sys.stderr.write(line + "\n")
            self.said.add(line)

    def end(self, watcher: Watcher) -> None:
        """The sums."""
        if self.as_json:
            sys.stdout.write(json.dumps({"totals": watcher.to_dict()}, allow_nan=False) + "\n")
        else:
            from pie_p.watch_view import watch_footer, watch_table

            screen = console()
            screen.print(watch_table(watcher))
            for line in watch_footer(watcher):
                screen.print(line, markup=False)


class _LiveView(_View):
    """A table that renews itself."""

    def __init__(self, live: Any) -> None:
        super().__init__(as_json=False)
        self.live = live

    def moment(self, moment: Moment) -> None:
        """The table shows it after the round."""

    def after(self, watcher: Watcher) -> None:
        """Draw the table anew."""
        from rich.console import Group
        from rich.text import Text

        from pie_p.watch_view import watch_footer, watch_table

        self.live.update(Group(watch_table(watcher), *map(Text, watch_footer(watcher))), refresh=True)

    def end(self, watcher: Watcher) -> None:
        """The last table stays."""
        self.after(watcher)


@contextmanager
def _lines(*, as_json: bool) -> Iterator[_View]:
    yield _View(as_json=as_json)


@contextmanager
def _live() -> Iterator[_View]:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        yield _LiveView(live)
