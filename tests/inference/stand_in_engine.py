"""A stand-in for ``llama-server``: takes its options, logs a cache, answers, or misbehaves.

``STAND_IN`` says how: ``ends`` before it answers, ``stubborn`` where it ignores SIGTERM.
"""

import http.server
import json
import os
import signal
import sys

CELLS, MEBIBYTES = 768, 3.0


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests that carry the key."""

    def do_GET(self) -> None:
        key = os.environ.get("LLAMA_API_KEY")
        is_known = key is None or self.headers.get("Authorization") == f"Bearer {key}"
        self.send_response(200 if is_known else 401)
        self.end_headers()
        if is_known:
            self.wfile.write(json.dumps(sys.argv[1:]).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def main() -> None:
    mode = os.environ.get("STAND_IN", "")
    if mode == "ends":
        sys.exit("error: the weights are missing")
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sizes = f"{MEBIBYTES:.2f} MiB (   {CELLS} cells,   2 layers,  1/1 seqs)"
    sys.stdout.write(f"llama_kv_cache: size =    {sizes}\npid {os.getpid()}\n")
    sys.stdout.flush()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
