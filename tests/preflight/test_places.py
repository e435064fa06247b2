"""Where a bucket and this machine are, by servers of Google's protocol over real sockets; who holds a run."""

import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from limba.config.errors import Open
from limba.storage.lease import FILE, held
from limba.storage.lease_places import this_process
from limba.tools.preflight.checks import storage
from tests.bucket_server import emulated
from tests.storage.leases import of_another_machine, put


class Metadata(BaseHTTPRequestHandler):
    """Answers as the metadata server of a machine of Google's does."""

    zone = ""

    def do_GET(self) -> None:
        is_asked = self.path == "/computeMetadata/v1/instance/zone" and self.headers["Metadata-Flavor"] == "Google"
        text = f"projects/1234/zones/{self.zone}".encode()
        self.send_response(200 if is_asked else 403)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Metadata]]:
    """A machine whose zone a test chooses."""
    handler = type("Chosen", (Metadata,), {})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
        yield handler
        server.shutdown()


@pytest.mark.parametrize(
    ("zone", "level", "fix"),
    [
        ("us-central2-b", "ok", None),
        ("europe-west4-a", "warning", ("RunConfig.model_dir", Open("a bucket in europe-west4"))),
    ],
)
def test_the_region_of_a_bucket_stands_beside_the_zone(
    zone: str, level: str, fix: object, machine: type[Metadata], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.zone = zone
    data: dict = {}
    with emulated(monkeypatch):
        (line,) = storage._region("gs://bucket/runs/ro", data)
    assert (line.level, line.fix) == (level, fix)
    assert f"gs://bucket is in US-CENTRAL2, this machine in {zone}" in line.text
    assert data == {"bucket_location": "US-CENTRAL2", "zone": zone}


def test_a_machine_that_is_not_googles_has_no_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GCE_METADATA_HOST", raising=False)
    monkeypatch.setattr(storage, "is_tpu_vm", lambda: False)
    monkeypatch.setattr(storage, "_is_googles", lambda: False)
    with emulated(monkeypatch):
        (line,) = storage._region("gs://bucket/run", {})
    assert line.level == "ok" and "US-CENTRAL2; this machine is not in a Google zone" in line.text
    assert list(storage._region("/a/directory", {})) == []


def test_who_holds_the_directory_and_whether_he_lives(tmp_path: Path) -> None:
    def said() -> tuple[str, str]:
        (line,) = storage._held(str(tmp_path))
        return line.level, line.text

    assert not list(storage._held(str(tmp_path)))
    with held(str(tmp_path)):
        level, text = said()
        assert level == "error" and f"{tmp_path} is in use by process {os.getpid()} on " in text
    here = this_process()
    put(tmp_path / FILE, here._replace(start=here.start - 1))  # killed a moment ago
    level, text = said()
    assert level == "ok" and text.endswith("stopped without ending; a new start takes over.")
    put(tmp_path / FILE, of_another_machine())
    assert said()[0] == "error" and "in use by process 7 on far, whose heartbeat is" in said()[1]
    os.utime(tmp_path / FILE, (time.time() - 100,) * 2)
    assert said()[0] == "ok"
