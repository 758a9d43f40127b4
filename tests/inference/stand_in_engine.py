"""A stand-in for ``llama-server``: takes its options, logs a cache, answers, or misbehaves.

``STAND_IN`` says how: ``ends`` before it answers, ``brief`` after one answer, ``mute`` where it
never answers, ``stubborn`` where it and a child of its own ignore SIGTERM.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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
        # As the processes of vLLM.
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        sys.stdout.write(f"pid {child.pid}\n")
    sizes = f"{MEBIBYTES:.2f} MiB (   {CELLS} cells,   2 layers,  1/1 seqs)"
    sys.stdout.write(f"llama_kv_cache: size =    {sizes}\npid {os.getpid()}\n")
    sys.stdout.flush()
    while mode == "mute":
        time.sleep(1)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if mode == "brief":
        server.handle_request()
        # So that it is seen to run.
        time.sleep(1)
        server.server_close()
    else:
        server.serve_forever()


def write_engine(path: Path, *, mode: str = "${STAND_IN}") -> Path:
    """Write this program as an executable file."""
    path.write_text(f'#!/bin/sh\nSTAND_IN={mode} exec {sys.executable} {__file__} "$@"\n', "utf-8")
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    main()
