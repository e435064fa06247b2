"""launch/pod.sh against real sshd: the stand-in for gcloud starts the real ssh and scp, with the flags that it got.

Two sshd on 127.0.0.1, each with a folder that its commands run in, are the two workers of a pod.
"""

import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.laptop import RUN, calls, end_runs, make_pod, pod, set_world, start, started, watching, worker
from tests.sharding.processes import free_port
from tests.waiting import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
NOTICE = "This system is for authorized use only.\nAll that you do is recorded.\n"
pytestmark = pytest.mark.skipif(SSHD is None, reason="sshd is missing: apt-get install openssh-server")


class Server:
    """A real sshd whose commands run in a worker's folder, as that worker's home."""

    def __init__(self, laptop: Path, number: int) -> None:
        self.port = free_port()
        self.folder = laptop / f"sshd{number}"
        home = worker(laptop, number)
        home.mkdir(parents=True)
        self.folder.mkdir()
        key = self.folder / "host_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (self.folder / "notice").write_text(NOTICE)
        # sshd gives each command a new environment: what the programs of these tests read from it is set here.
        exports = {"HOME": home, "WORKER": number, "DEEDS": laptop / "deeds", "PATH": os.environ["PATH"], "RETRIES": 0}
        (self.folder / "command").write_text(
            "#!/bin/bash\n"
            + "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in exports.items())
            + f'cd {shlex.quote(str(home))} && exec bash -c "$SSH_ORIGINAL_COMMAND"\n'
        )
        (self.folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {key}\nPidFile {self.folder}/pid\nUsePAM no\n"
            f"AuthorizedKeysFile {laptop}/key.pub\nStrictModes no\nPasswordAuthentication no\n"
            f"KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nBanner {self.folder}/notice\n"
            f"Subsystem sftp {sftp_server()}\nForceCommand bash {self.folder}/command\n"
        )
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it accepts connections."""
        assert SSHD is not None
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", self.folder / "config"], stderr=log, stdin=subprocess.DEVNULL
            )
        log_text = (self.folder / "log").read_text
        wait_until(lambda: self.process.poll() is not None or self.accepts(), log_text)
        assert self.process.poll() is None, log_text()

    def accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=60).close()
        except OSError:
            return False
        return True

    def sessions(self) -> list[int]:
        """Returns the processes of its connections."""
        listed = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def end(self) -> None:
        for pid in (*self.sessions(), self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def sftp_server() -> str:
    places = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")
    return next((path for path in places if Path(path).exists()), "internal-sftp")


@pytest.fixture
def servers(laptop: Path) -> Iterator[list[Server]]:
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd wants it
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", laptop / "key"], check=True)
    made: list[Server] = []
    try:
        made.extend(Server(laptop, number) for number in (0, 1))
        set_world(laptop, sshd={str(n): server.port for n, server in enumerate(made)}, key=str(laptop / "key"))
        yield made
    finally:
        end_runs(laptop)
        for server in made:
            server.end()


@pytest.mark.night
def test_a_pod_by_real_ssh_from_setup_to_the_end_of_watch(servers: list[Server], laptop: Path) -> None:
    """Copies, token, quotes and statuses go through ssh; sshd's notice stands in no answer."""
    make_pod(laptop, is_set_up=False)
    code, printed, errors = pod(laptop, "setup", "my-pod", HF_TOKEN="hf_secret")
    assert (code, errors) == (0, "") and printed.count(": ready, commit ") == 2, printed
    assert (worker(laptop, 1) / ".cache/huggingface/token").read_text() == "hf_secret\n"
    code, printed, errors = pod(laptop, *RUN, "--env=TFDS_DATA_DIR=gs://bucket/a b")
    assert (code, errors) == (0, "") and printed.count("started\n") == 2
    assert started(laptop, 1, 1)[0].startswith("hf_secret gs://bucket/a b tpu,cpu -m limba train gin/demo.gin")
    code, printed, errors = pod(laptop, "status", "my-pod")
    assert (code, errors) == (0, "") and "worker 0: running | step 7\nmy-pod: worker 1: running | step 7" in printed
    assert sorted(pod(laptop, "logs", "my-pod")[1].splitlines()) == ["worker 0 | step 7", "worker 1 | step 7"]
    end_runs(laptop)
    watch = watching(laptop, HF_TOKEN="hf_secret")
    printed, errors = watch.communicate(timeout=300)
    assert (watch.returncode, errors) == (0, "") and " ended 0\n" in printed
    code, _, errors = pod(laptop, "setup", "my-pod", ACCELERATOR="gpu")  # a status of the worker's own
    assert code == 75 and "worker 0 FAILED:" in errors and "setup.sh was called with gpu" in errors


@pytest.mark.slow
def test_ssh_and_scp_take_the_flags(servers: list[Server], laptop: Path) -> None:
    """The real ssh reads from pod.sh's flags what they are meant to say; scp passes the same to ssh."""
    make_pod(laptop)
    for program in ("ssh", "scp"):
        call = next(call for call in calls(laptop) if program in call)
        flags = [word.partition("=")[2] for word in call if word.startswith(f"--{program}-flag=")]
        said = subprocess.check_output(["ssh", "-F", "none", *flags, "-G", "127.0.0.1"], text=True).splitlines()
        wanted = {"batchmode yes", "connecttimeout 20", "serveraliveinterval 15", "serveralivecountmax 4"}
        assert wanted <= set(said), said


@pytest.mark.night
def test_a_refused_connection_is_said_and_the_next_command_goes_through(servers: list[Server], laptop: Path) -> None:
    make_pod(laptop)
    servers[1].end()
    code, printed, errors = pod(laptop, "status", "my-pod")
    assert code == 75 and "worker 0: idle" in printed and "not all workers answer; the same command again" in errors
    refused = (
        f"worker 1 FAILED: ssh: connect to host 127.0.0.1 port {servers[1].port}: Connection refused ERROR: (gcloud."
    )
    assert refused in errors
    servers[1].start()
    assert pod(laptop, "status", "my-pod")[0] == 0


@pytest.mark.night
def test_a_key_that_is_not_taken_asks_for_nothing(servers: list[Server], laptop: Path) -> None:
    """A key with a passphrase and no agent: ssh would ask on the terminal; it says no, and what to do."""
    make_pod(laptop)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", laptop / "key"], check=True)
    code, _, errors = pod(laptop, "status", "my-pod")
    assert code == 75 and "Permission denied (publickey)" in errors and "ssh-add ~/.ssh/google_compute_engine" in errors


@pytest.mark.long
def test_a_stopped_sshd_and_a_stopped_connection_end_by_ssh_s_own_limits(servers: list[Server], laptop: Path) -> None:
    """ConnectTimeout and the keepalives end both, long before the limit of the action."""
    make_pod(laptop)
    assert pod(laptop, *RUN)[0] == 0
    set_world(laptop, attempts=1)
    os.kill(servers[0].process.pid, signal.SIGSTOP)
    logs = start(laptop, "logs", "my-pod", "--follow")
    assert logs.stdout is not None
    assert "worker 1 | step 7" in logs.stdout.readline()
    os.kill(servers[1].process.pid, signal.SIGSTOP)
    for pid in servers[1].sessions():
        os.kill(pid, signal.SIGSTOP)
    _, errors = logs.communicate(timeout=600)
    assert logs.returncode == 75 and "not all logs of my-pod were shown: not all workers answer" in errors
    code, _, errors = pod(laptop, "status", "my-pod", STATUS_SECONDS="600")
    assert code == 75 and errors.count(" timed out ERROR: (gcloud.") == 2, errors
