"""Collective decisions of the processes of one run; `joining` joins them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from limba.config import InputError, StorageError
from limba.sharding.joining import join_hosts as join_hosts

T = TypeVar("T")
SECONDS_APART = 1.0  # of processes at a collective: some backends give up after 30


def gather(numbers: np.ndarray) -> np.ndarray:
    """Returns the arrays [...] of all processes as [processes, ...]; all must call it, with equal shapes.

    >>> gather(np.array([3, 4])).tolist()
    [[3, 4]]
    """
    return numbers[None] if jax.process_count() == 1 else np.asarray(multihost_utils.process_allgather(numbers))


def any_process(flag: bool) -> bool:
    """Returns whether the flag is true in any process; all must call it."""
    return bool(gather(np.array(flag)).any())


def gather_bytes(parts: Mapping[int, bytes]) -> dict[int, bytes]:
    """Merges the numbered bytes of all processes; all must call it, each with other numbers.

    >>> gather_bytes({0: b"position"})
    {0: b'position'}
    """
    if jax.process_count() == 1:
        return dict(parts)
    count, size = gather(np.array([len(parts), max(map(len, parts.values()))])).max(axis=0)
    numbers = np.full((count, 2), -1, np.int64)  # number, length
    content = np.zeros((count, size), np.uint8)
    for row, (number, part) in enumerate(sorted(parts.items())):
        numbers[row] = number, len(part)
        content[row, : len(part)] = np.frombuffer(part, np.uint8)
    numbers, content = gather(numbers).reshape(-1, 2), gather(content).reshape(-1, size)
    return {int(number): content[row, :length].tobytes() for row, (number, length) in enumerate(numbers) if number >= 0}


def write_once(write: Callable[[], object]) -> None:
    """Lets the first process write while the others wait; all must call it."""
    if jax.process_index() == 0:
        write()
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("written")


@contextlib.contextmanager
def entered_by_first(context: AbstractContextManager[T]) -> Iterator[T | None]:
    """Enters a context in the first process only, and yields its value there; None in the others. All must call it.

    Entering may take long. If it raises an InputError or StorageError, all processes raise one of that class with its
    sentence.
    """
    if jax.process_count() == 1:
        with context as value:
            yield value
        return
    with contextlib.ExitStack() as stack:
        entered: list[tuple[T | None, Exception | None]] = []

        def enter() -> None:
            try:
                entered.append((stack.enter_context(context), None))
            except Exception as error:  # noqa: BLE001  raised below, in all processes
                entered.append((None, error))

        is_first = jax.process_index() == 0
        thread = threading.Thread(target=enter, daemon=True)
        if is_first:
            thread.start()
            thread.join(SECONDS_APART)
        while any_process(is_first and not entered):
            if is_first:
                thread.join(SECONDS_APART)
        value, error = entered[0] if is_first else (None, None)
        said = f"{type(error).__name__}:{error}" if error else ":"
        kind, _, sentence = gather_bytes({jax.process_index(): said.encode()})[0].decode().partition(":")
        if error or sentence:
            kinds = {each.__name__: each for each in (InputError, StorageError)}
            raise error or kinds.get(kind, RuntimeError)(sentence)
        yield value
