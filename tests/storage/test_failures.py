"""What is waited for has a limit, and so has the thread that waits."""

import threading

import pytest
import tensorstore as ts

from limba.storage.failures import limited, waited
from tests.waiting import wait_until


def test_a_thread_that_waits_for_tensorstore_ends_at_its_limit() -> None:
    """It was left inside of C++. When it came back while Python ended, the process ended by SIGABRT and not with 74."""
    promise, future = ts.Promise.new()
    with pytest.raises(TimeoutError, match=r"^the read of a test has not ended after 0 s$"):
        limited(lambda: waited(future), 0.3, "the read of a test")
    wait_until(lambda: all(thread.name != "the read of a test" for thread in threading.enumerate()))
    promise.set_result(7)
    assert waited(future) == 7
    assert limited(lambda: waited(future), 30.0, "the read of a test") == 7
