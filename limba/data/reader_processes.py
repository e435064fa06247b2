"""A TrainStream whose shards are read by several processes, for devices that are faster than one interpreter.

Threads of one process wait for each other's turn at the interpreter: past one core they bring little. Each process
here has a TrainStream of some of the shards and answers one call after another; it ends with the process that
started it, however that ends.
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
from limba.data import streams
from limba.data.tasks import Provider, has_exact_positions, pinned_revisions

logger = logging.getLogger(__name__)

NO_DEVICES = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}  # they are the first process's
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # spare the arrays' page faults; what the user has set stays
SECONDS_TO_END = 10


class Recipe(NamedTuple):
    """What a process opens its stream by: tasks cannot be sent, so it resolves them itself."""

    config: DataConfig
    lengths: dict[str, int]
    revisions: dict[str, str]
    shards: tuple[int, ...]
    num_processes: int


class ReaderProcesses:
    """What `TrainStream` is, read by `config.num_reader_processes` processes; batches and positions are the same ones.

    They start at once and are waited for at the first call. ConfigError where one cannot open its stream or ends.
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
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
            self._processes.append(process)
            self._connections.append(ours)
            ours.send(recipe._replace(shards=recipe.shards[first :: recipe.num_processes]))
        self._are_open = False

    def _answers(self, name: str, *arguments: Any) -> list[Any]:
        """Returns what each process's stream returns for this call."""
        if not self._are_open:
            self._are_open = True
            self._received()
        for number, connection in enumerate(self._connections):
            with self._ends_noticed(number):
                connection.send((name, arguments))
        return self._received()

    def _received(self) -> list[Any]:
        answers = []
        for number, connection in enumerate(self._connections):
            with self._ends_noticed(number):
                answers.append(connection.recv())
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    @contextlib.contextmanager
    def _ends_noticed(self, number: int) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            shards = list(self._shards[number :: len(self._processes)])
            code = self._processes[number].wait(SECONDS_TO_END)
            raise InputError(
                f"The process that read data shards {shards} has ended ({code}); it says why above, or was killed, as"
                " where memory runs out: lower DataConfig.num_reader_processes, and start again."
            ) from error

    def __iter__(self) -> Iterator[dict[int, Any]]:
        return self

    def __next__(self) -> dict[int, Any]:
        parts = self._answers("__next__")
        if all(part is None for part in parts):
            raise StopIteration
        if any(part is None for part in parts):
            padding = self._answers("empty")
            parts = [some if part is None else part for part, some in zip(parts, padding, strict=True)]
        return self._in_order(parts)

    def _in_order(self, parts: Sequence[Mapping[int, Any]]) -> dict[int, Any]:
        together = {shard: value for part in parts for shard, value in part.items()}
        return {shard: together[shard] for shard in self._shards}

    def empty(self) -> dict[int, Any]:
        return self._in_order(self._answers("empty"))

    def positions(self) -> dict[int, bytes]:
        return self._in_order(self._answers("positions"))

    def restore(self, positions: Mapping[int, bytes]) -> None:
        self._answers("restore", dict(positions))

    def skipped(self) -> list[tuple[str, str]]:
        return [found for each in self._answers("skipped") for found in each]

    def epochs(self) -> dict[str, float]:
        """Returns task name -> how often its corpus has been read, a mean over this host's shards."""
        each = self._answers("epochs")
        num_shards = [len(self._shards[number :: len(each)]) for number in range(len(each))]
        return {
            name: sum(epochs[name] * count for epochs, count in zip(each, num_shards, strict=True)) / sum(num_shards)
            for name in each[0]
        }

    def close(self) -> None:
        """Ends the processes: each sees its socket closed."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:  # in the midst of a long read
                process.kill()
                process.wait()


def open_stream(
    task: Provider, lengths: Mapping[str, int], config: DataConfig, shards: Sequence[int]
) -> streams.TrainStream | ReaderProcesses:
    """Returns the stream of these shards, read here or by `config.num_reader_processes` processes."""
    if not has_exact_positions(task):
        logger.warning(
            "%s reads a source that cannot save its position: a resumed run reads again what it has read. "
            "Give the files as data_files, or use a source of limba.data.sources.",
            task.name,
        )
    num_processes = min(config.num_reader_processes, len(shards))
    if num_processes == 1:
        return streams.TrainStream(task, lengths, config, shards)
    return ReaderProcesses(Recipe(config, dict(lengths), pinned_revisions(task), tuple(shards), num_processes))


def serve(file_descriptor: int) -> None:
    """Answers calls on a stream's methods until the other end of the socket is closed."""
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


def _open(recipe: Recipe) -> streams.TrainStream:
    for module in recipe.config.task_modules:
        importlib.import_module(module)
    task = streams.pinned(streams.resolve_task(recipe.config), recipe.revisions)
    return streams.TrainStream(task, recipe.lengths, recipe.config, recipe.shards, recipe.num_processes)


def _outcome(call: Callable[[], Any]) -> Any:
    """Returns what the call returns, None at the end of a corpus, or what it raises."""
    try:
        return call()
    except StopIteration:
        return None
    except InputError as error:
        return error
    except Exception as error:
        logger.exception("A process that reads text failed:")
        return RuntimeError(f"{type(error).__name__}: {error}")
