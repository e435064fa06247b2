"""When a process of a run is killed, stopped or fails, the others end in time, each with one sentence that names it."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from limba.sharding.liveness import LOST, Others, answers, resumes_from
from tests.sharding.processes import Processes

SECONDS = 6.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run directory with a checkpoint at step 40."""
    (tmp_path / "checkpoints" / "40").mkdir(parents=True)
    return tmp_path


def assert_one_sentence(status: int, lines: list[str], *parts: str) -> None:
    assert status == 75 and len(lines) == 1, (status, lines)
    assert all(part in lines[0] for part in parts), lines


@pytest.mark.parametrize(
    ("victim", "words"),
    [
        (1, "Process 1 of 2 (host %s) gave no sign of life for "),
        (0, "Process 0 of 2 (host %s) has ended or was killed"),
    ],
)
def test_a_killed_process_is_named(victim: int, words: str, directory: Path) -> None:
    with Processes(directory, 2, host=SECONDS) as processes:
        processes.send(signal.SIGKILL, victim)
        output = directory / "logs" / f"process_{1 - victim}.stderr"
        expected = words % socket.gethostname(), "the run resumes from step 40", "start all 2 processes", str(output)
        assert_one_sentence(*processes.end(1 - victim), *expected)
        assert output.exists()  # the stack of C++, not on the console


def test_a_loss_that_jax_notices_early_has_the_name_of_the_longest_silent_process() -> None:
    them, now = Others(), time.monotonic()
    them.count, them.timeout, them._awake = 4, 10.0, now
    them._seen = {1: ("7", now - 2.0), 2: ("7", now - 3.0), 3: ("6", now - 4.0)}
    status, sentence = them._verdict()
    assert status == 75 and sentence.startswith("Process 3 of 4 (host unknown) gave no sign of life for 4 s;")
    them._seen = dict.fromkeys((1, 2, 3), ("7", now - 1.0))
    assert them._verdict()[1].startswith("One of the 4 processes was lost")


THROWS = """
import ctypes, sys, threading
from limba.sharding import liveness
liveness._on_cpp_exceptions({b"St8bad_cast": lambda: print("lost"), liveness.GLOO: lambda: print("gloo")})
library = ctypes.PyDLL("libstdc++.so.6")  # what a C++ thread that throws an exception of this name does
library.__cxa_allocate_exception.restype = ctypes.c_void_p
vtable = ctypes.addressof(ctypes.c_char.in_dll(library, "_ZTVN10__cxxabiv117__class_type_infoE")) + 16
name = ctypes.create_string_buffer(sys.argv[1].encode())
kind = (ctypes.c_void_p * 2)(vtable, ctypes.addressof(name))
thrown = ctypes.c_void_p(library.__cxa_allocate_exception(8))
sys.stdout.reconfigure(write_through=True)
library.__cxa_throw(thrown, kind, None)
"""


@pytest.mark.parametrize(
    ("name", "printed"), [("St8bad_cast", "lost\n"), ("N4gloo14EnforceNotMetE", "gloo\n"), ("N3tsl5ErrorE", "")]
)
def test_exceptions_of_gloo_wait_for_the_name_of_the_lost_process(name: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", THROWS, name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, printed), done.stderr
    assert "terminate called after throwing" in done.stderr


@pytest.mark.slow
def test_the_loss_of_a_process_is_told_to_all(directory: Path) -> None:
    """The third process names the second too, which it never exchanges heartbeats with."""
    with Processes(directory, 3, host=SECONDS) as processes:
        processes.send(signal.SIGKILL, 1)
        for index in (0, 2):
            assert_one_sentence(*processes.end(index), "Process 1 of 3", "no sign of life")


@pytest.mark.night
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_process_ends_the_others_and_itself_when_it_continues(victim: int, directory: Path) -> None:
    with Processes(directory, 2, host=SECONDS) as processes:
        processes.send(signal.SIGSTOP, victim)
        lost = f"Process {victim} of 2"
        assert_one_sentence(*processes.end(1 - victim), lost, "no sign of life")
        processes.send(signal.SIGCONT, victim)
        assert_one_sentence(*processes.end(victim), lost, "stood still")


@pytest.mark.night
def test_a_process_that_stands_still_for_a_short_time_goes_on(directory: Path) -> None:
    with Processes(directory, 2, host=12) as processes:
        processes.send(signal.SIGSTOP, 1)
        with pytest.raises(subprocess.TimeoutExpired):
            processes.each[0].wait(3.0)
        processes.send(signal.SIGCONT, 1)
        processes.send(signal.SIGTERM, 0)
        ends = [processes.end(index) for index in (0, 1)]
    assert ends[0] == ends[1] and ends[0][0] == 75
    assert len(ends[0][1]) == 1 and ends[0][1][0].startswith("Stopped after step ")


def test_what_an_exchange_says_when_the_other_end_is_gone() -> None:
    assert LOST.search("UNKNOWN: Gloo AllGather failed: [external/gloo/pair.cc:547] Connection closed by peer")
    assert LOST.search("INTERNAL: NCCL operation ncclAllReduce failed: remote process exited")
    assert LOST.search("UNAVAILABLE: failed to connect to all addresses")
    assert not LOST.search("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes")
    assert not LOST.search("No such file or directory: connection.json")


def test_where_a_run_resumes(directory: Path) -> None:
    (directory / "checkpoints" / "100.broken").mkdir()
    assert resumes_from(str(directory)) == "the run resumes from step 40"
    assert resumes_from(str(directory / "new")) == "nothing is saved yet, the run starts at step 0"


def test_an_address_answers_or_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert answers(f"127.0.0.1:{port}", 1.0)
    assert not answers(f"127.0.0.1:{port}", 1.0) and not answers("", 1.0) and not answers("no port", 1.0)
