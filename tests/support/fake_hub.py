"""A Hugging Face hub on 127.0.0.1 that fails on demand."""

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq

REVISION = "0123456789abcdef" * 2 + "01234567"
STALL_LIMIT_S = 120

Answer = Callable[["HubHandler", bytes], None]


def parquet_bytes(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def published_rows(*, prompts: int, copies: int) -> list[dict]:
    """`copies` passes over the prompts, each row with its own index, like the published files."""
    return [
        {
            "data_source": "math_dapo",
            "prompt": [{"content": f"What is {i} + {i}? ASCII only: $\\frac{{{i}}}{{2}}$", "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(2 * i), "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"{copy}-{i}"},
        }
        for copy in range(copies)
        for i in range(prompts)
    ]


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        answer = hub.next_answer(self.path, self.headers.get("Range"))
        try:
            answer(self, hub.files.get(self.path, b""))
        except ConnectionError:  # curl went away: it gave up or was killed
            pass

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.start_answer(status, len(body), **headers)
        self.wfile.write(body)

    def start_answer(self, status: int, length: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


class Hub:
    """Serves `files` with ranges; the answers in `script` are used up first, one per request."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.files: dict[str, bytes] = {}
        self.script: list[Answer] = []
        self.requests: list[tuple[str, str | None]] = []
        self.stalled = threading.Event()
        self.released = threading.Event()

    def publish(self, name: str, table: pa.Table, *, prompts: int) -> str:
        """Returns the row of the table of pins."""
        return self.publish_bytes(name, parquet_bytes(table), rows=table.num_rows, prompts=prompts)

    def publish_bytes(self, name: str, body: bytes, *, rows: int, prompts: int) -> str:
        self.files[f"/datasets/org/data/resolve/{REVISION}/data/{name}"] = body
        sha256 = hashlib.sha256(body).hexdigest()
        return f"{name} org/data {REVISION} data/{name} {sha256} {rows} {prompts}\n"

    @property
    def ranges(self) -> list[str | None]:
        return [requested for _, requested in self.requests]

    def next_answer(self, path: str, requested_range: str | None) -> Answer:
        self.requests.append((path, requested_range))
        if self.script:
            return self.script.pop(0)
        return self.serve if path in self.files else self.status(404)

    @staticmethod
    def serve(handler: HubHandler, body: bytes) -> None:
        requested = handler.headers.get("Range")
        if requested is None:
            handler.send(200, body)
            return
        first = int(requested.removeprefix("bytes=").removesuffix("-"))
        if first >= len(body):
            handler.send(416, b"", Content_Range=f"bytes */{len(body)}")
            return
        handler.send(206, body[first:], Content_Range=f"bytes {first}-{len(body) - 1}/{len(body)}")

    @staticmethod
    def ignore_range(handler: HubHandler, body: bytes) -> None:
        handler.send(200, body)

    @staticmethod
    def status(code: int) -> Answer:
        return lambda handler, body: handler.send(code, b"<html>no data here</html>")

    @staticmethod
    def other_bytes(other: bytes) -> Answer:
        return lambda handler, body: handler.send(200, other)

    @staticmethod
    def redirect(to: str) -> Answer:
        return lambda handler, body: handler.send(302, b"", Location=to)

    @staticmethod
    def end_early_without_length(sent: int) -> Answer:
        """What a truncating proxy looks like: nothing in the answer tells that more should come."""

        def answer(handler: HubHandler, body: bytes) -> None:
            handler.send_response(200)
            handler.send_header("Connection", "close")
            handler.end_headers()
            handler.close_connection = True
            handler.wfile.write(body[:sent])

        return answer

    @staticmethod
    def break_after(sent: int) -> Answer:
        def answer(handler: HubHandler, body: bytes) -> None:
            handler.start_answer(200, len(body))
            handler.wfile.write(body[:sent])

        return answer

    def stall_after(self, sent: int) -> Answer:
        """Sends some bytes, then nothing until `released`; then the rest, if anyone still listens."""

        def answer(handler: HubHandler, body: bytes) -> None:
            handler.start_answer(200, len(body))
            handler.wfile.write(body[:sent])
            self.stalled.set()
            self.released.wait(STALL_LIMIT_S)
            handler.wfile.write(body[sent:])

        return answer

    def stall_before_headers(self, handler: HubHandler, body: bytes) -> None:
        self.released.wait(STALL_LIMIT_S)


@contextmanager
def running_hub() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.daemon_threads = True
    hub = server.hub = Hub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    hub.released.set()
    server.shutdown()
    server.server_close()
    thread.join(STALL_LIMIT_S)
