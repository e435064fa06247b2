"""A server of files with ranges over real sockets, that counts the bytes sent and fails on request."""

from __future__ import annotations

import base64
import email
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

if TYPE_CHECKING:  # pytest itself is not needed to serve
    import pytest

JSON = {"Content-Type": "application/json"}
Fault = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    """Answers /<client>/<path> with a file of the folder; a path that ends with / lists its files."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else headers and body come 40 ms apart
    server: FileServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, with_body: bool) -> None:
        client, _, name = self.path.split("?")[0].removeprefix("/").partition("/")
        self.client = client
        self.name = name
        fault = self.server.next_fault(self.command, name)
        path = self.server.folder / name
        self.status = 200
        self.extra = {}
        if path.is_dir():
            return fault(self, b"") if fault else self._links(path, with_body)
        if not path.is_file():
            return self.reply(404)
        size = path.stat().st_size
        status = 200
        start = 0
        stop = size
        headers = {"Accept-Ranges": "bytes" if self.server.ranges else "none"}
        asked = self.headers.get("Range")
        if asked and self.server.ranges:
            first, last = asked.removeprefix("bytes=").split("-")
            status = 206
            start = int(first)
            stop = min(int(last) + 1 if last else size, size)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        with path.open("rb") as file:
            file.seek(start)
            body = file.read(stop - start)
        headers |= getattr(self, "about", {})
        self.status = status
        self.extra = headers
        if fault is not None:
            return fault(self, body)
        return self.reply(status, body, headers, with_body)

    def _links(self, folder: Path, with_body: bool) -> None:
        links = "".join(f'<a href="{path.name}">{path.name}</a>\n' for path in sorted(folder.iterdir()))
        self.reply(200, links.encode(), {"Content-Type": "text/html"}, with_body)

    def reply(self, status: int, body: bytes = b"", headers: dict | None = None, with_body: bool = True) -> None:
        self.begin(status, len(body), headers)
        if with_body:
            self.send(body)

    def begin(self, status: int, length: int | None, headers: dict | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()

    def send(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
        except OSError:  # the client has gone
            self.close_connection = True
            return
        self.server.count(self.client, self.name, len(data))


class BucketHandler(Handler):
    """Answers as Google's storage does for one bucket, whose objects are the files; their faults are by file name."""

    def _answer(self, with_body: bool) -> None:
        path, _, query = self.path.partition("?")
        name = unquote(path).partition("/o/")[2]
        if "alt=media" in query:
            self.path = f"/bucket/{name}"
            return super()._answer(with_body)
        if name and not (self.server.folder / name).is_file():
            return self.reply(404)
        objects = [
            {"name": file.name, "bucket": "bucket", "size": str(file.stat().st_size)}
            for file in sorted(self.server.folder.iterdir())
            if name in ("", file.name)
        ]
        return self.reply(200, json.dumps(objects[0] if name else {"items": objects}).encode(), JSON)


class StoreHandler(BucketHandler):
    """As the bucket, and takes objects, whose generations it counts and compares as Google's storage does.

    A fault answers instead of the store; `lost` lets it write before.
    """

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        metadata, content = (
            part.get_payload(decode=True) for part in email.message_from_bytes(head + sent).get_payload()
        )
        name = json.loads(metadata)["name"]
        self._changed(name, lambda path: (path.parent.mkdir(parents=True, exist_ok=True), path.write_bytes(content)))

    def do_DELETE(self) -> None:
        self._changed(unquote(urlsplit(self.path).path.partition("/o/")[2]), Path.unlink)

    def _changed(self, name: str, change: Callable[[Path], object]) -> None:
        self.client = "bucket"
        self.name = name
        path = self.server.folder / name
        generations = self.server.generations
        wanted = parse_qs(urlsplit(self.path).query).get("ifGenerationMatch")
        fault = self.server.next_fault(self.command, name)
        if fault is not None and fault is not lost:
            return fault(self, b"")
        with self.server.writing:
            if wanted and wanted != [str(generations[name] if path.exists() else 0)]:
                return self.reply(412)
            change(path)
            generations[name] = max(generations.values(), default=1000) + 1
            said = {"name": name, "bucket": "bucket", "generation": str(generations[name])}
        return lost(self, b"") if fault is lost else self.reply(200, json.dumps(said).encode(), JSON)

    def _answer(self, with_body: bool) -> None:
        name = unquote(urlsplit(self.path).path).partition("/o/")[2]
        self.about = {"x-goog-generation": str(self.server.generations[name])}
        super()._answer(with_body)


class HubHandler(Handler):
    """Answers as the Hugging Face hub does for one data set; faults are by file name."""

    def _answer(self, with_body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        if "/resolve/" in path:
            self.path = "/hub/" + path.rpartition("/")[2]
            return super()._answer(with_body)
        answer = {
            "id": "me/set",
            "sha": "a" * 40,
            "siblings": [],
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        files = [
            {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "b" * 40}
            for file in sorted(self.server.folder.iterdir())
        ]
        return self.reply(200, json.dumps(files if "/tree/" in path else answer).encode(), JSON)


class ModelHubHandler(Handler):
    """Answers as the Hugging Face hub does for models: folder/<user>/<name>/<revision>/<file>; faults are by path.

    A name that begins with `private` needs the token `good`, one that begins with `gated` is given to nobody.
    """

    client = name = "api"  # of what is sent besides files

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        fault = self.server.next_fault("POST", path)
        if fault is not None:
            return fault(self, b"")
        if self.headers.get("Authorization") != "Bearer good":
            return self.reply(401, b"{}", JSON)
        if path == "/api/repos/create":
            asked = json.loads(sent)
            self.server.created.append(asked)
            (self.server.folder / asked["organization"] / asked["name"] / "main").mkdir(parents=True, exist_ok=True)
            return self._say({"url": f"{self._root()}/{asked['organization']}/{asked['name']}"})
        if path == "/api/validate-yaml":
            return self._say({"warnings": [], "errors": []})
        _, _, _, user, name, action, revision = path.split("/", 6)
        folder = self.server.folder / user / name / revision
        if action == "branch":
            folder.mkdir(exist_ok=True)
        elif action == "preupload":
            files = [entry["path"] for entry in json.loads(sent)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            return self._say({"files": [{"path": file, **modes, "oid": _oid(folder / file)} for file in files]})
        elif action == "commit":
            for line in map(json.loads, sent.splitlines()):
                if line["key"] == "file":
                    file = folder / line["value"]["path"]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(base64.b64decode(line["value"]["content"]))
                elif line["key"] == "deletedFile":
                    (folder / line["value"]["path"]).unlink()
            self.server.count("commit", revision, len(sent))
        sha = _sha(revision)
        return self._say({"commitUrl": f"{self._root()}/{user}/{name}/commit/{sha}", "commitOid": sha})

    def _root(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def _say(self, answer: Any, with_body: bool = True) -> None:
        self.reply(200, json.dumps(answer).encode(), JSON, with_body)

    def _answer(self, with_body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        if path == "/api/whoami-v2":
            is_known = self.headers.get("Authorization") == "Bearer good"
            return self._say({"name": "me", "type": "user"}) if is_known else self.reply(401, b"{}", JSON)
        user, name, *rest = path.removeprefix("/api/models").strip("/").split("/")
        repository = self.server.folder / user / name
        is_hidden = name.startswith("private") and self.headers.get("Authorization") != "Bearer good"
        if is_hidden or not repository.is_dir():
            return self.reply(401 if is_hidden else 404, b"", {"X-Error-Code": "RepoNotFound"})
        if name.startswith("gated"):
            return self.reply(403, b"", {"X-Error-Code": "GatedRepo"})
        revision = rest[1] if len(rest) > 1 else "main"
        revision = self.server.branches.get(f"{user}/{name}/{revision}", revision)
        folder = next((entry for entry in repository.iterdir() if revision in (entry.name, _sha(entry.name))), None)
        if folder is None:
            return self.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
        sha = _sha(folder.name)
        if rest[:1] == ["resolve"]:
            file = folder / "/".join(rest[2:])
            if not file.is_file():
                return self.reply(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
            self.path = f"/hub/{file.relative_to(self.server.folder)}"
            self.about = {"ETag": f'"{_oid(file)}"', "X-Repo-Commit": sha}
            super()._answer(with_body)
            self.client = self.name = "api"
            return None
        files = []
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            path = str(file.relative_to(folder))
            files.append({"type": "file", "path": path, "size": file.stat().st_size, "oid": _oid(file)})
        siblings = [{"rfilename": file["path"]} for file in files]
        info = {"id": f"{user}/{name}", "sha": sha, "siblings": siblings, "private": False, "tags": []}
        card = (folder / "README.md").read_text() if (folder / "README.md").is_file() else ""
        info |= {"cardData": yaml.safe_load(card.split("---")[1])} if card.startswith("---\n") else {}
        return self._say(files if rest[:1] == ["tree"] else {**info, "downloads": 0, "likes": 0}, with_body)


class DataHubHandler(ModelHubHandler):
    """As ModelHubHandler, for data sets."""

    def do_POST(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if "/paths-info/" not in path:
            return super().do_POST()
        sent = parse_qs(self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode())
        folder, _, revision = path.removeprefix("/api/datasets/").partition("/paths-info/")
        places = [p for p in (self.server.folder / folder).iterdir() if revision in (p.name, _sha(p.name))]
        files = [base / name for base in places for name in sent.get("paths", ()) if (base / name).is_file()]
        entries = [{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": _oid(f)} for f in files]
        return self._say(entries)

    def _answer(self, with_body: bool) -> None:
        if fault := self.server.next_fault(self.command, self.path.partition("?")[0]):
            return fault(self, b"")
        self.path = self.path.replace("/api/datasets/", "/api/models/", 1).removeprefix("/datasets")
        return super()._answer(with_body)


def _sha(revision: str) -> str:
    return hashlib.sha1(revision.encode()).hexdigest()


def _oid(path: Path) -> str | None:
    """Returns git's name of a file's content, which the hub gives as its ETag."""
    if not path.is_file():
        return None
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class FileServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, ranges: bool = True, handler: type[Handler] = Handler):
        super().__init__(("127.0.0.1", 0), handler)
        self.folder = folder
        self.ranges = ranges
        self.bytes_sent: Counter[tuple[str, str]] = Counter()  # by client and path, bodies only
        self.requests: Counter[tuple[str, str]] = Counter()  # by method and path
        self.created: list[dict] = []  # of a hub: what each request to make a model asked for
        self.branches: dict[str, str] = {}  # of a hub: user/name/branch -> the folder that it is now
        self.over = threading.Event()
        self.writing = threading.Lock()
        self.generations: Counter[str] = Counter()  # of a store's objects
        self._faults: dict[tuple[str, str], list[Fault | None]] = {}
        self._lock = threading.Lock()

    def url(self, name: str, client: str = "client") -> str:
        return f"http://127.0.0.1:{self.server_port}/{client}/{name}"

    def bytes_of(self, client: str) -> int:
        return sum(number for (who, _), number in self.bytes_sent.items() if who == client)

    def fail(self, name: str, *faults: Fault | None, methods: tuple[str, ...] = ("GET",)) -> None:
        """The next requests for the path meet these faults, one each; None lets a request through."""
        for method in methods:
            self._faults.setdefault((method, name), []).extend(faults)

    def next_fault(self, method: str, name: str) -> Fault | None:
        with self._lock:
            self.requests[method, name] += 1
            waiting = self._faults.get((method, name))
            return waiting.pop(0) if waiting else None

    def mend(self) -> None:
        """Forgets the faults that have not been met."""
        with self._lock:
            self._faults.clear()

    def count(self, client: str, name: str, number: int) -> None:
        with self._lock:
            self.bytes_sent[client, name] += number

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that are gone


def status(code: int) -> Fault:
    """Answers with this status."""
    return lambda handler, body: handler.reply(code)


def stall(handler: Handler, body: bytes) -> None:
    """Takes the request and never answers."""
    handler.server.over.wait(60)
    handler.close_connection = True


def lost(handler: Handler, body: bytes) -> None:
    """Closes the connection without an answer."""
    handler.close_connection = True


def truncated(handler: Handler, body: bytes) -> None:
    """Promises the whole body and sends half of it."""
    handler.begin(handler.status, len(body), handler.extra)
    handler.send(body[: len(body) // 2])
    handler.close_connection = True


def shortened(handler: Handler, body: bytes) -> None:
    """Sends half of the body and says nothing of its length."""
    handler.begin(handler.status, None, handler.extra)
    handler.send(body[: len(body) // 2])


def empty(handler: Handler, body: bytes) -> None:
    """Answers that all is well, and sends nothing."""
    handler.reply(handler.status, b"", handler.extra)


def trickle(handler: Handler, body: bytes) -> None:
    """Sends a byte now and then, so that no time-out from byte to byte ends it."""
    handler.begin(handler.status, len(body), handler.extra)
    for number in range(len(body)):
        if handler.server.over.is_set() or handler.close_connection:
            return
        handler.send(body[number : number + 1])
        time.sleep(0.02)


def unmeasured(handler: Handler, body: bytes) -> None:
    """Sends all of the body without its length."""
    handler.begin(handler.status, None, handler.extra)
    if handler.command == "GET":
        handler.send(body)


@contextmanager
def serving(folder: Path, ranges: bool = True, handler: type[Handler] = Handler) -> Iterator[FileServer]:
    """Runs a server of the folder's files for the time of a with statement."""
    server = FileServer(folder, ranges, handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def as_hub(server: FileServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes huggingface_hub ask this server in place of the hub, with a cache of its own; returns the address."""
    from huggingface_hub import constants

    endpoint = server.url("").removesuffix("/client/")
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return endpoint
