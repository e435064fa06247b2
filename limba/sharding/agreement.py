"""What the processes of a run tell each other, and errors that end all of them together.

Texts go through the service that joined the processes (`jax.distributed`), its key-value store and its barrier. That
needs no device, nothing compiled and no equal versions; any thread may do it while the devices compute, and each wait
has a limit. With one process all functions return at once.
"""

import base64
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed  # no public name: the client of the service that joined the processes
from jax.experimental import multihost_utils

from limba.config import InputError, NonFiniteError, RestartError, StorageError, reason_of
from limba.config.errors import NOT_WRITABLE
from limba.config.waiting import waiting
from limba.storage.failures import kind_of

T = TypeVar("T")

MOST_NAMED = 8  # processes in a sentence
# jax's service notices sooner that a process has died; this is for one that lives and does not come.
LIMIT_SECONDS = 600.0
LONG_SECONDS = 3600.0  # where the others may still compute, or compile
ERRORS = {error.__name__: error for error in (InputError, NonFiniteError, StorageError, RestartError)}


class LateError(TimeoutError):
    """The processes `late` have not come to an exchange in time."""

    def __init__(self, late: Sequence[int], seconds: float):
        who = named(late) if late else "this process"
        super().__init__(f"{who} gave no answer within {seconds:,.0f} s")
        self.late = late


def service() -> Any:
    """Returns the client of jax's service; None for a process that runs alone."""
    return distributed.global_state.client


def own_part() -> tuple[int, int]:
    """Returns the index of this process and how many there are; unlike jax's functions it starts no device."""
    state = distributed.global_state
    if state.client is None:
        return 0, 1
    return state.process_id, state.num_processes or 1


def is_first() -> bool:
    """Returns whether this is process 0, or the only one."""
    return own_part()[0] == 0


def gather_texts(name: str, text: str, seconds: float = LIMIT_SECONDS) -> list[str]:
    """Returns the texts of all processes, in their order; all call it, with the same `name`, on any thread.

    A name may be used again. Raises LateError, which names the processes, if not all have called within `seconds`.

    >>> gather_texts("example", "only one", 1.0)
    ['only one']
    """
    process, count = own_part()
    if count == 1:
        return [text]
    client = service()
    # Each process counts its own calls. They are in step, since all call it equally often.
    call = client.key_value_increment(f"limba/{name}/calls of {process}", 1)
    folder = f"limba/{name}/{call}"
    client.key_value_set(f"{folder}/{process}", text)
    failure = None
    try:
        client.wait_at_barrier(folder, int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        failure = error
    texts = {int(key.rpartition("/")[2]): value for key, value in client.key_value_dir_get(f"{folder}/")}
    if failure is not None:
        late = [other for other in range(count) if other not in texts]
        raise LateError(late, seconds) from failure
    if process == 0:
        # All have read the texts of the call before, or they would not be in this one.
        client.key_value_delete(f"limba/{name}/{call - 1}/")
    return [texts[other] for other in range(count)]


def forget_texts(name: str) -> None:
    """Frees the texts of a name and of those below it; call it in the first process, when all have gathered them."""
    process, count = own_part()
    if count > 1 and process == 0:
        service().key_value_delete(f"limba/{name}/")


def gathered(name: str, text: str, seconds: float = LONG_SECONDS) -> list[str]:
    """Returns what `gather_texts` does; RestartError, a sentence for the user, names processes that do not come."""
    try:
        return gather_texts(name, text, seconds)
    except LateError as error:
        message = str(error)
        raise RestartError(
            f"{message[:1].upper()}{message[1:]}: it has ended, or it stands still; see its output, and start all"
            " processes again."
        ) from error


def gather_bytes(parts: Mapping[int, bytes]) -> dict[int, bytes]:
    """Merges the numbered bytes of all processes; all must call it, each with other numbers.

    >>> gather_bytes({0: b"position"})
    {0: b'position'}
    """
    encoded = {number: base64.b64encode(part).decode() for number, part in parts.items()}
    merged: dict[int, bytes] = {}
    for text in gathered("bytes", json.dumps(encoded)):
        for number, part in json.loads(text).items():
            merged[int(number)] = base64.b64decode(part)
    return merged


def gather(numbers: np.ndarray) -> np.ndarray:
    """Returns the arrays [...] of all processes as [processes, ...], by the devices; all must call it.

    >>> gather(np.array([3, 4])).tolist()
    [[3, 4]]
    """
    if jax.process_count() == 1:
        return numbers[None]
    return np.asarray(multihost_utils.process_allgather(numbers))


def any_process(flag: bool) -> bool:
    """Returns whether the flag is true in any process, by the devices; all must call it."""
    return bool(gather(np.array(flag)).any())


def of_first(text: str, limit_seconds: float = LIMIT_SECONDS) -> str:
    """Returns process 0's text, on every process; all must call it."""
    return gathered("first", text if is_first() else "", limit_seconds)[0]


@contextlib.contextmanager
def together(limit_seconds: float = LIMIT_SECONDS) -> Iterator[None]:
    """Ends all processes if one has an error inside: that one raises it, the others say which process has which.

    All must enter it, and inside no process may wait for another, or it would wait for one that has left. The others
    raise an error of the same exit status. An error that the others do not ask for in time is raised without them.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001  raised below
        failure = error
    text = ""
    if failure is not None:
        text = json.dumps([_kind_of(failure).__name__, _sentence_of(failure)])
    of_processes: list[str] = []
    try:
        of_processes = gathered("together", text, limit_seconds)
    except (RestartError, jax.errors.JaxRuntimeError):
        if failure is None:
            raise
    if failure is not None:
        raise failure
    for process, of_process in enumerate(of_processes):
        if of_process:
            name, sentence = json.loads(of_process)
            if process > 0:  # process 0 speaks for the run, in the same sentences as a run with one process
                sentence = f"Process {process} cannot go on: {sentence}"
            raise ERRORS[name](sentence)


def _kind_of(error: Exception) -> type[Exception]:
    """Returns the one of ERRORS that has the exit status with which a process ends by this error."""
    for kind in ERRORS.values():
        if isinstance(error, kind):
            return kind
    if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
        return StorageError
    return kind_of(error)


def _sentence_of(error: Exception) -> str:
    if isinstance(error, tuple(ERRORS.values())):
        return str(error)
    return f"{type(error).__name__}, {reason_of(error)}; its own output says more."


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
    programs: list[Callable[..., T]] = []  # the compiled one, once it is there

    def call(*arguments: object) -> T:
        if not programs:
            programs.append(_compile_together(function, arguments, name, LONG_SECONDS if seconds is None else seconds))
            ready()
        return programs[0](*arguments)

    return call


def _compile_together(
    function: Callable[..., T], arguments: Sequence[object], name: str, seconds: float
) -> Callable[..., T]:
    with waiting(f"compiling {name}", shows=is_first()):
        program = function
        if hasattr(function, "lower"):  # else it is compiled already
            program = function.lower(*arguments).compile()
        try:
            gather_texts(f"compiled/{name}", "", seconds)
        except LateError as error:
            raise RestartError(
                f"While {name} was compiled, {error} (RunConfig.step_timeout_seconds); look at that process, and start"
                " all of them again."
            ) from error
    return program


def named(processes: Sequence[int]) -> str:
    """Returns the processes in words, not more than eight of them.

    >>> named([1]), named([1, 2]), named(list(range(1, 20)))
    ('process 1', 'processes 1 and 2', 'processes 1, 2, 3, 4, 5, 6, 7, 8 and 11 more')
    """
    if len(processes) == 1:
        return f"process {processes[0]}"
    shown = [str(process) for process in processes[:MOST_NAMED]]
    if len(processes) > MOST_NAMED:
        last = f"{len(processes) - MOST_NAMED} more"
    else:
        last = shown.pop()
    return f"processes {', '.join(shown)} and {last}"
