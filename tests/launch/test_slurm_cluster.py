"""launch/slurm.sh on a real Slurm of four nodes on this machine."""

import shlex
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.launch import slurm_cluster
from tests.launch.slurm_cluster import Cluster, until
from tests.launch.test_slurm import SMALL
from tests.run.logged import records_so_far
from tests.sharding.processes import ROOT, free_port

pytestmark = pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())

# A run without data and model: it joins, stops and ends as `limba train` does, by Limba's own code. The step at which
# all are asked to stop is saved, as each process writes down. DEED is what goes wrong.
TRAINER = """
import os, pathlib, sys, time
from limba.cli import program
from limba.config import environment
environment.set_variables()

def run(argv):
    from limba.sharding import preemption
    folder = pathlib.Path(os.environ["MODEL_DIR"])
    start = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    deed, task = os.environ.get("DEED"), os.environ["SLURM_PROCID"]
    with preemption.listening():
        import numpy as np
        from limba.config import DataConfig, InputError, ModelConfig, RestartError, RunConfig
        from limba.sharding import agreement, joining, others, watchdog
        config = RunConfig(
            ModelConfig(8, emb_dim=8, num_heads=8, head_dim=8, mlp_dim=8, num_encoder_layers=1, num_decoder_layers=1),
            DataConfig("any", {"inputs": 64}, batch_size=1), str(folder), train_steps=1,
        )
        if deed == "wrong before it joins" and task == "2":
            raise InputError("This node has another file.")
        joining.join_hosts(config)
        import jax
        index = jax.process_index()
        with others.ending_together(), watchdog.watching(config), preemption.stop_requests() as stop_requested:
            for step in range(1, 100_000):
                agreement.gather(np.array([step]))
                watchdog.beat(step, jax.numpy.zeros(()))
                if step == 2:
                    (folder / f"begun-{start}-{index}").write_text(os.environ["SLURM_JOB_END_TIME"])
                if deed == "wrong at step 9" and step == 9 and index == 2:
                    raise InputError("This node has another file.")
                if stop_requested(step):
                    break
                time.sleep(0.05)
        if deed != "saves nothing":
            (folder / f"saved-{start}-{index}").write_text(str(step))
            if index == 0:
                print(f"step {step:,} saved in {folder}", flush=True)
    raise RestartError(f"Stopped after step {step}.")

sys.exit(program.exit_code(run, sys.argv[1:]))
"""
# In the place of the environment's Python: what pretrain.sh runs as `python -m limba train`.
PYTHON = """#!/bin/sh
case "$*" in *"-m limba train"*) exec {python} {program} ;; esac
exec {python} "$@"
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster.cluster() as started:
        yield started


def submit(cluster: Cluster, *arguments: str, **variables: str) -> str:
    """Returns the number of the job."""
    settings = {"SETUP": "no", "JAX_COORDINATOR_PORT": str(free_port()), "XLA_FLAGS": "", **variables}
    command = ["bash", str(ROOT / "launch" / "slurm.sh"), "gin/demo.gin", "--time=12", "--nodes=4", *arguments]
    return cluster.ask(*command, **settings).split()[-1]


def trainer(folder: Path) -> dict[str, str]:
    """The variables with which a job trains nothing, but stops as a run does."""
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "run").mkdir()
    (folder / "program.py").write_text(TRAINER)
    python = folder / "venv" / "bin" / "python"
    python.write_text(PYTHON.format(python=shlex.quote(sys.executable), program=folder / "program.py"))
    python.chmod(0o755)
    return {"VENV": str(folder / "venv"), "MODEL_DIR": str(folder / "run"), "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_four_of_four_processes_save_at_the_time_limit_and_the_job_is_queued_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    variables = trainer(tmp_path)
    log = tmp_path / "log"
    run = tmp_path / "run"
    job = submit(cluster, f"--output={log}", **variables)
    until(lambda: len(list(run.glob("begun-0-*"))) == 4, "the steps")
    end = datetime.fromisoformat(cluster.job(job)["EndTime"])
    assert {float(path.read_text()) for path in run.glob("begun-0-*")} == {end.timestamp()}
    cluster.end(job)
    until(lambda: cluster.job(job)["Restarts"] == "1", "the job to be queued again")
    cluster.ask("scancel", job)
    text = log.read_text()
    saved = {path.name: path.read_text() for path in run.glob("saved-*")}
    assert sorted(saved) == [f"saved-0-{index}" for index in range(4)], text
    assert len(set(saved.values())) == 1, saved
    assert f"job {job} is queued again, and resumes" in text and "srun: forcing job termination" not in text, text


@pytest.mark.long
@pytest.mark.parametrize(
    ("deed", "where"),
    [
        ("wrong before it joins", "task 2 on gpu03"),
        ("wrong at step 9", "task "),
    ],  # the others are told, and end so, too
)
def test_a_wrong_input_in_one_task_ends_the_job(deed: str, where: str, cluster: Cluster, tmp_path: Path) -> None:
    variables = trainer(tmp_path)
    job = submit(cluster, f"--output={tmp_path / 'log'}", DEED=deed, **variables)
    state = cluster.until_state(job, "FAILED")
    text = (tmp_path / "log").read_text()
    assert (state["ExitCode"], state["Restarts"]) == ("2:0", "0"), text
    assert f"launch/slurm.sh: the run ended with status 2 of {where}" in text, text
    assert "which a new start does not fix" in text


@pytest.mark.long
def test_two_starts_that_save_nothing_new_end_the_job(cluster: Cluster, tmp_path: Path) -> None:
    variables = trainer(tmp_path)
    job = submit(cluster, f"--output={tmp_path / 'log'}", DEED="saves nothing", **variables)
    for start in range(2):
        until(lambda start=start: len(list((tmp_path / "run").glob(f"begun-{start}-*"))) == 4, "the steps")
        cluster.end(job)
        until(lambda start=start: "saved nothing new" in (tmp_path / "log").read_text().split("\n0: ")[-1], "the end")
    state = cluster.until_state(job, "FAILED")
    text = (tmp_path / "log").read_text()
    assert (state["ExitCode"], state["Restarts"]) == ("75:0", "1"), text
    assert f"status 75 and saved nothing new; job {job} is queued again" in text
    assert f"two starts in a row saved nothing new, so job {job} is not queued again: give a longer --time" in text


@pytest.mark.long
def test_a_job_that_is_cancelled_saves_and_is_not_queued_again(cluster: Cluster, tmp_path: Path) -> None:
    variables = trainer(tmp_path)
    job = submit(cluster, f"--output={tmp_path / 'log'}", **variables)
    until(lambda: len(list((tmp_path / "run").glob("begun-0-*"))) == 4, "the steps")
    cluster.ask("scancel", job)
    until(lambda: f"Slurm has ended job {job}" in (tmp_path / "log").read_text(), "the script's end")
    assert cluster.until_state(job, "CANCELLED")["Restarts"] == "0"
    assert "scancel" not in (tmp_path / "log").read_text()
    assert len(list((tmp_path / "run").glob("saved-0-*"))) == 4, (tmp_path / "log").read_text()


@pytest.mark.long
def test_a_job_that_is_preempted_saves_and_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm gives it GraceTime; a start that another job cut short is not one that made no progress."""
    run = tmp_path / "run"
    job = submit(cluster, f"--output={tmp_path / 'log'}", DEED="saves nothing", **trainer(tmp_path))
    for start in range(3):
        until(lambda start=start: len(list(run.glob(f"begun-{start}-*"))) == 4, f"the steps of start {start}")
        if start < 2:
            cluster.ask("sbatch", "--partition=urgent", "--nodes=4", "--output=/dev/null", "--wrap=srun hostname")
            until(lambda start=start: cluster.job(job)["Restarts"] == str(start + 1), "the end of a start")
    cluster.ask("scancel", job)
    text = (tmp_path / "log").read_text()
    assert text.count(": Stopped after step ") >= 8 and "in a row" not in text, text


def steps(run: Path) -> list[int]:
    return [record["step"] for record in records_so_far(run) if record["kind"] == "train"]


@pytest.mark.long
def test_a_real_run_goes_on_after_a_lost_node_a_time_limit_and_a_cancelled_job(
    cluster: Cluster, corpus: Path, vocabulary: Path, tmp_path: Path
) -> None:
    """Trains a T5 in four processes on four nodes; each start resumes, and no step is left out."""
    log = tmp_path / "log"
    run = tmp_path / "run"
    variables = {"MODEL_DIR": str(run), "CORPUS": str(corpus), "VOCABULARY": str(vocabulary)}
    short = "--gin.config.RunConfig.host_timeout_seconds=60"
    flags = [f"--output={log}", "--time=120", *SMALL[:-2], "EVAL_STEPS=1", short]
    job = submit(cluster, *flags, "CHECKPOINT_PERIOD=20", "TRAIN_STEPS=100000", **variables)
    until(lambda: "step 20 saved in" in log.read_text() if log.exists() else False, "a checkpoint")
    cluster.kill("gpu03")
    until(lambda: cluster.job(job)["Restarts"] == "1", "a new start without the node")
    cluster.restart("gpu03")
    before = max(steps(run))
    until(lambda: max(steps(run)) > before, "the run to go on")
    cluster.end(job)
    until(lambda: cluster.job(job)["Restarts"] == "2", "a new start after the time limit")
    before = max(steps(run))
    assert f"step {before:,} saved in" in log.read_text(), log.read_text()
    until(lambda: max(steps(run)) > before, "the run to go on")
    cluster.ask("scancel", job)
    cluster.until_state(job, "CANCELLED")
    before = max(steps(run))
    assert f"step {before:,} saved in" in log.read_text(), log.read_text()
    job = submit(cluster, *flags, f"TRAIN_STEPS={before + 3}", **variables)
    cluster.until_state(job, "COMPLETED")
    assert steps(run)[-3:] == [before + 1, before + 2, before + 3], log.read_text()
    assert set(steps(run)) == set(range(1, before + 4))
