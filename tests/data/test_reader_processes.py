"""Several processes give the batches and positions of one; their errors are reported, and they end with us."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection

import numpy as np
import psutil
import pytest

import tasks.text_to_text  # noqa: F401  registers its tasks
from limba.config import DataConfig, InputError, RestartError
from limba.data.stream import processes as reader_processes
from limba.data.stream import streams
from limba.data.stream.positions import check_one_corpus
from limba.data.stream.processes import Opening, ReaderProcesses
from limba.data.stream.stages import open_stream
from limba.data.tasks import resolve_task
from tests.data.test_streams import config, flat, opened, taken  # noqa: F401  a fixture
from tests.waiting import Clock


@pytest.fixture
def once(config):  # noqa: F811
    """Two processes over an epoch, whose shards end at different batches."""
    return dataclasses.replace(config, num_epochs=1, num_reader_processes=2, task_modules=("tasks.demo",))


@pytest.mark.slow
def test_processes_give_what_one_does(once, monkeypatch):
    task, lengths, alone = opened(once)
    apart = open_stream(task, lengths, once, range(4))
    again = streams.TrainStream(task, lengths, once, range(4))
    with contextlib.closing(alone), contextlib.closing(apart), contextlib.closing(again):
        taken(alone, 5)
        _, second = readers()
        stop(second, signal.SIGKILL)  # before it has read anything
        apart.begin(0, alone.positions())
        np.testing.assert_array_equal(taken(apart, 4), taken(alone, 4))
        assert apart.epochs() == pytest.approx(alone.epochs(), abs=0.2)
        assert apart.skipped() == []
        again.begin(0, apart.positions())
        rest = [flat(rows) for rows in alone]
        np.testing.assert_array_equal([flat(rows) for rows in again], rest)
        np.testing.assert_array_equal([flat(rows) for rows in apart], rest)  # padding where a shard has ended
        assert not flat(apart.empty()).any()

        def kill(process: subprocess.Popen) -> None:
            raise AssertionError(f"process {process.pid} does not end by itself where nobody asks it any more")

        monkeypatch.setattr(subprocess.Popen, "kill", kill)
        monkeypatch.setattr(reader_processes, "SECONDS_TO_END", 120)
    assert readers() == []


def readers() -> list[psutil.Process]:
    """Returns the processes that read for this one, in the order in which they were started."""
    reading = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            if child.status() != psutil.STATUS_ZOMBIE and "limba.data.stream.reader" in child.cmdline():
                reading.append(child)
    return sorted(reading, key=lambda process: (process.create_time(), process.pid))


def stop(process: psutil.Process, how: signal.Signals) -> None:
    """Kills or stops a process, and waits until the kernel has done it; its end is left for the stream to find."""
    process.send_signal(how)
    kind = os.WEXITED if how == signal.SIGKILL else os.WSTOPPED
    os.waitid(os.P_PID, process.pid, kind | os.WNOWAIT)


@pytest.mark.night
def test_a_process_that_is_gone_is_started_again_with_the_next_row(once, monkeypatch, caplog) -> None:
    """From the beginning, and from the positions looked at last; when none starts any more, what was read is saved."""
    limited = dataclasses.replace(once, read_timeout_seconds=1.0, read_attempts=2)  # the limit of an answer is 4 s
    task, lengths, alone = opened(limited)
    clock = Clock()
    monkeypatch.setattr(reader_processes, "time", clock)
    clock.now = -200.0  # no positions are looked at before 0, and a start may take three times as long as the first
    with contextlib.closing(alone), contextlib.closing(open_stream(task, lengths, limited, range(4))) as apart:
        looks = []
        positions = apart.positions
        monkeypatch.setattr(apart, "positions", lambda: looks.append(clock.now) or positions())
        clock.now = -100.0
        np.testing.assert_array_equal(taken(apart, 3), taken(alone, 3))
        first, second = readers()
        stop(first, signal.SIGKILL)
        assert apart.failure() is None
        assert looks == []
        clock.now = 1.0
        np.testing.assert_array_equal(taken(apart, 4), taken(alone, 4))
        assert apart.epochs() == pytest.approx(alone.epochs(), abs=0.2)
        assert looks == [1.0]
        stop(second, signal.SIGSTOP)
        np.testing.assert_array_equal(taken(apart, 2), taken(alone, 2))
        first, second = readers()

        monkeypatch.setattr(sys, "executable", "/bin/false")
        send = Connection.send

        def kill_and_send(connection: Connection, call: tuple) -> None:
            if call[0] == "next_with_documents" and second.is_running():
                stop(second, signal.SIGKILL)  # when the other one gives its next batch
            send(connection, call)

        monkeypatch.setattr(Connection, "send", kill_and_send)
        for _ in range(2):
            with pytest.raises(RestartError, match=r"shards \[1, 3\] has ended \(1\), 3 times in a row; .* lower Data"):
                next(apart)
        assert readers() == [first]  # it goes on
        assert isinstance(apart.failure(), RestartError) and apart.epochs().keys() == alone.epochs().keys()
        with contextlib.closing(streams.TrainStream(task, lengths, limited, range(4))) as again:
            again.begin(0, apart.positions())
            np.testing.assert_array_equal(taken(again, 5), taken(alone, 5))
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    for shards, why in (("0, 2", r"has ended \(-9\)"), ("1, 3", "gives no answer for 4 s")):
        wanted = rf"data shards \[{shards}\] {why}: it is started again"
        assert any(re.search(wanted, message) for message in said), said


@pytest.mark.slow
def test_a_process_reads_what_the_run_has_listed_and_no_text_that_was_edited_since(tmp_path) -> None:
    def write(name: str, word: str) -> None:
        (tmp_path / name).write_text("".join(f"{number:04} {word} {word} {word}\n" for number in range(3000)))

    for name in ("b.txt", "c.txt"):
        write(name, "words")
    data = DataConfig(
        "demo_span_corruption", {"inputs": 64}, 8, "byte", data_files=f"{tmp_path}/*.txt", num_data_shards=4,
        num_reader_processes=2, task_modules=("tasks.demo",), on_changed_corpus="new_epoch",
    )  # fmt: skip
    task, lengths, alone = opened(data)
    with contextlib.closing(alone), contextlib.closing(open_stream(task, lengths, data, range(4))) as apart:
        write("a.txt", "more")  # before a process looks for files
        np.testing.assert_array_equal(taken(apart, 3), taken(alone, 3))
        positions = apart.positions()
        assert positions == alone.positions()
        taken(apart, 2)
        apart.begin(0, positions)  # as a run that goes back
        first, second = readers()
        stop(first, signal.SIGKILL)
        np.testing.assert_array_equal(taken(apart, 3), taken(alone, 3))
        positions = apart.positions()
        assert positions == alone.positions()
        write("b.txt", "other")
        stop(second, signal.SIGKILL)
        wanted = r"b\.txt has changed while the run reads it: [\d,]+ bytes as then, with other content; start the same"
        for _ in range(2):
            with pytest.raises(InputError, match=wanted):
                next(apart)
        kept = apart.positions()  # what was trained can be saved
        assert {shard: position["place"] for shard, position in kept.items()} == {
            shard: position["place"] for shard, position in positions.items()
        }


def test_positions_of_different_text_are_told_apart(tmp_path) -> None:
    path = tmp_path / "a.txt"
    positions = {}
    for shard, word in enumerate(("words", "other")):
        path.write_text(f"some {word}\n" * 900)
        data = DataConfig("demo_span_corruption", {"inputs": 64}, 8, "byte", data_files=str(path), num_data_shards=2)
        _, _, stream = opened(data, [0, 1])
        with contextlib.closing(stream):
            of_stream = stream.positions()
        check_one_corpus(of_stream)
        positions[shard] = of_stream[shard]
    with pytest.raises(InputError, match="^Data shards 0 and 1 read different text, as if the corpus had chan"):
        check_one_corpus(positions)


# A task module of which the second process that imports it sees other text.
DIFFERENT = """
from pathlib import Path
from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource
from limba.data.vocabulary import ByteVocabulary

folder = Path({folder!r})
try:
    folder.joinpath("taken").touch(exist_ok=False)
    word = "words"
except FileExistsError:
    word = "other"
TaskRegistry.add(
    "different_text",
    FileSource(str(folder / word / "a.txt"), validation_percent=0.0),
    dict.fromkeys(("inputs", "targets"), Feature(ByteVocabulary(100))),
    [tokenize_documents, span_corruption],
)
"""


@pytest.mark.night
def test_positions_of_processes_that_have_opened_different_text_are_never_given(tmp_path, monkeypatch) -> None:
    for word in ("words", "other"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "a.txt").write_text(f"some {word}\n" * 900)
    (tmp_path / "different_text.py").write_text(DIFFERENT.format(folder=str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    data = DataConfig(
        "different_text", {"inputs": 64, "targets": 32}, 8, num_data_shards=2, task_modules=("different_text",)
    )
    lengths = data.task_feature_lengths
    with contextlib.closing(ReaderProcesses(Opening(data, lengths, {}, (0, 1), 2))) as apart:
        for _ in range(2):
            with pytest.raises(InputError, match="^Data shards 0 and 1 read different text, as if the corpus had chan"):
                apart.positions()
        with pytest.raises(InputError, match="Data shards 0 and 1 read different text"):
            next(apart)


def test_a_process_that_fails_in_its_start_is_not_started_again(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    data = DataConfig("demo_span_corruption", {"inputs": 64}, 8, "byte")
    with (
        contextlib.closing(ReaderProcesses(Opening(data, {"inputs": 64}, {}, (0, 1), 2))) as stream,
        pytest.raises(InputError, match=r"data shards \[0\] has ended \(1\); its output above says why"),
    ):
        next(stream)


def test_a_process_reports_why_it_cannot_open_its_stream(once):
    unknown = dataclasses.replace(once, task_modules=())
    with (
        contextlib.closing(ReaderProcesses(Opening(unknown, {"inputs": 64}, {}, (0, 1), 1))) as stream,
        pytest.raises(InputError, match="is 'demo_span_corruption', and no task or mixture has that name"),
    ):
        next(stream)


@pytest.mark.parametrize("where", ["call", "answer"])
def test_a_process_without_memory_says_so_and_prints_no_traceback(where: str, caplog) -> None:
    class Pipe:
        """Has memory for a sentence, and in one of the two cases for no rows."""

        def send(self, answer: object) -> None:
            if where == "answer" and not isinstance(answer, InputError):
                raise MemoryError("no rows")
            answers.append(answer)

    def rows() -> np.ndarray:
        if where == "call":
            raise MemoryError("no rows")
        return np.zeros(8)

    answers = []
    reader_processes.answer(Pipe(), rows, (1, 3))
    (answer,) = answers
    assert isinstance(answer, InputError)
    assert str(answer) == (
        "The process that reads data shards [1, 3] has no memory left (no rows); free some on this host, or lower"
        " DataConfig.num_reader_processes, and start the same command again."
    )
    assert caplog.records == []


@pytest.mark.night
def test_a_failed_read_is_told_while_there_are_rows(tmp_path):
    """So a run of several processes can settle where all save; after the repair the rows are those that were due."""
    path = tmp_path / "pairs.jsonl"
    pairs = [{"inputs": f"{n} " + chr(97 + n % 26) * 2000, "targets": f"{n}"} for n in range(1500)]
    good = "".join(json.dumps(pair) + "\n" for pair in pairs).encode()
    bad = good.index(b"{", int(0.6 * len(good)))
    path.write_bytes(good[:bad] + b"?" + good[bad + 1 :])
    files = {"train": str(path), "validation": str(path)}
    apart = DataConfig(
        "text_to_text", {"inputs": 16, "targets": 8}, 8, "byte", data_files=files, shuffle=False, num_data_shards=4,
        num_reader_processes=2, task_modules=("tasks.text_to_text",),
    )  # fmt: skip
    task = resolve_task(apart)
    with contextlib.closing(open_stream(task, dict(apart.task_feature_lengths), apart, range(4))) as stream:
        number = 0
        while (failure := stream.failure()) is None:
            next(stream)
            number += 1
            time.sleep(0.01)  # a step
        assert isinstance(failure, InputError) and "is not JSON" in str(failure)
        taken(stream, 3)  # what came before it is there
        positions = stream.positions()
    path.write_bytes(good)
    whole, again = (streams.TrainStream(task, dict(apart.task_feature_lengths), apart, range(4)) for _ in range(2))
    with contextlib.closing(whole), contextlib.closing(again):
        taken(whole, number + 3)
        again.begin(0, positions)
        np.testing.assert_array_equal(taken(again, 20), taken(whole, 20))
