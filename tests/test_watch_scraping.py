"""Scraping: real HTTP servers on loopback that answer, stall, fail, lie and come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from simulated_server import Counts, trtllm_page, vllm_page

from pie_p.errors import InputError
from pie_p.operating_points import operating_points
from pie_p.watch.scraping import LONGEST_WAIT_S, Scraper, Target, detect, targets
from pie_p.watch.watcher import Watcher

Answer = Callable[[BaseHTTPRequestHandler], None]


class Site:
    """A server on a free port whose answer can be changed."""

    def __init__(self) -> None:
        self.answer: Answer = page("")
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def page(text: str, *, status: int = 200, path: str = "/metrics") -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        found = request.path == path
        body = (text if found else "not found").encode()
        request.send_response(status if found else 404)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


@pytest.fixture(scope="module")
def watcher_of() -> Callable[[], Watcher]:
    points = operating_points({"llm": "llama-3.1-8b", "gpu": "h100-sxm-80gb"}, predictor="physics")
    return lambda: Watcher(points)


def test_a_round_takes_what_every_server_answers(site: Site, watcher_of: Callable[[], Watcher]) -> None:
    site.answer = page(vllm_page(Counts(output_tokens=10)))
    watcher, told = watcher_of(), []
    with Scraper(watcher, targets([site.address, "http://127.0.0.1:1"]), every_s=0.1, after=lambda: told.append(1)) as scraper:
        scraper.round()
        site.answer = page(vllm_page(Counts(output_tokens=30)))
        scraper.round()
    assert watcher.servers[site.address].up
    assert watcher.totals().output_tokens == 20
    assert not watcher.servers["http://127.0.0.1:1"].up
    assert watcher.servers["http://127.0.0.1:1"].failures >= 1
    assert "refused" in watcher.servers["http://127.0.0.1:1"].last_failure
    assert len(told) == 2


def test_tensorrt_llms_metrics_are_found_where_it_keeps_them(site: Site) -> None:
    site.answer = page(trtllm_page(Counts()), path="/prometheus/metrics")
    [target] = targets([site.address])
    assert detect([target]) == "trtllm"
    assert target.url == f"{site.address}/prometheus/metrics"
    assert detect(targets(["http://127.0.0.1:1"])) is None


def _drop(request: BaseHTTPRequestHandler) -> None:
    request.connection.close()


def _drip(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    try:
        for _ in range(100):
            request.wfile.write(b"# nothing\n")
            request.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (page("", status=500), "answers with HTTP status 500"),
        (page("<html>"), "no metric of vLLM, SGLang or TensorRT-LLM there"),
        (page("vllm:num_requests_running{ 3\n"), "is no Prometheus text"),
        (_drop, ""),
        (_drip, "was still answering after 0.3 s"),
    ],
)
def test_a_server_that_fails_is_counted_with_its_reason_and_taken_again_when_it_is_back(
    site: Site, watcher_of: Callable[[], Watcher], answer: Answer, reason: str
) -> None:
    watcher, address = watcher_of(), f"{site.address}/metrics"
    clock = iter(range(10_000)).__next__ if answer is not _drip else time.monotonic
    with Scraper(watcher, targets([address]), every_s=0.001, timeout_s=0.3 if answer is _drip else 5.0, clock=clock) as scraper:
        site.answer = page(vllm_page(Counts(output_tokens=10)))
        scraper.round()
        site.answer = answer
        scraper.round()
        server = watcher.servers[address]
        assert (server.up, server.failures) == (False, 1)
        assert reason in server.last_failure
        site.answer = page(vllm_page(Counts(output_tokens=30)))
        time.sleep(0.01)
        scraper.round()
    assert server.up
    assert watcher.totals().output_tokens == 20
    assert watcher.totals().bridged_s == watcher.totals().seconds > 0


def test_looking_for_the_engine_ends_at_a_page_that_does_not_end_or_is_no_text(site: Site) -> None:
    site.answer = _drip
    assert detect(targets([f"{site.address}/metrics"]), timeout_s=0.2) is None

    def flood(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        with suppress(OSError):
            while True:
                request.wfile.write(b"vllm:x 1\n" * 100_000)

    site.answer = flood
    assert detect(targets([f"{site.address}/metrics"]), timeout_s=30.0) is None
    site.answer = lambda request: (request.send_response(200), request.end_headers(), request.wfile.write(b"\xff"))[0]
    assert detect(targets([f"{site.address}/metrics"])) is None


def test_a_server_that_does_not_answer_is_asked_ever_more_seldom_up_to_a_minute() -> None:
    target, now_s, waits = Target("http://a"), 0.0, []
    for _ in range(8):
        target.failed(now_s=now_s, every_s=5.0)
        waits.append(target.due_s - now_s)
        now_s = target.due_s
    assert waits == [5, 10, 20, 40, LONGEST_WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S]
    target.answered("http://a/metrics")
    assert (target.failures, target.due_s) == (0, 0.0)


def test_rounds_keep_their_beat_and_a_late_one_is_not_made_up_for(watcher_of: Callable[[], Watcher]) -> None:
    now, begun = [0.0], []

    def pause(seconds: float) -> None:
        now[0] += seconds

    def after() -> None:
        begun.append(now[0])
        now[0] += 12.0 if len(begun) == 2 else 1.0  # the second round takes longer than two periods

    with Scraper(watcher_of(), [Target("http://127.0.0.1:1", due_s=1e9)], every_s=5.0, clock=lambda: now[0], after=after) as scraper:
        scraper.run(stop=lambda: len(begun) >= 5, pause=pause)
    assert begun == pytest.approx([0.0, 5.0, 17.0, 22.0, 27.0])


@pytest.mark.parametrize("address", ["", "ftp://a", "http://", "http://a:99999", "file:///etc/passwd", "http://[::1"])
def test_what_is_no_address_is_one_clear_line(address: str) -> None:
    with pytest.raises(InputError, match=r"is no address of a server; give one like http://localhost:8000$"):
        targets([address])


def test_an_address_given_twice_would_count_twice() -> None:
    with pytest.raises(InputError, match=r"is given twice; its energy would count twice$"):
        targets(["localhost:8000", "http://localhost:8000"])
    with pytest.raises(InputError, match=r"^no address of a server"):
        targets([])
