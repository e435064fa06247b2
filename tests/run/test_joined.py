"""Real processes, started as each launcher starts them, find each other, join, and train as one."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.run.test_hosts import finish, losses
from tests.sharding.processes import ROOT, free_port, variables, xla_flags

# A machine without GPUs says that it has GPUS of them; jax remembers which of them it was given, and finds none.
JOIN = """
import json, os, sys
import jax
import numpy as np
from limba.cli.program import exit_code
from limba.config import environment
from limba.sharding.agreement import gather
from limba.sharding.joining import join_hosts

def run(_):
    environment.num_gpus = lambda: int(os.environ.get("GPUS", 0))
    join_hosts()
    processes = gather(np.array([jax.process_index()])).ravel().tolist()
    print(jax.config.values["jax_cuda_visible_devices"])
    print(json.dumps(processes))

sys.exit(exit_code(run, []))
"""


def of_slurm(count: int) -> list[dict[str, str]]:
    """Two tasks a node; all nodes are this machine."""
    shared = {
        "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": str(count),
        "SLURM_STEP_TASKS_PER_NODE": f"2(x{count // 2})", "JAX_COORDINATOR_PORT": str(free_port()),
    }  # fmt: skip
    places = [(str(i), str(i % 2), str(i // 2)) for i in range(count)]
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
    return [{**shared, **dict(zip(names, values, strict=True))} for values in places]


def of_open_mpi(count: int) -> list[dict[str, str]]:
    shared = {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911", "OMPI_COMM_WORLD_SIZE": str(count),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(count), "JAX_COORDINATOR_PORT": str(free_port()),
    }  # fmt: skip
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    return [{**shared, **dict.fromkeys(names, str(index))} for index in range(count)]


def of_kubernetes(count: int) -> list[dict[str, str]]:
    """An indexed Job whose pods have the address of pod 0 and their number in their variables."""
    shared = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1", "NUM_PROCESSES": str(count),
        "COORDINATOR_ADDRESS": f"localhost:{free_port()}",
    }  # fmt: skip
    return [{**shared, "JOB_COMPLETION_INDEX": str(index)} for index in range(count)]


def of_open_mpi_5(count: int) -> list[dict[str, str]]:
    """It no longer says where its first process is; all are on one host."""
    return [
        {name: value for name, value in of_process.items() if name != "OMPI_MCA_orte_hnp_uri"}
        for of_process in of_open_mpi(count)
    ]


LAUNCHERS = {"Slurm": of_slurm, "Open MPI": of_open_mpi, "Open MPI 5": of_open_mpi_5, "Kubernetes": of_kubernetes}


def start(command: list[str], places: list[dict[str, str]], devices: int) -> list[subprocess.Popen]:
    """Starts a process for each place, which sees so many devices."""
    (common,) = variables(1, XLA_FLAGS=xla_flags(devices), PYTHONPATH=str(ROOT))
    return [
        subprocess.Popen(
            [sys.executable, *command], env={**common, **of_process}, cwd=ROOT, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for of_process in places
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("launcher", "gpus"),
    [
        ("Slurm", ["0", "1"]),  # one process a GPU
        ("Open MPI", ["0", "1"]),
        pytest.param("Open MPI 5", ["0", "1"], marks=pytest.mark.night),
        ("Kubernetes", ["all", "all"]),  # each pod has GPUs of its own
    ],
)
@pytest.mark.slow
def test_two_processes_of_a_launcher_join(launcher: str, gpus: list[str]) -> None:
    """And share the GPUs of their host."""
    places = [{**of_process, "GPUS": "2"} for of_process in LAUNCHERS[launcher](2)]
    outputs = finish(start(["-c", JOIN], places, 1))
    assert [output.splitlines()[-2] for output, _ in outputs] == gpus
    assert [json.loads(output.splitlines()[-1]) for output, _ in outputs] == [[0, 1]] * 2
    lines = [[line for line in errors if line.startswith("process ")] for _, errors in outputs]
    assert [(len(line), line[0].partition(" on ")[0]) for line in lines] == [(1, f"process {i} of 2") for i in (0, 1)]
    assert all(line[0].endswith(", 1 x cpu") for line in lines)


@pytest.mark.long  # eleven processes, some 280 s of processor
def test_eight_devices_train_alike_however_they_are_divided(corpus: Path, vocabulary: Path, tmp_path: Path) -> None:
    """1 process with 8, 8 with 1 as started by Slurm, and 2 with 4 by Open MPI: the same losses."""

    def arguments(directory: Path) -> list[str]:
        return [
            "-m", "limba", "train", "gin/demo.gin", f"--gin.VOCABULARY={vocabulary}", f"--gin.CORPUS={corpus}",
            f"--gin.MODEL_DIR={directory}", "--gin.VOCAB_SIZE=1024", "--gin.BATCH_SIZE=16", "--gin.LOG_PERIOD=1",
            "--gin.TASK_FEATURE_LENGTHS={'inputs': 48}", "--gin.EVAL_PERIOD=1000", "--gin.TRAIN_STEPS=3",
            "--gin.EVAL_STEPS=1",
        ]  # fmt: skip

    finish(start(arguments(tmp_path / "one"), [{}], 8))
    expected = losses(tmp_path / "one")
    assert list(expected) == [1, 2, 3]
    for launcher, count in (("Slurm", 8), ("Open MPI", 2)):
        directory = tmp_path / launcher.replace(" ", "_")
        outputs = finish(start(arguments(directory), LAUNCHERS[launcher](count), 8 // count))
        assert list(losses(directory)) == [1, 2, 3]
        np.testing.assert_allclose(list(losses(directory).values()), list(expected.values()), rtol=1e-5)
        for index, (output, errors) in enumerate(outputs):
            joined = [line for line in output.splitlines() if line.startswith(f"process {index} of {count} on ")]
            assert [line.rpartition(" ")[2] for line in joined] == ["cpu", "ended"] and not errors, (output, errors)
        assert len(json.loads((directory / "hosts.json").read_text())["processes"]) == count
