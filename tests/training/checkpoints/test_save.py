"""A save is reported when it is committed; one that fails is tried again, or ends in one sentence."""

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

from limba.config import CheckpointConfig, InputError, RestartError, StorageError
from limba.formats import limba_checkpoint
from limba.sharding import preemption
from limba.storage import lease, manifest
from limba.training.checkpoints import arrays, saver, step_directory
from limba.training.checkpoints.directory import Checkpoints, position_item
from tests.training.checkpoints import states
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]


MINUTE = 60.0  # longer than any save takes here, also on a busy machine
SHORT = 3.0  # for a save that cannot succeed


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt follows the first at once: a busy machine has time for one in SHORT."""
    monkeypatch.setattr(saver, "FIRST_PAUSE_SECONDS", 0.05)


def repeated(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines that say that a save is tried again."""
    return [record.message for record in caplog.records if "it is tried again" in record.message]


def opened(run: Path, **fields: object) -> Checkpoints:
    return Checkpoints(str(run), CheckpointConfig(**{"save_timeout_seconds": MINUTE, **fields}), states.DATA)


def start(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, states.state(step), {0: {"about": {}, "batch": step}}, {"step": step})


def polled(checkpoints: Checkpoints) -> list[int]:
    """What the loop sees: polls until one reports."""
    steps: list[int] = []
    wait_until(lambda: steps.extend(checkpoints.poll()) or steps)
    return steps


def test_a_step_is_reported_once_and_only_when_it_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    write = arrays.write_arrays
    monkeypatch.setattr(arrays, "write_arrays", lambda *a: may_write.wait(20) and write(*a))
    with opened(tmp_path, keep=2) as checkpoints:
        start(checkpoints, 5)
        for _ in range(3):
            assert checkpoints.poll() == [] and checkpoints.steps() == []
        assert not (tmp_path / "checkpoints" / "5").exists()
        may_write.set()
        assert polled(checkpoints) == [5] and checkpoints.poll() == []
        assert manifest.check(tmp_path / "checkpoints" / "5") == []
        for step in (6, 7):
            start(checkpoints, step)
        checkpoints.wait()
        assert polled(checkpoints) == [6, 7] and checkpoints.steps() == [6, 7]  # in order, and as many as are kept
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["6", "7"]


def test_a_step_that_is_removed_before_it_is_reported_is_reported(tmp_path: Path) -> None:
    with opened(tmp_path, keep=1) as checkpoints:
        for step in (5, 6):
            start(checkpoints, step)
        checkpoints.wait()
        assert polled(checkpoints) == [5, 6] and checkpoints.steps() == [6]


def test_the_snapshot_is_of_its_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later steps reuse the memory of the arrays that they are given."""
    may_write = threading.Event()
    write = arrays.write_arrays
    monkeypatch.setattr(arrays, "write_arrays", lambda *a: may_write.wait(20) and write(*a))
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
    with opened(tmp_path) as checkpoints:
        state = states.state(5)
        checkpoints.save(5, state, {0: {"about": {}, "batch": 5}}, {"step": 5})
        for _ in range(3):
            state = update(state)
        jax.block_until_ready(state)
        may_write.set()
    with opened(tmp_path) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 5)


def test_the_first_snapshot_is_made_in_the_memory_that_was_reserved(tmp_path: Path) -> None:
    memory = arrays.memory_for(states.abstract())
    snapshot = arrays.take_snapshot(states.state(5), memory)
    assert len(memory) == len(snapshot.memory) and memory
    assert all(np.shares_memory(*pair) for pair in zip(memory, snapshot.memory, strict=True))
    with opened(tmp_path) as checkpoints:
        checkpoints.reserve_memory(states.abstract())
        for step in (5, 6):
            start(checkpoints, step)
            checkpoints.wait()
        states.assert_is(checkpoints.restore_latest(states.abstract()), 6)


def test_large_shards_are_written_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 512)
    monkeypatch.setattr(arrays, "BATCH_BYTES", 8000)
    states.save(tmp_path, 5)
    for devices in (1, 2, 4):
        with opened(tmp_path) as checkpoints:
            restored = checkpoints.restore_latest(states.abstract(devices))
        jax.tree.map(np.testing.assert_array_equal, restored.state, states.state(5))
        shardings = jax.tree.map(lambda x: x.sharding, restored.state)
        assert shardings == jax.tree.map(lambda x: x.sharding, states.abstract(devices))


def not_a_directory(run: Path) -> None:
    """Makes checkpoints/ unusable for every user, the superuser too."""
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")


@pytest.mark.usefixtures("at_once")
def test_a_save_that_cannot_begin_ends_in_one_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    states.save(tmp_path, 10)
    with opened(tmp_path, save_timeout_seconds=SHORT) as checkpoints:
        not_a_directory(tmp_path)
        start(checkpoints, 20)
        with pytest.raises(StorageError) as caught:
            polled(checkpoints)
    sentence = str(caught.value)
    assert "\n" not in sentence and "Traceback" not in caplog.text
    assert sentence.startswith(f"Step 20 cannot be saved in {tmp_path}/checkpoints (File exists). A checkpoint takes ")
    assert " are free. Step 10 in " in sentence and "is good" in sentence
    (line,) = repeated(caplog)  # when the first attempt fails, once
    assert line.startswith("Step 20 cannot be saved in ") and "it is tried again for 3 s" in line


@pytest.mark.usefixtures("at_once")
def test_a_run_that_waits_for_its_last_save_hears_of_a_failure_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StorageError, match="Step 20 cannot be saved .* No earlier step is saved"):  # noqa: SIM117
        with opened(tmp_path, save_timeout_seconds=SHORT) as checkpoints:
            (tmp_path / "checkpoints").mkdir()
            not_a_directory(tmp_path)
            start(checkpoints, 20)
            checkpoints.wait()
    assert len(repeated(caplog)) == 1  # of the first attempt
    assert caplog.messages == repeated(caplog)  # the sentence itself was raised, and is not a line beside that
    caplog.clear()
    with (
        pytest.raises(KeyError),
        opened(tmp_path, save_timeout_seconds=600.0) as checkpoints,
    ):  # it ends by another error
        start(checkpoints, 20)
        raise KeyError
    assert any("Step 20 cannot be saved" in record.message for record in caplog.records)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("by_signal", [False, True])
def test_a_save_that_fails_is_given_up_soon_where_the_run_is_asked_to_stop(
    by_signal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loop waits for it, and cannot see the signal."""
    monkeypatch.setattr(saver, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(saver, "QUIET_SECONDS", 0.1)
    with (
        preemption.listening(ends=False),
        pytest.raises(StorageError, match="Step 20 cannot be saved"),
        opened(tmp_path, save_timeout_seconds=3600.0) as checkpoints,
    ):
        (tmp_path / "checkpoints").mkdir()
        not_a_directory(tmp_path)
        start(checkpoints, 20)
        if by_signal:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            checkpoints.stop()
        checkpoints.wait()


def test_a_save_that_fails_for_a_while_is_repeated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    states.save(tmp_path, 10)
    with opened(tmp_path) as checkpoints:
        shutil.copytree(tmp_path / "checkpoints", tmp_path / "copy")
        not_a_directory(tmp_path)
        start(checkpoints, 20)
        wait_until(lambda: checkpoints.poll() or repeated(caplog))
        assert repeated(caplog)
        (tmp_path / "checkpoints").unlink()
        (tmp_path / "copy").rename(tmp_path / "checkpoints")
        assert polled(checkpoints) == [20]
    with opened(tmp_path) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 20)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("in_bucket", [False, True])
def test_a_removal_that_stands_still_leaves_time_for_the_next_attempt(
    in_bucket: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is down took all of the phase's time to refuse the removal, and the save was given up."""
    if in_bucket:
        monkeypatch.setattr(step_directory, "_is_bucket", lambda _: True)
    may_go_on = threading.Event()
    ended = threading.Event()
    attempts: list[step_directory.Attempt] = []
    limited = saver.limited
    commit_step = step_directory.commit_step
    clear_step = step_directory.clear_step

    def no_time_for_the_removal(call: Callable[[], object], seconds: float, what: str) -> object:
        return limited(call, 0.0 if what == "the removal" else seconds, what)

    def commit(attempt: step_directory.Attempt, *rest: object) -> None:
        attempts.append(attempt)
        if len(attempts) == 1:
            raise OSError(errno.EIO, "HTTP 503")
        commit_step(attempt, *rest)

    def clear_late(attempt: step_directory.Attempt) -> None:
        may_go_on.wait(2 * MINUTE)
        clear_step(attempt)
        ended.set()

    monkeypatch.setattr(saver, "limited", no_time_for_the_removal)
    monkeypatch.setattr(step_directory, "commit_step", commit)
    monkeypatch.setattr(step_directory, "clear_step", clear_late)
    with opened(tmp_path) as checkpoints:
        start(checkpoints, 5)
        assert polled(checkpoints) == [5] and len(attempts) == 2
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in files if attempts[0].name in str(path)]  # the next attempt has removed them
        may_go_on.set()  # and what was left behind changes nothing any more
        assert ended.wait(MINUTE)
    monkeypatch.undo()
    with opened(tmp_path) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 5)


def test_a_disk_without_room_is_found_before_the_first_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    size = arrays.num_bytes(states.abstract())
    assert 20_000 < size < 40_000
    with opened(tmp_path, keep=3, save_timeout_seconds=SHORT) as checkpoints:
        for free, said in ((10 * size, 0), (4 * size, 0), (3 * size, 1)):
            caplog.clear()
            monkeypatch.setattr("limba.training.checkpoints.directory.free_bytes", lambda _, free=free: free)
            checkpoints.check_space(states.abstract())
            assert len(caplog.records) == said
        assert "lower CheckpointConfig.keep" in caplog.text and "4 of" in caplog.text
        monkeypatch.setattr("limba.training.checkpoints.directory.free_bytes", lambda _: size - 1)
        with pytest.raises(StorageError, match=r"A checkpoint takes \d+\.\d kB, and .* make room"):
            checkpoints.check_space(states.abstract())
        monkeypatch.setattr(step_directory, "free_bytes", lambda _: 100)
        start(checkpoints, 5)
        with pytest.raises(StorageError, match=r"\(only 100 bytes are free, and a checkpoint takes \d+"):
            polled(checkpoints)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_write_that_stands_still_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(arrays, "merge", lambda *_: may_end.wait())
    with opened(tmp_path, save_timeout_seconds=0.5) as checkpoints:
        start(checkpoints, 5)
        with pytest.raises(StorageError, match="writing has not ended after 1 s"):
            polled(checkpoints)
    may_end.set()


def test_a_storage_that_does_not_say_what_is_free_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network's file system whose server is away: the thread that saves was lost in the sentence about it."""

    def unanswered(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(shutil, "disk_usage", unanswered)
    with opened(tmp_path, save_timeout_seconds=0.5) as checkpoints:
        start(checkpoints, 5)
        with pytest.raises(StorageError, match=r"^Step 5 cannot be saved in .* \(Input/output error\)\. A checkpoint"):
            checkpoints.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_without_a_word_is_a_failed_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(step_directory, "open_step", nothing)
    monkeypatch.setattr(saver.Saver, "_failed", nothing)
    with opened(tmp_path, save_timeout_seconds=0.5) as checkpoints:
        start(checkpoints, 5)
        with pytest.raises(StorageError, match=r"^Saving step 5 in .* has ended by an error of its own"):
            checkpoints.wait()


@pytest.mark.parametrize("question", [1, 2], ids=["before-it-merges", "before-the-name"])
def test_a_save_that_was_given_up_commits_nothing_when_it_goes_on(
    question: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage answers after the limit, when the run has said that the step cannot be saved.

    It stands still in one of the questions whether the directory is still the run's.
    """
    monkeypatch.setattr(saver, "STOP_SECONDS", 0.0)  # no time is left to remove what was written
    may_go_on = threading.Event()
    ended = threading.Event()
    commit_step = step_directory.commit_step

    def commit_late(attempt: step_directory.Attempt, data, known, may_commit: Callable[[], None]) -> None:
        questions = itertools.count(1)

        def asked_late() -> None:
            if next(questions) == question:
                may_go_on.wait()
            may_commit()

        try:
            commit_step(attempt, data, known, asked_late)
        finally:
            ended.set()

    monkeypatch.setattr(step_directory, "commit_step", commit_late)
    with opened(tmp_path, save_timeout_seconds=SHORT) as checkpoints:
        checkpoints.stop()
        start(checkpoints, 5)
        with pytest.raises(StorageError, match="writing has not ended after"):
            checkpoints.wait()
        may_go_on.set()
        assert ended.wait(MINUTE)
    assert list(limba_checkpoint.steps_in(checkpoints.directory)) == []


def test_a_thread_that_is_lost_is_noticed_by_poll_and_by_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(saver, "AGREE_SECONDS", 0.0)
    may_end = threading.Event()
    monkeypatch.setattr(saver.Saver, "_reason_after_attempts", lambda *_: may_end.wait(30) and None)
    checkpoints = opened(tmp_path, save_timeout_seconds=0.3)
    start(checkpoints, 5)
    time.sleep(0.5)
    for wait in (checkpoints.poll, checkpoints.wait):
        with pytest.raises(StorageError, match="Saving step 5 in .* stands still.*No earlier step is saved"):
            wait()
    may_end.set()


def test_a_step_that_is_there_already_is_replaced(tmp_path: Path) -> None:
    """As after a damaged step that could not be renamed."""
    states.save(tmp_path, 10, 20)
    with opened(tmp_path) as checkpoints:
        checkpoints.save(20, states.state(21), {0: {"about": {}, "batch": 20}}, {"step": 20})
        checkpoints.wait()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20"]
    with opened(tmp_path) as checkpoints:
        restored = checkpoints.restore_latest(states.abstract())
    jax.tree.map(np.testing.assert_array_equal, restored.state, states.state(21))


def test_what_is_left_of_a_replaced_step_is_never_that_step_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a folder stays whose file a reader has open. Later the guard went back to before that step."""
    states.save(tmp_path, 10, 20)
    kind = type(epath.Path(tmp_path))
    rmtree = kind.rmtree

    def refusing(path: epath.Path, **choices: bool) -> None:
        if ".replaced" in path.name:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        rmtree(path, **choices)

    with opened(tmp_path) as checkpoints:
        monkeypatch.setattr(kind, "rmtree", refusing)
        checkpoints.save(20, states.state(21), {0: {"about": {}, "batch": 20}}, {"step": 20})
        checkpoints.wait()
        monkeypatch.setattr(kind, "rmtree", rmtree)
        step_directory.set_aside(checkpoints.directory / "20", "rewound")
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps() == [10]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20.rewound"]


# Commits a step over one of the same number, in a process that is killed before its first change of a file or name, and
# in one that is killed before its second, and so on. Prints which of the two a new start finds each time.
REPLACING = """
import os, shutil, signal, sys
from etils import epath
from limba.formats import limba_checkpoint
from limba.storage import manifest
from limba.training.checkpoints import step_directory
old, new, run = map(epath.Path, sys.argv[1:])
CHANGES = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree")
def commit(attempt, killed_at):
    changes = 0
    def before(event, arguments):
        nonlocal changes
        is_written = event == "open" and str(run) in str(arguments[0]) and arguments[1] != "r"
        if event in CHANGES or is_written:
            changes += 1
            if changes == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
    listed = (attempt.path / manifest.FILE).read_text()
    sys.addaudithook(before)
    step_directory._commit(attempt, listed, lambda: None)
    os._exit(0)
killed_at, status = 0, 1
while status:
    killed_at += 1
    if run.exists():
        run.rmtree()
    run.mkdir()
    attempt = step_directory.new_attempt(run, 10)
    shutil.copytree(old, run / "10")
    shutil.copytree(new, attempt.path)
    process = os.fork()
    if process == 0:
        commit(attempt, killed_at)
    _, status = os.waitpid(process, 0)
    step_directory.restore_replaced(run)
    step_directory.clear_unfinished(run)
    (step,) = limba_checkpoint.steps_in(run).values()
    assert [path.name for path in run.iterdir()] == ["10"] and manifest.check(step) == []
    text = (step / manifest.FILE).read_text()
    print("old" if text == (old / manifest.FILE).read_text() else "new", flush=True)
"""


@pytest.mark.slow
def test_of_a_step_and_the_one_that_replaces_it_a_kill_leaves_one(tmp_path: Path) -> None:
    states.save(tmp_path / "old", 10)
    states.save(tmp_path / "new", 10)
    steps = [str(tmp_path / name / "checkpoints" / "10") for name in ("old", "new")]
    command = [sys.executable, "-W", "ignore", "-c", REPLACING, *steps, str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert ended.returncode == 0, ended.stderr
    words = ended.stdout.split()
    assert len(words) > 10 and words == sorted(words, reverse=True) and set(words) == {"old", "new"}, words


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    """A link in a circle, as an example of what `is_dir` takes for no folder: the run began at step 0."""
    (tmp_path / "checkpoints").symlink_to("checkpoints")
    with pytest.raises(StorageError, match=r"checkpoints cannot be listed \(Too many levels of symbolic links\)"):
        opened(tmp_path)


def test_a_storage_that_does_not_answer_when_it_is_listed_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount whose server is away: the start hung, and so did a resumed run."""
    states.save(tmp_path, 10)
    may_end = threading.Event()
    steps_in = limba_checkpoint.steps_in

    def silent(*arguments: object) -> dict[int, object]:
        may_end.wait()
        return steps_in(*arguments)

    sentence = r"^\S+/checkpoints cannot be listed \(the listing has not ended after 0 s\); fix that, and try again\.$"
    with opened(tmp_path, save_timeout_seconds=0.3) as checkpoints:
        for where in (step_directory, limba_checkpoint):
            with monkeypatch.context() as patched:
                name = "clear_unfinished" if where is step_directory else "steps_in"
                patched.setattr(where, name, silent)
                with pytest.raises(StorageError, match=sentence):
                    opened(tmp_path, save_timeout_seconds=0.3)
        monkeypatch.setattr(limba_checkpoint, "steps_in", silent)
        with pytest.raises(StorageError, match=sentence):
            checkpoints.restore_latest(states.abstract())
        with pytest.raises(StorageError, match=sentence):
            checkpoints.check_space(states.abstract())
        may_end.set()


def test_what_a_kill_left_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    states.save(tmp_path, 10)
    directory = tmp_path / "checkpoints"
    for name in ("20.unfinished", "5.removed.unfinished"):
        (directory / name / "state").mkdir(parents=True)
        (directory / name / "state" / "half").write_text("half")
    (directory / "7.broken").mkdir()
    (directory / "10").rename(directory / "10.replaced")  # killed before another step 10 had the name
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps() == [10]
        states.assert_is(checkpoints.restore_latest(states.abstract()), 10)
    assert sorted(path.name for path in directory.iterdir()) == ["10", "7.broken"]


def test_all_of_a_step_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut the step is whole, or has no name: fsync of each file and folder, then the rename."""
    synced = set[int]()  # the numbers of files and folders, which stay when a folder above them is renamed
    fsync = os.fsync
    rename = os.rename
    lacking = []
    renamed = []

    def fsync_noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def rename_noted(source: str, target: str) -> None:
        renamed.append(Path(target).name)
        for path in [Path(source), *Path(source).rglob("*")]:
            if path.stat().st_ino not in synced:
                lacking.append(str(path.relative_to(source)))
        synced.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync_noted)
    monkeypatch.setattr(os, "rename", rename_noted)
    states.save(tmp_path, 5)
    assert (renamed, lacking) == (["5"], [])
    assert (tmp_path / "checkpoints").stat().st_ino in synced  # which has the new name


def test_in_a_bucket_the_manifest_is_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no rename; until the manifest is there, no reader takes the step for a checkpoint."""
    monkeypatch.setattr(step_directory, "_is_bucket", lambda _: True)
    monkeypatch.setattr(os, "rename", lambda *_: pytest.fail("renamed"))
    seen: list[str] = []

    def note_files() -> None:
        seen.extend(path.name for path in (tmp_path / "checkpoints").rglob("*") if path.is_file())

    config = CheckpointConfig(save_timeout_seconds=MINUTE, keep=1)
    with Checkpoints(str(tmp_path), config, states.DATA, may_commit=note_files) as checkpoints:
        start(checkpoints, 5)
        checkpoints.wait()
        assert manifest.FILE not in seen and {"metadata", "manifest.ocdbt"} <= set(seen)
        start(checkpoints, 6)
    files = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]  # a bucket has nothing else
    assert {path.relative_to(tmp_path / "checkpoints").parts[0] for path in files} == {"6"}
    with opened(tmp_path) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 6)


def test_positions_in_different_text_are_never_saved_as_one(tmp_path: Path) -> None:
    """The files of a corpus have changed between two processes' looks at them, such as two hosts'."""
    positions = {shard: {"about": {"files": "0a"}, "batch": 20} for shard in (0, 1)}
    other = {**positions, 1: {"about": {"files": "0b"}, "batch": 20}}
    with opened(tmp_path) as checkpoints:
        for _ in range(2):
            with pytest.raises(InputError, match="^Data shards 0 and 1 read different text, .*; start the same"):
                checkpoints.save(20, states.state(20), other)
        assert checkpoints.steps() == []
        checkpoints.save(20, states.state(20), positions)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["20"]


@pytest.mark.parametrize("in_bucket", [False, True])
def test_two_attempts_at_one_step_do_not_mix(in_bucket: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a process that stood still, and goes on at each moment, and of its successor, which saves the same step."""
    if in_bucket:
        monkeypatch.setattr(step_directory, "_is_bucket", lambda _: True)
    late, good = (step_directory.new_attempt(epath.Path(tmp_path) / "checkpoints", 20) for _ in range(2))
    late_arrays, good_arrays = (arrays.take_snapshot(states.state(seed)) for seed in (7, 20))
    data = {**position_item(states.DATA, {0: {"about": {}, "batch": 20}}), "notes": {"step": 20}}
    step_directory.open_step(late, 0, lambda: None)
    step_directory.write_own_arrays(late, late_arrays)
    step_directory.open_step(good, 0, lambda: None)
    step_directory.write_own_arrays(late, late_arrays)
    known = step_directory.write_own_arrays(good, good_arrays)
    late_known = step_directory.write_own_arrays(late, late_arrays)
    step_directory.commit_step(good, data, known, lambda: None)
    step_directory.write_own_arrays(late, late_arrays)
    if in_bucket:  # elsewhere the lease is asked, and a rename is all that is left to do
        with pytest.raises(FileExistsError, match=r"^another process has written \S+/20/state/manifest\.ocdbt$"):
            step_directory.commit_step(late, data, late_known, lambda: None)
    step_directory.clear_step(late)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["20"]
    assert not list((tmp_path / "checkpoints").rglob(f"*{late.name}*"))
    monkeypatch.undo()
    with opened(tmp_path) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 20)


@pytest.mark.parametrize("in_bucket", [False, True])
def test_an_attempt_whose_commit_had_no_answer_leaves_its_step_whole(
    in_bucket: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt has failed for its process, which removed the arrays of a step that was there."""
    if in_bucket:
        monkeypatch.setattr(step_directory, "_is_bucket", lambda _: True)
    attempt = step_directory.new_attempt(epath.Path(tmp_path) / "checkpoints", 20)
    data = {**position_item(states.DATA, {0: {"about": {}, "batch": 20}}), "notes": {"step": 20}}
    step_directory.open_step(attempt, 0, lambda: None)
    known = step_directory.write_own_arrays(attempt, arrays.take_snapshot(states.state(20)))
    step_directory.commit_step(attempt, data, known, lambda: None)
    step_directory.clear_step(attempt)
    monkeypatch.undo()
    with opened(tmp_path) as checkpoints:
        states.assert_is(checkpoints.restore_latest(states.abstract()), 20)


@pytest.mark.parametrize("in_bucket", [False, True])
def test_a_step_is_not_committed_once_another_run_has_the_directory(
    in_bucket: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after SIGSTOP in a save: this process goes on in the middle of it, and another one has the lease."""
    states.save(tmp_path, 10)
    if in_bucket:
        monkeypatch.setattr(step_directory, "_is_bucket", lambda _: True)
        monkeypatch.setattr(limba_checkpoint, "is_finished", lambda path: (path / manifest.FILE).exists())
    successors: list[str] = []
    merge = arrays.merge

    def merge_late(folder: Path, attempt: str) -> bytes:
        merged = merge(folder, attempt)
        successors.append("Another process trains in this directory now.")
        return merged

    def may_commit() -> None:
        if successors:
            raise RestartError(successors[0])

    monkeypatch.setattr(arrays, "merge", merge_late)
    checkpoints = Checkpoints(str(tmp_path), CheckpointConfig(), states.DATA, may_commit=may_commit)
    start(checkpoints, 20)
    with pytest.raises(RestartError, match="Another process trains in this directory now"):
        checkpoints.wait()
    assert list(limba_checkpoint.steps_in(checkpoints.directory)) == [10]
    assert not caplog.records and len(successors) == 1  # it is not tried again
    # What it has written stays: the directory is the successor's.
    written = sorted(path.name for path in checkpoints.directory.iterdir())
    assert len(written) == 2 and written[1].startswith("20"), written


def test_old_steps_stay_once_another_run_has_the_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after SIGSTOP behind a commit: the successor may have found the newest step damaged, and taken an older."""
    states.save(tmp_path, 10)
    refused: list[str] = []

    def may_commit() -> None:
        if limba_checkpoint.is_finished(epath.Path(tmp_path) / "checkpoints" / "20"):
            refused.append("removal")
            raise RestartError("Another process trains in this directory now.")

    config = CheckpointConfig(keep=1)
    with Checkpoints(str(tmp_path), config, states.DATA, may_commit=may_commit) as checkpoints:
        start(checkpoints, 20)
        checkpoints.wait()
        assert checkpoints.poll() == [20]
        wait_until(lambda: refused)
    assert sorted(path.name for path in checkpoints.directory.iterdir()) == ["10", "20"]
    assert not caplog.records  # the run's own look at its lease says it


def test_an_old_step_stays_while_the_lease_cannot_be_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    states.save(tmp_path, 10, 20)

    def may_commit() -> None:
        raise TimeoutError("the storage gives no answer")

    step_directory.remove_old(epath.Path(tmp_path) / "checkpoints", 20, 1, may_commit)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20"]
    assert caplog.messages[-1].endswith("checkpoints/10 cannot be removed (the storage gives no answer).")


def test_a_run_does_not_go_back_once_another_one_has_the_directory(tmp_path: Path) -> None:
    states.save(tmp_path, 10, 20)

    def may_commit() -> None:
        raise RestartError("Another process trains in this directory now.")

    with (
        Checkpoints(str(tmp_path), states.CONFIG, states.DATA, may_commit=may_commit) as checkpoints,
        pytest.raises(RestartError, match="Another process trains in this directory now"),
    ):
        checkpoints.restore_step(10, states.abstract())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20"]


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("lease", TimeoutError("a request has not ended after 60 s")),
        ("lease", ValueError("UNAVAILABLE: Error writing gs://bucket/lease HTTP 503")),  # tensorstore's
        ("renaming", OSError(errno.ESTALE, "Stale file handle")),
    ],
)
def test_a_run_that_cannot_go_back_ends_with_one_sentence(
    place: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback and status 1."""

    def fail(*_: object) -> None:
        raise error

    states.save(tmp_path, 10, 20)
    if place == "renaming":
        monkeypatch.setattr("limba.storage.literal_names.rename_folder", fail)
    may_commit = fail if place == "lease" else lambda: None
    with (
        Checkpoints(str(tmp_path), states.CONFIG, states.DATA, may_commit=may_commit) as checkpoints,
        pytest.raises(StorageError, match=r"^Step 20 in \S+ cannot be renamed \(.+\); start the same command again\.$"),
    ):
        checkpoints.restore_step(10, states.abstract())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "20"]


# Holds the lease; saves a step when a line is read, whose arrays are merged when another one is.
HOLDING = """
import sys
from limba.config import CheckpointConfig, RestartError
from limba.storage import lease, lease_places
from limba.training.checkpoints import arrays
from limba.training.checkpoints.directory import Checkpoints
from tests.training.checkpoints import states, test_save
run, step = sys.argv[1], int(sys.argv[2])
lease_places.BEAT_SECONDS = 0.2
lease_places.LEASE_SECONDS = 0.6
merge = arrays.merge
def merge_when_told(*arguments):
    print("merging", flush=True)
    sys.stdin.readline()
    return merge(*arguments)
arrays.merge = merge_when_told
with lease.held(run) as held:
    print("holding", flush=True)
    sys.stdin.readline()
    checkpoints = Checkpoints(run, CheckpointConfig(), states.DATA, may_commit=held.confirm)
    test_save.start(checkpoints, step)
    try:
        checkpoints.wait()
        print("SAVED", flush=True)
    except RestartError as error:
        print("ENDED", error, flush=True)
"""


@contextlib.contextmanager
def holding(run: Path, step: int) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease, and has not looked at the checkpoints yet."""
    command = [sys.executable, "-c", HOLDING, str(run), str(step)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "holding\n"
            yield holder
        finally:
            holder.kill()


def begin_to_save(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "merging\n"


@pytest.mark.slow
def test_a_process_that_is_stopped_in_a_save_for_longer_than_its_lease_commits_nothing(tmp_path: Path) -> None:
    """SIGSTOP; another process takes the directory over; SIGCONT. The other one commits its own step."""
    states.save(tmp_path, 10)
    with holding(tmp_path, 20) as first:
        begin_to_save(first)
        first.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        (tmp_path / lease.FILE).rename(tmp_path / "aside")  # as another host does that has heard no heartbeat
        with holding(tmp_path, 30) as second:
            wait_until(lambda: time.monotonic() > stopped + 1.0)  # five heartbeats
            first.send_signal(signal.SIGCONT)
            (line,) = first.communicate("\n", timeout=120)[0].splitlines()
            assert line.startswith("ENDED Another process "), line
            begin_to_save(second)
            assert second.communicate("\n", timeout=120)[0] == "SAVED\n"
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps() == [10, 30]
        states.assert_is(checkpoints.restore_latest(states.abstract()), 30)


# A save in a process of its own, whose limits are its own: files of at most some bytes, or a full file system.
SAVING = """
import logging, resource, sys
logging.basicConfig(format="%(message)s", level=logging.WARNING)
logging.getLogger("absl").setLevel(logging.ERROR)
from limba.config import StorageError
from limba.training.checkpoints import saver
from tests.training.checkpoints import states, test_save
from pathlib import Path
run, limit = Path(sys.argv[1]), int(sys.argv[2])
saver.FIRST_PAUSE_SECONDS = 0.05
with test_save.opened(run, save_timeout_seconds=10.0) as checkpoints:
    if limit:
        import signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        sys.dont_write_bytecode = True  # it would be cut off, and stay so
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    test_save.start(checkpoints, 20)
    try:
        test_save.polled(checkpoints)
    except StorageError as error:
        print("SENTENCE", error)
"""


def saved_elsewhere(run: Path, limit: int, *before: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*before, sys.executable, "-c", SAVING, str(run), str(limit)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)


@pytest.mark.night
def test_files_that_may_not_grow_end_the_run_with_one_sentence(tmp_path: Path) -> None:
    """A quota: every file ends at 4 kB."""
    states.save(tmp_path, 10)
    ended = saved_elsewhere(tmp_path, 4096)
    lines = (ended.stdout + ended.stderr).splitlines()
    assert ended.returncode == 0 and len(lines) == 2, "\n".join(lines)
    assert "Step 20 cannot be saved in" in ended.stdout and "File too large" in ended.stdout
    assert "Step 10 in" in ended.stdout
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps() == [10]
        states.assert_is(checkpoints.restore_latest(states.abstract()), 10)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    """A real one, of a megabyte, that another program fills between the look at its free space and the writing."""
    run = tmp_path / "run"
    run.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(run)], capture_output=True).returncode:
        pytest.skip("this machine lets no test mount a file system")
    try:
        states.save(run, 10)
        free = os.statvfs(run)
        (run / "filler").write_bytes(b"x" * (free.f_bavail * free.f_bsize - 40_000))
        ended = saved_elsewhere(run, 0)
        lines = (ended.stdout + ended.stderr).splitlines()
        assert ended.returncode == 0 and len(lines) == 2, "\n".join(lines)
        assert "No space left on device" in ended.stdout or "are free, and a checkpoint takes" in ended.stdout
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["10"]
        (run / "filler").unlink()
        with opened(run) as checkpoints:
            states.assert_is(checkpoints.restore_latest(states.abstract()), 10)
            start(checkpoints, 20)
        assert manifest.check(run / "checkpoints" / "20") == []
    finally:
        subprocess.run(["umount", "-l", str(run)], check=True)


# Two processes that save, restore, and agree on what they report; one of them fails where it is told to.
TOGETHER = """
import logging, sys, time
logging.basicConfig(format="%(message)s", level=logging.WARNING)
logging.getLogger("absl").setLevel(logging.ERROR)
from limba.sharding import joining
joining.join_hosts()
import jax, numpy as np
from pathlib import Path
from limba.config import CheckpointConfig, StorageError
from limba.training.checkpoints import arrays
from tests.training.checkpoints import states, test_save
run, what, devices = Path(sys.argv[1]), sys.argv[2], jax.device_count()
own = jax.process_index()
write = arrays.write_arrays
def failing(directory, snapshot, attempt):
    if own == 1 and "/20" in str(directory):
        raise OSError(28, "No space left on device")
    if own == 1:  # it ends later than the first process
        test_save.wait_until(lambda: list(Path(directory).glob("ocdbt.process_0.*/manifest.ocdbt")))
    return write(directory, snapshot, attempt)
arrays.write_arrays = failing
with test_save.opened(run, save_timeout_seconds=400.0) as checkpoints:
    if what == "restore":
        restored = checkpoints.restore_latest(states.abstract(devices))
        wanted = states.state(int(restored.state.step), devices)
        same = jax.tree.map(lambda a, b: all(np.array_equal(x.data, y.data) for x, y in
            zip(a.addressable_shards, b.addressable_shards, strict=True)), restored.state, wanted)
        print("RESTORED", own, int(restored.state.step), all(jax.tree.leaves(same)), restored.notes, flush=True)
    else:
        seen, polls = [], 0
        for step in (10, 20):
            checkpoints._saver._seconds = 400.0 if step == 10 else 3.0  # the second one cannot succeed
            checkpoints.save(step, states.state(step, devices), {own: {"about": {}, "batch": step}}, {"step": step})
            try:
                for _ in range(200_000):
                    polls += 1
                    time.sleep(0.002 * (1 + own))  # the processes run apart
                    if found := checkpoints.poll():
                        seen.append((polls, found))
                        break
                # Nobody runs ahead of the step that both report.
            except StorageError as error:
                print("SENTENCE", own, polls - seen[0][0], error, flush=True)
                break
        print("SEEN", own, seen, flush=True)
"""


def together(run: Path, what: str, processes: int, devices: int) -> list[str]:
    from tests.run.test_hosts import finish
    from tests.run.test_hosts import start as start_processes

    ends = finish(start_processes(["-c", TOGETHER, str(run), what], processes, devices))
    return ["\n".join([output, *errors]) for output, errors in ends]


@pytest.mark.night
def test_processes_save_together_report_at_the_same_poll_and_fail_alike(tmp_path: Path) -> None:
    outputs = together(tmp_path, "save", 2, 2)
    seen = [next(line for line in out.splitlines() if line.startswith("SEEN")) for out in outputs]
    assert seen[0].replace("SEEN 0", "") == seen[1].replace("SEEN 1", "") and "[10]" in seen[0]
    sentences = [next(line for line in out.splitlines() if line.startswith("SENTENCE")) for out in outputs]
    assert sentences[0].replace("SENTENCE 0", "") == sentences[1].replace("SENTENCE 1", "")
    assert "(process 1: No space left on device)" in sentences[0] and "Step 10 in" in sentences[0]
    assert "Traceback" not in "".join(outputs)
    checkpoints = tmp_path / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["10"] and manifest.check(checkpoints / "10") == []
    stores = sorted(path.name.split(".") for path in (checkpoints / "10" / "state").glob("ocdbt.process_*"))
    assert [store[1] for store in stores] == ["process_0", "process_1"] and stores[0][2] == stores[1][2]  # one attempt

    # Other numbers of processes read it; one file is damaged, and all take the older step.
    states.save(tmp_path, 5)
    for processes, devices in ((1, 4), (2, 2), (4, 1)):
        outputs = together(tmp_path, "restore", processes, devices)
        for index, out in enumerate(outputs):
            assert f"RESTORED {index} 10 True {{'step': 10}}" in out
    path = next((checkpoints / "10" / "state").glob("ocdbt.process_1.*/d/*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    outputs = together(tmp_path, "restore", 2, 2)
    assert all(f"RESTORED {index} 5 True" in out for index, out in enumerate(outputs))
    lines = [line for out in outputs for line in out.splitlines() if "cannot be read" in line]
    assert len(lines) == 1 and f"({path.relative_to(checkpoints / '10')} has other bytes" in lines[0]
    assert (checkpoints / "10.broken").is_dir()
