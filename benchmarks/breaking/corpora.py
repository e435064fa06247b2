"""A corpus that changes between two starts, and one whose server stands still."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.breaking.bench import END_SECONDS, MORE_STEPS, TRAINED_STEPS, WHOLE_STEPS, Bench, Row, Setting
from tests.http_server import FileServer, serving, stall

INPUT = {2}
UNREADABLE = {2, 74}
READ_SECONDS, READ_ATTEMPTS = 2.0, 2
READING = (
    f"--gin.config.DataConfig.read_timeout_seconds={READ_SECONDS}",
    f"--gin.config.DataConfig.read_attempts={READ_ATTEMPTS}",
)
STALLS = 1_000  # for each file, more requests than a run makes
NUM_SERVED = 150


def _lines(path: Path) -> list[bytes]:
    return _bytes(path).splitlines(keepends=True)


def _bytes(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _cut(path: Path) -> None:
    lines = _lines(path)
    _write(path, b"".join(lines[: len(lines) // 2]))


def _appended(path: Path) -> None:
    _write(path, _bytes(path) + b"".join(_lines(path)[:20]))


def _replaced(path: Path) -> None:
    _write(path, b"".join(reversed(_lines(path))))


def _edited(path: Path) -> None:
    """Changes letters of the first document, and not the size."""
    data = bytearray(_bytes(path))
    at = data.index(b"the ")
    data[at : at + 3] = b"eht"
    _write(path, bytes(data))


def _added(path: Path) -> None:
    shutil.copyfile(path, path.with_name("another" + "".join(path.suffixes)))


CHANGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "cut": ("cut to half its lines", _cut),
    "appended": ("grown by 20 lines", _appended),
    "replaced": ("replaced by the same lines in another order", _replaced),
    "edited": ("edited near its beginning, with the same size", _edited),
    "deleted": ("deleted", lambda path: path.unlink()),
    "added": ("joined by another file that the pattern finds", _added),
}
PACKED = ("cut", "appended", "replaced", "edited")
NEW_EPOCH = "corpus-replaced-new-epoch"
STALLED = ("server-stalls", "server-stalls-at-the-start")


def names() -> list[str]:
    """Returns the names of these faults."""
    return [*(f"corpus-{way}" for way in CHANGES), *(f"corpus-gz-{way}" for way in PACKED), NEW_EPOCH, *STALLED]


def rows(bench: Bench, chosen: Sequence[str]) -> Iterator[Row]:
    """Yields the rows of the chosen faults."""
    for packed in (False, True):
        prefix = "corpus-gz-" if packed else "corpus-"
        if ways := [way for way in CHANGES if f"{prefix}{way}" in chosen]:
            yield from _changes(bench, ways, packed, prefix)
    if NEW_EPOCH in chosen:
        yield _new_epoch(bench)
    if STALLED[0] in chosen:
        yield _stalls(bench)
    if STALLED[1] in chosen:
        yield _stalls_at_the_start(bench)


def _corpus(bench: Bench, packed: bool) -> tuple[Path, Setting]:
    """Writes the bench's corpus as two files; returns the first, and the setting that reads both."""
    folder, suffix = bench.new("corpus"), ".jsonl.gz" if packed else ".jsonl"
    folder.mkdir()
    lines = _lines(bench.corpus)
    _write(folder / f"a{suffix}", b"".join(lines[::2]))
    _write(folder / f"b{suffix}", b"".join(lines[1::2]))
    return folder / f"a{suffix}", Setting(corpus=f"{folder}/*{suffix}")


def _changes(bench: Bench, ways: Sequence[str], packed: bool, prefix: str) -> Iterator[Row]:
    file, setting = _corpus(bench, packed)
    directory, found, original = bench.trained(setting, "changed"), list[Row](), bench.new("original")
    before = _listed(directory)
    shutil.copytree(file.parent, original)
    for way in ways:
        said, change = CHANGES[way]
        change(file)
        row = Row(f"{prefix}{way}", f"one of two {'gz ' if packed else ''}files of the corpus {said}")
        with bench.start(directory, setting) as start:
            codes = start.wait(END_SECONDS)
        named = "another" if way == "added" else file.name
        found.append(bench.judge(row, start, directory, codes, [INPUT], start.began, named))
        shutil.rmtree(file.parent)
        shutil.copytree(original, file.parent, copy_function=shutil.copy2)
        if _listed(directory) != before:
            row.wrong.append("the checkpoints are others afterwards")
            row.resumed = "not tried"
            directory = bench.trained(setting, "changed")
    rest = [row for row in found if not row.resumed]
    last = bench.resume(Row("", ""), directory, setting, TRAINED_STEPS)
    for row in rest:
        row.resumed, row.wrong, row.output = last.resumed, [*row.wrong, *last.wrong], row.output + last.output
    yield from found


def _listed(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in (directory / "checkpoints").rglob("*"))


def _new_epoch(bench: Bench) -> Row:
    """With on_changed_corpus 'new_epoch' the run begins a pass over the new text, and says so."""
    file, setting = _corpus(bench, packed=False)
    directory = bench.trained(setting, "new_epoch")
    _replaced(file)
    row = Row(NEW_EPOCH, "the same as corpus-replaced, with DataConfig.on_changed_corpus 'new_epoch'")
    with bench.start(directory, setting, extra=["--gin.config.DataConfig.on_changed_corpus='new_epoch'"]) as start:
        codes = start.wait(3 * END_SECONDS)
    bench.judge(row, start, directory, codes, [{0}], start.began, file.name)
    is_whole = start.trained() == list(range(TRAINED_STEPS + 1, WHOLE_STEPS + 1))
    row.resumed = "from its step, with the new text" if is_whole else f"steps {start.trained()}"
    if not is_whole:
        row.wrong.append(f"the steps {TRAINED_STEPS + 1} to {WHOLE_STEPS} are not all made")
    return row


def _served(bench: Bench) -> Path:
    """Returns a folder with the bench's corpus as many small files, so that a run asks for one every few steps."""
    folder = bench.new("served")
    folder.mkdir()
    lines = _lines(bench.corpus)
    for number in range(NUM_SERVED):
        _write(folder / f"part-{number:03}.jsonl", b"".join(lines[number::NUM_SERVED]))
    return folder


def _stall_all(server: FileServer, *methods: str) -> None:
    for file in server.folder.iterdir():
        server.fail(file.name, *([stall] * STALLS), methods=methods)


def _stalls(bench: Bench) -> Row:
    """The server stops answering while a run trains; afterwards it answers again."""
    row = Row(STALLED[0], "the server of the corpus stops answering while the run trains")
    with serving(_served(bench)) as server:
        setting, directory = Setting(1, 10**6, server.url("*.jsonl")), bench.new("served_run")
        with bench.start(directory, setting, extra=READING) as start:
            start.trains(8)
            _stall_all(server, "GET")
            codes = start.wait(3 * END_SECONDS)
        since = max((line.seconds for line in start.lines if line.text.startswith("step ")), default=start.began)
        server.mend()
        within = 4 * READ_SECONDS * READ_ATTEMPTS
        bench.judge(row, start, directory, codes, [UNREADABLE], since, "part-", within)
        last = max(start.trained(), default=0)
        return bench.resume(
            row, directory, dataclasses.replace(setting, steps=last + MORE_STEPS), start.promised(), extra=READING
        )


def _stalls_at_the_start(bench: Bench) -> Row:
    """The server does not answer a start at all."""
    row = Row(STALLED[1], "the server of the corpus does not answer a start")
    with serving(_served(bench)) as server:
        setting = Setting(corpus=server.url("*.jsonl"))
        directory = bench.trained(setting, "served_run")
        _stall_all(server, "GET", "HEAD")
        server.fail("", *([stall] * STALLS))
        with bench.start(directory, setting, extra=READING) as start:
            codes = start.wait(END_SECONDS)
        server.mend()
        bench.judge(row, start, directory, codes, [UNREADABLE], start.began, "127.0.0.1", 60)
        return bench.resume(row, directory, setting, TRAINED_STEPS, extra=READING)
