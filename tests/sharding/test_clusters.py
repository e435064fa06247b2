"""How a process finds its place in a run, from the variables of real launchers and a real metadata server."""

import http.server
import os
import threading
from collections.abc import Iterator

import pytest
from jax._src.clusters import cloud_tpu_cluster

from limba.config import InputError, environment
from limba.sharding import clusters
from limba.sharding.clusters import Membership, devices_of, find

EXPLICIT = {"COORDINATOR_ADDRESS": "first:99", "NUM_PROCESSES": "4", "PROCESS_ID": "3"}
# As srun sets them for the second of three tasks on the second of two nodes.
SLURM = {
    "SLURM_JOB_ID": "4097", "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_NTASKS": "5", "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2,3",
}  # fmt: skip
BATCH_SCRIPT = {"SLURM_JOB_ID": "4097", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
OMPI = {
    "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
OMPI_4 = {**OMPI, "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"}
OMPI_HERE = {**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
MPICH = {"PMI_SIZE": "2", "PMI_RANK": "1"}
TORCHRUN = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
JOB = {**POD, "JOB_COMPLETION_INDEX": "2"}
FOUND = "COORDINATOR_ADDRESS"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_", "KUBERNETES_", "MEGASCALE_", "TPU_")) or name in TORCHRUN:
            monkeypatch.delenv(name)
    for name in (*EXPLICIT, "LIMBA_ALONE", "JAX_COORDINATOR_PORT", "JOB_COMPLETION_INDEX", "JAX_LOCAL_DEVICE_IDS"):
        monkeypatch.delenv(name, raising=False)


def given(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "membership"),
    [
        ({}, None),
        (EXPLICIT, Membership(FOUND, "first:99", 4, 3)),
        ({**EXPLICIT, "LIMBA_ALONE": "1"}, None),
        ({**EXPLICIT, "LIMBA_ALONE": "0"}, Membership(FOUND, "first:99", 4, 3)),
        ({**EXPLICIT, **SLURM}, Membership(FOUND, "first:99", 4, 3, 1, 3)),  # what the user sets wins
        (SLURM, Membership("Slurm", "gpu07:61441", 5, 3, 1, 3)),  # jax's port, by the number of the job
        ({**SLURM, "JAX_COORDINATOR_PORT": "8500"}, Membership("Slurm", "gpu07:8500", 5, 3, 1, 3)),
        ({**SLURM, "COORDINATOR_ADDRESS": "fast07:1"}, Membership(FOUND, "fast07:1", 5, 3, 1, 3)),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "1"}, None),
        (OMPI_4, Membership("Open MPI", "10.96.0.1:62624", 4, 3, 1, 2)),
        ({**OMPI_4, **BATCH_SCRIPT}, Membership("Open MPI", "10.96.0.1:62624", 4, 3, 1, 2)),  # mpirun in a job
        (OMPI_HERE, Membership("Open MPI", "127.0.0.1:8476", 4, 3, 1, 4)),  # Open MPI 5, on one host
        ({**OMPI, "COORDINATOR_ADDRESS": "a:1"}, Membership(FOUND, "a:1", 4, 3, 1, 2)),
        ({**MPICH, "COORDINATOR_ADDRESS": "a:1"}, Membership(FOUND, "a:1", 2, 1)),
        (POD, None),  # a pod such as a notebook's
        (
            {**JOB, "NUM_PROCESSES": "4", "COORDINATOR_ADDRESS": "job-0.pods:8476"},
            Membership(FOUND, "job-0.pods:8476", 4, 2),
        ),
    ],
)
def test_the_place_of_a_process_is_found(
    variables: dict[str, str], membership: Membership | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(variables, monkeypatch)
    assert find() == membership


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"LIMBA_ALONE": "yes"}, "LIMBA_ALONE is yes; give 1"),
        ({**SLURM, "JAX_COORDINATOR_PORT": "0"}, "JAX_COORDINATOR_PORT is 0; give a number from 1 to 65535"),
        (BATCH_SCRIPT, r"has 4 tasks \(SLURM_NTASKS\), and srun has not started this process.*put srun before"),
        (OMPI, "Open MPI has started 4 processes .* set COORDINATOR_ADDRESS=HOST:PORT of the first"),
        (MPICH, "MPICH or Intel MPI has started 2 processes .*LIMBA_ALONE=1"),
        (TORCHRUN, "torchrun has started 2 processes"),
        (JOB, "a pod of an indexed Job .* set COORDINATOR_ADDRESS=HOST:PORT of pod 0 and NUM_PROCESSES"),
        ({**OMPI_4, "OMPI_MCA_orte_hnp_uri": "nothing"}, "cannot be found .*set COORDINATOR_ADDRESS, NUM_PROCESSES"),
    ],
)
def test_processes_that_cannot_join_never_run_alone(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(variables, monkeypatch)
    with pytest.raises(InputError, match=sentence):
        find()
    monkeypatch.setenv("LIMBA_ALONE", "1")
    assert find() is None


def test_gpus_that_cannot_be_shared_evenly_are_an_error() -> None:
    with pytest.raises(InputError, match="3 processes on this host cannot share its 8 GPUs evenly"):
        devices_of(Membership("Slurm", "a:1", 3, 1, 1, 3), 8)


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The attributes that a metadata server of Google answers with, on a machine that has TPUs."""
    attributes: dict[str, str] = {}

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            assert self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if name in attributes else 404)
            self.end_headers()
            self.wfile.write(attributes.get(name, "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
    monkeypatch.setattr(environment, "is_tpu_vm", lambda: True)
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    yield attributes
    server.shutdown()
    server.server_close()


def test_workers_of_a_tpu_pod_use_the_port_that_the_firewall_opens(
    metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata |= {"agent-worker-number": "3", "worker-network-endpoints": "a:x:127.0.0.1,b:x:127.0.0.2,c:x:c,d:x:d"}
    metadata["tpu-env"] = "ACCELERATOR_TYPE: 'v4-32'\nWORKER_ID: '3'\n"
    assert cloud_tpu_cluster.coordinator_port == "8482"
    assert find() == Membership("a Cloud TPU", "127.0.0.1:8476", 4, 3)
    monkeypatch.setenv("JAX_COORDINATOR_PORT", "9000")
    assert find() == Membership("a Cloud TPU", "127.0.0.1:9000", 4, 3)
    metadata["tpu-env"] += "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
    metadata["tpu-env"] += "MEGASCALE_COORDINATOR_ADDRESS: '127.0.0.1'\n"
    assert find() == Membership("a Cloud TPU", "127.0.0.1:9000", 8, 7)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert find() is None


def test_the_single_worker_of_a_small_tpu_joins_nobody(metadata: dict[str, str]) -> None:
    metadata |= {"agent-worker-number": "0", "worker-network-endpoints": "a:x:127.0.0.1", "tpu-env": ""}
    assert find() is None


def test_pods_of_gke_are_found_by_their_host_names(metadata: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    given({**POD, "TPU_WORKER_HOSTNAMES": "localhost,other", "TPU_WORKER_ID": "1"}, monkeypatch)
    metadata["tpu-env"] = ""
    assert find() == Membership("a Cloud TPU", "localhost:8476", 2, 1)


def test_every_launcher_is_in_the_documents_table() -> None:
    page = (clusters.__file__).replace("limba/sharding/clusters.py", "docs/slurm.md")
    with open(page) as file:
        text = file.read()
    assert all(launcher.count in text and launcher.launcher in text for launcher in environment.LAUNCHERS)
