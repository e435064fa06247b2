"""Starts the process that compiles a step, and reads its answer. Its libraries write to a file, not to the console."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from limba.config import InputError, RunConfig, saved_config
from limba.tools.preflight.compiled.topologies import Figures, check_installed
from limba.tools.preflight.compiled.topologies import topology as find_topology

# Compiling for other chips needs none of them, so what would look for a chip, or wait for one, is off.
VARIABLES = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LIBRARY_LOG_LEVEL": "3",
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # memory and time are asked for, not a program that has run
}
# Variables of the user's own shell that would change what is compiled, or where it is kept.
WITHOUT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_COMPILATION_CACHE_DIR", "COORDINATOR_ADDRESS")
DUMP_FLAGS = "--xla_dump_to={} --xla_dump_hlo_as_text=true --xla_dump_hlo_module_re=jit_(train_step|dropping|step).*"


def compiled_step(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]], topology: str) -> Figures:
    """Returns the figures of the run's step for a topology; see `figures` in step.py.

    Takes a process of its own for the seconds or minutes of one compilation. Raises InputError if the compiler is not
    installed. What the compiler cannot do is {"failed": sentence}.
    """
    check_installed(find_topology(topology))
    answer = _answer(config, feature_shapes, topology)
    if "error" in answer:
        raise InputError(answer["error"], fix=answer["fix"])
    return answer


def _answer(config: RunConfig, feature_shapes: Mapping[str, tuple[int, int]], topology: str) -> Figures:
    """Returns the answer of a new process."""
    with tempfile.TemporaryDirectory(prefix="limba-preflight-") as folder:
        directory = Path(folder)
        asked = {
            "config": saved_config.to_text(config),
            "feature_shapes": dict(feature_shapes),
            "topology": topology,
            "dump": str(directory / "dump"),
            "answer": str(directory / "answer.json"),
        }
        (directory / "dump").mkdir()
        (directory / "request.json").write_text(json.dumps(asked))
        variables = {name: value for name, value in os.environ.items() if name not in WITHOUT} | VARIABLES
        variables["XLA_FLAGS"] = DUMP_FLAGS.format(asked["dump"])
        command = [sys.executable, "-m", "limba.tools.preflight.compiled.step", str(directory / "request.json")]
        with (directory / "output.txt").open("wb") as output:
            done = subprocess.run(command, env=variables, stdout=output, stderr=output)
        if not (directory / "answer.json").exists():
            return {"failed": _last_words((directory / "output.txt").read_text(errors="replace"), done.returncode)}
        return json.loads((directory / "answer.json").read_text())


def _last_words(output: str, status: int) -> str:
    """Returns how a process ended that gave no answer."""
    if status == -9:
        return "the compiler's process was killed, most likely because memory ran out"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "no output"
    return f"the compiler's process ended with status {status}: {last}"
