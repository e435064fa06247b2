"""launch/slurm.sh with stand-ins for Slurm's programs, which start real processes that train."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from socket import gethostname

import pytest

from tests.launch import slurm_stand_ins
from tests.sharding.processes import ROOT, free_port

SMALL = (
    "VOCAB_SIZE=1024", "BATCH_SIZE=8", "TASK_FEATURE_LENGTHS={'inputs': 48}", "LOG_PERIOD=1", "EVAL_PERIOD=1000",
    "CHECKPOINT_PERIOD=1000", "EVAL_STEPS=1",
)  # fmt: skip


def submit(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    programs = folder / "bin" if (folder / "bin").exists() else slurm_stand_ins.write(folder)
    settings = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SETUP": "no",
        "MODEL_DIR": str(folder / "run"),
        "PYTHONPATH": str(ROOT),  # the job begins in `folder`
        **variables,
    }
    command = ["bash", str(ROOT / "launch" / "slurm.sh"), *arguments]
    return subprocess.run(
        command, env={**os.environ, **settings}, cwd=folder, capture_output=True, text=True, timeout=1_200
    )


def calls(folder: Path, name: str) -> list:
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.night
def test_a_job_saves_at_its_limit_is_queued_again_and_ends(corpus: Path, vocabulary: Path, tmp_path: Path) -> None:
    (tmp_path / "signal").write_text("3")
    done = submit(
        tmp_path, "gin/demo.gin", "--time=00:30:00", "--nodes=2", "--account=mine", "--offline", "TRAIN_STEPS=40",
        f"--output={tmp_path}/job-%j.log", *SMALL, CORPUS=str(corpus), VOCABULARY=str(vocabulary),
        JAX_COORDINATOR_PORT=str(free_port()), XLA_FLAGS="--xla_force_host_platform_device_count=1",
    )  # fmt: skip
    log = (tmp_path / "job-4242.log").read_text()
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 4242\n", ""), log
    (options,) = calls(tmp_path, "sbatch")
    assert {name: options[name] for name in ("signal", "nodes", "ntasks-per-node", "time", "account")} == {
        "signal": "B:TERM@120", "nodes": "2", "ntasks-per-node": "1", "time": "00:30:00", "account": "mine",
    }  # fmt: skip
    assert "requeue" in options and options["open-mode"] == "append"
    assert len(calls(tmp_path, "srun")) == 2 and (tmp_path / "status").read_text() == "0", log
    assert "job 4242 is queued again, and resumes" in log and log.count("process 1 of 2 on ") == 3, log
    assert "forcing job termination" not in log, log
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if line]
    assert [record["step"] for record in steps if record["kind"] == "train"] == list(range(1, 41))


SECOND = '[ "$SLURM_PROCID" = 1 ] &&'
SAVES = 'if [ "$SLURM_PROCID" = 0 ]; then echo "step 1,000 saved in /scratch/ro"; fi;'
BEFORE = '[ "${SLURM_RESTART_COUNT:-0}" -lt'


@pytest.mark.parametrize(
    ("program", "state", "starts", "status", "says"),
    [
        ("exit 2", "RUNNING", 1, 2, "which a new start does not fix"),
        (f"{SECOND} exit 2; exit 75", "RUNNING", 1, 2, f"status 2 of task 1 on {gethostname()}, which"),
        (f"{SECOND} exit 3; kill -9 $$", "RUNNING", 1, 3, "status 3 of task 1 on"),
        (f"{SECOND} exit 74; exit 75", "RUNNING", 1, 74, "status 74 of task 1 on"),
        (f"{SECOND} exit 2; exec sleep 1000", "RUNNING", 1, 2, "status 2 of task 1 on"),
        ("exit 75", "RUNNING", 3, 75, "was queued again 2 times"),
        ("kill -9 $$", "RUNNING", 3, 137, "was queued again 2 times"),
        ("RESET_SECONDS=0; exit 75", "RUNNING", 2, 75, "two starts in a row saved nothing new, so job 4242"),
        (f"{BEFORE} 4 ] || exit 0; {SAVES} exit 75", "RUNNING", 5, 0, "status 75; job 4242 is queued again, and"),
        (f"{BEFORE} 3 ] && {{ {SAVES} exit 75; }}; exit 75", "RUNNING", 6, 75, "was queued again 2 times"),
        ("exit 75", "CANCELLED", 1, 75, "Slurm has ended job 4242 (cancelled, preempted, or"),
        ("exit 0", "RUNNING", 1, 0, ""),
    ],
)  # fmt: skip
def test_a_job_is_queued_again_where_that_helps(
    program: str, state: str, starts: int, status: int, says: str, tmp_path: Path
) -> None:
    """A copy of launch/ whose pretrain.sh ends at once, in two tasks."""
    log, end = ended(tmp_path, program, state)
    assert end == (starts, str(status)), log
    assert says in log


@pytest.mark.night
def test_scancel_is_called_again_until_slurm_answers(tmp_path: Path) -> None:
    """The tasks wait for the signal, whatever the time: without it the job would not end."""
    (tmp_path / "signal").write_text("3")
    (tmp_path / "silent").write_text("")
    begins = """echo '{"step": 3,' >"$MODEL_DIR/metrics.jsonl"; trap 'exit 75' TERM; while true; do sleep 0.2; done"""
    log, end = ended(tmp_path, f"{BEFORE} 1 ] || exit 0; {begins}", "RUNNING")
    assert end == (2, "0"), log
    assert "scancel has failed, and is called again in 10 s" in log and "Unable to contact slurm controller" in log
    assert "forcing job termination" not in log, log


def test_an_outage_of_a_bucket_that_the_gin_file_names_may_pass(tmp_path: Path) -> None:
    program = f"{BEFORE} 1 ] || exit 0; exit 74"
    log, end = ended(tmp_path, program, "RUNNING", "MODEL_DIR = 'gs://bucket/run'\n", MODEL_DIR="")
    assert end == (2, "0"), log


def ended(folder: Path, program: str, state: str, gin: str = "", **variables: str) -> tuple[str, tuple[int, str]]:
    """Returns the log of a job whose pretrain.sh is `program`, in two tasks; and (starts, status)."""
    programs = slurm_stand_ins.write(folder)
    (folder / "launch").mkdir()
    for name in ("slurm.sh", "model_dir.sh"):
        shutil.copy(ROOT / "launch" / name, folder / "launch" / name)
    (folder / "launch" / "pretrain.sh").write_text(f"echo state >/dev/null; {program}\n")
    (folder / "my.gin").write_text(gin)
    sbatch = programs / "sbatch"
    sbatch.write_text(sbatch.read_text().replace('"RUNNING"', repr(state)))
    variables = {"SETUP": "no", "MODEL_DIR": str(folder), "LONE_SECONDS": "1", **variables}
    if "RESET_SECONDS=0" in program:
        variables["RESET_SECONDS"] = "0"
    subprocess.run(
        ["bash", "launch/slurm.sh", "my.gin", "--time=60", "--nodes=2", f"--output={folder}/log", "RETRIES=2"],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **variables},
        cwd=folder, check=True, timeout=120, capture_output=True,
    )  # fmt: skip
    return (folder / "log").read_text(), (len(calls(folder, "srun")), (folder / "status").read_text())


@pytest.mark.parametrize(("chdir", "gin_in"), [("", "mine"), ("other", "mine"), ("other", "checkout")])
def test_relative_paths_begin_in_the_folder_of_the_command(chdir: str, gin_in: str, tmp_path: Path) -> None:
    """As with launch/pretrain.sh; the checkout's gin file is taken where this folder has none, and never --chdir's."""
    programs = slurm_stand_ins.write(tmp_path)
    mine = tmp_path / "mine"
    checkout = tmp_path / "checkout"
    for folder in (mine / "other", checkout / "launch"):
        folder.mkdir(parents=True)
    for folder in {tmp_path / gin_in, mine / "other", checkout}:
        (folder / "my.gin").write_text("")
    for name in ("slurm.sh", "model_dir.sh"):
        shutil.copy(ROOT / "launch" / name, checkout / "launch" / name)
    (checkout / "launch" / "pretrain.sh").write_text('echo "$PWD $1 $VENV $MODEL_DIR $2"\n')
    options = [f"--chdir={chdir}"] if chdir else []
    arguments = ["my.gin", "--time=60", "--output=log", "VENV=venv", "CORPUS=data/*.jsonl", *options]
    subprocess.run(
        ["bash", "../checkout/launch/slurm.sh", *arguments], cwd=mine, check=True, timeout=120, capture_output=True,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SETUP": "no", "MODEL_DIR": "runs/a"},
    )  # fmt: skip
    gin_file = f"{tmp_path / gin_in}/my.gin" if chdir else "my.gin"
    said = f"0: {mine / chdir} {gin_file} {mine}/venv runs/a CORPUS=data/*.jsonl\n"
    assert (mine / "log").read_text() == said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no gin file is given"),
        (("gin/none.gin", "--time=60"), "gin/none.gin does not exist"),
        (("gin/demo.gin",), "no time limit is given; write --time=24:00:00"),
        (("gin/demo.gin", "--time=soon"), "--time is soon; write minutes, HH:MM:SS"),
        (("gin/demo.gin", "--time=5"), r"a limit of 5 (300 s) leaves no time to train"),
        (("gin/demo.gin", "--time=20", "SAVE_SECONDS=600"), "is told to save 600 s before the end"),
        (("gin/demo.gin", "--time=60", "--tasks=gpu"), "--tasks=gpu needs --gpus-per-node=NUMBER"),
        (("gin/demo.gin", "--time=60", "--tasks=core"), "--tasks is core; give node or gpu"),
        (("gin/demo.gin", "--time=60", "--signal=USR1"), "sets --signal itself; leave it out"),
        (("gin/demo.gin", "--time=60", "-p", "gpu"), "write the option -p with two dashes"),
        (("gin/demo.gin", "--time=60", "gpu"), "the argument gpu is not known"),
        (("gin/demo.gin", "--time=60", "SAVE_SECONDS=2m"), "SAVE_SECONDS, --nodes and RETRIES are whole numbers"),
    ],
)
def test_a_mistake_is_named_before_anything_is_submitted(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = submit(tmp_path, *arguments)
    assert done.returncode == 2 and sentence in done.stderr and len(done.stderr.splitlines()) == 1
    assert not calls(tmp_path, "sbatch")


def test_one_process_a_gpu_and_what_slurm_refuses(tmp_path: Path) -> None:
    slurm_stand_ins.write(tmp_path)
    (tmp_path / "refuses").write_text("")
    done = submit(tmp_path, "gin/demo.gin", "--time=2-0", "--tasks=gpu", "--gpus-per-node=a100:4", "--partition=p")
    assert done.returncode == 2 and "Invalid account" in done.stderr
    assert done.stderr.endswith("launch/slurm.sh: sbatch did not take the job; its message is above.\n")
    (options,) = calls(tmp_path, "sbatch")
    assert (options["ntasks-per-node"], options["gpus-per-node"], options["partition"]) == ("4", "a100:4", "p")
