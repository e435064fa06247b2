"""Whatever the network does, the documents come once and in the same chunks, or one sentence says why not."""

import gzip
import json
import logging
import pickle
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from huggingface_hub import constants as hub_constants

from limba.config import DataConfig, InputError, StorageError
from limba.data.sources import FileSource, chunk_reader, listing, readers, remote
from limba.data.sources.chunk_reader import ChunkReader
from limba.data.sources.remote import ReadPolicy
from tests.data.text_files import TEXTS, write
from tests.http_server import (
    BucketHandler,
    HubHandler,
    empty,
    serving,
    shortened,
    stall,
    status,
    trickle,
    truncated,
    unmeasured,
)

QUICK = ReadPolicy(timeout_seconds=0.3, attempts=6)
SHORT = ReadPolicy(timeout_seconds=0.3, attempts=3)
NUM_DOCUMENTS = 8000
SKIPPING = ReadPolicy(timeout_seconds=0.3, attempts=2, on_failure="skip")
TROUBLES = {
    "503": status(503),
    "429": status(429),
    "stalled": stall,
    "truncated": truncated,
    "shortened": shortened,
    "empty": empty,
    "trickle": trickle,
}


@pytest.fixture
def server(tmp_path):
    with serving(tmp_path) as server:
        yield server


@pytest.fixture(autouse=True)
def small_requests(monkeypatch):
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(readers, "CHUNK_BYTES", 4000)


def units_at(address: str, policy: ReadPolicy = QUICK) -> list[listing.Unit]:
    return listing.list_units(listing.list_files([address], policy), policy)


def chunks_of(reader: ChunkReader, unit: listing.Unit) -> list[list[bytes]]:
    chunks = []
    while (documents := reader(unit, len(chunks))) is not None:
        chunks.append(documents)
    return chunks


def texts_at(address: str, policy: ReadPolicy = QUICK) -> list[str]:
    reader = ChunkReader("text", policy)
    return [text.decode() for unit in units_at(address, policy) for chunk in chunks_of(reader, unit) for text in chunk]


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv.gz", ".txt.zst", ".parquet"])
def test_trouble_that_passes_changes_nothing(tmp_path, server, suffix, trouble):
    name = write(tmp_path / f"c{suffix}").name
    units = units_at(server.url(name))
    expected = [chunks_of(ChunkReader("text"), unit) for unit in units]
    assert [text.decode() for chunks in expected for chunk in chunks for text in chunk] == TEXTS
    # The second request is in the midst of the file; twice running, so that the third attempt is needed.
    server.fail(name, None, TROUBLES[trouble], TROUBLES[trouble])
    reader = ChunkReader("text", QUICK)
    assert [chunks_of(reader, unit) for unit in units] == expected
    assert not reader.skipped


@pytest.mark.parametrize("trouble", ["503", "stalled", "trickle", "shortened"])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_permanent_failures_end_in_one_sentence(tmp_path, server, suffix, trouble):
    name = write(tmp_path / f"c{suffix}").name
    unit = units_at(server.url(name))[1]
    server.fail(name, *[TROUBLES[trouble]] * 3)
    with pytest.raises(
        InputError, match="at the last of 3 attempts.*try again later, or set DataConfig.on_read_failure"
    ) as error:
        ChunkReader("text", SHORT)(unit, 0)
    assert (", row group 1," if suffix == ".parquet" else ", bytes 65536 to 65621,") in str(error.value)
    assert "\n" not in str(error.value)
    # The same command works later, also where the error comes out of a process that reads.
    assert pickle.loads(pickle.dumps(error.value)).exit_status == StorageError.exit_status


@pytest.mark.parametrize("code", [404, 403, 401])
def test_what_will_not_pass_is_not_tried_again(tmp_path, server, code):
    name = write(tmp_path / "c.jsonl").name
    unit = units_at(server.url(name))[0]
    server.requests.clear()
    server.fail(name, status(code))
    with pytest.raises(InputError, match="there is no such file" if code == 404 else f"HTTP {code}") as error:
        ChunkReader("text", QUICK)(unit, 0)
    assert error.value.exit_status == InputError.exit_status
    assert server.requests["GET", name] == 1


@pytest.mark.parametrize("trouble", ["503", "stalled"])
def test_listing_is_tried_again_and_never_takes_trouble_for_absence(tmp_path, server, trouble):
    name = write(tmp_path / "c.jsonl").name
    both = ("HEAD", "GET")
    policy = ReadPolicy(timeout_seconds=0.1, attempts=4)
    for address, path in ((server.url(name), name), (server.url("*.jsonl"), "")):
        server.fail(path, TROUBLES[trouble], methods=both)
        assert [file.size for file in listing.list_files([address], policy)] == [(tmp_path / name).stat().st_size]
        server.fail(path, *[TROUBLES[trouble]] * 18, methods=both)
        with pytest.raises(InputError, match="cannot be listed .*at the last of 4 attempts.*try again later") as raised:
            listing.list_files([address], policy)
        assert raised.value.exit_status == StorageError.exit_status  # the same command works later
        server.mend()
    for address in (server.url("absent.jsonl"), server.url("absent/*.jsonl"), server.url("*.txt")):
        with pytest.raises(InputError, match="matches no file") as raised:
            listing.list_files([address], policy)
        assert raised.value.exit_status == InputError.exit_status


def test_a_footer_that_does_not_come_is_never_skipped(tmp_path, server):
    name = write(tmp_path / "c.parquet").name
    files = listing.list_files([server.url(name)], SKIPPING)
    server.fail(name, *[status(503)] * 2)
    with pytest.raises(InputError, match=r"The footer of .*c\.parquet cannot be read .*503.*try again later") as error:
        listing.list_units(files, SKIPPING)
    assert error.value.exit_status == StorageError.exit_status


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".parquet"])
def test_skipping_leaves_out_the_rest_of_the_unit_and_records_it(tmp_path, server, suffix, caplog, monkeypatch):
    monkeypatch.setattr(chunk_reader.KeptChunks, "get", lambda *_: (False, None))
    name = write(tmp_path / f"c{suffix}", TEXTS).name
    unit = units_at(server.url(name))[0]
    expected = chunks_of(ChunkReader("text"), unit)
    reader = ChunkReader("text", SKIPPING)
    with caplog.at_level(logging.WARNING):
        assert reader(unit, 0) == expected[0]
        again = ChunkReader("text", SKIPPING)
        server.fail(name, *[status(503)] * 50)
        assert again(unit, 0) is None
        assert again(unit, 0) is None and again(unit, 1) is None
    assert [name for name, _ in again.skipped] == [unit.name]
    assert "from chunk 0 on" in again.skipped[0][1] and "503" in again.skipped[0][1]
    assert sum("is skipped" in record.message for record in caplog.records) == 1
    server.mend()
    assert again(unit, 0) is None, "the sequence of a unit may not change while a process lives"
    assert chunks_of(ChunkReader("text", SKIPPING), unit) == expected, "another process reads all of it"


def damaged(folder: Path, kind: str) -> tuple[Path, str]:
    """Returns a file with damage in its second half, and the expected sentence."""
    if kind == "json":
        lines = [json.dumps({"text": text}) for text in TEXTS]
        lines[200] = lines[200][:-5]
        path = folder / "c.jsonl"
        path.write_text("\n".join(lines))
        return path, "line 201 is not JSON"
    noise = ["".join(map(chr, np.random.default_rng(i).integers(97, 123, 1500))) for i in range(300)]
    if kind in (".jsonl.gz", ".jsonl.zst"):
        path = write(folder / f"c{kind}", noise)
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 3 // 4])
        return path, "cannot be read .*end"
    path = folder / "c.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"text": noise}), path, row_group_size=200, write_page_checksum=True, use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    at = pyarrow.parquet.read_metadata(path).row_group(1).column(0).data_page_offset
    at = {"header": at, "page": at + 50_000, "footer": len(content) - 4}[kind]
    content[at : at + 4] = bytes(4)
    path.write_bytes(content)
    return path, r"c\.parquet cannot" if kind == "footer" else r"c\.parquet, row group 1, cannot be read as parquet"


@pytest.mark.parametrize("kind", ["json", ".jsonl.gz", ".jsonl.zst", "header", "page", "footer"])
def test_damage_is_named_and_may_be_skipped(tmp_path, kind):
    path, message = damaged(tmp_path, kind)
    with pytest.raises(InputError, match=message):
        texts_at(str(path))
    reader = ChunkReader("text", SKIPPING)
    chunks = [chunk for unit in units_at(str(path), SKIPPING) for chunk in chunks_of(reader, unit)]
    assert len(reader.skipped) == 1
    num_read = sum(map(len, chunks))
    if kind == "json":
        assert [text.decode() for chunk in chunks for text in chunk] == TEXTS[:200]
    elif kind.startswith(".jsonl"):
        assert 130 < num_read < 230  # three quarters of the file, less the block that is cut and what stood in a buffer
    else:
        assert num_read == (0 if kind == "footer" else 200)


def test_a_missing_column_is_a_wrong_choice_and_never_skipped(tmp_path):
    for suffix in (".jsonl", ".csv", ".parquet"):
        unit = units_at(str(write(tmp_path / f"d{suffix}")))[0]
        with pytest.raises(InputError, match="no column 'body'"):
            ChunkReader("body", SKIPPING)(unit, 0)


def test_a_server_without_ranges_or_sizes_is_refused(tmp_path):
    name = write(tmp_path / "c.jsonl").name
    with serving(tmp_path, ranges=False) as server:
        with pytest.raises(InputError, match="does not support byte ranges"):
            texts_at(server.url(name))
        server.fail(name, *[unmeasured] * 9, methods=("HEAD", "GET"))
        with pytest.raises(InputError, match="does not report the size"):
            texts_at(server.url(name))


@pytest.mark.parametrize("trouble", ["503", "stalled", "truncated", "shortened"])
@pytest.mark.parametrize("handler", [BucketHandler, HubHandler])
def test_buckets_and_the_hub_are_read_through_trouble(tmp_path, handler, trouble, monkeypatch):
    names = [write(tmp_path / f"c{suffix}").name for suffix in (".jsonl", ".parquet", ".csv.gz")]
    with serving(tmp_path, handler=handler) as server:
        # What the libraries do by themselves, with pauses of their own, must not be needed.
        if handler is BucketHandler:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url("").removesuffix("/client/"))
            monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
            root = "gs://bucket"
        else:
            endpoint = server.url("").removesuffix("/client/")
            template = hub_constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(hub_constants.ENDPOINT, endpoint)
            monkeypatch.setattr(hub_constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            monkeypatch.setattr(hub_constants, "ENDPOINT", endpoint)
            monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
            root = "hf://datasets/me/set"
        type(fsspec.core.url_to_fs(root)[0]).clear_instance_cache()
        assert [file.size for file in listing.list_files([f"{root}/*.jsonl"], QUICK)] == [
            (tmp_path / "c.jsonl").stat().st_size
        ]
        for name in names:
            units = units_at(f"{root}/{name}")
            server.fail(name, TROUBLES[trouble], TROUBLES[trouble])
            reader = ChunkReader("text", QUICK)
            assert [text.decode() for unit in units for chunk in chunks_of(reader, unit) for text in chunk] == TEXTS
        server.fail(names[0], *[status(403)] * 9)
        with pytest.raises(InputError, match="403|Forbidden"):
            ChunkReader("text", QUICK)(units_at(f"{root}/{names[0]}")[0], 0)
        type(fsspec.core.url_to_fs(root)[0]).clear_instance_cache()


@pytest.mark.parametrize(
    ("field", "value"),
    [("read_timeout_seconds", 0), ("read_timeout_seconds", "60"), ("read_attempts", 0), ("on_read_failure", "wait")],
)
def test_a_policy_that_cannot_work_is_refused(field, value):
    with pytest.raises(InputError, match=f"DataConfig.{field} is {value!r}"):
        DataConfig("task", {"inputs": 512}, 8, **{field: value})


def test_a_library_that_never_returns_is_left_behind(monkeypatch):
    system = fsspec.filesystem("memory")
    system.pipe("/never.txt", b"one\ntwo\n")
    assert texts_at("memory://never.txt") == ["one", "two"]
    unit = units_at("memory://never.txt")[0]
    monkeypatch.setattr(type(system), "cat_file", lambda *arguments, **options: time.sleep(3))
    with pytest.raises(InputError, match="no complete response within 0.3 seconds"):
        ChunkReader("text", SHORT)(unit, 0)


def write_corpus(folder: Path, kind: str) -> None:
    """About 8 MB of text that does not compress away, in at least 32 units."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz    ", np.uint8)
    generator = np.random.default_rng(0)
    lengths = generator.integers(500, 1500, NUM_DOCUMENTS)
    texts = [letters[generator.integers(0, 30, length)].tobytes().decode() for length in lengths]
    folder.mkdir()
    if kind == "parquet":
        for number in range(4):
            part = texts[number::4]
            table = pyarrow.table({"id": range(len(part)), "text": part, "url": [text[::-1] for text in part]})
            pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=125)
    elif kind == "jsonl":
        write(folder / "all.jsonl", texts)
    else:
        for number in range(16):
            with gzip.open(folder / f"{number:02}.jsonl.gz", "wt") as file:
                file.writelines(json.dumps({"text": text}) + "\n" for text in texts[number::16])


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
@pytest.mark.slow
def test_each_of_four_hosts_reads_a_quarter_of_the_corpus(tmp_path, kind, monkeypatch):
    monkeypatch.undo()
    write_corpus(tmp_path / "corpus", kind)
    total = sum(path.stat().st_size for path in (tmp_path / "corpus").iterdir())
    seen = 0
    with serving(tmp_path) as server:
        for host in range(4):
            client = f"host{host}"
            source = FileSource(server.url(f"corpus/*.{kind}", client), validation_percent=0.0)
            for shard in range(4 * host, 4 * host + 4):
                dataset = source.documents("train", shard=shard, num_shards=16, seed=1, num_epochs=1)
                seen += sum(1 for _ in dataset)
            share = server.bytes_of(client) / total
            print(f"{kind}: host {host} was sent {share:.1%} of {total} bytes")
            assert (
                0 < share < (0.27 if kind != "parquet" else 0.17)
            )  # half of the parquet files is columns that nobody wants
    assert seen == NUM_DOCUMENTS


def test_a_host_that_does_not_exist_is_asked_for_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is read; in the middle of a run the same trouble may pass, and all attempts are made."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    naps: list[float] = []
    sleep = time.sleep
    here = threading.current_thread()

    def nap(seconds: float) -> None:
        if threading.current_thread() is here:
            naps.append(seconds)
        else:  # a library's thread, which another test has started
            sleep(seconds)

    monkeypatch.setattr(remote.tenacity.nap.time, "sleep", nap)  # time.sleep, wherever it is called
    with pytest.raises(InputError, match="cannot be reached: the host no-such-host.invalid is not found"):
        FileSource("http://no-such-host.invalid/corpus.jsonl").units("train")
    assert naps == [1.0]
    naps.clear()
    system, _ = fsspec.core.url_to_fs("http://no-such-host.invalid/corpus.jsonl")
    with pytest.raises(remote.ReadError, match="last of 6 attempts"):
        remote.fetch(system, "http://no-such-host.invalid/corpus.jsonl", 0, 9, remote.PATIENT)
    assert len(naps) == 5 and 31 <= sum(naps) <= 36


def test_a_bucket_that_cannot_be_reached_is_said_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's client would try for two minutes."""
    monkeypatch.setattr("limba.storage.servers.PAUSE_SECONDS", 0.01)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"^gs://nobody/\*\.jsonl cannot be reached: 127\.0\.0\.1 does not answer"):
        FileSource("gs://nobody/*.jsonl").units("train")
    assert time.monotonic() - began < 60
