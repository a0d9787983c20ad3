"""A judge for the example: does an answer end in the truth? python examples/judged_reward/judge.py [PORT]"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Judge(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = question["answer"].strip().endswith(question["truth"])
        reply = json.dumps({"right": right}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Not a line for every answer."""


def main(port: int) -> None:
    with ThreadingHTTPServer(("127.0.0.1", port), Judge) as server:
        sys.stdout.write(f"judge: http://127.0.0.1:{server.server_address[1]}/judge\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1] if sys.argv[1:] else 8765))
