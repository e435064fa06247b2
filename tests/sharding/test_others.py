"""When a process of a run is killed, stopped or fails, the others end in time, with a status that starts them again."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from limba.sharding.others import ADOPTED, LOST, resumes_from
from tests.bucket_server import emulated
from tests.sharding.processes import ROOT, Processes

SECONDS = 6.0
UNHEALTHY = "The following tasks are unhealthy (stopped sending heartbeats):"  # jax's words; a line with its number


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A run directory with a checkpoint at step 40."""
    (tmp_path / "checkpoints" / "40").mkdir(parents=True)
    return tmp_path


def assert_ended_by_jax(status: int, lines: list[str], lost: int) -> None:
    """By its message, which names the process: the launcher starts again after this signal."""
    assert status == -signal.SIGABRT and not any("Traceback" in line for line in lines), (status, lines)
    text = "\n".join(lines)
    leader = "Either the leader task was preempted/died/restarted unexpectedly"
    assert (f"{UNHEALTHY}\n{lost}\n" if lost else leader) in text, lines


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.slow
def test_a_killed_process_ends_the_others(victim: int, directory: Path) -> None:
    with Processes(directory, 2, host=SECONDS) as processes:
        processes.send(signal.SIGKILL, victim)
        assert_ended_by_jax(*processes.end(1 - victim), lost=victim)


@pytest.mark.slow
def test_a_failed_exchange_ends_with_who_does_not_answer_and_where_the_run_resumes(directory: Path) -> None:
    """Where the numbers go over sockets, the loss is known long before jax's service misses a heartbeat."""
    with Processes(directory, 2) as processes:
        processes.send(signal.SIGKILL, 1)
        status, lines = processes.end(0)
    assert status == 75 and len(lines) == 1, lines
    assert lines[0].startswith("The exchange between the 2 processes failed (") and "Gloo" in lines[0]
    assert "; process 1 gave no answer within " in lines[0]
    assert lines[0].endswith("start all 2 processes again: the run resumes from step 40.")


@pytest.mark.slow
def test_the_loss_of_a_process_ends_all(directory: Path) -> None:
    with Processes(directory, 3, host=SECONDS) as processes:
        processes.send(signal.SIGKILL, 1)
        for index in (0, 2):
            assert_ended_by_jax(*processes.end(index), lost=1)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_process_ends_the_others_and_itself_when_it_continues(victim: int, directory: Path) -> None:
    with Processes(directory, 2, host=SECONDS) as processes:
        processes.send(signal.SIGSTOP, victim)
        status, _ = processes.end(1 - victim)
        assert status == -signal.SIGABRT
        processes.send(signal.SIGCONT, victim)
        assert processes.end(victim)[0] in (-signal.SIGABRT, 75)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_fails_tells_the_others_why(victim: int, directory: Path) -> None:
    """The others wait for it in an exchange; jax's service ends with the first one, which waits for them."""
    with Processes(directory, 2, odd_step=5, odd=f"fail {victim}") as processes:
        ends = [processes.end(index) for index in (0, 1)]
    assert ends[victim] == (2, ["This file is missing."])
    status, lines = ends[1 - victim]
    assert status == 2 and len(lines) == 1, lines
    assert f"Process {victim} of 2 (host" in lines[0] and "has ended: This file is missing; start all 2" in lines[0]


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
    unreadable = directory / "unreadable"
    unreadable.mkdir()
    (unreadable / "checkpoints").symlink_to("checkpoints")  # a circle: the storage does not say what is there
    assert resumes_from(str(unreadable)) == "the run resumes from its newest checkpoint"


def test_a_step_of_a_bucket_without_its_manifest_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated(monkeypatch) as server:
        server.put("bucket", "run/checkpoints/20/manifest.json", b"{}")
        server.put("bucket", "run/checkpoints/30/data/metadata", b"{}")
        assert resumes_from("gs://bucket/run", seconds=60.0) == "the run resumes from step 20"


def test_the_page_for_users_names_every_status_of_the_others() -> None:
    page = (ROOT / "docs" / "resume.md").read_text()
    section = page.partition("## A host died")[2].partition("\n## ")[0]
    named = {int(number) for number in re.findall(r"\d+", section)}
    assert named >= {*ADOPTED, 75, 128 + signal.SIGABRT} and "by SIGABRT (134)" in section
