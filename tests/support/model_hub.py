"""A model hub that answers like the real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_secret"
FILES = {"config.json": 700, "model-1.safetensors": 900 << 40, "model-2.safetensors": 100 << 40, "pytorch_model.bin": 1}


class Hub(BaseHTTPRequestHandler):
    """The answers of huggingface.co to HEAD /OWNER/NAME/resolve/REVISION/config.json."""

    def do_HEAD(self) -> None:
        repository, _, rest = self.path.strip("/").partition("/resolve/")
        authorised = self.headers.get("authorization") == f"Bearer {TOKEN}"
        if repository == "owner/open" and not rest.startswith("main/"):
            self._answer(404, "RevisionNotFound")
        elif repository in {"owner/open", "gpt2"} or (repository == "owner/gated" and authorised):
            self._answer(200)
        elif repository == "owner/gated":
            self._answer(403 if "authorization" in self.headers else 401, "GatedRepo")
        elif repository == "owner/gguf":
            self._answer(404, "EntryNotFound")
        elif repository == "owner/broken":
            self._answer(500)
        else:
            self._answer(401, "RepoNotFound")

    def do_GET(self) -> None:
        """GET /api/models/OWNER/NAME/revision/REVISION: the sizes of its files."""
        files = [{"rfilename": name, "size": size} for name, size in FILES.items()]
        body = json.dumps({"id": "owner/open", "siblings": files}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, status: int, code: str = "") -> None:
        self.send_response(status)
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", '"1"')
        self.send_header("content-length", "2")
        if code:
            self.send_header("x-error-code", code)
            self.send_header("x-error-message", code)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def model_hub() -> Iterator[str]:
    """Its address, for HF_ENDPOINT."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
