"""Arrays are read while the ones before them are written."""

import itertools
import threading
from collections.abc import Iterator

import pytest

from limba.config import InputError
from limba.formats.names import read_ahead


def test_the_next_one_is_read_while_the_caller_writes() -> None:
    is_read = threading.Event()

    def reading() -> Iterator[str]:
        yield "first"
        is_read.set()
        yield "second"

    items = read_ahead(reading())
    assert next(items) == "first"
    assert is_read.wait(timeout=60)  # without another `next`
    assert list(items) == ["second"]


def test_no_more_than_one_is_read_ahead() -> None:
    was_read = []

    def reading() -> Iterator[int]:
        while True:
            was_read.append(len(was_read) + 1)
            yield was_read[-1]

    for item in itertools.islice(read_ahead(reading()), 9):
        assert len(was_read) <= item + 1


def test_an_error_comes_after_what_was_read_before_it() -> None:
    def reading() -> Iterator[str]:
        yield "whole"
        raise InputError("layers_1 is damaged.")

    items = read_ahead(reading())
    assert next(items) == "whole"
    with pytest.raises(InputError, match="layers_1"):
        next(items)


def test_a_caller_that_fails_ends_the_reading() -> None:
    before = threading.active_count()
    items = read_ahead(range(100))
    next(items)
    items.close()
    assert threading.active_count() == before
