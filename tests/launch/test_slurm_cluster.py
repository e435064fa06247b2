"""launch/slurm.sh and `limba prepare --executor=slurm` on a real Slurm of four nodes on this machine."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch import slurm_cluster
from tests.launch.slurm_cluster import Cluster, until
from tests.sharding.processes import ROOT, free_port

pytestmark = pytest.mark.skipif(bool(slurm_cluster.missing()), reason=slurm_cluster.missing())

# A run without data and model: it joins, stops and ends as `limba train` does, by Limba's own code. The step at which
# all are asked to stop is saved, as each process writes down. DEEDS has for each start what ends it.
TRAINER = """
import json, os, pathlib, sys, time
from limba.cli import program
from limba.config import environment
environment.set_variables()

def run(argv):
    from limba.sharding import preemption
    folder = pathlib.Path(os.environ["MODEL_DIR"])
    start = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    deed = json.loads(os.environ.get("DEEDS", "[]"))[start:start + 1]
    with preemption.listening():
        import numpy as np
        from limba.config import DataConfig, InputError, ModelConfig, RestartError, RunConfig
        from limba.sharding import liveness, multihost, watchdog
        config = RunConfig(
            ModelConfig(8, emb_dim=8, num_heads=8, head_dim=8, mlp_dim=8, num_encoder_layers=1, num_decoder_layers=1),
            DataConfig("any", {"inputs": 64}, batch_size=1), str(folder), train_steps=1,
        )
        multihost.join_hosts(config)
        import jax
        index = jax.process_index()
        with liveness.ending_together(), watchdog.watching(config), preemption.stop_requests() as stop_requested:
            for step in range(1, 100_000):
                multihost.gather(np.array([step]))
                watchdog.beat(step, jax.numpy.zeros(()))
                if step == 2:
                    (folder / f"begun-{start}-{index}").touch()
                if stop_requested(step):
                    break
                time.sleep(0.05)
        if deed != ["saves nothing"]:
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
    with slurm_cluster.cluster() as found:
        yield found


def submit(cluster: Cluster, *arguments: str, **variables: str) -> str:
    """Returns the number of the job."""
    given = {"SETUP": "no", "JAX_COORDINATOR_PORT": str(free_port()), "XLA_FLAGS": "", **variables}
    command = ["bash", str(ROOT / "launch" / "slurm.sh"), "gin/demo.gin", "--time=12", "--nodes=4", *arguments]
    return cluster.ask(*command, **given).split()[-1]


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
    log, run = tmp_path / "log", tmp_path / "run"
    job = submit(cluster, f"--output={log}", **variables)
    until(lambda: len(list(run.glob("begun-0-*"))) == 4, "the steps")
    cluster.end(job)
    until(lambda: cluster.job(job)["Restarts"] == "1", "the job to be queued again")
    cluster.ask("scancel", job)
    text = log.read_text()
    saved = {path.name: path.read_text() for path in run.glob("saved-*")}
    assert sorted(saved) == [f"saved-0-{index}" for index in range(4)], text
    assert len(set(saved.values())) == 1, saved
    assert f"job {job} is queued again, and resumes" in text and "srun: forcing job termination" not in text, text
