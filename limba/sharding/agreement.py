"""What the processes of a run tell each other, what they must have alike, and errors that end all of them together.

Texts go through the service that joined the processes (`jax.distributed`), its key-value store and its barrier. That
needs no device, nothing compiled and no equal versions; any thread may do it while the devices compute, and each wait
has a limit. With one process all functions return at once.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import platform
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed  # no public name: the client of the service that joined the processes
from jax.experimental import multihost_utils

from limba.config import InputError, NonFiniteError, RestartError, RunConfig, StorageError, reason_of
from limba.config.errors import without_credentials
from limba.config.kinds import class_name
from limba.config.waiting import waiting

T = TypeVar("T")
# What a process has: a name that says what it is, and its value as text.
Facts = Mapping[str, str]
# For each name whose value is not process 0's: the own value and that of process 0; None where one has no such thing.
Differing = Mapping[str, Sequence[str | None]]

SHOWN, LONGEST = 3, 120  # differences that a sentence names, and characters of a value
# Fields that change neither numbers nor data. The vocabulary's content is compared, not its path.
FREE_FIELDS = ("DataConfig.vocabulary", "DataConfig.num_reader_processes", "RunConfig.profile_steps")
PACKAGES = ("jax", "jaxlib", "libtpu", "limba", "flax", "numpy", "optax", "sentencepiece", "seqio", "tensorflow")
# jax's service notices sooner that a process has died; this is for one that lives and does not come.
LIMIT_SECONDS = 600.0
LONG_SECONDS = 3600.0  # where the others may still compute, or compile
KINDS = {kind.__name__: kind for kind in (InputError, NonFiniteError, StorageError, RestartError)}


class LateError(TimeoutError):
    """The processes `late` have not come to an exchange in time."""

    def __init__(self, late: Sequence[int], seconds: float):
        super().__init__(f"{named(late) if late else 'this process'} gave no answer within {seconds:,.0f} s")
        self.late = late


def service() -> Any:
    """Returns the client of jax's service; None for a process that runs alone."""
    return distributed.global_state.client


def own_part() -> tuple[int, int]:
    """Returns (this process's number, how many there are); unlike jax's functions it starts no device."""
    state = distributed.global_state
    return (0, 1) if state.client is None else (state.process_id, state.num_processes or 1)


def is_first() -> bool:
    """Returns whether this is process 0, or the only one."""
    return own_part()[0] == 0


def gather_texts(name: str, text: str, seconds: float = LIMIT_SECONDS) -> list[str]:
    """Returns the texts of all processes, in their order; all call it, with the same `name`, on any thread.

    A name may be used again. Raises LateError, which names the processes, if not all have called within `seconds`.

    >>> gather_texts("example", "only one", 1.0)
    ['only one']
    """
    (own, number), client = own_part(), service()
    if number == 1:
        return [text]
    call = client.key_value_increment(f"limba/{name}/calls of {own}", 1)
    place = f"limba/{name}/{call}"
    client.key_value_set(f"{place}/{own}", text)
    late = None
    try:
        client.wait_at_barrier(place, int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        late = error
    texts = {int(key.rpartition("/")[2]): value for key, value in client.key_value_dir_get(f"{place}/")}
    if late is not None:
        raise LateError([process for process in range(number) if process not in texts], seconds) from late
    if own == 0:
        client.key_value_delete(f"limba/{name}/{call - 1}/")  # all have read it, or they would not be in this call
    return [texts[process] for process in range(number)]


def forget_texts(name: str) -> None:
    """Frees the texts of a name and of those below it; call it in the first process, when all have gathered them."""
    own, number = own_part()
    if number > 1 and own == 0:
        service().key_value_delete(f"limba/{name}/")


def gather_bytes(parts: Mapping[int, bytes]) -> dict[int, bytes]:
    """Merges the numbered bytes of all processes; all must call it, each with other numbers.

    >>> gather_bytes({0: b"position"})
    {0: b'position'}
    """
    texts = _gathered("bytes", json.dumps({n: base64.b64encode(part).decode() for n, part in parts.items()}))
    return {int(n): base64.b64decode(part) for text in texts for n, part in json.loads(text).items()}


def gather(numbers: np.ndarray) -> np.ndarray:
    """Returns the arrays [...] of all processes as [processes, ...], by the devices; all must call it.

    >>> gather(np.array([3, 4])).tolist()
    [[3, 4]]
    """
    return numbers[None] if jax.process_count() == 1 else np.asarray(multihost_utils.process_allgather(numbers))


def any_process(flag: bool) -> bool:
    """Returns whether the flag is true in any process, by the devices; all must call it."""
    return bool(gather(np.array(flag)).any())


def of_first(text: str, limit_seconds: float = LIMIT_SECONDS) -> str:
    """Returns process 0's text, on every process; all must call it."""
    return _gathered("first", text if is_first() else "", limit_seconds)[0]


def _gathered(name: str, text: str, seconds: float = LONG_SECONDS) -> list[str]:
    try:
        return gather_texts(name, text, seconds)
    except LateError as error:
        who, said = str(error)[:1].upper(), str(error)[1:]
        raise RestartError(
            f"{who}{said}: it has ended, or it stands still; see its output, and start all processes again."
        ) from error


@contextlib.contextmanager
def together(limit_seconds: float = LIMIT_SECONDS) -> Iterator[None]:
    """Ends all processes if one has an error inside: that one raises it, the others say which process has which.

    All must enter it, and inside no process may wait for another, or it would wait for one that has left. The others
    raise an error of the same exit status. An error that the others do not ask for in time is raised without them.
    """
    failed, several = None, []
    try:
        yield
    except Exception as error:  # noqa: BLE001  raised below
        failed = error
    try:
        own = "" if failed is None else json.dumps([type(failed).__name__, _said(failed)])
        several = _gathered("together", own, limit_seconds)
    except (RestartError, jax.errors.JaxRuntimeError):
        if failed is None:
            raise
    if failed is not None:
        raise failed
    for process, (kind, said) in ((process, json.loads(one)) for process, one in enumerate(several) if one):
        # Process 0 speaks for the run: its sentences are those of a run with one process.
        raise KINDS.get(kind, InputError)(said if process == 0 else f"Process {process} cannot go on: {said}")


def _said(error: Exception) -> str:
    known = isinstance(error, tuple(KINDS.values()))
    return str(error) if known else f"{type(error).__name__}, {reason_of(error)}; its own output says more."


@contextlib.contextmanager
def entered_by_first(context: AbstractContextManager[T]) -> Iterator[T | None]:
    """Enters a context in the first process only, and yields its value there; None in the others. All must call it.

    If entering raises an error, all processes raise one of its exit status with its sentence.
    """
    with contextlib.ExitStack() as stack:
        value = None
        with together(LONG_SECONDS):
            if is_first():
                value = stack.enter_context(context)
        yield value


def compiled_together(
    function: Callable[..., T], name: str, seconds: float | None, ready: Callable[[], None] = lambda: None
) -> Callable[..., T]:
    """Returns a jitted function that first compiles, and then waits until all processes have; each calls it.

    `ready` is called when it is compiled, and has not run yet. The first process says how long it has been compiling.
    Some backends give up when processes come to an exchange more than 30 s apart, and those that find the program in a
    cache may be minutes ahead. RestartError names a process that has not compiled within `seconds`.
    """
    compiled: list[Callable[..., T]] = []

    def call(*arguments: object) -> T:
        if not compiled:
            with waiting(f"compiling {name}", shows=is_first()):
                # What is compiled already has no `lower`.
                found = function.lower(*arguments).compile() if hasattr(function, "lower") else function
                try:
                    gather_texts(f"compiled/{name}", "", LONG_SECONDS if seconds is None else seconds)
                except LateError as error:
                    raise RestartError(
                        f"While {name} was compiled, {error} (RunConfig.step_timeout_seconds); look at that process,"
                        " and start all of them again."
                    ) from error
            compiled.append(found)
            ready()
        return compiled[0](*arguments)

    return call


def check_alike(facts_of: Callable[[], Facts]) -> None:
    """Raises InputError, in all processes alike, if one has other facts than process 0; all must call it.

    Usually 16 bytes of each process are compared. Only if they differ are the facts sent. With one process the facts
    are not made.
    """
    if own_part()[1] == 1:
        return
    facts = facts_of()
    content = json.dumps(facts, sort_keys=True)
    if len(set(_gathered("alike", hashlib.blake2b(content.encode(), digest_size=16).hexdigest()))) > 1:
        own = json.dumps(differing(facts, json.loads(of_first(content))))
        raise InputError(sentence([json.loads(one) for one in _gathered("differing", own)]))


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
    groups: dict[tuple[str, str | None, str | None], list[int]] = {}
    for process, one in enumerate(found):
        for name, (own, first) in one.items():
            groups.setdefault((name, own, first), []).append(process)
    names = list(dict.fromkeys(name for name, *_ in groups))
    clauses = [_clause(*each, groups[each]) for each in sorted(groups, key=lambda each: names.index(each[0]))]
    more = f"; and {len(clauses) - SHOWN:,} more differences" if len(clauses) > SHOWN else ""
    return (
        f"The processes of this run are not alike: {'; '.join(clauses[:SHOWN])}{more}; start the same command with the"
        " same code, packages and data on every worker."
    )


def _clause(name: str, own: str | None, first: str | None, processes: Sequence[int]) -> str:
    who, several = named(processes), len(processes) > 1
    if own is None:
        return f"{who} {'do' if several else 'does'} not have {name}, which process 0 has"
    has = f"{who} {'have' if several else 'has'} {name}"
    if first is None:
        return f"{has}, which process 0 does not have"
    return f"{has} {_shown(own)}, process 0 has {_shown(first)}"


def _shown(text: str) -> str:
    text = without_credentials(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def named(processes: Sequence[int]) -> str:
    """Returns the processes in words, not more than eight of them.

    >>> named([1]), named([1, 2]), named(list(range(1, 20)))
    ('process 1', 'processes 1 and 2', 'processes 1, 2, 3, 4, 5, 6, 7, 8 and 11 more')
    """
    if len(processes) == 1:
        return f"process {processes[0]}"
    shown = [str(process) for process in processes[:8]]
    last = f"{len(processes) - 8} more" if len(processes) > 8 else shown.pop()
    return f"processes {', '.join(shown)} and {last}"


def facts_of_run(config: RunConfig, modules: Sequence[str]) -> dict[str, str]:
    """Returns the facts of a configuration, of the versions, and of Limba's code and these modules of tasks."""
    return {**fields_of(config), **versions(), **code(modules)}


def fields_of(config: RunConfig) -> dict[str, str]:
    """Returns each field of nested dataclasses, without FREE_FIELDS, by its full name.

    A class that comes a second time has the path of its field: "EvaluationConfig.sampling.top_k".
    """
    found = {}
    left, known = deque[tuple[str, Any]]([(type(config).__name__, config)]), set()
    while left:  # the outermost first
        prefix, part = left.popleft()
        for entry in dataclasses.fields(part):
            value, name = getattr(part, entry.name), f"{prefix}.{entry.name}"
            if dataclasses.is_dataclass(value):
                owner = class_name(value)
                left.append((name if owner in known else owner, value))
                known.add(owner)
            elif name not in FREE_FIELDS:
                found[name] = repr(dict(value) if isinstance(value, Mapping) else value)
    return found


def versions() -> dict[str, str]:
    """Returns the versions of Python, without the last number, and of the packages that decide a run's numbers."""
    found = {name.replace("limba", "Limba"): version for name, version in installed(PACKAGES).items()}
    return {"Python": ".".join(platform.python_version_tuple()[:2]), **found}


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Returns the versions of those of these packages that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def code(modules: Sequence[str] = ()) -> dict[str, str]:
    """Returns a digest of each file of Limba's code, of `tasks` beside it, and of these modules, which are imported."""
    found = {f"{name} with content": digest for name, digest in _own_code().items()}
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).exists():
            found[f"the module {name} with content"] = _digest(Path(file))
    return found


@functools.cache
def _own_code() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    folders = ["limba", *(["tasks"] if (root / "gin" / "runs").is_dir() else [])]  # in a checkout
    paths = (path for folder in folders for path in sorted((root / folder).rglob("*.py")))
    return {path.relative_to(root).as_posix(): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
