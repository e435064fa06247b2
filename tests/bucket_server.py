"""A server that speaks Google Cloud Storage's JSON API over real sockets, as far as Limba's libraries use it.

Objects with generations, preconditions, checksums, ranges, listings in pages, uploads in one request, of several parts
and resumable, compose, copies and deletes. On request a share of the requests fails once, in the ways of a real one.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import fsspec
import google_crc32c
import pytest

from limba.storage import servers
from tests.http_server import JSON, Handler

PAGE = 3  # names in one page of a listing: the real one has up to 1,000
MOST_COMPOSED = 32
TROUBLES = ("429", "503", "unheard", "unanswered", "slow")
SLOW_SECONDS = 0.1


@dataclass(frozen=True)
class Stored:
    """An object as it is now."""

    data: bytes
    generation: int
    content_type: str
    created: str
    is_composed: bool = False
    cache_control: str | None = None

    def about(self, bucket: str, name: str, server: str) -> dict[str, Any]:
        """Returns what the API says of it."""
        path = f"storage/v1/b/{bucket}/o/{name}"
        crc32c = base64.b64encode(google_crc32c.Checksum(self.data).digest()).decode()
        metadata = {
            "kind": "storage#object", "id": f"{bucket}/{name}/{self.generation}", "selfLink": f"{server}/{path}",
            "mediaLink": f"{server}/download/{path}?alt=media", "name": name, "bucket": bucket,
            "generation": str(self.generation), "metageneration": "1", "contentType": self.content_type,
            "storageClass": "STANDARD", "size": str(len(self.data)), "crc32c": crc32c, "etag": str(self.generation),
            "timeCreated": self.created, "updated": self.created,
        }  # fmt: skip
        if not self.is_composed:  # as there
            metadata["md5Hash"] = base64.b64encode(hashlib.md5(self.data).digest()).decode()
        return metadata


@dataclass
class Session:
    """A resumable upload."""

    bucket: str
    name: str
    content_type: str
    wanted: Mapping[str, str]
    data: bytearray
    result: dict[str, Any] | None = None


class RefusedError(Exception):
    """The status of an answer that is not an object."""

    def __init__(self, status: int):
        self.status = status


class GoogleHandler(Handler):
    """Answers one request."""

    server: BucketServer  # pyright: ignore[reportIncompatibleVariableOverride]
    client = name = "api"

    def do_GET(self) -> None:
        self._take(self._get)

    def do_HEAD(self) -> None:
        self._take(self._get)

    def do_POST(self) -> None:
        self._take(self._post)

    def do_PUT(self) -> None:
        self._take(self._post)

    def do_PATCH(self) -> None:
        self._take(self._get)  # metadata is not kept

    def do_DELETE(self) -> None:
        self._take(self._delete)

    def _take(self, answer: Callable[[], tuple[int, bytes, dict[str, str]]]) -> None:
        self.sent = self._body()
        split = urlsplit(self.path)
        self.query = dict(parse_qsl(split.query, keep_blank_values=True))
        self.place = split.path
        self.server.count(self.command, self.place)
        trouble = self.server.trouble(self.command, self.path)
        if trouble == "slow":
            time.sleep(SLOW_SECONDS)
        elif trouble == "unheard":
            self.close_connection = True
            return None
        elif trouble in ("429", "503"):
            return self.reply(int(trouble), b'{"error": {"code": %s, "message": "later"}}' % trouble.encode(), JSON)
        try:
            status, body, headers = answer()
        except RefusedError as error:
            text = {"error": {"code": error.status, "message": f"refused with {error.status}"}}
            status = error.status
            body = json.dumps(text).encode()
            headers = JSON
        if trouble == "unanswered":
            self.close_connection = True
            return None
        self.server.sent_bytes += len(body)
        return self.reply(status, b"" if status in (204, 304) else body, headers, self.command != "HEAD")

    def send(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
        except OSError:  # the client has gone
            self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _is_xml(self) -> bool:
        """Returns whether the path is /BUCKET/OBJECT, by which TensorFlow reads objects."""
        is_target = self.place.startswith("/b/")  # of a copy, whose path has two objects
        return "/storage/v1/" not in self.place and not is_target

    def _names(self) -> tuple[str, str]:
        """Returns the bucket and the object of the request's path: of the JSON API's, or of the XML API's."""
        if self._is_xml():
            bucket, _, name = self.place.removeprefix("/").partition("/")
            return unquote(bucket), unquote(name)
        bucket, _, name = self.place.partition("/b/")[2].partition("/o")
        return unquote(bucket.strip("/")), unquote(name.removeprefix("/"))

    def _found(self, bucket: str, name: str) -> Stored:
        stored = self.server.objects.get((bucket, name))
        if stored is None or self.query.get("generation", str(stored.generation)) != str(stored.generation):
            raise RefusedError(404)
        return stored

    def _said(self, content: object) -> tuple[int, bytes, dict[str, str]]:
        return 200, json.dumps(content).encode(), JSON

    def _get(self) -> tuple[int, bytes, dict[str, str]]:
        bucket, name = self._names()
        if not name:
            if not self.place.endswith("/o"):
                return self._said(self._about(bucket))
            if self.server.forbids_listing:
                raise RefusedError(403)
            return self._said(self._listing(bucket))
        stored = self._found(bucket, name)
        if self.query.get("ifGenerationMatch", str(stored.generation)) != str(stored.generation):
            raise RefusedError(412)
        if self.query.get("ifGenerationNotMatch") == str(stored.generation):
            raise RefusedError(304)
        metadata = stored.about(bucket, name, self.server.address)
        if self.query.get("alt") != "media" and not self._is_xml():
            return self._said(metadata)
        hashes = f"crc32c={metadata['crc32c']}" + (f",md5={metadata['md5Hash']}" if "md5Hash" in metadata else "")
        headers = {
            "Content-Type": stored.content_type, "ETag": metadata["etag"], "x-goog-hash": hashes,
            "x-goog-generation": metadata["generation"], "x-goog-metageneration": "1",
            "x-goog-stored-content-encoding": "identity", "x-goog-stored-content-length": metadata["size"],
            "x-goog-storage-class": "STANDARD", "Accept-Ranges": "bytes",
        }  # fmt: skip
        asked = self.headers.get("Range")
        size = len(stored.data)
        if not asked:
            return 200, stored.data, headers
        first, last = asked.removeprefix("bytes=").split("-")
        start, stop = (int(first), int(last or size - 1) + 1) if first else (max(0, size - int(last)), size)
        if start >= size:
            raise RefusedError(416)
        stop = min(stop, size)
        return 206, stored.data[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{size}"}

    def _about(self, bucket: str) -> dict[str, Any]:
        return {"name": bucket, "location": "US-CENTRAL2", "locationType": "region"}

    def _listing(self, bucket: str) -> dict[str, Any]:
        """Returns one page of the names after `pageToken`, with what is below a delimiter as prefixes."""
        prefix = self.query.get("prefix", "")
        delimiter = self.query.get("delimiter")
        after = self.query.get("pageToken") or ""
        entries: dict[str, bool] = {}  # name -> whether it is a prefix
        for where, name in sorted(self.server.objects):
            inside = name.removeprefix(prefix)
            is_listed = where == bucket and name.startswith(prefix)
            if not is_listed or name < self.query.get("startOffset", ""):
                continue
            if "endOffset" in self.query and name >= self.query["endOffset"]:
                continue
            cut = inside.find(delimiter) if delimiter else -1
            entries[name if cut < 0 else prefix + inside[: cut + 1]] = cut >= 0
        left = [name for name in sorted(entries) if name > after]
        page = left[: min(PAGE, int(self.query.get("maxResults", PAGE)))]
        known = {name: self.server.objects.get((bucket, name)) for name in page if not entries[name]}
        items = [stored.about(bucket, name, self.server.address) for name, stored in known.items() if stored]
        token = {"nextPageToken": page[-1]} if len(left) > len(page) else {}
        prefixes = {"prefixes": prefix_names} if (prefix_names := [name for name in page if entries[name]]) else {}
        return {"kind": "storage#objects", **({"items": items} if items else {}), **prefixes, **token}

    def _post(self) -> tuple[int, bytes, dict[str, str]]:
        if "upload_id" in self.query:
            return self._chunk(self.server.sessions[self.query["upload_id"]])
        if self.place.startswith("/upload/"):
            return self._upload()
        source, _, other = self.place.partition("/rewriteTo")
        if not other:
            source, _, other = self.place.partition("/copyTo")
        if other:
            is_rewrite = "/rewriteTo" in self.place
            target = other
            self.place = source
            stored = self._found(*self._names())
            self.place = target
            metadata = self._put(*self._names(), stored.data, stored.content_type)
            whole = {"kind": "storage#rewriteResponse", "done": True, "objectSize": metadata["size"],
                     "totalBytesRewritten": metadata["size"], "resource": metadata}  # fmt: skip
            return self._said(whole if is_rewrite else metadata)
        if self.place.endswith("/compose"):
            return self._compose()
        source, _, other = self.place.partition(
            "/moveTo/o/"
        )  # https://cloud.google.com/storage/docs/json_api, Objects: move
        if other:
            self.place = source
            bucket, name = self._names()
            stored = self._found(bucket, name)
            metadata = self._put(bucket, unquote(other), stored.data, stored.content_type)
            with self.server.writing:
                self.server.objects.pop((bucket, name), None)
            return self._said(metadata)
        raise RefusedError(404)

    def _compose(self) -> tuple[int, bytes, dict[str, str]]:
        self.place = self.place.removesuffix("/compose")
        bucket, name = self._names()
        asked = json.loads(self.sent)["sourceObjects"]
        if len(asked) > MOST_COMPOSED:
            raise RefusedError(400)
        parts = []
        for source in asked:
            stored = self._found(bucket, source["name"])
            wanted = source.get("objectPreconditions", {}).get("ifGenerationMatch")
            if wanted is not None and int(wanted) != stored.generation:
                raise RefusedError(412)
            parts.append(stored.data)
        metadata = json.loads(self.sent).get("destination", {})  # nothing of the sources is kept
        return self._said(self._put(bucket, name, b"".join(parts), metadata, is_composed=True))

    def _upload(self) -> tuple[int, bytes, dict[str, str]]:
        bucket, _ = self._names()
        kind = self.query.get("uploadType")
        if kind == "media":
            return self._said(self._put(bucket, self.query["name"], self.sent, self.headers["Content-Type"] or ""))
        if kind == "multipart":
            metadata, content, content_type = _two_parts(self.sent, self.headers["Content-Type"])
            name = metadata.get("name") or self.query["name"]
            return self._said(self._put(bucket, name, content, {**metadata, "contentType": content_type}))
        name = self.query.get("name") or json.loads(self.sent)["name"]
        identity = f"{next(self.server.numbers)}-{random.getrandbits(64):x}"
        content_type = self.headers.get("X-Upload-Content-Type", "application/octet-stream")
        self.server.sessions[identity] = Session(bucket, name, content_type, dict(self.query), bytearray())
        where = f"{self.server.address}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={identity}"
        return 200, b"{}", {**JSON, "Location": where}

    def _chunk(self, session: Session) -> tuple[int, bytes, dict[str, str]]:
        """Takes a part of a resumable upload; bytes that are there already are passed over."""
        if session.result is not None:
            return self._said(session.result)
        byte_range = self.headers.get("Content-Range", f"bytes */{len(self.sent)}")
        span, _, total = byte_range.removeprefix("bytes ").partition("/")
        with self.server.writing:
            if span != "*":
                start = int(span.partition("-")[0])
                if start > len(session.data):
                    raise RefusedError(400)
                session.data[start:] = self.sent
            elif self.sent:
                session.data[:] = self.sent
        if total != "*" and len(session.data) == int(total):
            self.query = session.wanted
            session.result = self._put(session.bucket, session.name, bytes(session.data), session.content_type)
            return self._said(session.result)
        return 308, b"", {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}

    def _put(
        self, bucket: str, name: str, data: bytes, metadata: str | Mapping[str, Any], is_composed: bool = False
    ) -> dict[str, Any]:
        """Stores an object; `about` is its content type, or what the API says of it."""
        metadata = {"contentType": metadata} if isinstance(metadata, str) else metadata
        with self.server.writing:
            if not is_composed:
                self.server.received[name] += len(data)
            self._check(bucket, name)
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            kind = metadata.get("contentType", "")
            control = metadata.get("cacheControl")
            stored = Stored(data, next(self.server.numbers), kind, now, is_composed, control)
            self.server.objects[bucket, name] = stored
        return stored.about(bucket, name, self.server.address)

    def _check(self, bucket: str, name: str) -> None:
        """Refuses what the request's precondition excludes."""
        stored = self.server.objects.get((bucket, name))
        generation = str(stored.generation) if stored else "0"
        if self.query.get("ifGenerationMatch", generation) != generation:
            raise RefusedError(412)
        if stored and self.query.get("ifGenerationNotMatch") == generation:
            raise RefusedError(412)

    def _delete(self) -> tuple[int, bytes, dict[str, str]]:
        if "upload_id" in self.query:
            self.server.sessions.pop(self.query["upload_id"], None)
            return 204, b"", {}
        bucket, name = self._names()
        with self.server.writing:
            self._found(bucket, name)
            self._check(bucket, name)
            del self.server.objects[bucket, name]
        return 204, b"", {}


def _two_parts(sent: bytes, content_type: str) -> tuple[dict[str, Any], bytes, str]:
    """Returns the metadata, the content and its type, of an upload's two parts."""
    boundary = b"--" + content_type.partition("boundary=")[2].strip().strip("\"'").encode()
    first, second = sent.removeprefix(boundary).split(boundary, 1)
    head = first.replace(b"\r\n", b"\n").partition(b"\n\n")[2]
    ends = b"\r\n\r\n" if b"\r\n\r\n" in second[:1000] else b"\n\n"
    first_part, _, content = second.partition(ends)
    content = content[: content.rindex(boundary)]
    content = content.removesuffix(b"\r\n") if ends == b"\r\n\r\n" else content.removesuffix(b"\n")
    kind = next((line for line in first_part.decode().splitlines() if line.lower().startswith("content-type")), "")
    return json.loads(head), content, kind.partition(":")[2].strip()


class BucketServer(ThreadingHTTPServer):
    """All buckets; `troubled` is the share of the requests that fail once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, troubled: float = 0.0, seed: int = 0):
        super().__init__(("127.0.0.1", 0), GoogleHandler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.objects: dict[tuple[str, str], Stored] = {}
        self.sessions: dict[str, Session] = {}
        self.numbers = itertools.count(1_700_000_000_000_000)
        self.writing = threading.Lock()
        self.troubled = troubled
        self._random = random.Random(seed)
        self._failed = set[tuple[str, str]]()
        self.refuses_writes = False  # from then on no request that changes something succeeds
        self.is_away = False  # from then on no request succeeds
        self.forbids_listing = False  # as to an account that may read and write objects, and not list them
        self.troubles: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()  # by method and what the place is
        self.received: Counter[str] = Counter()  # uploaded bytes by object, repeated requests included
        self.sent_bytes = 0
        self._lock = threading.Lock()

    def trouble(self, method: str, path: str) -> str | None:
        """Returns how a request fails; the same request that comes again succeeds."""
        if self.is_away or (self.refuses_writes and method != "GET"):
            return "503"
        key = (method, path)
        with self._lock:
            if key in self._failed:
                self._failed.discard(key)
                return None
            if self._random.random() >= self.troubled:
                return None
            kind = self._random.choice(TROUBLES)
            self.troubles[kind] += 1
            if kind != "slow":
                self._failed.add(key)
            return kind

    def count(self, method: str, path: str) -> None:
        """Counts a request."""
        if path.startswith("/upload/"):
            what = "upload"
        elif method == "POST":
            what = path.rpartition("/")[2]
        else:
            what = "object"
        with self._lock:
            self.requests[f"{method} {what}"] += 1

    def put(self, bucket: str, name: str, data: bytes) -> None:
        """Stores an object, as another client would have."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        with self.writing:
            self.objects[bucket, name] = Stored(data, next(self.numbers), "application/octet-stream", now)

    def names(self, prefix: str = "", bucket: str = "bucket") -> list[str]:
        """Returns the names that begin so, in order."""
        return sorted(name for where, name in self.objects if where == bucket and name.startswith(prefix))

    def data(self, name: str, bucket: str = "bucket") -> bytes:
        """Returns an object's content."""
        return self.objects[bucket, name].data

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that are gone

    def environment(self) -> dict[str, str]:
        """Returns the variables with which a program's libraries use this server."""
        return {"STORAGE_EMULATOR_HOST": self.address}


@contextmanager
def serving_buckets(troubled: float = 0.0, seed: int = 0) -> Iterator[BucketServer]:
    """Runs a server for the time of the context."""
    with BucketServer(troubled, seed) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """Runs a server, which the libraries of this process use for the time of the context."""
    google = fsspec.get_filesystem_class("gs")
    with serving_buckets() as server, monkeypatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.address)
        for name in ("TENSORSTORE_GCS_HTTP_URL", "GOOGLE_AUTH_TOKEN_FOR_TESTING", "CLOUD_STORAGE_EMULATOR_ENDPOINT"):
            patch.setenv(name, server.address)
        patch.setitem(fsspec.config.conf, "gs", {})
        servers.settle()
        google.clear_instance_cache()
        try:
            yield server
        finally:
            google.clear_instance_cache()
