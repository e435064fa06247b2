"""Processes on machines with networks of their own: names, firewalls and cables, as the kernel has them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.test_joined import JOIN
from tests.sharding import networks
from tests.sharding.networks import Network, network
from tests.sharding.processes import PROGRAM, variables

pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(bool(networks.missing()), reason=networks.missing()),
]
NAMES = ["node-a", "node-b", "node-c"]


def start(net: Network, command: list[str], **more: str) -> list[subprocess.Popen]:
    """Starts one process a machine; the first machine's address is given to all."""
    count = len(net.names)
    settings = {**more, "COORDINATOR_ADDRESS": f"{net.address(0)}:8476"}
    return [net.start(index, command, environment) for index, environment in enumerate(variables(count, **settings))]


def ends(started: list[subprocess.Popen]) -> list[tuple[int, str, list[str]]]:
    """Returns each process's status, its last line on stdout and its lines on stderr, without that it has joined."""
    outputs = [process.communicate(timeout=400) for process in started]
    return [
        (process.returncode, (printed.splitlines() or [""])[-1], _own_lines(errors))
        for process, (printed, errors) in zip(started, outputs, strict=True)
    ]


def _own_lines(errors: str) -> list[str]:
    of_gloo = "[external/"  # the folder of its source, which jax 0.12 has elsewhere than jax 0.10
    return [line for line in errors.splitlines() if not line.startswith(("process ", of_gloo))]


def join(net: Network, **more: str) -> list[tuple[int, str, list[str]]]:
    return ends(start(net, [sys.executable, "-c", JOIN], **more))


def trained(net: Network, folder: Path, host_seconds: float) -> list[subprocess.Popen]:
    """Starts processes that compute steps together, and returns when each has computed two."""
    arguments = [str(folder), str(host_seconds), "600", "0", "sleep", "0", "0"]
    started = start(net, [sys.executable, "-c", PROGRAM, *arguments])
    for process in started:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        if "begun\n" not in lines:
            raise AssertionError([other.communicate() for other in started])
    return started


def test_machines_whose_names_have_their_addresses_join(tmp_path: Path) -> None:
    with network(NAMES[:2], tmp_path) as net:
        assert [(status, json.loads(printed), lines) for status, printed, lines in join(net)] == [(0, [0, 1], [])] * 2


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, pytest.param(1, marks=pytest.mark.night)])
def test_a_name_that_stands_for_127_0_1_1_ends_all_with_a_line_for_etc_hosts(process: int, tmp_path: Path) -> None:
    """As on Debian and Ubuntu. Gloo looked for it for 150 s, and ended in 38 lines."""
    addresses: list[str | None] = ["10.77.0.1", "10.77.0.2"]
    addresses[process] = "127.0.1.1"
    with network(NAMES[:2], tmp_path, addresses) as net:
        all_ends = join(net)
    said = (
        f"The name of the machine of process {process}, {NAMES[process]}, stands for 127.0.1.1 there, where no other"
        " machine reaches it, and processes on CPUs find one another by these names; give it the line"
        f" '10.77.0.{process + 1} {NAMES[process]}' in /etc/hosts of that machine instead."
    )
    assert all_ends == [(2, "", [said])] * 2


def test_a_name_without_an_address_ends_its_process(tmp_path: Path) -> None:
    with network(NAMES[:2], tmp_path, ["10.77.0.1", None]) as net:
        first, second = join(net, JOIN_TIMEOUT_SECONDS="15")
    assert first[0] == 75 and first[2][0].startswith("Process 1 of 2 has not joined within 15 s")
    assert second[0] == 2 and second[2][0].startswith("The name of this machine, node-b, has no address (")
    assert second[2][0].endswith("or start the container with --add-host=node-b:10.77.0.2.")


def test_a_machine_that_cannot_reach_the_first_one_is_named(tmp_path: Path) -> None:
    with network(NAMES[:2], tmp_path) as net:
        net.separate(1, 0)
        first, second = join(net, JOIN_TIMEOUT_SECONDS="15")
    assert first[0] == second[0] == 75
    assert [len(first[2]), len(second[2])] == [1, 1]
    assert first[2][0].startswith("Process 1 of 2 has not joined within 15 s (JOIN_TIMEOUT_SECONDS)")
    assert second[2][0].startswith("The first process did not answer at 10.77.0.1:8476 (COORDINATOR_ADDRESS) for 15 s;")


def test_two_machines_that_only_reach_the_first_one_end_the_run(tmp_path: Path) -> None:
    """All three join; the first exchange of numbers fails. jax ends one that notices later than the others."""
    with network(NAMES, tmp_path) as net:
        net.separate(1, 2)
        arguments = [str(tmp_path), "600", "600", "0", "sleep", "0", "0"]
        all_ends = ends(start(net, [sys.executable, "-c", PROGRAM, *arguments]))
    assert all(status in (-signal.SIGABRT, 75) for status, _, _ in all_ends), all_ends
    said = [lines for status, _, lines in all_ends if status == 75]
    assert len(said) >= 2, all_ends
    assert all(len(lines) == 1 and "The exchange between the 3 processes failed (" in lines[0] for lines in said), (
        all_ends
    )


@pytest.mark.parametrize("process", [0, 1])
def test_a_machine_whose_cable_is_pulled_ends_the_others(process: int, tmp_path: Path) -> None:
    """Nothing is closed, so the exchange only waits; jax's service misses the heartbeats."""
    with network(NAMES[:2], tmp_path) as net:
        started = trained(net, tmp_path, host_seconds=10)
        net.unplug(process)
        all_ends = ends(started)
    assert all(status in (-signal.SIGABRT, 75) for status, _, _ in all_ends), all_ends
    text = "\n".join(all_ends[0][2])
    if process == 1:
        assert "The following tasks are unhealthy (stopped sending heartbeats):\n1" in text, all_ends
