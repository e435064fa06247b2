"""How this process is one of several: read from the environment that started it, before anything is joined."""

import importlib.util
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from jax._src import clusters  # no public name: the classes by which jax.distributed finds itself a cluster

from limba.config import InputError, environment, reason_of

ALONE = "LIMBA_ALONE"
PORT = "JAX_COORDINATOR_PORT"
TPU_PORT = "8476"  # jax 0.10 takes 8482, which Google's automatic firewall may not open (jax-ml/jax#35905)
EXPLICIT = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
METADATA_SECONDS = 60  # for the first host's name to be known, on a Cloud TPU or in Kubernetes


class Membership(NamedTuple):
    """This process among those of its run."""

    found_by: str  # such as "Slurm", for sentences
    address: str  # HOST:PORT at which process 0 listens
    count: int
    index: int
    local_index: int = 0  # among the processes on this host
    local_count: int = 1

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def find() -> Membership | None:
    """Returns this process's place in its run, or None if it runs alone; docs/slurm.md has the table.

    The first that is there counts: LIMBA_ALONE=1; COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID; Open MPI; Slurm;
    a Cloud TPU, in GKE or not; Kubernetes. JAX_COORDINATOR_PORT changes the port of those that are found. Raises
    InputError for values that cannot work, and where several processes are announced that no way of these joins.
    """
    alone = os.environ.get(ALONE, "")
    if alone not in ("", "0", "1"):
        raise InputError(f"{ALONE} is {alone}; give 1, for a process that joins no other, or 0.")
    if alone == "1":
        return None
    given = {name: os.environ[name] for name in EXPLICIT if os.environ.get(name)}
    port = os.environ.get(PORT)
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"{PORT} is {port}; give a number from 1 to 65535.")
    announced = environment.announced()
    try:
        found = _explicit(given, announced) or _of_launcher(announced, port) or _of_tpu(port) or _of_kubernetes(port)
    except InputError:
        raise
    except Exception as error:  # whatever jax's classes and a metadata server raise
        raise InputError(
            f"The processes of this run cannot be found ({reason_of(error)}); set {', '.join(EXPLICIT)} in each, or"
            f" {ALONE}=1 for a process that runs alone."
        ) from error
    return found if found is None or found.count > 1 or found.found_by == EXPLICIT[0] else None


def devices_of(place: Membership, visible: int) -> list[int] | None:
    """Returns which of a host's visible GPUs this process takes; None for all of them.

    Several processes on a host share its GPUs evenly, one each if there are as many. A process that sees a single GPU,
    as with one GPU bound to each task, takes it.

    >>> devices_of(Membership("Slurm", "a:1", 8, 3, 3, 8), 8), devices_of(Membership("Slurm", "a:1", 4, 1, 1, 2), 8)
    ([3], [4, 5, 6, 7])
    >>> devices_of(Membership("Slurm", "a:1", 8, 3, 3, 8), 1), devices_of(Membership("Slurm", "a:1", 2, 1), 8)
    (None, None)
    """
    if place.local_count == 1 or visible <= 1 or os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    share, rest = divmod(visible, place.local_count)
    if rest or not share:
        raise InputError(
            f"{place.local_count} processes on this host cannot share its {visible} GPUs evenly; start one process a"
            " host, or one a GPU."
        )
    return list(range(place.local_index * share, (place.local_index + 1) * share))


def _explicit(given: Mapping[str, str], announced: environment.Announced | None) -> Membership | None:
    """Returns what the explicit variables say; a launcher, or an indexed Job, may give what is left out."""
    if not given:
        return None
    local_index, local_count = 0, 1
    if "COORDINATOR_ADDRESS" in given and announced is not None and announced.index in os.environ:
        given = {**{EXPLICIT[1]: os.environ[announced.count], EXPLICIT[2]: os.environ[announced.index]}, **given}
        local_index, local_count = _local(announced)
    if "JOB_COMPLETION_INDEX" in os.environ:
        given = {EXPLICIT[2]: os.environ["JOB_COMPLETION_INDEX"], **given}
    if len(given) < len(EXPLICIT):
        missing = ", ".join(name for name in EXPLICIT if name not in given)
        there = ", ".join(name for name in EXPLICIT if name in given)
        raise InputError(f"{there} is set and {missing} is not; set all three, or none.")
    address, number, index = (given[name] for name in EXPLICIT)
    if not re.fullmatch(r".+:\d+", address):
        raise InputError(f"COORDINATOR_ADDRESS is {address}; give HOST:PORT of the first process.")
    if not (number.isdigit() and index.isdigit() and int(index) < int(number)):
        raise InputError(
            f"PROCESS_ID is {index} and NUM_PROCESSES {number}; give whole numbers, the id below the number."
        )
    return Membership(EXPLICIT[0], address, int(number), int(index), local_index, local_count)


def _of_launcher(announced: environment.Announced | None, port: str | None) -> Membership | None:
    if announced is None:
        return None
    cluster = {"Open MPI": clusters.OmpiCluster, "Slurm": clusters.SlurmCluster}.get(announced.launcher)
    local_index, local_count = _local(announced)
    count = int(os.environ[announced.count])
    # jax 0.12's class also takes Open MPI 5, and asks for mpi4py there.
    is_open_mpi_5 = announced.launcher == "Open MPI" and "OMPI_MCA_orte_hnp_uri" not in os.environ
    if cluster is not None and not is_open_mpi_5 and cluster.is_env_present():
        address = cluster.get_coordinator_address(METADATA_SECONDS, port)
        return Membership(announced.launcher, address, count, cluster.get_process_id(), local_index, local_count)
    if announced.launcher == "Open MPI" and local_count == count:
        # Open MPI 5 does not say where its first process is; here all of them are on one host.
        address, index = f"127.0.0.1:{port or TPU_PORT}", int(os.environ[announced.index])
        return Membership(announced.launcher, address, count, index, local_index, local_count)
    if announced.launcher == "Slurm":
        raise InputError(
            f"This job of Slurm has {count} tasks (SLURM_NTASKS), and srun has not started this process, which would"
            f" train alone; put srun before the command, or set {ALONE}=1."
        )
    raise InputError(
        f"{announced.launcher} has started {count} processes ({announced.count}), and does not say where the first one"
        f" is; set COORDINATOR_ADDRESS=HOST:PORT of the first process for all of them, or {ALONE}=1 for processes that"
        " run alone."
    )


def _local(announced: environment.Announced) -> tuple[int, int]:
    """Returns the index and the number of the processes on this host."""
    index = os.environ.get(announced.local_index, "0")
    count = os.environ.get(announced.local_count, "1") if announced.local_count else str(_slurm_tasks_here())
    return (int(index), int(count)) if index.isdigit() and count.isdigit() else (0, 1)


def _slurm_tasks_here() -> int:
    """Returns the tasks of this step on this node: the variable has them for each node, as "2(x3),1"."""
    text = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE", "1")
    each: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        each += [int(number)] * int(times or 1)
    node = os.environ.get("SLURM_NODEID", "0")
    return each[int(node)] if node.isdigit() and int(node) < len(each) else max(each, default=1)


def _of_tpu(port: str | None) -> Membership | None:
    """Returns the place of a worker of a Cloud TPU, of one slice or several; None elsewhere."""
    if not environment.is_tpu_vm() or os.environ.get("JAX_PLATFORMS", "").split(",")[0] not in ("", "tpu"):
        return None
    for cluster in (clusters.GkeTpuCluster, clusters.GceTpuCluster):
        if cluster.is_env_present():
            return _asked("a Cloud TPU", cluster, port or TPU_PORT)
    return None


def _of_kubernetes(port: str | None) -> Membership | None:
    """Returns the place of a pod of an indexed Job or a JobSet; None for any other pod, and elsewhere."""
    if not ("KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ):
        return None
    if importlib.util.find_spec("kubernetes") is None:
        raise InputError(
            "This is a pod of an indexed Job (JOB_COMPLETION_INDEX), which may have others; set COORDINATOR_ADDRESS="
            f"HOST:PORT of pod 0 and NUM_PROCESSES in the Job, or install the package kubernetes, or set {ALONE}=1."
        )
    return _asked("Kubernetes", clusters.K8sCluster, port) if clusters.K8sCluster.is_env_present() else None


def _asked(name: str, cluster: Any, port: str | None) -> Membership:
    """Returns what a class of jax knows; a single process is not asked where the first one is."""
    count = cluster.get_process_count()
    address = cluster.get_coordinator_address(METADATA_SECONDS, port) if count > 1 else f"127.0.0.1:{port or TPU_PORT}"
    return Membership(name, address, count, cluster.get_process_id())
