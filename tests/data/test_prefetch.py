"""Batches that are made ahead, and what is left when making them fails."""

import itertools
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from limba.data.prefetch import Prefetch

pytestmark = pytest.mark.fast


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


def test_no_position_is_saved_after_a_failure() -> None:
    """What the failed call had taken from its source is lost, so that the next batches would be others."""
    prefetch = failing_after(1)
    assert prefetch.take() == 0
    with prefetch.paused() as made:
        assert made == [1]
    prefetch.request()
    wait([prefetch._making])
    with pytest.raises(OSError, match="is gone"), prefetch.paused():
        pass
    assert prefetch.take() == 1  # training may go on to the failure itself
