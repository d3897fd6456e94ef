"""A server on loopback that does what a test tells it: one behaviour per request, in order, then the last one for ever."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECES = ("one ", "two ", "three")  # a good answer: 3 words in 3 pieces
TOKENS, PROMPT_TOKENS = 5, 7  # that it claims


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        content, kind = self.server.pages.get(self.path, ('{"data": [{"id": "tiny"}]}', "application/json"))
        self.answer(200, content, {"Content-Type": kind})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append({"path": self.path, "headers": dict(self.headers), "at_s": time.monotonic(), **body})
        script = self.server.script
        script[min(number, len(script) - 1)](self)

    def answer(self, status: int, content: str, headers: dict[str, str] | None = None) -> None:
        data = content.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def piece(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


Behaviour = Callable[[Handler], None]


class Scripted(ThreadingHTTPServer):
    daemon_threads = True
    script: list[Behaviour]

    def __init__(self, script: list[Behaviour]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.asked, self.lock, self.pages = script, [], threading.Lock(), {}
        self.asked: list[dict[str, Any]]
        self.pages: dict[str, tuple[str, str]]

    def handle_error(self, *_: object) -> None:
        pass  # a client that has gone away

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def scripted(*script: Behaviour) -> Iterator[Scripted]:
    server = Scripted(list(script))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def event(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def text_event(text: str, finish: str | None = None) -> str:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish}])


@dataclass(frozen=True)
class Good:
    """A whole response."""

    pieces: tuple[str, ...] = PIECES
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS})
    done: bool = True
    pause_s: float = 0.0

    def __call__(self, handler: Handler) -> None:
        handler.begin()
        for piece in self.pieces:
            time.sleep(self.pause_s)
            handler.piece(text_event(piece))
        handler.piece(text_event("", "length"))
        if self.usage is not None:
            handler.piece(event(choices=[], usage=self.usage))
        if self.done:
            handler.piece("data: [DONE]\n\n")
        handler.end()


GOOD = Good()


def status(code: int, content: str = "", **headers: str) -> Behaviour:
    return lambda handler: handler.answer(code, content, {name.replace("_", "-"): value for name, value in headers.items()})


def slow(delay_s: float, then: Behaviour = GOOD) -> Behaviour:
    def behave(handler: Handler) -> None:
        time.sleep(delay_s)
        then(handler)

    return behave


def stream(*pieces: str, then: str = "end", delay_s: float = 0.0) -> Behaviour:
    """Raw text in a stream; then it ends, stalls or hangs up."""

    def behave(handler: Handler) -> None:
        handler.begin()
        for piece in pieces:
            handler.piece(piece)
        if then == "stall":
            time.sleep(delay_s)
        if then == "hang up":
            handler.hang_up()
        else:
            handler.end()

    return behave
