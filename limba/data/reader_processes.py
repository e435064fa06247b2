"""A TrainStream that reads its shards in several processes, if one interpreter is too slow for the devices.

Threads of one process wait for the interpreter's lock, so more cores help little. Each process here has a
TrainStream of some of the shards and serves one call at a time. It ends with the process that started it, even if
that is killed.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from limba.config import DataConfig, InputError
from limba.config.environment import console
from limba.data.epochs.deal import WHOLE_UNITS, Deal
from limba.data.positions import PositionError
from limba.data.streams import TrainStream
from limba.data.t5_names import finder
from limba.data.tasks import Provider, copies_of, has_exact_positions, pinned, pinned_revisions, resolve_task

logger = logging.getLogger(__name__)

# Devices belong to the first process; modules are looked for where that one looks, and not first where it was started.
NO_DEVICES = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
LARGE_PAGES = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"
}  # fewer page faults in arrays; the user's own setting has priority
SECONDS_TO_END = 10


class Recipe(NamedTuple):
    """The arguments for opening a stream in another process; tasks cannot be pickled, so it resolves them itself."""

    config: DataConfig
    lengths: dict[str, int]
    revisions: dict[str, str]
    shards: tuple[int, ...]
    num_processes: int
    deal: Deal = WHOLE_UNITS
    directory: str | None = None  # of the run whose copies of the vocabularies are read


class ReaderProcesses:
    """A `TrainStream` read by `config.num_reader_processes` processes, with the same batches and data positions.

    The constructor starts the processes; the first call waits for them. Raises InputError if one cannot open its
    stream or ends early.
    """

    def __init__(self, recipe: Recipe):
        self._shards = recipe.shards
        self._processes: list[subprocess.Popen] = []
        environment = {**LARGE_PAGES, **os.environ, **NO_DEVICES, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._connections: list[Connection] = []
        for first in range(recipe.num_processes):
            ours, theirs = Pipe()
            with theirs:
                command = [sys.executable, "-m", "limba.data.reader", str(theirs.fileno())]
                # Its own session: Ctrl-C and a closed terminal reach the run only, which still needs what is read.
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True, stderr=console()
                )
            self._processes.append(process)
            self._connections.append(ours)
            ours.send(recipe._replace(shards=recipe.shards[first :: recipe.num_processes]))
        self._are_open = False

    def _call_all(self, name: str, *arguments: Any) -> list[Any]:
        """Calls a method of each process's stream; returns the results."""
        self._send_all(name, *arguments)
        return self._received()

    def _send_all(self, name: str, *arguments: Any) -> None:
        if not self._are_open:
            self._are_open = True
            self._received()
        for number, connection in enumerate(self._connections):
            with self._early_end(number):
                connection.send((name, arguments))

    def _received(self) -> list[Any]:
        answers = self._answers()
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _answers(self) -> list[Any]:
        answers = []
        for number, connection in enumerate(self._connections):
            with self._early_end(number):
                answers.append(connection.recv())
        return answers

    def _put_back(self, moved: Sequence[bool]) -> None:
        """Undoes the last `next` in the processes that have moved on, while others have failed."""
        connections = [connection for connection, has in zip(self._connections, moved, strict=True) if has]
        for connection in connections:
            connection.send(("put_back", ()))
        for connection in connections:
            connection.recv()

    @contextlib.contextmanager
    def _early_end(self, number: int) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            shards = list(self._shards[number :: len(self._processes)])
            code = self._processes[number].wait(SECONDS_TO_END)
            raise InputError(
                f"The process that read data shards {shards} has ended ({code}); its output above says why, or it was"
                " killed, perhaps because memory ran out: lower DataConfig.num_reader_processes, and start again."
            ) from error

    def __iter__(self) -> Iterator[dict[int, Any]]:
        return self

    def __next__(self) -> dict[int, Any]:
        self._send_all("__next__")
        parts = self._answers()
        if failed := [part for part in parts if isinstance(part, Exception)]:
            self._put_back([not isinstance(part, Exception) for part in parts])
            raise failed[0]
        if all(part is None for part in parts):
            raise StopIteration
        if any(part is None for part in parts):
            padding = self._call_all("empty")
            parts = [some if part is None else part for part, some in zip(parts, padding, strict=True)]
        return self._in_order(parts)

    def _in_order(self, parts: Sequence[Mapping[int, Any]]) -> dict[int, Any]:
        merged = {shard: value for part in parts for shard, value in part.items()}
        return {shard: merged[shard] for shard in self._shards}

    def empty(self) -> dict[int, Any]:
        return self._in_order(self._call_all("empty"))

    def positions(self) -> dict[int, bytes]:
        return self._in_order(self._call_all("positions"))

    def check(self, positions: Mapping[int, bytes]) -> None:
        self._call_all("check", dict(positions))

    def restore(self, positions: Mapping[int, bytes]) -> None:
        self._call_all("restore", dict(positions))

    def skipped(self) -> list[tuple[str, str]]:
        return [found for each in self._call_all("skipped") for found in each]

    def epochs(self) -> dict[str, float]:
        """Returns task name -> epochs read, a mean over this host's shards."""
        return self._mean("epochs")

    def tokens(self) -> dict[str, float]:
        """Returns task name -> tokens trained, of a mixture's tasks; all shards', if these are like the others."""
        return self._mean("tokens")

    def _mean(self, name: str) -> dict[str, float]:
        each = self._call_all(name)
        num_shards = [len(self._shards[number :: len(each)]) for number in range(len(each))]
        return {
            name: sum(values[name] * count for values, count in zip(each, num_shards, strict=True)) / sum(num_shards)
            for name in each[0]
        }

    def failure(self) -> BaseException | None:
        """Returns the error with which prefetching has failed in a process; what can be read before it is still read.

        A process is idle between two batches, so the question takes a fraction of a millisecond.
        """
        self._send_all("failure")
        return next((answer for answer in self._answers() if isinstance(answer, Exception)), None)

    def close(self) -> None:
        """Ends the processes, by closing the pipes on which they wait."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:  # during a long read
                process.kill()
                process.wait()


def open_stream(
    task: Provider, lengths: Mapping[str, int], config: DataConfig, shards: Sequence[int], deal: Deal = WHOLE_UNITS
) -> TrainStream | ReaderProcesses:
    """Returns the stream of these shards, read here or by `config.num_reader_processes` processes."""
    if not has_exact_positions(task):
        logger.warning(
            "%s reads a source that cannot save its data position: a resumed run reads it again from the beginning. "
            "Set DataConfig.data_files to its files, or use a source of limba.data.sources.",
            task.name,
        )
    num_processes = min(config.num_reader_processes, len(shards))
    if num_processes == 1:
        return TrainStream(task, lengths, config, shards, deal=deal)
    given = (config, dict(lengths), pinned_revisions(task), tuple(shards), num_processes, deal, copies_of(task))
    return ReaderProcesses(Recipe(*given))


def serve(file_descriptor: int) -> None:
    """Serves calls of a stream's methods until the other end of the pipe is closed."""
    with (
        contextlib.suppress(BrokenPipeError, ConnectionResetError),
        Connection(file_descriptor) as connection,
        contextlib.ExitStack() as stack,
    ):
        recipe = connection.recv()
        stream: list[Any] = []

        def opened() -> None:
            stream.append(stack.enter_context(contextlib.closing(_open(recipe))))

        connection.send(_outcome(opened))
        while stream:
            try:
                name, arguments = connection.recv()
            except EOFError:
                return
            call = getattr(stream[0], name)
            connection.send(_outcome(lambda call=call, arguments=arguments: call(*arguments)))


def _open(recipe: Recipe) -> TrainStream:
    finder.install()  # as the command that started this process did
    for module in recipe.config.task_modules:
        importlib.import_module(module)
    task = pinned(resolve_task(recipe.config, recipe.directory), recipe.revisions)
    return TrainStream(task, recipe.lengths, recipe.config, recipe.shards, recipe.num_processes, recipe.deal)


def _outcome(call: Callable[[], Any]) -> Any:
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
        logger.exception("A process that reads text failed:")
        return RuntimeError(f"{type(error).__name__}: {error}")
