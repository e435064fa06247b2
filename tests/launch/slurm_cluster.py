"""A real Slurm on this machine: munged, slurmctld and a slurmd for each of gpu[01-03,07], without systemd.

Each daemon has namespaces of its own: a host name that resolves to 127.0.0.1, and processes that end with it. So a
node that is killed takes all its tasks with it, as a machine does, and nothing outlives the tests. All ports are those
of 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.sharding.processes import free_port
from tests.waiting import wait_until

NODES = ("gpu01", "gpu02", "gpu03", "gpu07")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
DAEMONS = f"/usr/local/sbin:/usr/sbin:{os.environ.get('PATH', '')}"
# The processes of a daemon end with unshare, and unshare with the tests.
APART = [
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child=KILL",
]  # fmt: skip
# Slurm asks the nodes and looks at limits every 30 s; a node that is silent for 20 s counts as down. A job that is
# queued again waits for cred_expire. Each process of a step gets its signals, as under proctrack/cgroup.
CONFIG = """
ClusterName=limba
SlurmctldHost=head(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=30
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
SlurmdTimeout=20
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
SchedulerParameters=sched_interval=2,batch_sched_delay=0,preempt_send_user_signal
ReturnToService=2
KillWait=200
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=gpu[01-03,07] Default=YES PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=gpu[01-03,07] PriorityTier=9
"""


@functools.cache
def missing() -> str:
    """Returns why no Slurm can be started here; "" if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=DAEMONS) is None]
    if absent:
        return f"{', '.join(absent)} is not installed: apt-get install --no-install-recommends slurm-wlm munge"
    if os.getuid() != 0 or subprocess.run([*APART, "true"], capture_output=True, check=False).returncode:
        return "a Slurm of several nodes needs root, and namespaces (unshare)"
    return ""


def until(condition: Callable[[], object], what: str) -> None:
    """Waits until a condition holds; it asks Slurm, so not too often."""
    wait_until(condition, lambda: f"waited for {what}", every=0.2)


class Cluster:
    """Where the cluster's files are, and its programs."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen] = {}

    def ask(self, *command: str, **variables: str) -> str:
        """Runs a program of Slurm, or one that calls Slurm's; returns what it prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.environment, **variables}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def states(self, nodes: str = "gpu[01-03,07]") -> list[str]:
        """Returns such as ["idle", "alloc"]; ["?"] while slurmctld does not answer."""
        command = ["sinfo", "--noheader", "--Node", "--partition=main", f"--nodes={nodes}", "--format=%t"]
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        return done.stdout.split() if done.returncode == 0 else ["?"]

    def ended(self) -> list[str]:
        """Returns the hosts whose daemon has ended."""
        return [host for host, process in self.daemons.items() if process.poll() is not None]

    def job(self, number: str) -> Mapping[str, str]:
        """Returns what Slurm says of a job, such as {"JobState": "RUNNING", "Restarts": "0"}."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", number)))

    def until_state(self, number: str, *states: str) -> Mapping[str, str]:
        until(lambda: self.job(number)["JobState"] in states, f"job {number}: {' or '.join(states)}")
        return self.job(number)

    def end(self, number: str) -> None:
        """Lets Slurm tell the job now that its time limit is near: it looks every 30 s."""
        self.ask("scontrol", "update", f"JobId={number}", "EndTime=now+120")

    def restart(self, node: str) -> None:
        """Starts a node after `kill`."""
        self.start(node, "slurmd", "-D", "-N", node)
        until(lambda: set(self.states(node)) <= {"idle", "alloc", "mix", "comp"}, node)

    def kill(self, node: str) -> None:
        """Ends a node as if its power had gone, with all that runs there."""
        process = self.daemons[node]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def start(self, host: str, *command: str) -> None:
        log = (self.folder / f"{host}.log").open("a")
        hosts = self.folder / "hosts"
        script = f'hostname {host} && mount --bind {hosts} /etc/hosts && exec "$@"'
        self.daemons[host] = subprocess.Popen(
            [*APART, "sh", "-c", script, "sh", *command],
            env={**os.environ, **self.environment, "PATH": DAEMONS}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        log.close()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Yields a Slurm whose four nodes are idle."""
    folder = Path(tempfile.mkdtemp(prefix="limba-slurm-"))  # a socket's path is short
    here = Cluster(folder)
    try:
        for name in ("state", *NODES):
            (folder / name).mkdir(mode=0o700)
        (folder / "hosts").write_text(f"127.0.0.1 localhost head {' '.join(NODES)}\n")
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        lines = CONFIG.format(port=free_port(), user=getpass.getuser(), folder=folder)
        for name in NODES:
            lines += f"NodeName={name} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 RealMemory=16000\n"
        (folder / "slurm.conf").write_text(lines)
        files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "seed-file")]
        here.start("key", "munged", "--foreground", "--force", f"--key-file={folder}/key", *files)
        until((folder / "munge.socket").exists, "munged")
        here.start("head", "slurmctld", "-D")
        for name in NODES:
            here.start(name, "slurmd", "-D", "-N", name)
        until(lambda: here.states() == ["idle"] * len(NODES) or here.ended(), "the nodes")
        assert not here.ended(), f"{here.ended()} cannot start"
        yield here
    except AssertionError as error:
        for log in sorted(folder.glob("*.log")):
            error.add_note(f"{log.name}:\n{log.read_text()[-3000:]}")
        raise
    finally:
        for process in here.daemons.values():
            process.kill()
        for process in here.daemons.values():
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
