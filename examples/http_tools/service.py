"""Two services for the example, one that works and one that is broken: python examples/http_tools/service.py [PORT]"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class Services(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path != "/add":
            self.send_error(503, "the index is not loaded")
            return
        numbers = parse_qs(asked.query)
        reply = str(int(numbers["first"][0]) + int(numbers["second"][0])).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Not a line for every call."""


def main(port: int) -> None:
    with ThreadingHTTPServer(("127.0.0.1", port), Services) as server:
        sys.stdout.write(f"services: http://127.0.0.1:{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1] if sys.argv[1:] else 8766))
