"""A stand-in for gcloud: it records each call, answers as Google's does, and runs ssh in a folder for each worker.

The folder WORLD has world.json: {"pods": {NAME: {"states": [...], "node": "READY", "workers": 2, "message": ""}},
"buckets": {NAME: REGION}, "errors": [[WORDS OF THE CALL, MESSAGE, TIMES], ...], "workers": N, "plans": {NAME:
[STATES, ...]}}. An entry of "errors" whose words are all in a call makes it fail with that message, that many times. A
flag that gcloud 528 does not have is an error, as there (gcloud_flags.json is from its own table of completions).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

WORLD = Path(os.environ["WORLD"])
OF_THE_LAPTOP = ("WORLD", "LIMBA_PODS", "HF_TOKEN", "JAX_PLATFORMS", "XLA_FLAGS")
FLAGS = json.loads((Path(__file__).parent / "gcloud_flags.json").read_text())


def end(message: str) -> None:
    print(f"ERROR: (gcloud) {message}", file=sys.stderr)
    sys.exit(1)


def parsed(arguments: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """Returns the command's words, its positional arguments and its flags; ends where gcloud has no such flag."""
    words = [each for each in arguments if not each.startswith("--")]
    flags = dict((each.partition("=")[::2]) for each in arguments if each.startswith("--"))
    command = next((name for name in FLAGS if words[: len(name.split())] == name.split()), None)
    if command is None:
        end(f"Invalid choice: '{' '.join(words)}'.")
    assert command is not None
    if unknown := set(flags) - set(FLAGS[command]) - set(FLAGS["every command"]):
        end(f"unrecognized arguments: {' '.join(sorted(unknown))}")
    return command, words[len(command.split()) :], flags


def home(pod: str, worker: int) -> Path:
    folder = WORLD / pod / f"worker{worker}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def pod_of(name: str, command: str, pods: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the pod of a name: of its request, or for a command of tpu-vm, of one of its slices."""
    if "queued-resources" in command:
        return pods.get(name)
    return next((pod for pod in pods.values() if name in pod["slices"]), None)


def change(command: str, names: list[str], flags: dict[str, str], world: dict[str, Any]) -> str:
    """Returns what gcloud prints, and changes the world."""
    for entry in world.setdefault("errors", []):
        words, message, times = entry
        if times and all(word in [*command.split(), *names, *map("=".join, flags.items())] for word in words):
            entry[2] -= 1
            (WORLD / "world.json").write_text(json.dumps(world))
            end(message)
    pods = world.setdefault("pods", {})
    if command == "storage buckets describe":
        bucket = names[0].removeprefix("gs://")
        if bucket not in world.get("buckets", {}):
            end(f"gs://{bucket} not found: 404.")
        return world["buckets"][bucket].upper()
    name = names[0].partition(":")[0] if "scp" not in command else names[1].partition(":")[0]
    place = f"projects/my-project/locations/{flags['--zone']}"
    if command.endswith("queued-resources create"):
        if name in pods:
            end(f"ALREADY_EXISTS: Resource '{place}/queuedResources/{name}' already exists")
        plan = world.get("plans", {}).get(name) or [["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]]
        states = plan.pop(0) if len(plan) > 1 else plan[0]
        pods[name] = {"states": list(states), "node": "READY", "workers": world.get("workers", 1)}
        if ("--node-id" in flags) == ("--node-prefix" in flags) or ("--node-count" in flags) == ("--node-id" in flags):
            end("Exactly one of (--node-id | --node-count and --node-prefix) must be specified.")
        prefix, count = flags.get("--node-prefix", name), int(flags.get("--node-count", 0))
        pods[name]["slices"] = [f"{prefix}-{number}" for number in range(count)] or [flags["--node-id"]]
        pods[name]["message"] = world.get("message", "")
        return ""
    if " describe" in command and ("accelerator-types" in command or "versions" in command):
        return names[0]
    pod = pod_of(name, command, pods)
    if pod is None:
        end(f"NOT_FOUND: Resource '{place}/queuedResources/{name}' was not found")
    assert pod is not None
    if command.endswith("queued-resources delete"):
        del pods[name]
        for each in pod["slices"]:
            for path in (WORLD / each).glob("worker*/pod/pid"):  # the workers end without a word
                with contextlib.suppress(OSError, ValueError):
                    subprocess.run(["pkill", "-KILL", "-s", str(os.getsid(int(path.read_text())))], check=False)
            shutil.rmtree(WORLD / each, ignore_errors=True)  # the workers' disks
        return ""
    if command.endswith("queued-resources describe"):
        if "failedData" in flags["--format"]:
            return pod["message"]
        return pod["states"].pop(0) if len(pod["states"]) > 1 else pod["states"][0]
    if command.endswith("tpu-vm describe"):
        return f"{pod['node']}\t{pod['workers']}"
    return ""


def main() -> None:
    command, names, flags = parsed(sys.argv[1:])
    with (WORLD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (WORLD / "calls.jsonl").open("a") as file:
            file.write(json.dumps(sys.argv[1:]) + "\n")
        world = json.loads((WORLD / "world.json").read_text())
        printed = change(command, names, flags, world)
        (WORLD / "world.json").write_text(json.dumps(world))
    if command.endswith("scp"):
        pod, _, path = names[1].partition(":")
        found = pod_of(pod, command, world["pods"])
        assert found is not None
        for worker in range(found["workers"]):
            shutil.copy(names[0], home(pod, worker) / path)
    elif command.endswith("ssh"):
        folder = home(names[0], int(flags["--worker"]))
        variables = {**os.environ, "HOME": str(folder), "WORKER": flags["--worker"]}
        variables = {key: value for key, value in variables.items() if key not in OF_THE_LAPTOP}
        sys.exit(subprocess.run(["bash", "-c", flags["--command"]], cwd=folder, env=variables, check=False).returncode)
    elif printed:
        print(printed)


if __name__ == "__main__":
    main()
