"""A corpus that changes between two starts or while it is read, and one whose server stands still."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from limba.data.sources.chunk_reader import KeptChunks
from tests.faults.runs import END_SECONDS, INPUT, MORE_STEPS, STORAGE, TRAINED_STEPS, WHOLE_STEPS, Runs, Setting
from tests.http_server import FileServer, serving, stall

READ_SECONDS = 2.0
READ_ATTEMPTS = 2
READING = (
    f"--gin.config.DataConfig.read_timeout_seconds={READ_SECONDS}",
    f"--gin.config.DataConfig.read_attempts={READ_ATTEMPTS}",
)
STALLS = 1_000  # for each file, more requests than a run makes
NUM_SERVED = 150
# Of the run whose corpus changes while it is read: in order, it opens the next part of a file within some 60 steps.
# The text is so many copies that the chunks which a source keeps in memory are less than all of it.
IN_ORDER = ("--gin.config.DataConfig.shuffle=False", "--gin.config.DataConfig.num_data_shards=1")
IN_ORDER_STEPS = 240
NUM_COPIES = 24
KEPT_BYTES = KeptChunks.BYTES_A_SOURCE


def _lines(path: Path) -> list[bytes]:
    return _bytes(path).splitlines(keepends=True)


def _bytes(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _cut(path: Path) -> None:
    lines = _lines(path)
    _write(path, b"".join(lines[: len(lines) // 2]))


def _append(path: Path) -> None:
    _write(path, _bytes(path) + b"".join(_lines(path)[:20]))


def _replace(path: Path) -> None:
    """Writes the same lines in another order."""
    _write(path, b"".join(reversed(_lines(path))))


def _edit(path: Path) -> None:
    """Changes letters of the first document, and not the size."""
    data = bytearray(_bytes(path))
    at = data.index(b"the ")
    data[at : at + 3] = b"eht"
    _write(path, bytes(data))


def _add(path: Path) -> None:
    """Writes another file that the pattern finds."""
    shutil.copyfile(path, path.with_name("another" + "".join(path.suffixes)))


CHANGES: dict[str, Callable[[Path], object]] = {
    "cut": _cut,
    "appended": _append,
    "replaced": _replace,
    "edited": _edit,
    "deleted": lambda path: path.unlink(),
    "added": _add,
}
PACKED = ("cut", "appended", "replaced", "edited")
TRIALS = [("jsonl", way) for way in CHANGES] + [("jsonl.gz", way) for way in PACKED]


@pytest.fixture(scope="module")
def originals(runs: Runs) -> dict[str, Path]:
    """For each form of the files a folder with the corpus as two of them."""
    folders: dict[str, Path] = {}
    lines = _lines(runs.corpus)
    for form in ("jsonl", "jsonl.gz"):
        folders[form] = runs.new("corpus")
        folders[form].mkdir()
        _write(folders[form] / f"a.{form}", b"".join(lines[::2]))
        _write(folders[form] / f"b.{form}", b"".join(lines[1::2]))
    return folders


@pytest.fixture
def restored(runs: Runs, originals: dict[str, Path]) -> Iterator[Callable[[str], None]]:
    """Puts a form's files back as they were, with their times; in the end all of them."""
    kept = {form: runs.new("original") for form in originals}
    for form, folder in originals.items():
        shutil.copytree(folder, kept[form])

    def put_back(form: str) -> None:
        shutil.rmtree(originals[form])
        shutil.copytree(kept[form], originals[form], copy_function=shutil.copy2)

    yield put_back
    for form in originals:
        put_back(form)


def _listed(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in (directory / "checkpoints").rglob("*"))


@pytest.mark.night
@pytest.mark.parametrize(
    ("form", "way"), TRIALS, ids=[f"corpus-{'gz-' if form.endswith('gz') else ''}{way}" for form, way in TRIALS]
)
def test_a_changed_corpus_is_refused_and_the_original_goes_on(
    form: str, way: str, runs: Runs, originals: dict[str, Path], restored: Callable[[str], None]
) -> None:
    setting = Setting(corpus=f"{originals[form]}/*.{form}")
    directory = runs.trained(setting, "changed")
    runs.reference(setting)
    before = _listed(directory)
    CHANGES[way](originals[form] / f"a.{form}")
    with runs.start(directory, setting) as start:
        codes = start.wait(END_SECONDS)
    named = "another" if way == "added" else f"a.{form}"
    runs.check(start, directory, codes, [INPUT], start.began, named)
    assert _listed(directory) == before
    restored(form)
    runs.check_resumes(directory, setting, TRAINED_STEPS)


@pytest.mark.night
def test_a_new_epoch_of_a_changed_corpus_goes_on_from_its_step(
    runs: Runs, originals: dict[str, Path], restored: Callable[[str], None]
) -> None:
    """The trial corpus-replaced-new-epoch: DataConfig.on_changed_corpus is 'new_epoch'."""
    setting = Setting(corpus=f"{originals['jsonl']}/*.jsonl")
    directory = runs.trained(setting, "new_epoch")
    _replace(originals["jsonl"] / "a.jsonl")
    with runs.start(directory, setting, extra=["--gin.config.DataConfig.on_changed_corpus='new_epoch'"]) as start:
        codes = start.wait(3 * END_SECONDS)
    runs.check(start, directory, codes, [{0}], start.began, "a.jsonl")
    printed = start.trained()  # not every step, where they are fast
    assert (printed[0], printed[-1]) == (TRAINED_STEPS + 1, WHOLE_STEPS)


@pytest.fixture(scope="module")
def large(runs: Runs) -> Path:
    """A folder with a corpus of two files, of which a run does not keep all in memory."""
    folder = runs.new("large")
    folder.mkdir()
    texts = [json.loads(line)["text"] for line in _lines(runs.corpus)]
    for name in ("a", "b"):
        with (folder / f"{name}.jsonl").open("w") as file:
            for number in range(NUM_COPIES):
                file.writelines(json.dumps({"text": f"{name} {number} {text}"}) + "\n" for text in texts)
    assert sum(path.stat().st_size for path in folder.iterdir()) > KEPT_BYTES
    return folder


def _replace_by_rename(path: Path) -> None:
    """Gives the name to another file of the same lines in another order, and so of the same size."""
    other = path.with_name("other")
    other.write_bytes(b"".join(reversed(_lines(path))))
    other.rename(path)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _append_in_place(path: Path) -> None:
    lines = _lines(path)[:20]
    with path.open("ab") as file:
        file.writelines(lines)


CHANGES_WHILE_READ: dict[str, Callable[[Path], None]] = {
    "replaced": _replace_by_rename,
    "cut": _truncate,
}


@pytest.mark.night
@pytest.mark.parametrize("way", CHANGES_WHILE_READ, ids=[f"corpus-{way}-while-read" for way in CHANGES_WHILE_READ])
def test_a_corpus_that_changes_while_it_is_read_ends_the_run(way: str, runs: Runs, large: Path) -> None:
    setting = Setting(steps=IN_ORDER_STEPS, corpus=f"{large}/*.jsonl", more=IN_ORDER)
    runs.reference(setting)
    path = large / "a.jsonl"
    kept = runs.new("kept")
    shutil.copy2(path, kept)
    directory = runs.new("changed_while_read")
    with runs.training(directory, setting, 8) as start:
        since = time.monotonic()
        CHANGES_WHILE_READ[way](path)
        codes = start.wait(3 * END_SECONDS)
    shutil.copy2(kept, path)
    runs.check_same(start, directory, setting)  # no row of other text
    runs.check(start, directory, codes, [INPUT], since, r"a\.jsonl has changed while the run reads it: [\d,]+ bytes")
    trained = max(start.trained())
    runs.check_resumes(directory, setting, trained, steps=trained + MORE_STEPS)


@pytest.mark.night
def test_a_corpus_that_grows_while_it_is_read_is_read_as_it_was(runs: Runs, large: Path) -> None:
    """The trial corpus-appended-while-read: the next start names the file."""
    setting = Setting(steps=IN_ORDER_STEPS, corpus=f"{large}/*.jsonl", more=IN_ORDER)
    runs.reference(setting)
    path = large / "a.jsonl"
    kept = runs.new("kept")
    shutil.copy2(path, kept)
    directory = runs.new("grown_while_read")
    trained = IN_ORDER_STEPS - MORE_STEPS
    with runs.training(directory, dataclasses.replace(setting, steps=trained), 8) as start:
        _append_in_place(path)
        codes = start.wait(3 * END_SECONDS)
    assert codes == [0]
    runs.check_same(start, directory, setting)
    with runs.start(directory, setting) as again:
        codes = again.wait(END_SECONDS)
    runs.check(again, directory, codes, [INPUT], again.began, rf"a\.jsonl has changed since step {trained}:")
    shutil.copy2(kept, path)
    runs.check_resumes(directory, setting, trained)


@pytest.fixture
def served(runs: Runs) -> Path:
    """A folder with the corpus as many small files, so that a run asks for one every few steps."""
    folder = runs.new("served")
    folder.mkdir()
    lines = _lines(runs.corpus)
    for number in range(NUM_SERVED):
        _write(folder / f"part-{number:03}.jsonl", b"".join(lines[number::NUM_SERVED]))
    return folder


def _stall_all(server: FileServer, *methods: str) -> None:
    for file in server.folder.iterdir():
        server.fail(file.name, *([stall] * STALLS), methods=methods)


@pytest.mark.night
def test_a_server_that_stops_answering_ends_the_run(runs: Runs, served: Path) -> None:
    """The trial server-stalls: afterwards it answers again."""
    with serving(served) as server:
        setting = Setting(1, 10**6, server.url("*.jsonl"))
        directory = runs.new("served_run")
        with runs.training(directory, setting, 8, extra=READING) as start:
            _stall_all(server, "GET")
            codes = start.wait(3 * END_SECONDS)
        since = max(line.seconds for line in start.lines if line.text.startswith("step "))
        server.mend()
        runs.check(start, directory, codes, [STORAGE], since, "part-")
        longer = dataclasses.replace(setting, steps=max(start.trained()) + MORE_STEPS)
        runs.check_resumes(directory, longer, start.promised(), extra=READING)


@pytest.mark.night
def test_a_server_that_does_not_answer_a_start_ends_it(runs: Runs, served: Path) -> None:
    """The trial server-stalls-at-the-start."""
    with serving(served) as server:
        setting = Setting(corpus=server.url("*.jsonl"))
        directory = runs.trained(setting, "served_run")
        _stall_all(server, "GET", "HEAD")
        server.fail("", *([stall] * STALLS))
        with runs.start(directory, setting, extra=READING) as start:
            codes = start.wait(END_SECONDS)
        server.mend()
        runs.check(start, directory, codes, [STORAGE], start.began, "127.0.0.1")
        runs.check_resumes(directory, setting, TRAINED_STEPS, extra=READING)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("way", CHANGES)
def test_each_change_of_a_corpus_changes_one_file(way: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    original = b"".join(b'{"text": "the %d"}\n' % number for number in range(30))
    _write(path, original)
    CHANGES[way](path)
    now = _bytes(path) if path.exists() else None
    assert (now == original) == (way == "added")
    assert len(list(tmp_path.iterdir())) == {"added": 2, "deleted": 0}.get(way, 1)
    assert way != "edited" or len(now or b"") == len(original)
