"""What several processes gather, decide and write together, with two real ones."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from limba.config import InputError
from limba.sharding.multihost import join_hosts

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np, jax
from limba.sharding.multihost import any_process, gather, gather_bytes, join_hosts, write_once
join_hosts()
join_hosts()
index, path = jax.process_index(), Path(sys.argv[1])
parts = {2 * index: b"", 2 * index + 1: b"long" * (index + 1), **({9: b"\\0end\\0"} if index else {})}
gathered = gather_bytes(parts)
write_once(lambda: path.write_text(str(index)))
print(json.dumps([
    gather(np.array([index, 7])).tolist(),
    [any_process(index == 1), any_process(False)],
    {number: part.decode() for number, part in gathered.items()},
    path.read_text(),
]))
"""


def test_two_processes_gather_decide_and_write_together(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "COORDINATOR_ADDRESS": address, "NUM_PROCESSES": "2"}
    variables["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "file")],
            env={**variables, "PROCESS_ID": str(index)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    expected = [
        [[0, 7], [1, 7]],
        [True, False],
        {"0": "", "1": "long", "2": "", "3": "longlong", "9": "\0end\0"},
        "0",
    ]
    assert [json.loads(output.splitlines()[-1]) for output in outputs] == [expected] * 2


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"NUM_PROCESSES": "2"}, "NUM_PROCESSES is set and COORDINATOR_ADDRESS, PROCESS_ID is not"),
        ({"COORDINATOR_ADDRESS": "a", "NUM_PROCESSES": "2", "PROCESS_ID": "0"}, "is a; give HOST:PORT"),
        ({"COORDINATOR_ADDRESS": "a:1", "NUM_PROCESSES": "2", "PROCESS_ID": "2"}, "the id below the number"),
    ],
)
def test_a_run_that_cannot_be_joined_ends_with_a_sentence(
    variables: dict[str, str], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=sentence):
        join_hosts()
