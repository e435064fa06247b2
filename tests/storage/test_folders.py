"""Folders in an emulated bucket: whole or not there, resumed, checked; and files that grow by what is new."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from limba.config import InputError, RestartError, StorageError
from limba.storage import files, lease, manifest
from limba.training.metrics.growing_files import Uploads
from tests.bucket_server import BucketServer, emulated

# gcsfs gives aiohttp the parts of a resumable upload as bytes, which that warns about.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketServer]:
    monkeypatch.setattr(manifest, "CACHE", str(tmp_path / "cache"))
    with emulated(monkeypatch) as bucket_server:
        yield bucket_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "inside").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(os.urandom(6_000_000))  # above 5 MB it is a resumable upload
    (made / "inside" / "ă.txt").write_text("limbă")
    return made


def test_a_folder_is_uploaded_once_and_comes_back(server: BucketServer, folder: Path) -> None:
    address = "gs://bucket/out/step_1"
    sent = manifest.upload(folder, address)
    assert sent == (3, 6_000_008, 6_000_008)
    assert server.names("out/") == [
        f"out/step_1/{name}" for name in ("config.json", "inside/ă.txt", "manifest.json", "model.safetensors")
    ]
    assert manifest.check(address) == [] and manifest.read_file(address, manifest.FILE) is not None
    assert manifest.upload(folder, address) == (3, 6_000_008, 0)
    copy = manifest.download(address)
    assert copy is not None and sorted(path.name for path in copy.iterdir()) == ["config.json", "model.safetensors"]
    assert (copy / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    before = server.requests["GET object"]
    assert manifest.download(address) == copy and server.requests["GET object"] - before < 5
    server.put("bucket", "out/step_1/config.json", b"[]")
    other = manifest.download(address)
    assert other is not None and other != copy and (other / "config.json").read_text() == "[]"
    assert manifest.download("gs://bucket/none") is None and manifest.read_file(address, "none") is None


def test_an_interrupted_upload_is_no_model_and_is_resumed(
    server: BucketServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = manifest._Bucket.put
    address = "gs://bucket/out"

    def failing(self, file: Path, name: str, entry: manifest.Entry) -> None:
        if name == "config.json":
            raise OSError("the power went")
        put(self, file, name, entry)

    with monkeypatch.context() as patch:
        patch.setattr(manifest._Bucket, "put", failing)
        with pytest.raises(StorageError, match="gs://bucket/out cannot be written"):
            manifest.upload(folder, address)
    assert "out/config.json" not in server.names() and "out/uploading.json" in server.names()
    with pytest.raises(InputError, match="is being uploaded, or its upload was interrupted"):
        manifest.download(address)
    assert manifest.upload(folder, address).sent_bytes == 2  # of config.json alone
    assert manifest.check(address) == [] and "out/uploading.json" not in server.names()
    assert not [name for name in server.names() if name.endswith(".lease")]


def test_an_upload_whose_lease_is_lost_ends_as_what_it_is(
    server: BucketServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a bucket that cannot be written, status 74 in place of 75."""

    def lost(self, most_seconds: float = 0.0) -> None:
        raise RestartError("Another process uses gs://bucket/out now.")

    monkeypatch.setattr(lease.Lease, "check", lost)
    with pytest.raises(RestartError, match=r"^Another process uses gs://bucket/out now\.$"):
        manifest.upload(folder, "gs://bucket/out")
    assert "out/manifest.json" not in server.names() and "out/config.json" not in server.names()


def test_what_somebody_else_has_put_there_stays(server: BucketServer, folder: Path) -> None:
    server.put("bucket", "theirs/config.json", b"theirs")
    with pytest.raises(InputError, match=r"gs://bucket/theirs holds config\.json, which is not of this folder"):
        manifest.upload(folder, "gs://bucket/theirs")
    assert server.names("theirs") == ["theirs/config.json"] and server.data("theirs/config.json") == b"theirs"


def test_a_folder_that_was_uploaded_is_replaced_on_request(server: BucketServer, folder: Path) -> None:
    address = "gs://bucket/out"
    manifest.upload(folder, address)
    (folder / "inside" / "ă.txt").rename(folder / "b.txt")
    (folder / "config.json").write_text('{"new": 1}')
    with pytest.raises(InputError, match="give another address"):
        manifest.upload(folder, address)
    assert manifest.upload(folder, address, replace=True).sent_bytes == 10 + 6
    assert manifest.check(address) == [] and "out/inside/ă.txt" not in server.names()
    assert server.data("out/config.json") == b'{"new": 1}'


def test_a_changed_byte_on_the_way_is_noticed(server: BucketServer, folder: Path, monkeypatch) -> None:
    def put(self, file: Path, name: str, entry: manifest.Entry) -> None:
        original(self, file, name, (entry[0], "00000000"))

    original = manifest._Bucket.put
    monkeypatch.setattr(manifest._Bucket, "put", put)
    with pytest.raises(StorageError, match="has other bytes than"):
        manifest.upload(folder, "gs://bucket/out")
    assert "out/manifest.json" not in server.names()


def test_a_fault_of_this_machine_is_not_called_the_bucket_s(
    server: BucketServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full ~/.cache was a bucket that cannot be read; check the network."""
    address = "gs://bucket/out"
    manifest.upload(folder, address)
    ask = manifest._Bucket._ask

    def full(self, method: str, *rest: object, **options: object) -> object:
        if method == "get_file":
            raise OSError(errno.ENOSPC, "No space left on device")  # by the client's own writing, without a name
        return ask(self, method, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(manifest._Bucket, "_ask", full)
        with pytest.raises(StorageError) as caught:
            manifest.download(address)
    assert str(caught.value) == (
        f"{tmp_path}/cache on this machine cannot be used (No space left on device), so {address} cannot be read; make"
        " room or give rights there, and repeat the command, which resumes."
    )
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(manifest, "CACHE", str(tmp_path / "file" / "cache"))  # unusable for the superuser too
    with pytest.raises(StorageError, match=rf"^{tmp_path}/file/cache on this machine cannot be used \(Not a directory"):
        manifest.download(address)
    server.forbids_listing = True
    with pytest.raises(StorageError, match=rf"^{address} cannot be read \(Forbidden.*; check the network and the perm"):
        manifest.download(address)


@pytest.mark.parametrize("address", ["hf://me/model", "http://host/x", "/tmp/x", "file:///tmp/x"])
def test_an_address_without_objects_is_refused(folder: Path, address: str) -> None:
    with pytest.raises(InputError, match="is not in a bucket|cannot be used"):
        manifest.upload(folder, address)


def test_uploads_survive_requests_that_fail(server: BucketServer, folder: Path) -> None:
    server.troubled = 0.3
    manifest.upload(folder, "gs://bucket/out")
    server.troubled = 0.0
    assert manifest.check("gs://bucket/out") == [] and sum(server.troubles.values()) > 2


def test_a_request_that_stands_still_is_repeated(server: BucketServer, folder: Path, monkeypatch) -> None:
    def hold(command: str, path: str) -> str:
        if "config.json" in path and "alt=media" in path:
            asked.append(path)
            if len(asked) == 1:
                again.wait(60)
            again.set()
        return ""

    asked = list[str]()
    again = threading.Event()
    manifest.upload(folder, "gs://bucket/out")
    monkeypatch.setattr(manifest, "REQUEST_SECONDS", 2.0)  # of a file's content; other requests have their own
    monkeypatch.setattr(server, "trouble", hold)
    copy = manifest.download("gs://bucket/out", lambda names: ["config.json"])
    assert copy is not None and (copy / "config.json").read_text() == "{}" and len(asked) == 2


def test_what_is_uploaded_for_a_growing_file_is_its_size(server: BucketServer) -> None:
    """Bytes sent grow linearly with what is written: each line is sent once."""
    uploads = Uploads("gs://bucket/run/metrics.jsonl")
    lines = [f"line {number}\n" for number in range(60)]
    for line in lines:
        uploads.write(line.encode())
        assert uploads.flush()
        assert server.objects["bucket", "run/metrics.jsonl"].cache_control == "no-store"  # also when it is joined
    whole = "".join(lines).encode()
    assert server.data("run/metrics.jsonl") == whole
    assert server.received["run/metrics.jsonl"] + server.received["run/metrics.jsonl.tail"] == len(whole)
    assert server.names("run/") == ["run/metrics.jsonl"]
    resumed = Uploads("gs://bucket/run/metrics.jsonl")
    resumed.write(b"more\n")
    resumed.close()
    assert server.data("run/metrics.jsonl") == whole + b"more\n"


@pytest.mark.parametrize("seed", range(2))
def test_a_growing_file_loses_nothing_while_requests_fail(server: BucketServer, seed: int) -> None:
    """An addition whose answer is lost may be there twice, which readers of the figures pass over."""
    server.troubled = 0.25
    server._random = random.Random(seed)
    file = files.GrowingFile("gs://bucket/run/m")
    lines = [b"%d\n" % number for number in range(5)]
    for line in lines:
        file.append(line)
    server.troubled = 0.0
    lines_now = server.data("run/m").splitlines(keepends=True)
    assert list(dict.fromkeys(lines_now)) == lines and server.names("run/") == ["run/m"]


def test_two_starts_append_to_one_file(server: BucketServer) -> None:
    for number in (b"1", b"2"):  # the second one finds what is there
        files.GrowingFile("gs://bucket/run/m").append(number)
    assert server.data("run/m") == b"12"


def test_a_bucket_that_does_not_take_figures_ends_no_run(server: BucketServer, monkeypatch, caplog) -> None:
    uploads = Uploads("gs://bucket/run/metrics.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(files.GrowingFile, "append", lambda self, data: (_ for _ in ()).throw(OSError("no network")))
        for line in (b"1\n", b"2\n"):
            uploads.write(line)
            with caplog.at_level(logging.WARNING):
                assert not uploads.flush()
    assert caplog.text.count("cannot be written at the moment") == 1
    uploads.write(b"3\n")
    uploads.close()
    assert server.data("run/metrics.jsonl") == b"1\n2\n3\n"
