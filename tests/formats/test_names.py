"""Arrays are read while the ones before them are written, arrays of any layout are copied, and blocks are written."""

import io
import itertools
import threading
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from limba.config import InputError
from limba.formats.names import STRIP, STRIP_ROWS, WRITE_BYTES, copy_to, read_ahead, write_block

LAYOUTS = {
    "in C order": lambda array: array,
    "transposed": lambda array: array.T,
    "rows of a transposed one": lambda array: array.T[1:-1],
    "columns of a transposed one": lambda array: array.T[:, 1:-1],
    "transposed and reversed": lambda array: array.T[::-1, ::-1],
    "every second value": lambda array: array[::2, ::2],
}


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "shape", [(STRIP, STRIP), (3 * STRIP + 1, 2 * STRIP - 1), (3, 5), (STRIP, 3), (3, 2 * STRIP_ROWS + 1)]
)
def test_a_copy_of_any_layout_has_its_values(shape: tuple[int, int], dtype: type, layout: str) -> None:
    array = LAYOUTS[layout](np.arange(shape[0] * shape[1]).reshape(shape).astype(dtype))
    out = np.full(array.shape, -1, dtype)
    copy_to(array, out)
    assert np.array_equal(out, array)


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (2, 3, 4)])
def test_a_copy_has_any_rank(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape).T
    out = np.empty(array.shape)
    copy_to(array, out)
    assert np.array_equal(out, array)


@pytest.mark.parametrize("length", [0, 1, WRITE_BYTES, WRITE_BYTES + 1, 3 * WRITE_BYTES - 1])
def test_a_block_of_any_length_is_written_whole(length: int) -> None:
    block = np.random.default_rng(0).bytes(length)
    file = io.BytesIO()
    write_block(file, memoryview(block))
    assert file.getvalue() == block
