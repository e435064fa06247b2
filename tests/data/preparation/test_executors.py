"""`limba prepare` by several processes and tasks of Slurm: the files of one, however they are killed."""

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from limba.config import InputError, kinds
from limba.tools.corpus import prepare as command
from limba.tools.corpus.preparation.prepare import Preparation, Settings, prepare
from limba.tools.corpus.preparation.slurm import submit
from limba.tools.corpus.preparation.workers import results
from limba.tools.corpus.task_flags import TaskRecipe
from tests.launch import slurm_stand_ins

ROOT = Path(__file__).resolve().parents[3]
SHARDS = 6


def recipe_of(files: Path) -> TaskRecipe:
    return TaskRecipe(None, None, str(files), "text", "byte", 1.0)


@pytest.fixture(scope="module")
def large_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve files of different documents, a unit each."""
    folder = tmp_path_factory.mktemp("many")
    for file in range(12):
        lines = [
            f"Document {number} of file {file}, which says {'very ' * (number % 50)}little." for number in range(500)
        ]
        (folder / f"{file:02d}.txt").write_text("\n".join(lines) + "\n")
    return folder / "*.txt"


@pytest.fixture(scope="module")
def alone(large_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that one process makes."""
    folder = tmp_path_factory.mktemp("alone") / "out"
    prepare(recipe_of(large_corpus), Settings(num_shards=SHARDS, tokenize=True), str(folder))
    return folder


def assert_same(folder: Path, alone: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in alone.iterdir())
    for path in alone.iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


def flags(corpus: Path, folder: Path, *more: str) -> list[str]:
    return [str(corpus), f"--output={folder}", f"--num_shards={SHARDS}", "--vocabulary=byte", "--tokenize", *more]


@pytest.mark.night
def test_workers_that_are_killed_at_random_and_repeated_write_the_same(
    large_corpus: Path, alone: Path, tmp_path: Path
) -> None:
    """SIGKILL to workers, which their parent repeats, and at the end to the parent itself: its command is repeated."""
    words = [sys.executable, "-m", "limba", "prepare"]
    words += flags(large_corpus, tmp_path / "out", "--workers=2")
    chance, killed = random.Random(7), 0
    running = psutil.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 150
    while killed < 2:
        assert running.poll() is None and time.monotonic() < deadline
        tasks = [each for each in running.children() if "spawn_main" in " ".join(each.cmdline())]
        for task in tasks:
            if time.time() - task.create_time() > 1 and chance.random() < 0.3 and killed < 2:
                task.kill()
                killed += 1
        time.sleep(0.5)
    while not list((tmp_path / "out" / "unfinished").glob("*.arrow")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    children = running.children(recursive=True)
    running.kill()
    running.wait()
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive  # no task goes on without its parent
    done = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "unfinished").glob("*.arrow")}
    assert done
    assert not list((tmp_path / "out").glob("*.array_record"))
    last = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)
    assert last.returncode == 0, last.stderr
    assert_same(tmp_path / "out", alone)


# A job whose first process is killed; as a text, so that a worker imports nothing heavy for it.
DIES_ONCE = """import pathlib, signal
mark = pathlib.Path({!r})
if not mark.exists():
    mark.write_text("")
    signal.raise_signal(signal.SIGKILL)"""


def test_an_error_of_a_job_is_the_command_s_and_a_killed_worker_s_jobs_are_repeated(tmp_path: Path) -> None:
    fails = partial(kinds.check_local, "gs://bucket", "the folder")
    with pytest.raises(InputError, match="the folder .*gs://bucket"):
        list(results([fails, list], 2))
    dies_once = partial(exec, DIES_ONCE.format(str(tmp_path / "mark")), {})
    assert set(results([dies_once, partial(str, "other")], 2)) == {None, "other"}
    assert (tmp_path / "mark").exists()
    dies = partial(signal.raise_signal, signal.SIGKILL)
    with pytest.raises(InputError, match="A worker process ended or was killed"):
        list(results([dies, dies], 2))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins for Slurm's programs, which are on the PATH."""
    folder = tmp_path / "slurm"
    monkeypatch.setenv("PATH", f"{slurm_stand_ins.write_for_arrays(folder)}:{os.environ['PATH']}")
    return folder


def job(cluster: Path, number: int) -> dict:
    return json.loads((cluster / f"job-{number}").read_text())


@pytest.mark.night
def test_job_arrays_of_slurm_write_the_same_and_go_on_after_a_failure(
    large_corpus: Path, alone: Path, cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = flags(large_corpus, tmp_path / "out", "--executor=slurm", "--tasks=2", "--partition=cpu")
    (cluster / "lost-1").write_text("")
    command.run(words)
    assert "Submitted to Slurm: jobs 101 (read), 102 (write), 103 (finish)." in capsys.readouterr().out
    assert job(cluster, 101)["codes"] == [0, 137] and job(cluster, 102)["codes"] is None
    assert not list((tmp_path / "out").glob("*.array_record"))
    assert len(list((tmp_path / "out" / "unfinished").glob("*.arrow"))) == 12  # of 24: those of task 0
    command.run(words)  # deals what is missing again
    written = capsys.readouterr().out
    assert "Submitted to Slurm" in written
    logs = Path(written.partition("Their logs are in ")[2].partition(". When")[0])
    assert logs == tmp_path / "out.slurm" / "2"
    assert_same(tmp_path / "out", alone)
    found, last = json.loads((alone / "prepared.json").read_text()), (logs / "finish-0.out").read_text()
    assert f"{found['documents']:,} documents, {found['bytes'] // 4:,} tokens, in 6 shards; took " in last
    command.run(words)
    assert "was finished already" in capsys.readouterr().out


def test_what_slurm_is_asked_and_that_nothing_is_submitted_twice(
    corpus: Path, cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (cluster / "holds").write_text("")
    words = [str(corpus), f"--output={tmp_path / 'out'}", "--num_shards=3", "--executor=slurm", "--tasks=2"]
    words += ["--workers=1", "--partition=cpu", "--time=02:00:00", "--sbatch=--account=me --mem-per-cpu=8G --exclusive"]
    command.run(words)
    assert "Submitted to Slurm: jobs 101 (read), 102 (write), 103 (finish)." in capsys.readouterr().out
    read, write, finish = (job(cluster, number) for number in (101, 102, 103))
    wanted = {"partition": "cpu", "time": "02:00:00", "array": "0-1%1", "account": "me", "mem-per-cpu": "8G"}
    assert read["options"].items() >= wanted.items() and "exclusive" in read["options"]
    assert write["options"]["dependency"] == "afterok:101" and finish["options"]["dependency"] == "afterok:102"
    assert finish["options"]["array"] == "0-0%1" and read["options"]["kill-on-invalid-dep"] == "yes"
    assert f"export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH" in read["script"]
    with pytest.raises(InputError, match=r"queued or running \(101, 102, 103\); wait for their end, or scancel 101"):
        command.run(words)
    settings = Settings(num_shards=3)
    with pytest.raises(InputError, match="Jobs of Slurm that prepare this folder are queued or running"):
        prepare(recipe_of(corpus), settings, str(tmp_path / "out"))
    (cluster / "holds").unlink()
    prepare(recipe_of(corpus), settings, str(tmp_path / "out"))  # the jobs are gone


def test_what_cannot_be_submitted_is_a_sentence(
    corpus: Path, cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submitted(output: str = str(tmp_path / "out"), tasks: int = 2, time: str = "24:00:00") -> None:
        work = Preparation(recipe_of(corpus), Settings(num_shards=1), output)
        submit(work, [], tasks, None, {"partition": "cpu", "time": time})

    with pytest.raises(InputError, match="is an address: give a scratch folder too"):
        submitted("memory://bucket/out")
    with pytest.raises(InputError, match="tasks is 0; give 1 to 1,000"):
        submitted(tasks=0)
    with pytest.raises(InputError, match="tasks is 2,000; give 1 to 1,000, the most that a job array of Slurm takes"):
        submitted(tasks=2_000)
    with pytest.raises(InputError, match="The time limit is soon; write minutes"):
        submitted(time="soon")
    (cluster / "refuses").write_text("0")
    with pytest.raises(InputError, match="sbatch refused the job .* submitted before it: none"):
        submitted()
    (cluster / "refuses").write_text("2")
    (cluster / "holds").write_text("")
    with pytest.raises(InputError, match="sbatch refused the job .* submitted before it: 101 102"):
        submitted()
    with pytest.raises(InputError, match=r"queued or running \(101, 102\)"):
        submitted()
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    with pytest.raises(InputError, match="a task of a job array"):
        submitted()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="sbatch is not here"):
        submitted()
