"""A Hugging Face hub on 127.0.0.1, as far as huggingface_hub asks it for files."""

import hashlib
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq

REVISION = "0123456789abcdef" * 2 + "01234567"


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
    def do_HEAD(self) -> None:
        self._answer(sends_body=False)

    def do_GET(self) -> None:
        self._answer(sends_body=True)

    def _answer(self, *, sends_body: bool) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        hub.requests.append(self.path)
        body = hub.files.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        if body is not None:
            self.send_header("X-Repo-Commit", REVISION)
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.end_headers()
        if sends_body and body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Hub:
    """Serves `files`, by path."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []

    def publish(self, name: str, table: pa.Table, *, prompts: int) -> str:
        """Returns the row of the table of pins."""
        return self.publish_bytes(name, parquet_bytes(table), rows=table.num_rows, prompts=prompts)

    def publish_bytes(self, name: str, body: bytes, *, rows: int, prompts: int) -> str:
        self.files[f"/datasets/org/data/resolve/{REVISION}/data/{name}"] = body
        sha256 = hashlib.sha256(body).hexdigest()
        return f"{name} org/data {REVISION} data/{name} {sha256} {rows} {prompts}\n"


@contextmanager
def running_hub() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.daemon_threads = True
    hub = server.hub = Hub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join(60)
