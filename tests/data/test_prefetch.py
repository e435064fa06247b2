"""Batches that are made ahead, and what is left when making them fails."""

import itertools
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from limba.data.stream.shard import Prefetch


def failing_after(calls: int) -> Prefetch[int]:
    numbers = itertools.count()

    def make() -> list[int]:
        if (number := next(numbers)) >= calls:
            raise OSError("the server is gone")
        return [2 * number, 2 * number + 1]

    return Prefetch(make, ThreadPoolExecutor(1), num_batches=4)


def test_what_was_made_before_a_failure_is_still_taken() -> None:
    prefetch = failing_after(2)
    assert [prefetch.take() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="is gone"):
        prefetch.take()


def test_a_failure_is_seen_before_the_batches_end() -> None:
    prefetch = failing_after(1)
    prefetch.wait()
    with prefetch.paused() as made:
        assert made == [0, 1]
    assert prefetch.take() == 0 and prefetch.failure is None
    prefetch.request()
    wait([prefetch._making])
    assert isinstance(prefetch.failure, OSError)
    prefetch.wait()
    assert prefetch.take() == 1  # training may go on to the failure itself
    with pytest.raises(OSError, match="is gone"):
        prefetch.wait()
