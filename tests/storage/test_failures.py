"""What is waited for has a limit, and so has the thread that waits."""

import subprocess
import sys
import threading

import pytest
import tensorstore as ts

from limba.storage.failures import for_each, limited, waited
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


def test_calls_on_several_threads_keep_the_order_and_raise_the_first_error() -> None:
    begun: list[str] = []
    goes_on = threading.Event()

    def call(name: str) -> str:
        begun.append(name)
        if name == "3":
            raise OSError("number 3")
        if name == "7":
            goes_on.wait()
        return name * 2

    assert for_each(call, map(str, [5, 4, 6]), 2) == ["55", "44", "66"]
    assert for_each(call, [], 2) == []
    begun.clear()
    with pytest.raises(OSError, match="number 3"):
        for_each(call, map(str, range(1_000)), 1)
    goes_on.set()
    assert begun == [str(number) for number in range(8)][: len(begun)], "what had not begun is left"


def test_a_program_does_not_wait_at_its_end_for_calls_that_stand_still() -> None:
    program = (
        "import threading\n"
        "from limba.storage.failures import for_each, limited\n"
        "never = threading.Event()\n"
        "try: limited(lambda: for_each(lambda name: never.wait(), 'ab', 2), 0.2, 'the removal')\n"
        "except TimeoutError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "the removal has not ended after 0 s\n"), done.stderr
