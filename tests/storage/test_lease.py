"""One run a directory: its holder is named, a dead one is replaced, and one that lost it writes nothing more."""

import contextlib
import errno
import functools
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import SoftFileLease

from limba.config import InputError, RestartError, StorageError
from limba.storage import files, lease, lease_places
from limba.storage.lease import FILE, held
from limba.storage.lease_places import BucketPlace, LocalPlace, Owner, Seen, TakenError
from tests.bucket_server import BucketServer, GoogleHandler, emulated
from tests.storage.leases import file_of, of_another_machine, put
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
BEAT = 0.1
LEASE = 0.8  # a lease of many short beats: a busy machine delays some of them
LONG = 100.0  # a lease that does not end in a test
OBJECT = f"run/{FILE}"
# Holds the directory until its input ends.
HOLDER = """
import sys
from limba.cli import program
from limba.storage.lease import held
def hold(arguments):
    with held(arguments[0]):
        print("held", flush=True)
        sys.stdin.read()
sys.exit(program.exit_code(hold, sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_places, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(lease_places, "LEASE_SECONDS", LEASE)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    with emulated(monkeypatch) as server:
        yield server


def start(directory: object) -> subprocess.Popen:
    command = [sys.executable, "-c", HOLDER, str(directory)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, text=True, **pipes)


@contextlib.contextmanager
def repeated(beat: Callable[[int], object]) -> Iterator[None]:
    """Another process gives heartbeats for the time of the context."""
    over = threading.Event()

    def run() -> None:
        for number in range(1, 1000):
            beat(number)
            if over.wait(BEAT):
                return

    thread = threading.Thread(target=run)
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


def refused(directory: str | Path, match: str) -> None:
    """Checks that a start in the directory ends with such a sentence."""
    with pytest.raises(InputError, match=match), held(str(directory)):
        pass


def owner_in(directory: Path) -> Owner | None:
    return lease.read_owner(str(directory / FILE), None)


def test_a_second_start_says_who_holds_the_directory_and_the_first_goes_on(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert first.stdout.readline() == "held\n"
    second = start(tmp_path)
    out, error = second.communicate(timeout=200)
    assert second.returncode == 2 and out == ""
    assert error.startswith(f"Another process uses {tmp_path} now (process {first.pid} on ")
    assert error.endswith("or give another path.\n") and error.count("\n") == 1
    assert first.poll() is None
    out, error = first.communicate("", timeout=200)
    assert (first.returncode, error) == (0, "") and list(tmp_path.iterdir()) == []


def test_a_stopped_process_of_this_host_still_holds_and_a_killed_one_does_not(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_places, "LEASE_SECONDS", 30.0)  # as that process has it; it is not waited for
    holder = start(tmp_path)
    assert holder.stdout.readline() == "held\n"
    os.kill(holder.pid, signal.SIGSTOP)
    with pytest.raises(InputError, match=f"process {holder.pid} on "), held(str(tmp_path)):
        pass
    holder.kill()
    wait_until(lambda: Path(f"/proc/{holder.pid}/stat").read_text().split()[2] == "Z")  # nobody has asked for its end
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    with held(str(tmp_path)) as mine:
        mine.check()
        mine.confirm()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path} was left by process {holder.pid} on ") and line.endswith("is taken over.")
    assert not list(tmp_path.iterdir())
    holder.communicate()


def test_what_a_process_left_that_was_killed_while_it_took_over_is_removed(tmp_path: Path) -> None:
    aside = tmp_path / f"{FILE}.{'0123456789abcdef'}"
    put(aside, of_another_machine())
    of_the_user = {f"{FILE}.txt", "fedcba9876543210"}  # a name that says nothing of a lease was taken for one's ending
    for name in of_the_user:
        (tmp_path / name).write_text("a user's")
    with held(str(tmp_path)) as mine:
        assert not aside.exists()
        mine.confirm()
    assert {path.name for path in tmp_path.iterdir()} == of_the_user


def test_a_process_that_has_the_number_of_a_dead_one_holds_nothing(tmp_path: Path, capsys) -> None:
    with held(str(tmp_path)):
        ours = owner_in(tmp_path)
    assert ours is not None and ours.is_here and ours.is_alive
    put(tmp_path / FILE, ours._replace(start=ours.start - 1))
    with held(str(tmp_path)) as mine:
        mine.confirm()
    assert "was left by" in capsys.readouterr().err


def test_one_process_holds_a_directory_once_and_several_outputs(tmp_path: Path) -> None:
    one = str(tmp_path / "run")
    other = str(tmp_path / "out.model")
    with held(one), held(other, beside=True):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out.model.lease", "run"]
        for path, is_beside in ((other, True), (one, False)):
            with pytest.raises(InputError, match=f"uses {path} now"), held(path, beside=is_beside):
                pass
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]


def test_an_output_in_a_directory_leaves_that_held_when_it_ends(tmp_path: Path) -> None:
    """From then on what was written made a new folder where the directory had been moved away."""
    with held(str(tmp_path)):
        with held(str(tmp_path / "out.jsonl"), beside=True):
            assert files.is_held(str(tmp_path))
        assert files.is_held(str(tmp_path))
    assert not files.is_held(str(tmp_path))


@pytest.mark.parametrize("host", ["far", "ours"])
def test_the_holder_on_another_machine_that_beats_keeps_it(tmp_path: Path, capsys, monkeypatch, host: str) -> None:
    """Its machine may have our name, as `localhost` or `vm`: the boot tells the two apart."""
    monkeypatch.setattr(lease_places, "LEASE_SECONDS", LONG)
    here = lease_places.this_process()
    other = of_another_machine()
    if host == "ours":
        other = other._replace(host=here.host, pid=4_000_001, start=here.start ^ (1 << 100))
    put(tmp_path / FILE, other)
    with repeated(lambda _: os.utime(tmp_path / FILE)):
        refused(tmp_path, rf"process {other.pid} on .*, which gave a heartbeat just now")
    (line,) = capsys.readouterr().err.splitlines()
    assert f"was last used by process {other.pid} on" in line and "waiting up to 100 s" in line
    assert owner_in(tmp_path) == other


@pytest.mark.parametrize("content", [None, "", "filelock/2\npid=7\n", "{}"], ids=["lease", "empty", "cut", "other"])
def test_what_is_silent_on_another_machine_is_replaced(tmp_path: Path, capsys, content: str | None) -> None:
    """Also a file that names nobody: after a power cut it is empty."""
    (tmp_path / FILE).write_text(file_of(of_another_machine()) if content is None else content)
    began = time.monotonic()
    with held(str(tmp_path)) as mine:
        assert time.monotonic() - began >= LEASE
        owner = owner_in(tmp_path)
        assert owner is not None and owner.pid == os.getpid()
        beaten(mine, 3)
        mine.check()
        mine.confirm()
    waits, takes = capsys.readouterr().err.splitlines()
    assert "waiting up to 1 s for a heartbeat" in waits and "is taken over after 1 s without a heartbeat" in takes
    assert not list(tmp_path.iterdir())


def test_a_lease_of_another_length_is_refused_at_once(tmp_path: Path, capsys) -> None:
    put(tmp_path / FILE, of_another_machine(lease_seconds=60.0))
    with pytest.raises(InputError) as refused, held(str(tmp_path)):
        pass
    assert refused.match(f"{tmp_path}/{FILE} is held for 60 s by process 7 on far, and this version of Limba holds")
    assert capsys.readouterr().err == "" and owner_in(tmp_path) is not None


def test_a_heartbeat_that_comes_while_it_is_replaced_keeps_the_directory(tmp_path: Path, monkeypatch) -> None:
    """A watcher has waited for the whole lease; the holder confirms it after the last look and before its file goes."""
    monkeypatch.setattr(lease_places, "LEASE_SECONDS", LONG)
    monkeypatch.setattr(lease_places, "BEAT_SECONDS", LONG / 3)
    rename = os.rename
    with held(str(tmp_path)) as mine:
        other = LocalPlace(str(tmp_path / FILE))
        seen = other.look()

        def confirm_first(source: str, target: str) -> None:
            monkeypatch.setattr(os, "rename", rename)
            mine.confirm()
            rename(source, target)

        monkeypatch.setattr(os, "rename", confirm_first)
        assert not other.take(seen)
        mine.confirm()
        assert os.listdir(tmp_path) == [FILE]


def test_a_machine_of_our_name_keeps_what_it_renewed_after_the_last_look(tmp_path: Path) -> None:
    """filelock would find its process dead, since no process has that number here."""
    here = lease_places.this_process()
    other = of_another_machine(host=here.host, pid=4_000_001, start=here.start ^ (1 << 100))
    put(tmp_path / FILE, other)
    place = LocalPlace(str(tmp_path / FILE))
    seen = place.look()
    os.utime(tmp_path / FILE)
    assert not place.take(seen) and owner_in(tmp_path) == other
    assert place.take(place.look())
    place.leave()


def test_who_has_lost_the_lease_ends_and_removes_nothing(tmp_path: Path, capsys) -> None:
    file = tmp_path / FILE
    with pytest.raises(RestartError) as caught, held(str(tmp_path)) as mine:
        mine.check()
        put(file, of_another_machine())
        wait_until(lambda: mine._lost)
        mine.check()
    assert caught.match(r"Another process uses .* now \(process 7 on far\)")
    assert caught.match(f".*nothing more is written to {tmp_path}")
    assert capsys.readouterr().err.splitlines() == [str(caught.value)]
    assert owner_in(tmp_path) == of_another_machine() and not files.is_held(str(tmp_path))
    with pytest.raises(RestartError):
        mine.confirm()
    assert file.exists()


def test_a_commit_asks_the_storage_and_not_the_last_heartbeat(tmp_path: Path, monkeypatch, capsys) -> None:
    """As in a process that was stopped in a save, goes on, and has not come to its next heartbeat."""
    monkeypatch.setattr(lease_places, "BEAT_SECONDS", LONG / 3)
    monkeypatch.setattr(lease_places, "LEASE_SECONDS", LONG)
    with held(str(tmp_path)) as mine:
        before = os.stat(tmp_path / FILE).st_mtime_ns
        mine.confirm()
        assert os.stat(tmp_path / FILE).st_mtime_ns > before  # whoever watches begins anew
        put(tmp_path / FILE, of_another_machine())
        mine.check()  # knows nothing yet
        for _ in range(2):
            with pytest.raises(RestartError, match="process 7 on far"):
                mine.confirm()
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("how", ["moved", "emptied"])
def test_a_directory_that_is_gone_is_not_taken_over(tmp_path: Path, how: str, capsys) -> None:
    """Moved away, or not mounted, so that its place is an empty folder: only another's lease is a loss."""
    run = tmp_path / "run"
    away = tmp_path / "away"
    with held(str(run)) as mine:
        run.rename(away)
        if how == "emptied":
            run.mkdir()
        wait_until(lambda: mine._gone_since)
        mine.check(3600.0)
        with pytest.raises(OSError, match=f"{run} is gone") as refused:
            mine.confirm()
        assert refused.value.errno == errno.EIO
        for write in (lambda: files.write_whole(run / "new", b""), lambda: files.make_folder(run / "checkpoints")):
            with pytest.raises(OSError, match=f"{run} is gone") as refused:
                write()
            assert refused.value.errno == errno.EIO
        assert run.exists() is (how == "emptied") and not (run.exists() and list(run.iterdir()))
        with pytest.raises(StorageError, match=f"{run}/{FILE} has been gone for 0 s, .* bring it back, and start"):
            mine.check(0.0)
        if how == "emptied":  # by another mount, or from a copy
            shutil.copytree(away, run, dirs_exist_ok=True)
        else:
            away.rename(run)
        wait_until(lambda: not mine._gone_since)
        mine.check(0.0)
        mine.confirm()
        files.write_whole(run / "new", b"")
        beats_go_on(run)
        with pytest.raises(InputError, match=f"uses {run} now"), held(str(run)):
            pass
        mine.confirm()
    assert [path.name for path in run.iterdir()] == ["new"] and files.gone(run) == ""
    (line,) = said(capsys)
    assert f"cannot be written to {re.sub('[0-9]+', '#', str(run))}/{FILE} (it is gone); the run goes on" in line


def beats_go_on(directory: Path) -> None:
    """Waits for heartbeats, of which filelock gives each a few milliseconds after ours looks whether they come.

    Where the directory came back as a copy, the holder makes its file anew, which is not there for a moment.
    """

    def last_beat() -> int | None:
        try:
            return os.stat(directory / FILE).st_mtime_ns
        except FileNotFoundError:
            return None

    for _ in range(3):
        before = last_beat()
        wait_until(lambda before=before: last_beat() not in (None, before))


def test_a_lease_that_alone_was_removed_ends_its_holder(tmp_path: Path, capsys) -> None:
    """Another one may have begun and ended in between."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RestartError) as caught, held(str(tmp_path)) as mine:
        (tmp_path / FILE).unlink()
        files.write_whole(tmp_path / "new", b"")  # the directory is there
        with pytest.raises(RestartError, match="was removed while this process used"):
            mine.confirm()
        mine.check(0.0)
    assert caught.match("Start the same command again, and leave that file.") and not (tmp_path / FILE).exists()
    assert capsys.readouterr().err.splitlines() == [str(caught.value)]


def test_a_link_that_leads_nowhere_is_said(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "nowhere")
    for name in ("run", "run/inside"):
        says = f"{tmp_path}/run is a link to {tmp_path}/nowhere, which does not exist"
        with pytest.raises(InputError, match=says), held(str(tmp_path / name)):
            pass


def test_who_stood_still_looks_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(str(tmp_path)) as mine:
        monkeypatch.setattr(lease_places, "BEAT_SECONDS", 30.0)  # the next heartbeat is not before that
        monkeypatch.setattr(lease_places, "LEASE_SECONDS", 60.0)
        mine._beaten.clear()
        assert mine._beaten.wait(60.0)  # the one that was due has ended
        put(tmp_path / FILE, of_another_machine())
        mine.check()  # not yet due
        mine._confirmed -= 61
        with pytest.raises(RestartError, match="process 7 on far"):
            mine.check()


@pytest.mark.parametrize("how", ["back", "taken"])
def test_a_storage_that_is_away_for_longer_than_a_lease(tmp_path: Path, monkeypatch, capsys, how: str) -> None:
    """filelock ends its heartbeats then. They begin again, unless another process has taken over meanwhile."""
    utime = os.utime

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with held(str(tmp_path)) as mine:
        place = mine._place
        assert isinstance(place, LocalPlace)
        with monkeypatch.context() as patch:
            patch.setattr(os, "utime", fails)
            patch.setattr(LocalPlace, "look", fails)
            wait_until(lambda: place._lease.compromise)
            wait_until(lambda: mine._is_failing)
            mine.check()
            with pytest.raises(OSError, match="Input/output error"):
                mine.confirm()
            if how == "taken":
                put(tmp_path / FILE, of_another_machine())
            patch.setattr(mine._beaten, "wait", lambda _: pytest.fail("a storage that fails is waited for at a step"))
            mine._confirmed -= 3600
            mine.check()
        assert os.utime is utime
        if how == "taken":
            wait_until(lambda: mine._lost)
            with pytest.raises(RestartError, match="process 7 on far"):
                mine.confirm()
        else:
            wait_until(lambda: place._lease.compromise is None and not mine._is_failing)
            assert not mine._has_complained  # the next outage is reported, too
            beats_go_on(tmp_path)
            mine.check()
            mine.confirm()
    lines = said(capsys)
    assert any("(Input/output error); the run goes on" in line for line in lines) and len(lines) == 1 + (how == "taken")
    assert (tmp_path / FILE).exists() is (how == "taken")


def test_a_file_that_is_there_and_cannot_be_read_names_no_other_holder() -> None:
    """The kernel opens this one, and answers EIO to a read: the run ended, as if another process had taken over."""
    with pytest.raises(OSError, match="Input/output error"):
        LocalPlace("/proc/self/mem").look()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / FILE).mkdir(parents=True)
    places = ((tmp_path / "file", InputError), (tmp_path / "folder", InputError), ("nonesuch://b/run", StorageError))
    for path, kind in places:
        with pytest.raises(kind, match=f"{path}/{FILE} cannot be written"), held(str(path)):
            pass
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).symlink_to(tmp_path / "file")
    with pytest.raises(InputError, match=f"{tmp_path}/run/{FILE} is a link, and runs do not"), held(f"{tmp_path}/run"):
        pass


def test_memory_that_runs_out_is_not_the_storage_s_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")  # as Python says it where the memory has no room for its stack

    monkeypatch.setattr(threading.Thread, "start", start)
    sentence = "^can't start new thread$"  # a StorageError, which is a RuntimeError too, says more
    with pytest.raises(RuntimeError, match=sentence), held(str(tmp_path)):
        pass


def test_a_storage_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LIMIT_SECONDS", 0.1)
    answers = threading.Event()
    monkeypatch.setattr(LocalPlace, "look", lambda self: answers.wait())
    with pytest.raises(StorageError, match="a request has not ended after 0 s"), held(str(tmp_path)):
        pass
    answers.set()  # its thread ends


def test_a_bucket_has_one_holder(server: BucketServer, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_places, "LEASE_SECONDS", LONG)
    with held("gs://bucket/run") as mine:
        owner = Owner.of(server.data(OBJECT))
        assert owner is not None and owner.pid == os.getpid() and owner.is_here
        beaten(mine, 2)
        mine.check()
        generation = server.objects["bucket", OBJECT].generation
        mine.confirm()
        assert server.objects["bucket", OBJECT].generation > generation
        refused("gs://bucket/run", f"uses gs://bucket/run now .process {os.getpid()} on ")
        mine.confirm()
    assert server.names() == [] and capsys.readouterr().err == ""


def test_the_holder_of_a_bucket_on_another_machine_that_beats_keeps_it(server: BucketServer, monkeypatch) -> None:
    monkeypatch.setattr(lease_places, "LEASE_SECONDS", LONG)
    other = of_another_machine()
    server.put("bucket", OBJECT, other.content())
    with repeated(lambda _: server.put("bucket", OBJECT, other.content())):
        refused("gs://bucket/run", "process 7 on far, which gave a heartbeat just now")
    assert Owner.of(server.data(OBJECT)) == other


def test_a_bucket_that_ten_take_at_once_has_one_holder(server: BucketServer) -> None:
    """Made where there is none, and taken over from a silent holder."""
    for _ in range(2):
        places = [BucketPlace(f"gs://bucket/{OBJECT}") for _ in range(10)]
        take = functools.partial(BucketPlace.take, seen=places[0].look())
        with ThreadPoolExecutor(10) as pool:
            assert sorted(pool.map(take, places)) == [False] * 9 + [True]
        server.put("bucket", OBJECT, of_another_machine().content())
    assert not any(is_confirmed(place) for place in places)
    for place in places:
        place.leave()
    assert Owner.of(server.data(OBJECT)) == of_another_machine()


def is_confirmed(place: BucketPlace) -> bool:
    try:
        place.confirm()
    except TakenError:
        return False
    return True


def test_a_silent_holder_of_a_bucket_is_replaced_by_one(server: BucketServer, capsys) -> None:
    server.put("bucket", OBJECT, of_another_machine().content())
    results: list[object] = []
    has_ended = threading.Barrier(3)

    def take() -> None:
        try:
            with held("gs://bucket/run") as mine:
                results.append(mine)
                has_ended.wait(200)
                mine.confirm()
        except InputError as error:
            results.append(str(error))
            has_ended.wait(200)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3 and sum(isinstance(result, lease.Lease) for result in results) == 1
    assert "is taken over after 1 s" in capsys.readouterr().err and server.names() == []


def test_the_holder_of_a_bucket_notices_who_wrote_over_it(server: BucketServer) -> None:
    with pytest.raises(RestartError, match="process 7 on far"), held("gs://bucket/run") as mine:
        server.put("bucket", OBJECT, of_another_machine().content())
        with pytest.raises(RestartError, match="process 7 on far"):
            mine.confirm()
        mine.check()
    assert Owner.of(server.data(OBJECT)) == of_another_machine()


def test_an_object_that_was_removed_ends_its_holder(server: BucketServer) -> None:
    with pytest.raises(RestartError, match=f"gs://bucket/{OBJECT} was removed"), held("gs://bucket/run") as mine:
        del server.objects["bucket", OBJECT]
        wait_until(lambda: mine._lost)
        mine.check()
    assert server.names() == []


@pytest.mark.parametrize(
    "trouble",
    [
        "unheard",
        "unanswered",
        pytest.param("silent", marks=pytest.mark.slow),
        *(pytest.param(status, marks=pytest.mark.night) for status in ("429", "503")),
    ],
)
def test_a_bucket_in_trouble_loses_no_lease(server: BucketServer, trouble: str, monkeypatch, capsys) -> None:
    """An answer that is lost after the object was written looks like somebody else's object at the next attempt."""
    monkeypatch.setattr(lease_places, "REQUEST_SECONDS", 4.0)
    left = [2]

    def fails(method: str, path: str) -> str | None:
        if method == "POST" and left[0]:
            left[0] -= 1
            return trouble
        return None

    with held("gs://bucket/run") as mine:
        monkeypatch.setattr(server, "trouble", fails)
        if trouble == "silent":  # for longer than we wait for an answer
            left[0] = 0
            answer = GoogleHandler.do_POST
            waits = threading.Event()

            def late(self: Any) -> None:
                monkeypatch.setattr(GoogleHandler, "do_POST", answer)
                waits.wait(5.0)
                answer(self)

            monkeypatch.setattr(GoogleHandler, "do_POST", late)
            wait_until(lambda: mine._is_failing)
        beaten(mine, 3)
        mine.check()
        mine.confirm()
        assert left == [0]
    assert server.names() == []


@pytest.mark.parametrize("address", ["memory://store/run", "hf://datasets/me/set/train"])
def test_nobody_is_kept_away_elsewhere(address: str) -> None:
    """Every write to the hub is a commit, and other stores than Google's have no runs."""
    with held(address) as mine, held(address) as other:
        beaten(mine, 2)
        for one in (mine, other):
            one.check()
            one.confirm()
    assert isinstance(mine._place, lease_places.OpenPlace) and mine._place.look() == Seen(False, None)


def test_what_names_an_owner_is_read_and_written_alike(tmp_path: Path) -> None:
    here = lease_places.this_process()
    assert Owner.of(here.content()) == here and json.loads(here.content())["pid"] == os.getpid()
    assert [Owner.of(content) for content in (None, b"", b"[]", b"{}", b'{"token": 1, "pid": "x"}')] == [None] * 5
    (tmp_path / FILE).write_text(file_of(here))
    assert owner_in(tmp_path) == here and here.is_here and here.is_alive
    record = SoftFileLease(tmp_path / FILE).owner
    assert record is not None and record.pid == here.pid
    assert str(here._replace(host="node-3?pidns-f0000123")) == f"process {os.getpid()} on node-3"
