"""Real processes that are joined as a run's are, and compute steps together, without data or a model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
# Arguments: directory, seconds until a process counts as lost, seconds of a step, the step at which a process does
# something else, and what: "sleep", "fail", with its number (default: the last); the step that the run begins after,
# as one that is resumed does, and the seconds before the first step, as for its compilation.
PROGRAM = """
import atexit, sys, threading, time

def check_threads():
    for thread in threading.enumerate():
        if thread.name == "others":
            print("The thread that looks is alive while Python ends.", file=sys.stderr)

atexit.register(check_threads)  # called last
from limba.cli import program
from limba.config import environment
environment.set_variables()
environment.set_logging()

def run(argv):
    directory, host_seconds, step_seconds, odd_step, odd, start, wait_seconds = argv
    start = int(start)
    from limba.sharding import preemption
    with preemption.listening():
        import jax
        import numpy as np
        from limba.config import DataConfig, InputError, ModelConfig, RestartError, RunConfig
        from limba.sharding import agreement, joining, others, watchdog
        sizes = ("emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
        config = RunConfig(
            ModelConfig(8, **dict.fromkeys(sizes, 8)),
            DataConfig("any", {"inputs": 64}, batch_size=1),
            directory,
            train_steps=1,
            host_timeout_seconds=float(host_seconds),
            step_timeout_seconds=float(step_seconds),
        )
        joining.join_hosts(config)
        odd, *number = odd.split()
        is_odd = jax.process_index() == int(number[0] if number else jax.process_count() - 1)
        with others.ending_together(), watchdog.watching(config), preemption.stop_requests(start) as stop_requested:
            if float(wait_seconds):
                print("begun", flush=True)
                time.sleep(float(wait_seconds))
            for step in range(start + 1, 100_000):
                if step == int(odd_step) and is_odd:
                    if odd == "fail":
                        raise InputError("This file is missing.")
                    time.sleep(1_000)
                sum_of_all = agreement.gather(np.array([step]))
                watchdog.beat(step, jax.numpy.zeros(()))
                if step == 2:  # signals end a process at once until it has called stop_requested
                    print("begun", flush=True)
                time.sleep(0.05)
                if stop_requested(step):
                    break
    raise RestartError(f"Stopped after step {step}.")

sys.exit(program.exit_code(run, sys.argv[1:]))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(address: str, seconds: float) -> bool:
    """Returns whether HOST:PORT accepts a connection within the seconds."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=seconds):
            return True
    except OSError:
        return False


def xla_flags(devices: int = 1) -> str:
    """The flags of these tests, which compile quickly except at night, for a process of so many devices."""
    return f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"  # the last number counts


def variables(count: int, **more: str) -> list[dict[str, str]]:
    """The environment of each process of a run on CPU."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COORDINATOR_ADDRESS",)}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(), **more}
    if count == 1:
        return [environment]
    joined = {"COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "NUM_PROCESSES": str(count), **more}
    return [{**environment, **joined, "PROCESS_ID": str(index)} for index in range(count)]


class Processes:
    """The program above, after `prelude`, in `count` processes that have made a step. Use it as a context manager."""

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        host: float = 600,
        step: float = 600,
        odd_step: int = 0,
        odd: str = "sleep",
        start: int = 0,
        wait: float = 0,
        prelude: str = "",
    ):
        times = [str(host), str(step), str(odd_step), odd, str(start), str(wait)]
        command = [sys.executable, "-c", prelude + PROGRAM, str(directory), *times]
        self.each = [
            subprocess.Popen(
                command,
                env=variable,
                cwd=ROOT,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            for variable in variables(count)
        ]

    def __enter__(self) -> Processes:
        for process in self.each:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "begun\n":
                    break
            else:
                raise AssertionError(process.communicate()[1])
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.each:
            process.kill()
            process.communicate()

    def send(self, number: signal.Signals, *indices: int) -> None:
        for index in indices:
            self.each[index].send_signal(number)

    def end(self, index: int) -> tuple[int, list[str]]:
        """Waits for its end; returns its status and its lines on stderr."""
        process = self.each[index]
        errors = process.communicate(timeout=120)[1]
        return process.returncode, errors.splitlines()
