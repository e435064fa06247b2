"""Machines with a network of their own: namespaces of this machine, whose cables meet in a switch.

Each has its own host name, /etc/hosts and address. They end with the tests that made them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.sharding.processes import ROOT

PROGRAMS = ("unshare", "nsenter", "setpriv", "ip")
# Keeps the namespaces of a machine for as long as the tests run.
KEEP = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "--mount", "sh", "-c"]
NAMED = 'hostname "$0" && mount --bind "$1" /etc/hosts && ip link set lo up && echo ready && exec sleep infinity'


@functools.cache
def missing() -> str:
    """Returns why machines with networks of their own cannot be made here; "" if they can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} is not installed: apt-get install util-linux iproute2"
    if os.getuid() != 0 or subprocess.run([*KEEP, "ip link add type veth"], capture_output=True).returncode:
        return "networks of their own need root, and namespaces (unshare)"
    return ""


class Network:
    """Machines of these names, at the addresses 10.77.0.1 and up.

    `own_addresses` are what each has in /etc/hosts for its own name, None for nothing.
    """

    def __init__(self, names: Sequence[str], folder: Path, own_addresses: Sequence[str | None]):
        self.names = list(names)
        self._kept = [self._keep("switch", folder, "")]
        for index, name in enumerate(names):
            hosts = [f"{self.address(other)} {names[other]}\n" for other in range(len(names)) if other != index]
            own_address = own_addresses[index]
            if own_address is not None:
                hosts.append(f"{own_address} {name}\n")
            self._kept.append(self._keep(name, folder, "".join(hosts)))
        self._ip(0, "link add bridge type bridge")
        self._ip(0, "link set bridge up")
        for index in range(len(names)):
            machine = index + 1
            self._ip(0, f"link add to{index} type veth peer name eth0 netns {self._kept[machine].pid}")
            self._ip(0, f"link set to{index} master bridge up")
            self._ip(machine, f"address add {self.address(index)}/24 dev eth0")
            self._ip(machine, "link set eth0 up")

    def _keep(self, name: str, folder: Path, hosts: str) -> subprocess.Popen:
        path = folder / f"hosts-{name}"
        path.write_text(f"127.0.0.1 localhost\n{hosts}")
        kept = subprocess.Popen([*KEEP, NAMED, name, str(path)], stdout=subprocess.PIPE, text=True)
        assert kept.stdout is not None
        assert kept.stdout.readline() == "ready\n", f"{name} cannot be made"
        return kept

    def _ip(self, machine: int, arguments: str) -> None:
        command = ["nsenter", "--target", str(self._kept[machine].pid), "--net", "ip", *arguments.split()]
        subprocess.run(command, check=True, capture_output=True)

    def address(self, index: int) -> str:
        return f"10.77.0.{index + 1}"

    def unplug(self, index: int) -> None:
        """Takes the cable of a machine out of the switch: what is sent is lost, and no connection is closed."""
        self._ip(0, f"link set to{index} down")

    def separate(self, index: int, other: int) -> None:
        """Lets nothing of a machine reach another one, as a firewall between the two does."""
        self._ip(index + 1, f"route add blackhole {self.address(other)}/32")

    def start(self, index: int, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen:
        """Starts a program on a machine."""
        inside = ["nsenter", "--target", str(self._kept[index + 1].pid), "--net", "--uts", "--mount", f"--wd={ROOT}"]
        return subprocess.Popen(
            [*inside, *command],
            env=dict(environment),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def end(self) -> None:
        for kept in self._kept:
            kept.kill()
            kept.communicate()


@contextlib.contextmanager
def network(names: Sequence[str], folder: Path, own_addresses: Sequence[str | None] = ()) -> Iterator[Network]:
    """Yields the machines, connected; each name has its own address for itself, or what `own_addresses` says."""
    if not own_addresses:
        own_addresses = [f"10.77.0.{index + 1}" for index in range(len(names))]
    machines = Network(names, folder, own_addresses)
    try:
        yield machines
    finally:
        machines.end()
