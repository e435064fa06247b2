"""A TrainStream that reads its shards in several processes, if one interpreter is too slow for the devices.

Threads of one process wait for the interpreter's lock, so more cores help little. Each process here has a
TrainStream of some of the shards and serves one call at a time. It ends with the process that started it, even if
that is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeVar

import numpy as np

from limba.config import DataConfig, InputError, RestartError
from limba.config.environment import console
from limba.config.errors import is_out_of_memory, reason_of
from limba.data import task_modules
from limba.data.dataset import Document
from limba.data.deal import WHOLE_UNITS, Deal
from limba.data.sources.fingerprints import File
from limba.data.sources.splits import Listing
from limba.data.stream.names import BatchDocuments
from limba.data.stream.positions import Position, PositionError, advanced, check_one_corpus
from limba.data.stream.shard import Recipe, Rows
from limba.data.stream.streams import Stream, TrainStream
from limba.data.tasks import pinned, resolve_task, unit_sources

logger = logging.getLogger(__name__)

# Devices belong to the first process; modules are looked for where that one looks, and not first where it was started.
NO_DEVICES = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
LARGE_PAGES = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"
}  # fewer page faults in arrays; the user's own setting has priority
Part = TypeVar("Part")  # of one shard

SECONDS_TO_END = 10
MOST_DEATHS = 3  # of a process and those in its place, without a batch between
KEEP_SECONDS = 30.0  # between two looks at the data positions, at least; the batches since are made again
KEEP_SHARE = 100  # and at least so many times as long as a look takes


class Opening(NamedTuple):
    """The arguments for opening a stream in another process; tasks cannot be pickled, so it resolves them itself."""

    config: DataConfig
    lengths: dict[str, int]
    revisions: dict[str, str]
    shards: tuple[int, ...]
    num_processes: int
    deal: Deal = WHOLE_UNITS
    directory: str | None = None  # of the run whose copies of the vocabularies are read
    is_exact: bool = True  # its data positions; else a stream is read again from its beginning


class _Reader:
    """One process that reads some of the shards, and the next one in its place when it ends or stands still."""

    def __init__(self, opening: Opening, listings: str):
        self.opening = opening
        self._listings = listings  # JSON
        self.deaths = 0  # without a batch between
        self.lost: Exception | None = None  # why no further process is started
        self.start()

    def start(self) -> None:
        """Starts a process, which opens the stream at its beginning."""
        environment = {**LARGE_PAGES, **os.environ, **NO_DEVICES, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.connection, theirs = Pipe()
        # There may be very many files: a pipe would be full, and this process wait, until the other one reads it.
        with theirs, tempfile.TemporaryFile("w+") as listings:
            listings.write(self._listings)
            listings.seek(0)
            command = [sys.executable, "-m", "limba.data.stream.reader", str(theirs.fileno())]
            # Its own session: Ctrl-C and a closed terminal reach the run only, which still needs what is read.
            self.process = subprocess.Popen(
                command, stdin=listings, pass_fds=[theirs.fileno()], env=environment, start_new_session=True,
                stderr=console(),
            )  # fmt: skip
        self.is_open = False
        self.send(self.opening)

    def send(self, message: object) -> None:
        """Sends a call; that the process has ended is for `receive` to find."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Any:
        """Returns the next answer; EOFError or OSError if the process has ended, BlockingIOError after the limit."""
        answer = self.connection.recv()
        if self.is_open or isinstance(answer, Exception):
            return answer
        self.is_open = True  # that was the answer of the opening
        return self.receive()

    def set_limit(self, seconds: float) -> None:
        """Sets for how long an answer is waited for, also where the process stops in the middle of one."""
        with socket.socket(fileno=os.dup(self.connection.fileno())) as pipe:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                pipe.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", math.ceil(seconds), 0))

    def go_to(self, positions: Mapping[int, Position] | None, num_batches: int) -> None:
        """Sets a new process to the batch so many after the positions, or after the beginning."""
        calls = [("read_on", (positions,))] if positions else []
        for call in (*calls, *[("__next__", ())] * num_batches):
            self.send(call)
            answer = self.receive()
            if isinstance(answer, Exception):
                raise answer

    def end(self) -> int | None:
        """Ends the process; returns its status, None if even that is not answered (a file system that is away)."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(SECONDS_TO_END)
        return None


class ReaderProcesses(Stream):
    """A stream read by `config.num_reader_processes` processes, with the same batches and data positions.

    The constructor starts the processes; the first call waits for them. One that is killed, or gives no answer for
    twice as long as all attempts of one read may take, is started again: it goes to the last data positions, which
    are asked for from time to time, and makes the batches since again. Where the corpus has changed since these, the
    call raises InputError. After three ends without a batch between it raises RestartError, or InputError if there was
    no batch at all. What was trained can still be saved.
    """

    def __init__(self, opening: Opening, recipe: Recipe | None = None, listings: Mapping[str, Listing] | None = None):
        """`recipe` is what the processes read by; without it documents have no names.

        They read the files of `listings`, by task, so that all have the same corpus; without it each looks for them.
        """
        self._opening = opening
        self._shards = opening.shards
        self._recipe = recipe
        parts = (opening.shards[first :: opening.num_processes] for first in range(opening.num_processes))
        as_json = _listings_as_json(listings or {})
        self._readers = [_Reader(opening._replace(shards=part), as_json) for part in parts]
        # Seconds for an answer, and for a start up to where the last process was; 0 until the first batch.
        self._began = time.monotonic()
        self._limit = 0.0
        self._start_limit = 0.0
        self._kept: dict[int, Position] | None = None  # the last positions, and
        self._since = 0  # the batches taken since them, or since the beginning
        self._keep_at = 0.0
        self._documents: dict[int, list[Sequence[Document]]] = {}
        self._failed: Exception | None = None  # of a process that was lost when others had given their next batch

    def _asked(self, name: str, *arguments: object) -> list[Any]:
        """Calls a method of each process's stream; returns the results, and where one failed its exception."""
        for reader in self._readers:
            reader.send((name, arguments))
        return [self._answer(reader, (name, arguments)) for reader in self._readers]

    def _answer(self, reader: _Reader, call: tuple[str, tuple]) -> Any:
        while reader.lost is None:
            try:
                return reader.receive()
            except (EOFError, OSError) as error:
                self._start_again(reader, error)
                reader.send(call)
        return reader.lost

    def _start_again(self, reader: _Reader, error: Exception) -> None:
        """Starts a process to replace one that has ended, up to the batch that it gave last."""
        code = reader.end()
        how = (
            f"gives no answer for {self._limit:,.0f} s" if isinstance(error, BlockingIOError) else f"has ended ({code})"
        )
        what = f"The process that read data shards {list(reader.opening.shards)} {how}"
        reader.deaths += 1
        if reader.deaths == MOST_DEATHS or (not self._limit and (code or 0) > 0):  # or it fails in its start
            reader.lost = (RestartError if self._limit else InputError)(
                f"{what}{f', {MOST_DEATHS} times in a row' if reader.deaths > 1 else ''}; its output above says why, or"
                " it was killed, perhaps because memory ran out: lower DataConfig.num_reader_processes, and start"
                " again."
            )
            return
        logger.warning("%s: it is started again, and reads on with the same row.", what)
        try:
            reader.start()
        except OSError as refused:  # no memory, no room for its listing
            sentence = f"{what}, and cannot be started again ({refused}); start the same command again."
            reader.lost = RestartError(sentence)
            return
        try:
            reader.set_limit(self._start_limit)
            reader.go_to(self._kept, self._since)
            reader.set_limit(self._limit)
        except (EOFError, OSError) as again:
            self._start_again(reader, again)
        except Exception as failed:  # noqa: BLE001  the corpus is not what it was
            reader.lost = failed

    def _call_all(self, name: str, *arguments: object) -> list[Any]:
        """Calls a method of each process's stream; returns the results. Raises the exception of one."""
        answers = self._asked(name, *arguments)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def __next__(self) -> dict[int, Rows]:
        if not self._failed and self._since and time.monotonic() > self._keep_at:
            self._keep_at = time.monotonic() + KEEP_SECONDS
            with contextlib.suppress(InputError, RestartError):  # the next save says it
                self.positions()
        if self._failed:
            raise self._failed
        self._call_all("wait")  # most errors come before any process has moved on
        parts = self._asked("next_with_documents")
        if failed := [part for part in parts if isinstance(part, Exception)]:
            self._failed = failed[0]  # and others have moved on
            raise self._failed
        if all(part is None for part in parts):
            raise StopIteration
        self._since += 1
        for reader in self._readers:
            reader.deaths = 0
        if not self._limit:
            config = self._opening.config
            began = self._began
            self._limit = 2 * config.read_attempts * config.read_timeout_seconds
            self._start_limit = max(self._limit, 3 * (time.monotonic() - began)) if self._opening.is_exact else 0.0
            for reader in self._readers:
                reader.set_limit(self._limit)
        # Padding where all shards of a process have ended: all rows have one shape.
        some = next(rows for part in parts if part is not None for rows in part[0].values())
        padding = {name: np.zeros_like(value) for name, value in some.items()}
        rows_of_readers: list[dict[int, Rows]] = []
        self._documents = {}
        for reader, part in zip(self._readers, parts, strict=True):
            if part is None:
                rows_of_readers.append(dict.fromkeys(reader.opening.shards, padding))
            else:
                rows, documents = part
                rows_of_readers.append(rows)
                self._documents |= documents
        return self._in_order(rows_of_readers)

    def _in_order(self, parts: Sequence[Mapping[int, Part]]) -> dict[int, Part]:
        merged = {shard: value for part in parts for shard, value in part.items()}
        return {shard: merged[shard] for shard in self._shards}

    def documents(self) -> BatchDocuments:
        return BatchDocuments(self._documents, self._recipe)

    def empty(self) -> dict[int, Rows]:
        return self._in_order(self._call_all("empty"))

    def positions(self) -> dict[int, Position]:
        """Returns each shard's data position after the batches taken; if a process is lost by the last one.

        Raises InputError, and so does the next batch, if the processes have opened different text.
        """
        began = time.monotonic()
        parts = self._asked("positions")
        for number, (reader, part) in enumerate(zip(self._readers, parts, strict=True)):
            if self._failed or isinstance(part, Exception):
                if self._kept is None or not (self._failed or reader.lost):
                    raise self._failed or part
                parts[number] = {shard: advanced(self._kept[shard], self._since) for shard in reader.opening.shards}
        positions = self._in_order(parts)
        try:
            check_one_corpus(positions)
        except InputError as error:
            self._failed = error
            raise
        self._kept = positions
        self._since = 0
        now = time.monotonic()
        self._keep_at = now + max(KEEP_SECONDS, KEEP_SHARE * (now - began))
        return dict(self._kept)

    def check(self, positions: Mapping[int, Position]) -> None:
        self._call_all("check", dict(positions))

    def begin(self, step: int, positions: Mapping[int, Position] | None = None) -> None:
        if positions is not None:
            self._call_all("begin", step, dict(positions))
            self.positions()  # where a process that is started again reads on, in the same pass

    def _living(self, name: str) -> list[tuple[_Reader, Any]]:
        """Returns the results of the processes that can be asked."""
        pairs = zip(self._readers, self._asked(name), strict=True)
        return [(reader, answer) for reader, answer in pairs if reader.lost is None]

    def skipped(self) -> list[tuple[str, str]]:
        skipped: list[tuple[str, str]] = []
        for _, of_reader in self._living("skipped"):
            skipped += of_reader
        return skipped

    def epochs(self) -> dict[str, float]:
        return self._mean("epochs")

    def tokens(self) -> dict[str, float]:
        return self._mean("tokens")

    def _mean(self, name: str) -> dict[str, float]:
        of_readers = [(len(reader.opening.shards), values) for reader, values in self._living(name)]
        names = of_readers[0][1] if of_readers else ()
        num_shards = sum(count for count, _ in of_readers)
        return {name: sum(values[name] * count for count, values in of_readers) / num_shards for name in names}

    def failure(self) -> BaseException | None:
        """Returns the error with which prefetching has failed in a process; what can be read before it is still read.

        A process is idle between two batches, so the question takes a fraction of a millisecond.
        """
        return next((answer for answer in self._asked("failure") if isinstance(answer, Exception)), None)

    def close(self) -> None:
        """Ends the processes, by closing the pipes on which they wait."""
        for reader in self._readers:
            reader.connection.close()
        for reader in self._readers:
            try:
                reader.process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:  # during a long read
                reader.end()


def serve(file_descriptor: int) -> None:
    """Serves calls of a stream's methods until the other end of the pipe is closed; stdin has the files to read."""
    with (
        # Without memory even for an answer this process ends, and the run starts another one.
        contextlib.suppress(BrokenPipeError, ConnectionResetError, MemoryError),
        Connection(file_descriptor) as connection,
        contextlib.ExitStack() as stack,
    ):
        listings = _listings_of_json(sys.stdin.read())
        opening = connection.recv()
        stream: list[TrainStream] = []

        def opened() -> None:
            stream.append(stack.enter_context(contextlib.closing(_open(opening, listings))))

        answer(connection, opened, opening.shards)
        while stream:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            call = getattr(stream[0], name)
            answer(connection, lambda call=call, arguments=arguments: call(*arguments), opening.shards)


def _listings_as_json(listings: Mapping[str, Listing]) -> str:
    return json.dumps(
        {
            task: [dict(listing.patterns), [[file.path, file.size, file.version] for file in listing.files]]
            for task, listing in listings.items()
        }
    )


def _listings_of_json(text: str) -> dict[str, Listing]:
    return {
        task: Listing(patterns, [File(*parts) for parts in files])
        for task, (patterns, files) in json.loads(text).items()
    }


def _open(opening: Opening, listings: Mapping[str, Listing]) -> TrainStream:
    task_modules.import_all(opening.config.task_modules)
    task = pinned(resolve_task(opening.config, opening.directory), opening.revisions)
    sources = unit_sources(task)
    for name, listing in listings.items():
        sources[name].read_listed(opening.config.train_split, listing)
    return TrainStream(task, opening.lengths, opening.config, opening.shards, opening.num_processes, opening.deal)


def answer(connection: Connection, call: Callable[[], object], shards: Sequence[int]) -> None:
    """Sends the outcome of a call, or that there is no memory left for it."""
    outcome = _outcome(call, shards)
    try:
        connection.send(outcome)
    except MemoryError as error:  # before a byte of it is sent
        connection.send(_no_memory(shards, error))


def _no_memory(shards: Sequence[int], error: BaseException) -> InputError:
    return InputError(
        f"The process that reads data shards {list(shards)} has no memory left ({reason_of(error)}); free some on this"
        " host, or lower DataConfig.num_reader_processes, and start the same command again."
    )


def _outcome(call: Callable[[], object], shards: Sequence[int]) -> object:
    """Returns the result of the call, None at the end of a corpus, or the exception that it raises or returns."""
    try:
        result = call()
        if isinstance(result, BaseException):
            raise result
        return result
    except StopIteration:
        return None
    except (InputError, PositionError) as error:
        return error
    except Exception as error:
        if is_out_of_memory(error):
            return _no_memory(shards, error)
        logger.exception("A process that reads text failed:")
        return RuntimeError(f"{type(error).__name__}: {error}")
