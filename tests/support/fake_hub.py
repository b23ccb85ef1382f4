"""A hub on this machine: the part of its HTTP API that sending and fetching a model folder calls, over real sockets."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from huggingface_hub import constants

TOKEN = "hf_a_token_for_tests"
COMMIT = "b" * 40


class FakeHub:
    """Repositories by name, each with `private` and `files`; `asked` holds every request that came."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815  # the names that http.server calls

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "FakeHub":
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()  # seconds to its end
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(f"{request.command} {path}")
        if "/resolve/" in path:
            self.send_file(request, path)
            return
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        if path.startswith("/objects/"):  # the signed address of a large file: no token there
            self.objects[path.rpartition("/")[2]] = body
            status, value = 200, {}
        elif request.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, value = 401, {"error": "Invalid username or password."}
        else:
            status, value = self.route(path, body)
        text = json.dumps(value).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    def send_file(self, request: BaseHTTPRequestHandler, path: str) -> None:
        """A file of a repository, or its head alone; the name of a stored file is its digest."""
        name, _, place = path.removeprefix("/").partition("/resolve/")
        content = self.repos[name]["files"].get(place.partition("/")[2])
        request.send_response(404 if content is None else 200)
        request.send_header("Content-Length", str(len(content or b"")))
        request.send_header("X-Repo-Commit", COMMIT)
        if content is None:
            request.send_header("X-Error-Code", "EntryNotFound")
        else:
            request.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        request.end_headers()
        if request.command == "GET" and content is not None:
            request.wfile.write(content)

    def route(self, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            if name in self.repos:
                return 409, {"error": "You already created this model repo", "url": f"{self.endpoint}/{name}"}
            private = wanted.get("private", False) or wanted.get("visibility") == "private"
            self.repos[name] = {"private": private, "files": {}}
            return 200, {"url": f"{self.endpoint}/{name}"}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            href = f"{self.endpoint}/objects/"
            actions = [{**item, "actions": {"upload": {"href": href + item["oid"]}}} for item in objects]
            return 200, {"transfer": "basic", "objects": actions}
        name, _, action = path.removeprefix("/api/models/").partition("/")
        owner, name = name, action.partition("/")[0]
        return self.model(f"{owner}/{name}", action.partition("/")[2], body)

    def model(self, name: str, action: str, body: bytes) -> tuple[int, Any]:
        repo = self.repos[name]
        if action.startswith("preupload"):
            large = (".safetensors", ".onnx")
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(large) else "regular" for name in names}
            files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            return 200, {"files": files}
        if action.startswith("commit"):
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    repo["files"][item["value"]["path"]] = base64.b64decode(item["value"]["content"])
                elif item["key"] == "lfsFile":
                    content = self.objects[item["value"]["oid"]]
                    assert hashlib.sha256(content).hexdigest() == item["value"]["oid"]
                    repo["files"][item["value"]["path"]] = content
            return 200, {"commitUrl": f"{self.endpoint}/{name}/commit/{'a' * 40}", "commitOid": "a" * 40}
        if action.startswith("tree"):
            files = repo["files"].items()
            return 200, [{"type": "file", "path": path, "size": len(data), "oid": COMMIT} for path, data in files]
        return 200, {"id": name, "private": repo["private"], "sha": COMMIT, "siblings": []}


@contextmanager
def logged_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that this process is logged in to. Its settings were read from the environment at import."""
    with FakeHub() as hub:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        files = f"{hub.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # Xet, by which large files usually go, is a protocol of its own that the hub of these tests does not speak.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield hub
