"""Which process of its run this one is: read from the environment that started it, before anything is joined."""

import importlib.util
import os
import re
from typing import Any, NamedTuple

from jax._src import clusters  # no public name: the classes by which jax.distributed finds itself a cluster

from limba.config import InputError, environment, reason_of

ALONE = "LIMBA_ALONE"
PORT = "JAX_COORDINATOR_PORT"
TPU_PORT = "8476"  # jax 0.10 takes 8482, which Google's automatic firewall may not open (jax-ml/jax#35905)
EXPLICIT = ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID")
METADATA_SECONDS = 60  # for the first host's name to be known, on a Cloud TPU or in Kubernetes


class Membership(NamedTuple):
    """This process among the processes of its run."""

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
    """Returns which process of its run this one is, or None if it runs alone; docs/slurm.md has the table.

    The first that is there counts: LIMBA_ALONE=1; COORDINATOR_ADDRESS, NUM_PROCESSES and PROCESS_ID; Open MPI; Slurm;
    a Cloud TPU, in GKE or not; Kubernetes. JAX_COORDINATOR_PORT changes the port of those that are found. Raises
    InputError for values that cannot work, and where several processes are announced that no way of these joins.
    """
    alone = os.environ.get(ALONE, "")
    if alone not in ("", "0", "1"):
        raise InputError(f"{ALONE} is {alone}; give 1, for a process that joins no other, or 0.")
    if alone == "1":
        return None
    port = os.environ.get(PORT)
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f"{PORT} is {port}; give a number from 1 to 65535.")
    launcher = environment.announced()
    try:
        membership = _explicit(launcher)
        if membership is None:
            membership = _of_launcher(launcher, port)
        if membership is None:
            membership = _of_tpu(port)
        if membership is None:
            membership = _of_kubernetes(port)
    except InputError:
        raise
    except Exception as error:  # whatever jax's classes and a metadata server raise
        raise InputError(
            f"The processes of this run cannot be found ({reason_of(error)}); set {', '.join(EXPLICIT)} in each, or"
            f" {ALONE}=1 for a process that runs alone."
        ) from error
    if membership is None:
        return None
    is_alone = membership.count == 1 and membership.found_by != EXPLICIT[0]
    return None if is_alone else membership


def devices_of(membership: Membership, visible: int) -> list[int] | None:
    """Returns which of a host's visible GPUs this process takes; None for all of them.

    Several processes on a host share its GPUs evenly, one each if there are as many. A process that sees a single GPU,
    as with one GPU bound to each task, takes it.

    >>> devices_of(Membership("Slurm", "a:1", 8, 3, 3, 8), 8), devices_of(Membership("Slurm", "a:1", 4, 1, 1, 2), 8)
    ([3], [4, 5, 6, 7])
    >>> devices_of(Membership("Slurm", "a:1", 8, 3, 3, 8), 1), devices_of(Membership("Slurm", "a:1", 2, 1), 8)
    (None, None)
    """
    if membership.local_count == 1 or visible <= 1 or os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    share, rest = divmod(visible, membership.local_count)
    if rest or not share:
        raise InputError(
            f"{membership.local_count} processes on this host cannot share its {visible} GPUs evenly; start one process"
            " a host, or one a GPU."
        )
    first = membership.local_index * share
    return list(range(first, first + share))


def _explicit(launcher: environment.Announced | None) -> Membership | None:
    """Returns what the explicit variables say; a launcher, or an indexed Job, may give the missing ones."""
    values = {name: os.environ[name] for name in EXPLICIT if os.environ.get(name)}
    if not values:
        return None
    local_index = 0
    local_count = 1
    if "COORDINATOR_ADDRESS" in values and launcher is not None and launcher.index in os.environ:
        values.setdefault("NUM_PROCESSES", os.environ[launcher.count])
        values.setdefault("PROCESS_ID", os.environ[launcher.index])
        local_index, local_count = _local(launcher)
    if "JOB_COMPLETION_INDEX" in os.environ:
        values.setdefault("PROCESS_ID", os.environ["JOB_COMPLETION_INDEX"])
    if len(values) < len(EXPLICIT):
        present = ", ".join(name for name in EXPLICIT if name in values)
        missing = ", ".join(name for name in EXPLICIT if name not in values)
        raise InputError(f"{present} is set and {missing} is not; set all three, or none.")
    address = values["COORDINATOR_ADDRESS"]
    count = values["NUM_PROCESSES"]
    index = values["PROCESS_ID"]
    if not re.fullmatch(r".+:\d+", address):
        raise InputError(f"COORDINATOR_ADDRESS is {address}; give HOST:PORT of the first process.")
    if not (count.isdigit() and index.isdigit() and int(index) < int(count)):
        raise InputError(
            f"PROCESS_ID is {index} and NUM_PROCESSES {count}; give whole numbers, the id below the number."
        )
    return Membership(EXPLICIT[0], address, int(count), int(index), local_index, local_count)


def _of_launcher(launcher: environment.Announced | None, port: str | None) -> Membership | None:
    """Returns what Open MPI or Slurm says; InputError for a launcher that does not say where the first process is."""
    if launcher is None:
        return None
    name = launcher.launcher
    count = int(os.environ[launcher.count])
    local_index, local_count = _local(launcher)
    cluster = {"Open MPI": clusters.OmpiCluster, "Slurm": clusters.SlurmCluster}.get(name)
    # jax 0.12's class also takes Open MPI 5, and asks for mpi4py there.
    is_open_mpi_5 = name == "Open MPI" and "OMPI_MCA_orte_hnp_uri" not in os.environ
    if cluster is not None and not is_open_mpi_5 and cluster.is_env_present():
        address = cluster.get_coordinator_address(METADATA_SECONDS, port)
        return Membership(name, address, count, cluster.get_process_id(), local_index, local_count)
    if is_open_mpi_5 and local_count == count:
        # Open MPI 5 does not say where its first process is; here all of them are on one host.
        index = int(os.environ[launcher.index])
        return Membership(name, f"127.0.0.1:{port or TPU_PORT}", count, index, local_index, local_count)
    if name == "Slurm":
        raise InputError(
            f"This job of Slurm has {count} tasks (SLURM_NTASKS), and srun has not started this process, which would"
            f" train alone; put srun before the command, or set {ALONE}=1."
        )
    raise InputError(
        f"{name} has started {count} processes ({launcher.count}), and does not say where the first one is; set"
        f" COORDINATOR_ADDRESS=HOST:PORT of the first process for all of them, or {ALONE}=1 for processes that run"
        " alone."
    )


def _local(launcher: environment.Announced) -> tuple[int, int]:
    """Returns the index of this process among those on this host, and their number; (0, 1) where it is not said."""
    index = os.environ.get(launcher.local_index, "0")
    if launcher.local_count:
        count = os.environ.get(launcher.local_count, "1")
    else:
        count = str(_slurm_tasks_here())
    if not (index.isdigit() and count.isdigit()):
        return 0, 1
    return int(index), int(count)


def _slurm_tasks_here() -> int:
    """Returns the tasks of this step on this node. The variable has them for each node: "2(x3),1" is 2, 2, 2, 1."""
    text = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE", "1")
    tasks_of_nodes: list[int] = []
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        tasks_of_nodes += [int(tasks)] * int(nodes or 1)
    node = os.environ.get("SLURM_NODEID", "0")
    if node.isdigit() and int(node) < len(tasks_of_nodes):
        return tasks_of_nodes[int(node)]
    return max(tasks_of_nodes, default=1)


def _of_tpu(port: str | None) -> Membership | None:
    """Returns which worker of a Cloud TPU this is, of one slice or several; None elsewhere."""
    platform = os.environ.get("JAX_PLATFORMS", "").split(",")[0]
    if not environment.is_tpu_vm() or platform not in ("", "tpu"):
        return None
    for cluster in (clusters.GkeTpuCluster, clusters.GceTpuCluster):
        if cluster.is_env_present():
            return _asked("a Cloud TPU", cluster, port or TPU_PORT)
    return None


def _of_kubernetes(port: str | None) -> Membership | None:
    """Returns which pod of an indexed Job or a JobSet this is; None for any other pod, and elsewhere."""
    if not ("KUBERNETES_SERVICE_HOST" in os.environ and "JOB_COMPLETION_INDEX" in os.environ):
        return None
    if importlib.util.find_spec("kubernetes") is None:
        raise InputError(
            "This is a pod of an indexed Job (JOB_COMPLETION_INDEX), which may have others; set COORDINATOR_ADDRESS="
            f"HOST:PORT of pod 0 and NUM_PROCESSES in the Job, or install the package kubernetes, or set {ALONE}=1."
        )
    if not clusters.K8sCluster.is_env_present():
        return None
    return _asked("Kubernetes", clusters.K8sCluster, port)


def _asked(name: str, cluster: Any, port: str | None) -> Membership:
    """Returns what a class of jax knows; a single process is not asked where the first one is."""
    count = cluster.get_process_count()
    address = f"127.0.0.1:{port or TPU_PORT}"
    if count > 1:
        address = cluster.get_coordinator_address(METADATA_SECONDS, port)
    return Membership(name, address, count, cluster.get_process_id())
