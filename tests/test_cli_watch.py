"""`pie-p watch` against an HTTP server on loopback: lines, JSON, rows, state, and what it says when nothing answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from simulated_server import Counts, sglang_page, vllm_page

from pie_p.cli import main

LLM = ["--llm", "llama-3.1-8b", "--gpu", "h100-sxm-80gb", "--predictor", "physics", "--every", "0.1", "--stop-after", "0.75"]


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that makes 100 tokens between two scrapes."""
    scrapes, page = [0], getattr(request, "param", vllm_page)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            scrapes[0] += 1
            counts = Counts(
                output_tokens=100 * scrapes[0], prompt_tokens=50 * scrapes[0], ttft_count=scrapes[0], steps=10 * scrapes[0], running=10
            )
            body = page(counts).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["watch", *words])
    return int(end.value.code or 0)


def test_lines_rows_and_state_tell_the_same(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, state = tmp_path / "rows", tmp_path / "state.json"
    assert run(address, *LLM, "--json", "-o", str(out), "--state", str(state), "--listen", "0") == 0
    shown = capsys.readouterr()
    *rows, last = [json.loads(line) for line in shown.out.splitlines()]
    assert len(rows) >= 2
    assert last["totals"]["total_j"] == pytest.approx(sum(row["energy_j"] for row in rows))
    assert last["totals"]["engine"].startswith("vllm")
    stored = [joules for file in out.iterdir() for joules in pq.read_table(file)["energy_j"].to_pylist()]
    assert stored == [row["energy_j"] for row in rows]
    assert json.loads(state.read_text())["engines"][0]["totals"]["output_tokens"] == last["totals"]["output_tokens"]
    assert "metrics on port" in shown.err
    assert "does not give vllm:prefix_cache_hits_total; lost: prompt tokens saved by the prefix cache" in shown.err
    run(address, *LLM, "--json", "--state", str(state))
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["totals"]["total_j"] > last["totals"]["total_j"]


def test_people_see_a_line_per_scrape_and_a_table_at_the_end(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(address, *LLM, "--scope", "host") == 0
    text = capsys.readouterr().out
    assert "per output token" in text
    assert "estimated, not metered: predictor physics" in text
    assert "host " in text


@pytest.mark.parametrize("address", [sglang_page], indirect=True)
def test_the_engine_is_what_answers_and_another_one_named_is_warned_of(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(address, *LLM, "--json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["totals"]["engine"].startswith("sglang")
    run(address, *LLM, "--engine", "vllm")
    assert f"{address} is sglang, the costs are those of vllm; give --engine sglang" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["http://127.0.0.1:1", *LLM], "InputError: nothing was estimated: "),
        (["ftp://a", *LLM], "InputError: 'ftp://a' is no address of a server"),
        (["http://127.0.0.1:1", "--llm", "llama-3.1-8b"], "InputError: neither gpu nor cluster given"),
        (["http://127.0.0.1:1", *LLM, "--listen", "here"], "InputError: listen = 'here' is no ADDRESS:PORT"),
        (["http://127.0.0.1:1", *LLM, "--every", "0"], "InputError: every = 0 is not allowed"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)
