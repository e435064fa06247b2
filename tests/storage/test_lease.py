"""One run a directory: who holds it is said, the dead are replaced, and who lost it writes nothing more."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

from limba.config import InputError, RestartError, StorageError
from limba.storage import files, lease
from limba.storage.lease import FILE, Owner, held
from tests.http_server import FileServer, StoreHandler, lost, serving, stall, status
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BEAT, PATIENCE = 0.1, 8  # many short ones: a busy machine delays some of them
WAIT = BEAT * PATIENCE
# Holds the directory until its input ends.
HOLDER = """
import sys
from limba.cli import program
from limba.storage.lease import held
def hold(arguments):
    with held(arguments[0], "trains in"):
        print("held", flush=True)
        sys.stdin.read()
sys.exit(program.exit_code(hold, sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def short_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(lease, "PATIENCE", PATIENCE)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    folder = tmp_path / "store"
    folder.mkdir()
    with serving(folder, handler=StoreHandler) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url("").removesuffix("/client/"))
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield server
    fsspec.get_filesystem_class("gs").clear_instance_cache()


def start(directory: object) -> subprocess.Popen:
    command = [sys.executable, "-c", HOLDER, str(directory)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


def elsewhere(beat: int = 0, token: str = "theirs") -> bytes:
    """What a process of another host has written."""
    owner = dataclasses.replace(Owner.here("trains in"), token=token, host="far", boot="another", pid=7)
    return owner.content(beat)


@contextlib.contextmanager
def beating(write: Callable[[bytes], object]) -> Iterator[None]:
    """A holder on another host gives heartbeats for the time of the context."""
    over = threading.Event()

    def beat() -> None:
        for number in range(1, 1000):
            write(elsewhere(number))
            if over.wait(BEAT):
                return

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def beaten(mine: lease.Lease, times: int) -> None:
    """Waits for so many more heartbeats of ours."""
    before = mine._beats
    wait_until(lambda: mine._beats >= before + times)


def said(capsys: pytest.CaptureFixture) -> set[str]:
    """The lines on stderr without their numbers: a busy machine may be late, and say one twice."""
    return {re.sub(r"\d+", "#", line) for line in capsys.readouterr().err.splitlines()}


def test_a_second_start_says_who_holds_the_directory_and_the_first_goes_on(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert first.stdout.readline() == "held\n"
    second = start(tmp_path)
    out, error = second.communicate(timeout=200)
    assert second.returncode == 2 and out == ""
    assert error.startswith(f"Another process trains in {tmp_path} now (process {first.pid} on ")
    assert ", since 20" in error and error.endswith("or give another path.\n") and error.count("\n") == 1
    assert first.poll() is None
    out, error = first.communicate("", timeout=200)
    assert (first.returncode, error) == (0, "") and list(tmp_path.iterdir()) == []


def test_a_stopped_process_of_this_host_still_holds_and_a_killed_one_does_not(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = start(tmp_path)
    assert holder.stdout.readline() == "held\n"
    os.kill(holder.pid, signal.SIGSTOP)
    with pytest.raises(InputError, match=f"process {holder.pid} on "), held(str(tmp_path), "trains in"):
        pass
    holder.kill()
    holder.communicate()
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    monkeypatch.setattr(lease, "BEAT_SECONDS", 600.0)  # the kernel knows that it is dead: no heartbeat is waited for
    with held(str(tmp_path), "trains in") as mine:
        mine.check()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path} was left by process {holder.pid} on ") and line.endswith("is taken over.")
    assert not list(tmp_path.iterdir())


def test_one_process_holds_a_directory_once_and_several_outputs(tmp_path: Path) -> None:
    one, other = str(tmp_path / "run"), str(tmp_path / "out.model")
    with held(one, "trains in"), held(other, "makes", beside=True):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.model.lease", "run"]
        with pytest.raises(InputError, match=f"makes {other} now"), held(other, "makes", beside=True):
            pass
        with pytest.raises(InputError, match=f"trains in {one} now"), held(one, "prepares"):
            pass
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]


def test_the_holder_on_another_host_that_beats_keeps_it(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 1000)
    file = tmp_path / FILE
    with beating(file.write_bytes):
        wait_until(file.exists)
        with pytest.raises(InputError, match=r"process 7 on far, since .*, which gave a heartbeat just now"):  # noqa: SIM117
            with held(str(tmp_path), "trains in"):
                pass
    (line,) = capsys.readouterr().err.splitlines()
    assert "was last used by process 7 on far" in line and "waiting up to 100 s" in line
    assert Owner.of(file.read_bytes()).token == "theirs"


def test_the_holder_on_another_host_that_is_silent_is_replaced(tmp_path: Path, capsys) -> None:
    (tmp_path / FILE).write_bytes(elsewhere())
    began = time.monotonic()
    with held(str(tmp_path), "trains in") as mine:
        assert time.monotonic() - began >= WAIT
        assert Owner.of((tmp_path / FILE).read_bytes()) == mine.owner
        beaten(mine, 3)
        mine.check()
    waits, takes = capsys.readouterr().err.splitlines()
    assert "waiting up to 1 s for a heartbeat" in waits and "is taken over after 1 s without a heartbeat" in takes


def test_only_one_of_two_takes_over_where_there_are_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network's file system without them: also from a silent holder of this host."""
    monkeypatch.setattr(lease, "try_lock", lambda descriptor: "none")
    (tmp_path / FILE).write_bytes(dataclasses.replace(Owner.here("trains in"), pid=7).content(3))
    found: list[object] = []

    def take() -> None:
        try:
            with held(str(tmp_path), "trains in") as mine:
                found.append(mine.owner)
                time.sleep(2 * WAIT)
                mine.check()
        except InputError as error:
            found.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    holders = [each for each in found if isinstance(each, Owner)]
    assert len(found) == 3 and len(holders) == 1 and not list(tmp_path.iterdir())


def test_who_has_lost_the_lease_ends_and_removes_nothing(tmp_path: Path, capsys) -> None:
    file = tmp_path / FILE
    with pytest.raises(RestartError) as caught, held(str(tmp_path), "trains in") as mine:
        mine.check()
        (tmp_path / "new").write_bytes(elsewhere())
        (tmp_path / "new").rename(file)
        wait_until(lambda: mine._lost)
        mine.check()
    assert caught.match(r"Another process trains in .* now \(process 7 on far")
    assert caught.match(f".*nothing more is written to {tmp_path}")
    assert capsys.readouterr().err.splitlines() == [str(caught.value)]
    assert file.exists()


def test_a_heartbeat_writes_over_nobody_who_comes_in_the_middle_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one puts its file there after the heartbeat has read whose it is, and before it writes."""
    file = tmp_path / FILE
    look = lease.LocalPlace.look

    def come_first(self: lease.LocalPlace) -> lease.Seen:
        monkeypatch.setattr(lease.LocalPlace, "look", look)
        (tmp_path / "new").write_bytes(elsewhere())
        (tmp_path / "new").rename(file)
        return look(self)

    with held(str(tmp_path), "trains in") as mine:
        monkeypatch.setattr(lease.LocalPlace, "look", come_first)
        before = mine._beats
        wait_until(lambda: mine._lost or mine._beats >= before + 3)
        with pytest.raises(RestartError, match=r"Another process trains in .* now \(process 7 on far"):
            mine.check()
    assert file.read_bytes() == elsewhere()


@pytest.mark.parametrize("how", ["moved", "emptied", "removed"])
def test_a_directory_that_is_gone_is_not_taken_over(tmp_path: Path, how: str, capsys) -> None:
    """Moved away, not mounted (its place is an empty folder), or without its lease: only another's mark is a loss."""
    run, away = tmp_path / "run", tmp_path / "away"

    def leave() -> None:
        if how == "removed":
            (run / FILE).rename(away)
            return
        run.rename(away)
        if how == "emptied":
            run.mkdir()

    with held(str(run), "trains in") as mine:
        leave()
        wait_until(lambda: mine._gone_since)
        mine.check(3600.0)
        for write in (lambda: files.write_whole(run / "new", b""), lambda: files.make_folder(run / "checkpoints")):
            with pytest.raises(OSError, match=f"{run} is gone") as refused:
                write()
            assert refused.value.errno == errno.EIO
        assert run.exists() is (how != "moved") and not (run.exists() and list(run.iterdir()))
        with pytest.raises(StorageError, match=f"{run}/{FILE} has been gone for 0 s, .* bring it back, and start"):
            mine.check(0.0)
        if how == "removed":
            away.rename(run / FILE)
        elif how == "emptied":  # by another mount, or from a copy
            shutil.copytree(away, run, dirs_exist_ok=True)
        else:
            away.rename(run)
        wait_until(lambda: not mine._gone_since)
        mine.check(0.0)
        files.write_whole(run / "new", b"")
        beats = json.loads((run / FILE).read_bytes())["beat"]
        wait_until(lambda: json.loads((run / FILE).read_bytes())["beat"] > beats)
        with pytest.raises(InputError, match=f"trains in {run} now"), held(str(run), "trains in"):
            pass
    assert [path.name for path in run.iterdir()] == ["new"] and files.gone(run) == ""
    (line,) = said(capsys)
    assert f"cannot be written to {re.sub('[0-9]+', '#', str(run))}/{FILE} (it is gone); the run goes on" in line


def test_a_lease_that_alone_was_removed_is_written_again(tmp_path: Path, capsys) -> None:
    (tmp_path / "config.json").write_text("{}")
    with held(str(tmp_path), "trains in") as mine:
        (tmp_path / FILE).unlink()
        files.write_whole(tmp_path / "new", b"")  # the directory is there
        wait_until((tmp_path / FILE).exists)
        mine.check(0.0)
        with pytest.raises(InputError, match=f"trains in {tmp_path} now"), held(str(tmp_path), "trains in"):
            pass
    (line,) = said(capsys)
    assert "was removed while this run goes on; it is written again." in line and not (tmp_path / FILE).exists()


def test_a_link_that_leads_nowhere_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    for name in ("run", "run/inside"):
        says = f"{tmp_path}/run is a link to {tmp_path}/nowhere, which does not exist"
        with pytest.raises(InputError, match=says), held(str(tmp_path / name), "trains in"):
            pass


def test_who_stood_still_looks_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(str(tmp_path), "trains in") as mine:
        monkeypatch.setattr(lease, "BEAT_SECONDS", 30.0)  # the next heartbeat is not before that
        mine._beaten.clear()
        assert mine._beaten.wait(60.0)  # the one that was due has ended
        (tmp_path / "new").write_bytes(elsewhere())
        (tmp_path / "new").rename(tmp_path / FILE)
        mine.check()  # not yet due
        mine._confirmed -= 30 * PATIENCE + 1
        with pytest.raises(RestartError, match="process 7 on far"):
            mine.check()


def test_heartbeats_that_fail_are_said_once_and_do_not_end_the_run(tmp_path: Path, capsys, monkeypatch) -> None:
    with held(str(tmp_path), "trains in") as mine:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            wait_until(lambda: mine._is_failing)
            beaten(mine, 3)
            mine.check()
            mine._confirmed -= 3600
            patch.setattr(mine._beaten, "wait", lambda _: pytest.fail("a storage that fails is waited for at a step"))
            mine.check()
        wait_until(lambda: not mine._is_failing)
        mine.check()
    (line,) = said(capsys)
    assert "(No space left on device); the run goes on" in line


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, kind in ((tmp_path / "file", InputError), ("nonesuch://bucket/run", StorageError)):
        with pytest.raises(kind, match=f"{path}/{FILE} cannot be written"), held(str(path), "trains in"):
            pass


def test_memory_that_runs_out_is_not_the_storage_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # as Python says it where the memory has no room for its stack

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"), held(str(tmp_path), "trains in"):
        pass


def test_a_storage_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LIMIT_SECONDS", 0.1)
    answers = threading.Event()
    monkeypatch.setattr(lease.LocalPlace, "look", lambda self: answers.wait())
    with pytest.raises(StorageError, match="a request has not ended after 0 s"), held(str(tmp_path), "trains in"):
        pass
    answers.set()  # its thread ends


def object_of(server: FileServer) -> Path:
    return server.folder / "run" / FILE


def test_a_bucket_has_one_holder(server: FileServer, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 1000)
    with held("gs://bucket/run", "trains in") as mine:
        assert Owner.of(object_of(server).read_bytes()) == mine.owner
        beaten(mine, 2)
        mine.check()
        with pytest.raises(InputError, match=f"process {os.getpid()} on .*a heartbeat just now"):  # noqa: SIM117
            with held("gs://bucket/run", "trains in"):
                pass
        mine.check()
    assert not object_of(server).exists()
    assert all("was last used by process # on" in line or "heartbeat of this run" in line for line in said(capsys))


def test_a_silent_holder_of_a_bucket_is_replaced_by_one(server: FileServer, capsys) -> None:
    object_of(server).parent.mkdir()
    object_of(server).write_bytes(elsewhere())
    server.generations[f"run/{FILE}"] = 5
    found: list[object] = []

    def take() -> None:
        try:
            with held("gs://bucket/run", "trains in") as mine:
                found.append(mine.owner)
                time.sleep(2 * WAIT)
                mine.check()
        except InputError as error:
            found.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and sum(isinstance(each, Owner) for each in found) == 1
    assert "is taken over after 1 s" in capsys.readouterr().err


def test_the_holder_of_a_bucket_notices_who_wrote_over_it(server: FileServer) -> None:
    with pytest.raises(RestartError, match="process 7 on far"), held("gs://bucket/run", "trains in") as mine:
        with server.writing:
            object_of(server).write_bytes(elsewhere())
            server.generations[f"run/{FILE}"] += 1
        wait_until(lambda: mine._lost)
        mine.check()
    assert Owner.of(object_of(server).read_bytes()).token == "theirs"


@pytest.mark.parametrize("trouble", [status(503), lost, stall], ids=["503", "lost", "stall"])
def test_a_bucket_in_trouble_loses_no_lease(server: FileServer, trouble, monkeypatch, capsys) -> None:
    """An answer that is lost after the object was written looks like somebody else's object at the next attempt."""
    monkeypatch.setattr(lease, "REQUEST_SECONDS", 4.0)
    with held("gs://bucket/run", "trains in") as mine:
        server.fail(f"run/{FILE}", trouble, methods=("POST",))
        beaten(mine, 3)
        mine.check()
    assert not object_of(server).exists()


def test_other_stores_have_one_holder_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "PATIENCE", 1000)
    system = fsspec.filesystem("memory")
    with held("memory://store/run", "trains in") as mine:
        beaten(mine, 2)
        with pytest.raises(InputError, match="a heartbeat just now"), held("memory://store/run", "trains in"):
            pass
        system.pipe_file(f"/store/run/{FILE}", elsewhere())
        wait_until(lambda: mine._lost)
    assert Owner.of(system.cat_file(f"/store/run/{FILE}")).token == "theirs"
    monkeypatch.setattr(lease, "PATIENCE", PATIENCE)
    with held("memory://store/run", "trains in") as mine:
        assert Owner.of(system.cat_file(f"/store/run/{FILE}")) == mine.owner
    assert not system.exists(f"/store/run/{FILE}")


def test_nothing_is_committed_to_the_hub() -> None:
    with held("hf://datasets/me/set/train", "prepares") as mine:
        beaten(mine, 2)
        mine.check()
    assert mine._beats and isinstance(mine._place, lease.ObjectPlace)


def test_what_an_owner_writes_has_one_length_and_is_read_by_people_too() -> None:
    contents = [Owner.here("trains in").content(beat) for beat in (0, 10**12)]
    assert {len(content) for content in contents} == {lease.BYTES}
    assert json.loads(contents[1])["beat"] == 10**12 and json.loads(contents[0])["purpose"] == "trains in"
    assert Owner.of(b"") is Owner.of(None) is Owner.of(b"[]") is Owner.of(b"{}") is None
