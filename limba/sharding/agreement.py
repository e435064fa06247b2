"""What all processes of a run must have alike, and errors that end all of them together.

The processes compare through the service that joined them (`jax.distributed`). That needs no device, nothing compiled
and no equal versions, and each wait has a limit. With one process all functions return at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
import subprocess
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed  # no public name: the client of the service

from limba.config import InputError, NonFiniteError, RestartError, StorageError
from limba.config.errors import reason_of
from limba.config.secrets import without_credentials

# What a process has: a name that says what it is, and its value as text.
Facts = Mapping[str, str]
# For each name whose value is not process 0's: the own value and that of process 0; None where one has no such thing.
Differing = Mapping[str, Sequence[str | None]]

SHOWN, LONGEST = 3, 120  # differences that a sentence names, and characters of a value
# Fields that change neither numbers nor data. The vocabulary's content is compared, not its path.
FREE_FIELDS = ("DataConfig.vocabulary", "DataConfig.num_reader_processes", "RunConfig.profile_steps")
CODE_FOLDERS = ("limba", "launch", "tasks", "gin")
CODE_SUFFIXES = (".py", ".sh", ".gin")
PACKAGES = ("jax", "jaxlib", "libtpu", "limba", "flax", "numpy", "optax", "sentencepiece", "seqio", "tensorflow")
PIECE = 1 << 20  # bytes in one message of the service
# A process that has died is noticed sooner (limba/sharding/liveness.py); this is for one that lives and does not come.
LIMIT_SECONDS = 600.0
GRACE_SECONDS = 10.0  # that the others wait longer than process 0, whose sentence says who is missing
KINDS = {kind.__name__: kind for kind in (InputError, NonFiniteError, StorageError, RestartError)}


def check_alike(facts_of: Callable[[], Facts], limit_seconds: float = LIMIT_SECONDS) -> None:
    """Raises InputError, in all processes alike, if one has other facts than process 0; all must call it.

    Usually 16 bytes of each process are compared. Only if they differ are the facts sent. With one process the facts
    are not made.
    """
    if _is_alone():
        return
    facts = facts_of()
    content = json.dumps(facts, sort_keys=True).encode()
    digest = hashlib.blake2b(content, digest_size=16).digest()
    first = _answer(digest, lambda digests: b"" if len(set(digests)) == 1 else content, limit_seconds)
    if not first:
        return
    own = json.dumps(differing(facts, json.loads(first))).encode()
    said = _answer(own, lambda several: sentence([json.loads(one) for one in several]).encode(), limit_seconds)
    raise InputError(said.decode())


def differing(own: Facts, first: Facts) -> dict[str, tuple[str | None, str | None]]:
    """Returns the names whose values are not those of process 0, with both values, in the order of the facts.

    >>> differing({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"})
    {'b': ('2', '3'), 'c': (None, '4')}
    """
    return {name: (own.get(name), first.get(name)) for name in {**own, **first} if own.get(name) != first.get(name)}


def sentence(found: Sequence[Differing]) -> str:
    """Returns what differs in which processes; `found` has `differing` of each process, process 0's being empty.

    >>> print(sentence([{}, {"jax": ("0.10.1", "0.10.2")}]).partition(";")[0])
    The processes of this run are not alike: process 1 has jax 0.10.1, process 0 has 0.10.2
    """
    clauses = []
    for name in dict.fromkeys(name for one in found for name in one):
        groups: dict[tuple[str | None, str | None], list[int]] = {}
        for process, one in enumerate(found):
            if name in one:
                own, first = one[name]
                groups.setdefault((own, first), []).append(process)
        clauses += [_clause(name, *values, processes) for values, processes in groups.items()]
    more = f"; and {len(clauses) - SHOWN:,} more differences" if len(clauses) > SHOWN else ""
    return (
        f"The processes of this run are not alike: {'; '.join(clauses[:SHOWN])}{more}; start the same command with the"
        " same code, packages and data on every worker."
    )


def _clause(name: str, own: str | None, first: str | None, processes: Sequence[int]) -> str:
    who, several = _named(processes), len(processes) > 1
    if own is None:
        return f"{who} {'do' if several else 'does'} not have {name}, which process 0 has"
    own, first = (None if text is None else without_credentials(text) for text in (own, first))
    own, first = (text if text is None or len(text) <= LONGEST else f"{text[:LONGEST]}…" for text in (own, first))
    has = f"{who} {'have' if several else 'has'} {name}"
    if first is None:
        return f"{has}, which process 0 does not have"
    return f"{has} {own}, process 0 has {first}"


def _named(processes: Sequence[int]) -> str:
    """Returns the processes in words.

    >>> _named([1]), _named([1, 3]), _named([1, 2, 3]), _named([1, 2, 4, 5])
    ('process 1', 'processes 1 and 3', 'processes 1 to 3', 'processes 1, 2, 4 and 5')
    """
    if len(processes) == 1:
        return f"process {processes[0]}"
    if len(processes) > 2 and processes[-1] - processes[0] == len(processes) - 1:
        return f"processes {processes[0]} to {processes[-1]}"
    return f"processes {', '.join(map(str, processes[:-1]))} and {processes[-1]}"


@contextlib.contextmanager
def together(limit_seconds: float = LIMIT_SECONDS) -> Iterator[None]:
    """Ends all processes if one has an error inside: that one raises it, the others say which process has which.

    All must enter it, and inside no process may wait for another, or it would wait for one that has left. The others
    raise an error of the same exit status. An error that the others do not ask for in time is raised without them.
    """
    if _is_alone():
        yield
        return
    failed = None
    try:
        yield
    except Exception as error:  # noqa: BLE001  raised below
        failed = error
    own = json.dumps(None if failed is None else [type(failed).__name__, _said(failed)]).encode()
    try:
        several = json.loads(_answer(own, lambda contents: b"[" + b",".join(contents) + b"]", limit_seconds))
    except RestartError:
        if failed is None:
            raise
        raise failed from None
    if failed is not None:
        raise failed
    for process, one in enumerate(several):
        if one is not None:
            raise KINDS.get(one[0], InputError)(f"Process {process} cannot go on: {one[1]}")


def _said(error: Exception) -> str:
    known = isinstance(error, tuple(KINDS.values()))
    return str(error) if known else f"{type(error).__name__}, {reason_of(error)}; its own output says more."


def of_first(text: str, limit_seconds: float = LIMIT_SECONDS) -> str:
    """Returns process 0's text, on every process; all must call it."""
    return text if _is_alone() else _answer(text.encode(), lambda contents: contents[0], limit_seconds).decode()


def is_first() -> bool:
    """Returns whether this is process 0, or the only one."""
    return _is_alone() or distributed.global_state.process_id == 0


def _is_alone() -> bool:
    state = distributed.global_state
    return state.client is None or state.num_processes in (None, 1)


def _answer(content: bytes, answer: Callable[[list[bytes]], bytes], limit_seconds: float) -> bytes:
    """Returns what process 0 answers to the contents of all processes; all must call it, in the same order.

    Raises RestartError, which names the missing process, after the limit.
    """
    client, process = distributed.global_state.client, distributed.global_state.process_id
    assert client is not None
    prefix = f"limba/{client.key_value_increment(f'limba/rounds of {process}', 1)}"
    deadline = time.monotonic() + limit_seconds
    if process:
        _put(client, f"{prefix}/{process}", content)
        found = _get(client, f"{prefix}/answer", deadline + GRACE_SECONDS, 0)
    else:
        try:
            several = [_get(client, f"{prefix}/{other}", deadline, other) for other in _others()]
            found = b"=" + answer([content, *several])
        except RestartError as error:
            found = b"!" + str(error).encode()
        _put(client, f"{prefix}/answer", found)
    if found[:1] == b"!":
        raise RestartError(found[1:].decode())
    return found[1:]


def _others() -> range:
    return range(1, distributed.global_state.num_processes or 1)


def _put(client: Any, key: str, content: bytes) -> None:
    packed = zlib.compress(content)
    pieces = [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]
    for number, piece in enumerate(pieces):
        client.key_value_set_bytes(f"{key}/{number}", bytes([number + 1 < len(pieces)]) + piece)


def _get(client: Any, key: str, deadline: float, process: int) -> bytes:
    """Returns what `process` has put; RestartError at the deadline, on the clock of `time.monotonic`."""
    pieces: list[bytes] = []
    while not pieces or pieces[-1][0]:
        left = max(1, int(1000 * (deadline - time.monotonic())))
        try:
            pieces.append(client.blocking_key_value_get_bytes(f"{key}/{len(pieces)}", left))
        except jax.errors.JaxRuntimeError as error:
            why = "in time" if "DEADLINE_EXCEEDED" in str(error) else f"({reason_of(error, 60)})"
            raise RestartError(
                f"Process {process} has not answered {why}: it has ended, or it stands still; see its output, and start"
                " all processes again."
            ) from None
    return zlib.decompress(b"".join(piece[1:] for piece in pieces))


def facts_of_run(config: Any, modules: Sequence[str]) -> dict[str, str]:
    """Returns the facts of a configuration, of the versions, and of Limba's code and these modules of tasks."""
    return {**fields_of(config), **versions(), **code(modules)}


def fields_of(config: Any) -> dict[str, str]:
    """Returns each field of nested dataclasses, without FREE_FIELDS, by its full name.

    A class that comes a second time has the path of its field: "EvaluationConfig.sampling.top_k".
    """
    found: dict[str, str] = {}
    waiting, known = deque([(type(config).__name__, config)]), set()
    while waiting:  # the outermost first
        prefix, part = waiting.popleft()
        for entry in dataclasses.fields(part):
            value, name = getattr(part, entry.name), f"{prefix}.{entry.name}"
            if dataclasses.is_dataclass(value):
                owner = type(value).__name__
                waiting.append((name if owner in known else owner, value))
                known.add(owner)
            elif name not in FREE_FIELDS:
                found[name] = repr(dict(value) if isinstance(value, Mapping) else value)
    return found


def versions() -> dict[str, str]:
    """Returns the versions of Python, without the last number, and of the packages that decide a run's numbers."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name.replace("limba", "Limba")] = importlib.metadata.version(name)
    return found


def code(modules: Sequence[str] = ()) -> dict[str, str]:
    """Returns a digest of each file of Limba's code, and of these modules, which are imported.

    In a checkout these are the tracked files; else all of the package, and of the folders beside it.
    """
    found = {f"{name} with content": digest for name, digest in _own_code().items()}
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).exists():
            found[f"the module {name} with content"] = _digest(Path(file).read_bytes())
    return found


@functools.cache
def _own_code() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    names = _tracked(root)
    if names is None:
        folders = [folder for folder in CODE_FOLDERS if folder == "limba" or (root / "gin" / "runs").is_dir()]
        paths = (path for folder in folders for path in sorted((root / folder).rglob("*")))
        names = [path.relative_to(root).as_posix() for path in paths if path.suffix in CODE_SUFFIXES]
    return {name: _digest((root / name).read_bytes()) for name in names if (root / name).is_file()}


def _tracked(root: Path) -> list[str] | None:
    """Returns the tracked files of CODE_FOLDERS; None where there is no checkout, or no git."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "ls-files", "-z", "--", *CODE_FOLDERS]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return [name for name in done.stdout.decode().split("\0") if name.endswith(CODE_SUFFIXES)]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()
