"""What several processes gather, decide and compile together, with two real ones."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from limba.config import InputError, RestartError
from limba.sharding import ports
from limba.sharding.joining import join_hosts
from tests.sharding.processes import answers, free_port, variables

ROOT = Path(__file__).parent.parent.parent
SECOND = {"COORDINATOR_ADDRESS": "127.0.0.1:1", "NUM_PROCESSES": "2", "PROCESS_ID": "1"}
PROGRAM = """
import json, sys
import numpy as np, jax
from limba.config import InputError
from limba.sharding.agreement import any_process, compiled_together, entered_by_first, gather, gather_bytes
from limba.sharding.joining import join_hosts
from limba.storage.lease import held
join_hosts()
join_hosts()
mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Auto,))
rows = jax.sharding.NamedSharding(mesh, jax.P("data"))
numbers = jax.make_array_from_callback((2,), rows, lambda place: np.array([3.0, 4.0])[place])
total = float(compiled_together(jax.jit(lambda x: (x * x).sum()), "the sum", 60.0)(numbers))
index = jax.process_index()
parts = {2 * index: b"", 2 * index + 1: b"long" * (index + 1), **({9: b"\\0end\\0"} if index else {})}
gathered = gather_bytes(parts)
said = []
with entered_by_first(held(sys.argv[2])) as mine:
    said.append(mine is None)
    try:
        with entered_by_first(held(sys.argv[2])):
            said.append("entered")
    except InputError as error:
        said.append(str(error))
try:
    with entered_by_first(held(sys.argv[1] + "/file")):
        said.append("entered")
except InputError as error:
    said.append(str(error))
print(json.dumps([
    total,
    said,
    gather(np.array([index, 7])).tolist(),
    [any_process(index == 1), any_process(False)],
    {number: part.decode() for number, part in gathered.items()},
]))
"""


@pytest.mark.slow
def test_two_processes_gather_decide_and_compile_together(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "file"), str(tmp_path / "run")],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for environment in variables(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    printed = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [total for total, *_ in printed] == [25.0] * 2
    said = [line for _, line, *_ in printed]
    assert [mine_is_none for mine_is_none, *_ in said] == [False, True] and said[0][1:] == said[1][1:]
    assert said[1][1].startswith(f"Another process uses {tmp_path}/run now (process {started[0].pid} on ")
    assert said[1][2].startswith(f"{tmp_path}/file/file/lease cannot be written (Not a directory)")
    expected = [
        [[0, 7], [1, 7]],
        [True, False],
        {"0": "", "1": "long", "2": "", "3": "longlong", "9": "\0end\0"},
    ]
    assert [line[2:] for line in printed] == [expected] * 2


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"NUM_PROCESSES": "2"}, "NUM_PROCESSES is set and COORDINATOR_ADDRESS, PROCESS_ID is not"),
        ({"COORDINATOR_ADDRESS": "a", "NUM_PROCESSES": "2", "PROCESS_ID": "0"}, "is a; give HOST:PORT"),
        ({"COORDINATOR_ADDRESS": "a:1", "NUM_PROCESSES": "2", "PROCESS_ID": "2"}, "the id below the number"),
        ({**SECOND, "JOIN_TIMEOUT_SECONDS": "soon"}, "JOIN_TIMEOUT_SECONDS is soon; give a number of seconds above 0"),
    ],
)
def test_a_run_that_cannot_be_joined_ends_with_a_sentence(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_variables(variables, monkeypatch)
    with pytest.raises(InputError, match=sentence):
        join_hosts()


def set_variables(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.config, "update", lambda *_: None)  # the tests' own jax stays as it is
    for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("bind", ["", "127.0.0.1", "127.0.0.1:%d"])
def test_a_port_in_use_is_named(bind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        first = {"COORDINATOR_ADDRESS": f"somewhere:{port}", "NUM_PROCESSES": "2", "PROCESS_ID": "0"}
        bind = bind % port if "%" in bind else bind
        set_variables({**first, "COORDINATOR_BIND_ADDRESS": bind}, monkeypatch)
        expected = (
            f"cannot listen at {(bind or ':').split(':')[0]}:{port} \\(Address already in use by"
            f" process {os.getpid()}: .*python.*\\); end the program"
        )
        with pytest.raises(InputError, match=expected):
            join_hosts()


def test_an_address_of_another_host_cannot_be_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    first = {"COORDINATOR_ADDRESS": "somewhere:8476", "NUM_PROCESSES": "2", "PROCESS_ID": "0"}
    set_variables({**first, "COORDINATOR_BIND_ADDRESS": "192.0.2.1"}, monkeypatch)
    with pytest.raises(InputError, match=r"at 192.0.2.1:8476 \(Cannot assign requested address\).*BIND_ADDRESS"):
        join_hosts()


def test_a_machine_whose_name_has_no_address_is_told_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container. Gloo ended in 44 lines."""
    for name, value in {**SECOND, "JAX_PLATFORMS": "cpu", "JOIN_TIMEOUT_SECONDS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: "c0ffee.invalid")  # no name server ever knows it
    with pytest.raises(InputError) as error:
        join_hosts()
    assert str(error.value).startswith("The name of this machine, c0ffee.invalid, has no address (")
    assert str(error.value).endswith(
        "add the line '127.0.0.1 c0ffee.invalid' to /etc/hosts, or start the container with"
        " --add-host=c0ffee.invalid:127.0.0.1."
    )


def test_a_first_process_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    set_variables({**SECOND, "COORDINATOR_ADDRESS": address, "JOIN_TIMEOUT_SECONDS": "0.5"}, monkeypatch)
    with pytest.raises(RestartError, match=f"The first process did not answer at {address} .*for 0 s; start it"):
        join_hosts()


@pytest.mark.slow
def test_a_process_that_does_not_join_is_named() -> None:
    """And the coordinator listens only at the address that it is told."""
    environment = variables(2, JOIN_TIMEOUT_SECONDS="2", COORDINATOR_BIND_ADDRESS="127.0.0.2")[0]
    port = int(environment["COORDINATOR_ADDRESS"].rpartition(":")[2])
    environment["COORDINATOR_ADDRESS"] = f"127.0.0.2:{port}"
    program = (
        "import sys; from limba.cli.program import exit_code; from limba.sharding.joining import join_hosts\n"
        "sys.exit(exit_code(lambda _: join_hosts(), []))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    while not answers(f"127.0.0.2:{port}", 0.2):
        assert process.poll() is None
    assert not answers(f"127.0.0.1:{port}", 0.2)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 75
    assert errors == (
        "Process 1 of 2 has not joined within 2 s (JOIN_TIMEOUT_SECONDS); start the command on every worker, each with"
        " its own PROCESS_ID from 0 to 1.\n"
    )
