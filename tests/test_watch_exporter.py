"""Exporter: what Prometheus reads from it, asked by a parser and by a real Prometheus server."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from simulated_server import Counts, vllm_page

from pie_p.accounting import Accounting
from pie_p.errors import InputError
from pie_p.operating_points import OperatingPoints, operating_points
from pie_p.watch.exporter import Exporter, listen_address
from pie_p.watch.watcher import Watcher

PROMETHEUS = shutil.which("prometheus")


@pytest.fixture(scope="module")
def points() -> OperatingPoints:
    return operating_points({"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}, predictor="physics")


def advance(watcher: Watcher, at_s: float) -> None:
    tokens = int(1000 * at_s)
    counts = Counts(
        prompt_tokens=tokens, output_tokens=tokens, finished=tokens // 100, ttft_count=tokens // 100, steps=tokens // 10, running=10
    )
    watcher.take("http://server:8000", vllm_page(counts), now_s=at_s, wall_s=at_s)


@pytest.fixture
def exported(points: OperatingPoints) -> Iterator[tuple[Watcher, str]]:
    watcher = Watcher(points, accounting=Accounting(scope="host"))
    advance(watcher, 0.0)
    advance(watcher, 5.0)
    exporter = Exporter(watcher, "127.0.0.1:0")
    yield watcher, f"127.0.0.1:{exporter.port}"
    exporter.close()


def read(address: str) -> dict[str, list[Any]]:
    with urlopen(f"http://{address}/metrics") as answer:
        text = answer.read().decode()
    families = list(text_string_to_metric_families(text))
    return {sample.name: [one for one in family.samples if one.name == sample.name] for family in families for sample in family.samples}


def test_names_carry_their_unit_and_kinds_add_up_to_the_total(exported: tuple[Watcher, str]) -> None:
    watcher, address = exported
    found = read(address)
    energy = found["pie_p_energy_joules_total"]
    assert {sample.labels["kind"] for sample in energy} == {"compute", "communication", "wait", "host", "idle"}
    assert sum(sample.value for sample in energy) == pytest.approx(watcher.totals().total_j)
    assert sum(sample.value for sample in found["pie_p_power_watts"]) * 5.0 == pytest.approx(watcher.totals().total_j)
    [per_token] = found["pie_p_joules_per_output_token"]
    assert per_token.value == pytest.approx(watcher.totals().busy_j / 5000)
    assert found["pie_p_output_tokens_total"][0].value == 5000
    units = r"(joules|watts|seconds|tokens|requests|restarts|failures|ratio|up|metric|joules_per_output_token)(_total)?$|_info$"
    assert not [name for name in found if name.startswith("pie_p") and not re.search(units, name)]


def test_the_info_names_predictor_deployment_and_scope(exported: tuple[Watcher, str]) -> None:
    watcher, address = exported
    [info] = read(address)["pie_p_predictor_info"]
    assert info.labels["predictor_sha256"] == watcher.estimator.points.predictor["sha256"]
    assert (info.labels["llm"], info.labels["gpu"], info.labels["scope"], info.labels["tp"]) == (
        "llama-3.1-8b",
        "h100-sxm-80gb",
        "host",
        "1",
    )


def test_while_the_server_is_away_power_is_absent_not_zero_and_sums_stay(exported: tuple[Watcher, str]) -> None:
    watcher, address = exported
    before = read(address)
    watcher.miss("http://server:8000", "refused", now_s=6.0)
    away = read(address)
    assert "pie_p_power_watts" not in away
    assert away["pie_p_server_up"][0].value == 0.0
    assert away["pie_p_scrape_failures_total"][0].value == 1.0
    assert away["pie_p_energy_joules_total"] == before["pie_p_energy_joules_total"]


def test_a_missing_metric_is_exported_with_what_is_lost(exported: tuple[Watcher, str]) -> None:
    lost = {sample.labels["metric"]: sample.labels["lost"] for sample in read(exported[1])["pie_p_missing_metric"]}
    assert lost["vllm:prefix_cache_hits_total"].startswith("prompt tokens saved by the prefix cache")


def test_a_taken_port_is_one_clear_line(points: OperatingPoints) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"^cannot listen on 127\.0\.0\.1:{port}: .*; give another --listen ADDRESS:PORT$"):
            Exporter(Watcher(points), f"127.0.0.1:{port}")


@pytest.mark.parametrize("listen", ["", "here", "a:b", "127.0.0.1:", "127.0.0.1:70000", ":-1"])
def test_what_is_no_address_to_listen_on_is_one_clear_line(listen: str) -> None:
    with pytest.raises(InputError, match=r"is no ADDRESS:PORT; give one like 127.0.0.1:9401$"):
        listen_address(listen)


@pytest.fixture
def prometheus(exported: tuple[Watcher, str], tmp_path: Path) -> Iterator[str]:
    """A real Prometheus server that scrapes the exporter ten times a second."""
    if PROMETHEUS is None:
        pytest.skip("no prometheus on this machine: apt-get install prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 100ms, scrape_timeout: 100ms}}\n"
        f"scrape_configs:\n  - job_name: pie_p\n    static_configs: [{{targets: ['{exported[1]}']}}]\n"
    )
    flags = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([PROMETHEUS, *flags], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def ask(prometheus: str, query: str, *, until: int = 300) -> list[Any]:
    """The answer to a query, as soon as there is one."""
    for _ in range(until):
        try:
            with urlopen(f"{prometheus}/api/v1/query?query={quote(query)}") as answer:
                result = json.load(answer)["data"]["result"]
            if result:
                return list(result)
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"no answer to {query}")


def test_a_real_prometheus_scrapes_stores_and_sums_what_is_exported(exported: tuple[Watcher, str], prometheus: str) -> None:
    watcher, _ = exported
    [first] = ask(prometheus, "sum(pie_p_energy_joules_total)")
    assert float(first["value"][1]) == pytest.approx(watcher.totals().total_j)
    advance(watcher, 10.0)
    ask(prometheus, f"sum(pie_p_energy_joules_total) > {float(first['value'][1])}")
    [power] = ask(prometheus, "sum(pie_p_power_watts)")
    assert float(power["value"][1]) == pytest.approx(watcher.totals().total_j / 10, rel=0.01)
    assert ask(prometheus, "resets(pie_p_energy_joules_total{kind='compute'}[1m])")[0]["value"][1] == "0"
    [up] = ask(prometheus, "up{job='pie_p'}")
    assert up["value"][1] == "1"
