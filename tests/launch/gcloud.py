"""A stand-in for gcloud: it records each call, answers as Google's does, and runs ssh in a folder for each worker.

The folder WORLD has world.json: {"pods": {NAME: {"states": [...], "node": "READY", "workers": 2, "message": ""}},
"buckets": {NAME: REGION}, "errors": [[WORDS OF THE CALL, MESSAGE, TIMES], ...], "deeds": [[WORDS, DEED, TIMES], ...],
"workers": N, "plans": {NAME: [STATES, ...]}, "sshd": {WORKER: PORT}, "key": FILE, "attempts": N}. An entry of "errors"
whose words are all in a call (`~WORD`: anywhere in it) makes it fail with that message, that many times; one of "deeds"
makes it do what `class Deed` says.

Its rules follow gcloud 528, from Google's reference (https://docs.cloud.google.com/sdk/gcloud/reference) and, for
ssh and scp, the published source of the Cloud SDK (lib/surface/compute/tpus/tpu_vm, command_lib/util/ssh/ssh.py,
core/console/console_io.py):

* a flag that a command does not have is an error with status 2 (gcloud_flags.json is from its own table of
  completions); other errors have status 1, all are on stderr as `ERROR: (gcloud.COMMAND) ...`, progress too;
* it asks on stderr and reads the answer from its input, unless --quiet; at the end of the input the default counts;
* --ssh-flag is divided at spaces, --scp-flag not; both come after gcloud's own options, and ssh takes the first;
* ssh's 255, and any failure of scp, is tried ten times, 5 s apart (here without the pause), and is then gcloud's
  status; the status of a command on the worker passes through at once;
* a SUSPENDED request has no node any more: its "node" is PREEMPTED for a while, then GONE;
* scp to several workers wants the key in ssh-agent; a TPU that was taken away is refused before ssh is started.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

WORLD = Path(os.environ["WORLD"])
OF_THE_LAPTOP = ("WORLD", "LIMBA_PODS", "HF_TOKEN", "JAX_PLATFORMS", "XLA_FLAGS")
FLAGS = json.loads((Path(__file__).parent / "gcloud_flags.json").read_text())
BANNER = "".join(f"* line {number} of a notice: this system is for authorized use only\n" for number in range(1, 21))
QUESTION = "API [tpu.googleapis.com] not enabled on project [5]. Would you like to enable and retry (y/N)?  "


class Deed(enum.StrEnum):
    """The worst that gcloud, ssh and the network do."""

    HANG = "hang"  # says nothing, for ever; what it started neither
    ASK = "ask"  # asks whether to switch the API on, unless --quiet; then the API's error
    ASK_ANYWAY = "ask anyway"  # reads its input whatever the flags, as programs do that it starts for credentials
    REFUSE = "refuse"  # the connection is refused, at all attempts
    LOSE = "lose"  # the connection breaks after the command has come through, before its answer
    BANNER = "banner"  # ssh's notice on stderr; a greeting of the shell's start-up file before the answer, a line after
    EMPTY = "empty"  # the command's output is lost, with status 0


def end(command: str, message: str, status: int = 1) -> NoReturn:
    print(f"ERROR: (gcloud.{command.replace(' ', '.')}) {message}", file=sys.stderr)
    sys.exit(status)


def parsed(arguments: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """Returns the command's words, its positional arguments and its flags; ends where gcloud has no such flag."""
    words = [argument for argument in arguments if not argument.startswith("--")]
    flags: dict[str, str] = {}
    for name, _, value in (argument.partition("=") for argument in arguments if argument.startswith("--")):
        flags[name] = f"{flags[name]}\n{value}" if name in ("--ssh-flag", "--scp-flag") and name in flags else value
    command = next((name for name in FLAGS if words[: len(name.split())] == name.split()), None)
    if command is None:
        end("", f"Invalid choice: '{' '.join(words)}'.", 2)
    if unknown := set(flags) - set(FLAGS[command]) - set(FLAGS["every command"]):
        end(command, f"unrecognized arguments: {' '.join(sorted(unknown))}", 2)
    return command, words[len(command.split()) :], flags


def home(pod: str, worker: int) -> Path:
    folder = WORLD / pod / f"worker{worker}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pod_of(name: str, command: str, flags: dict[str, str], pods: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the pod of a name in a zone: of its request, or for a command of tpu-vm, of one of its slices."""
    pods = {key: pod for key, pod in pods.items() if pod["zone"] == flags["--zone"]}
    if "queued-resources" in command:
        return pods.get(name)
    return next((pod for pod in pods.values() if name in pod["slices"] and pod["node"] != "GONE"), None)


def taken(entries: list[list[Any]], call: list[str]) -> str | None:
    """Returns the message or deed that this call meets, and counts it."""
    for entry in entries:
        words, deed, times = entry
        if times and all(word in call or (word[0] == "~" and word[1:] in " ".join(call)) for word in words):
            entry[2] -= 1
            return deed
    return None


def change(command: str, names: list[str], flags: dict[str, str], world: dict[str, Any]) -> str:
    """Returns what gcloud prints, and changes the world."""
    pods = world.setdefault("pods", {})
    if command == "storage buckets describe":
        bucket = names[0].removeprefix("gs://")
        if bucket not in world.get("buckets", {}):
            end(command, f"gs://{bucket} not found: 404.")
        return world["buckets"][bucket].upper()
    name = names[0].partition(":")[0] if "scp" not in command else names[1].partition(":")[0]
    location = f"projects/my-project/locations/{flags['--zone']}"
    if command.endswith("queued-resources create"):
        if name in pods:
            end(command, f"ALREADY_EXISTS: Resource '{location}/queuedResources/{name}' already exists")
        plan = world.get("plans", {}).get(name) or [["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]]
        states = plan.pop(0) if len(plan) > 1 else plan[0]
        pods[name] = {"states": list(states), "node": "READY", "workers": world.get("workers", 1)}
        if ("--node-id" in flags) == ("--node-prefix" in flags) or ("--node-count" in flags) == ("--node-id" in flags):
            end(command, "Exactly one of (--node-id | --node-count and --node-prefix) must be specified.", 2)
        prefix = flags.get("--node-prefix", name)
        count = int(flags.get("--node-count", 0))
        pods[name]["slices"] = [f"{prefix}-{number}" for number in range(count)] or [flags["--node-id"]]
        pods[name] |= {"message": world.get("message", ""), "zone": flags["--zone"]}
        print(f"Create request issued for: [{name}]", file=sys.stderr)
        return ""
    if " describe" in command and ("accelerator-types" in command or "versions" in command):
        return names[0]
    pod = pod_of(name, command, flags, pods)
    if pod is None:
        end(command, f"NOT_FOUND: Resource '{location}/queuedResources/{name}' was not found")
    if command.endswith("queued-resources delete"):
        del pods[name]
        for slice_name in pod["slices"]:
            for path in (WORLD / slice_name).glob("worker*/pod/pid"):  # the workers end without a word
                with contextlib.suppress(OSError, ValueError):
                    subprocess.run(["pkill", "-KILL", "-s", str(os.getsid(int(path.read_text())))], check=False)
            shutil.rmtree(WORLD / slice_name, ignore_errors=True)  # the workers' disks
        print(f"Delete request issued for: [{name}]", file=sys.stderr)
        return ""
    if command.endswith("queued-resources describe"):
        if "failedData" in flags["--format"]:
            return pod["message"]
        return pod["states"].pop(0) if len(pod["states"]) > 1 else pod["states"][0]
    if command.endswith("tpu-vm describe"):
        return f"{pod['node']}\t{pod['workers']}"
    if pod["node"] in ("PREEMPTED", "TERMINATED"):
        end(command, f'This TPU has terminal state "{pod["node"]}", so it cannot be used anymore.')
    if command.endswith("scp") and flags.get("--worker") == "all" and pod["workers"] > 1:
        key = "~/.ssh/google_compute_engine"
        end(command, f'SSH Key is not present in the SSH agent. Please run "ssh-add {key}" to add it, and try again.')
    return ""


def do(deed: str | None, command: str, flags: dict[str, str]) -> None:
    """Does what holds a call up or ends it; returns if the call goes on."""
    if deed == Deed.HANG:
        child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
        with (WORLD / "hung").open("a") as file:
            file.write(f"{os.getpid()}\n{child.pid}\n")
        child.wait()
    if deed == Deed.ASK:
        if "--quiet" not in flags:
            print(QUESTION, end="", file=sys.stderr, flush=True)
            sys.stdin.readline()
        end(command, "SERVICE_DISABLED: Cloud TPU API has not been used in project 5 before or it is disabled.")
    if deed == Deed.ASK_ANYWAY:
        print("Please enter your password:", end="", file=sys.stderr, flush=True)
        if not sys.stdin.readline():
            end(command, "Reauthentication failed. cannot prompt during non-interactive execution.")


def connection(command: str, names: list[str], flags: dict[str, str], world: dict[str, Any]) -> list[str]:
    """Returns the command of the real ssh or scp, as gcloud builds it; the port stands for the worker's address."""
    program = command.split()[-1]
    pod, _, path = names[-1].partition(":")
    worker = flags["--worker"]
    user = pwd.getpwuid(os.getuid()).pw_name
    options = ["CheckHostIP=no", "HashKnownHosts=no", f"HostKeyAlias=tpu.{pod}-{worker}", "IdentitiesOnly=yes"]
    options += [f"StrictHostKeyChecking={flags['--strict-host-key-checking']}", f"UserKnownHostsFile={WORLD}/hosts"]
    arguments = [program, *(["-T"] if program == "ssh" else []), "-i", world["key"]]
    arguments += [word for option in options for word in ("-o", option)]
    arguments += ["-F", "none", f"-oPort={world['sshd'][worker]}"]  # of this machine: no settings of its user's
    extra = flags.get(f"--{program}-flag", "").splitlines()
    arguments += [part for flag in extra for part in (flag.split() if program == "ssh" else [flag])]
    if program == "scp":
        return [*arguments, names[0], f"{user}@127.0.0.1:{path}"]
    return [*arguments, f"{user}@127.0.0.1", "--", *flags["--command"].split(" ")]


def attempt(command: str, names: list[str], flags: dict[str, str], world: dict[str, Any], deed: str | None) -> int:
    """Returns the status of ssh or scp, tried once."""
    if deed == Deed.REFUSE:
        print("ssh: connect to host 10.130.0.2 port 22: Connection refused", file=sys.stderr)
        return 255
    if "sshd" in world:
        return subprocess.run(connection(command, names, flags, world), check=False).returncode
    pod, _, path = names[-1].partition(":")
    folder = home(pod, int(flags["--worker"]))
    if command.endswith("scp"):
        shutil.copy(names[0], folder / path)
        return 0
    if deed == Deed.EMPTY:
        return 0
    if deed == Deed.BANNER:
        print(BANNER, file=sys.stderr, flush=True)
        print("hello from ~/.bashrc", flush=True)
    variables = {**os.environ, "HOME": str(folder), "WORKER": flags["--worker"]}
    variables = {key: value for key, value in variables.items() if key not in OF_THE_LAPTOP}
    code = subprocess.run(["bash", "-c", flags["--command"]], cwd=folder, env=variables, check=False).returncode
    if deed == Deed.BANNER:
        print("\n  \n")
    if deed == Deed.LOSE:
        print("client_loop: send disconnect: Broken pipe", file=sys.stderr)
        return 255
    return code


def connect(command: str, names: list[str], flags: dict[str, str], world: dict[str, Any], deed: str | None) -> NoReturn:
    """Ends with the status of a command on a worker, after as many attempts as gcloud makes."""
    program = command.split()[-1]
    attempts = world.get("attempts", 10)
    code = 0
    failed = ""
    for number in range(attempts):
        print(f"{program.upper()}: Attempting to connect to worker {flags['--worker']}...", file=sys.stderr, flush=True)
        code = attempt(command, names, flags, world, deed)
        if code == 0 or (program == "ssh" and code != 255):
            sys.exit(code)
        failed = f"[/usr/bin/{program}] exited with return code [{code}]."
        if number < attempts - 1:
            print(f"Retrying: {program.upper()} command error: {failed}", file=sys.stderr, flush=True)
    end(command, failed, code)


def main() -> None:
    command, names, flags = parsed(sys.argv[1:])
    call = [*command.split(), *names, *map("=".join, flags.items())]
    with (WORLD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (WORLD / "calls.jsonl").open("a") as file:
            file.write(json.dumps(sys.argv[1:]) + "\n")
        world = json.loads((WORLD / "world.json").read_text())
        message = taken(world.get("errors", []), call)
        deed = taken(world.get("deeds", []), call)
        (WORLD / "world.json").write_text(json.dumps(world))
        if message:
            end(command, message)
    do(deed, command, flags)
    with (WORLD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        world = json.loads((WORLD / "world.json").read_text())
        printed = change(command, names, flags, world)
        (WORLD / "world.json").write_text(json.dumps(world))
    if command.split()[-1] in ("ssh", "scp"):
        connect(command, names, flags, world, deed)
    if printed:
        print(printed)


if __name__ == "__main__":
    main()
