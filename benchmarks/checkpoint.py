"""Times a checkpoint: what a save costs the training thread, the writing, the checksums, and reading it again.

    python -m benchmarks.checkpoint --size=base
    python -m benchmarks.checkpoint --size=large --saves=1
    python -m benchmarks.checkpoint --size=base --sigterm

The state is that of a T5 with Adafactor in float32, its numbers random, so that compression finds as little as in
training. `thread_share` is the part of a save's wall time for which the training thread stands still. With --sigterm a
real run on a CPU gets SIGTERM, and the seconds are from there to the line that says that its step is saved.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, ModelConfig, environment

ROOT = Path(__file__).parent.parent
MINUTES = 20  # for the first step of a real run


def time_saves(model: ModelConfig, number: int, folder: str) -> dict[str, Any]:
    """Returns the figures of some saves of this model into a folder, one after the other, and of one restore."""
    import jax
    import numpy as np

    from limba.config import CheckpointConfig, DataConfig, MeshConfig, OptimizerConfig
    from limba.model import Network
    from limba.sharding.mesh import make_mesh
    from limba.storage import manifest
    from limba.training.checkpoints.arrays import num_bytes
    from limba.training.checkpoints.directory import Checkpoints
    from limba.training.optimizer import make_optimizer
    from limba.training.state import abstract_state

    mesh = make_mesh(MeshConfig())
    abstract = abstract_state(Network(model, mesh), make_optimizer(OptimizerConfig(), 1), mesh)
    random = np.random.default_rng(0)

    def array(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        values = random.standard_normal(leaf.shape, np.float32).astype(leaf.dtype)
        return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: values[index])

    data = DataConfig("t", {"inputs": 1}, batch_size=1)
    in_thread, whole = [], []
    with Checkpoints(folder, CheckpointConfig(keep=1), data) as checkpoints:
        checkpoints.check_space(abstract)
        state = jax.block_until_ready(jax.tree.map(array, abstract))
        for step in range(1, number + 1):
            began = time.perf_counter()
            checkpoints.save(step, state, {0: b""})
            in_thread.append(time.perf_counter() - began)
            while not checkpoints.poll():
                time.sleep(0.005)
            whole.append(time.perf_counter() - began)
            checkpoints.wait()  # the old checkpoint is being removed, which a run's next save would not meet
        del state
        path = checkpoints.place(number) / str(number)
        began = time.perf_counter()
        entries = manifest.entries(path)
        checksums = time.perf_counter() - began
        began = time.perf_counter()
        if manifest.check(path):
            raise InputError(f"The checkpoint in {path} is not as it was saved.")
        check = time.perf_counter() - began
        began = time.perf_counter()
        restored = checkpoints.restore_latest(abstract)
        if restored is None:
            raise InputError(f"There is no checkpoint in {folder}.")
        jax.block_until_ready(restored.state)
        restore = time.perf_counter() - began
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(abstract.params)),
        "state_gb": num_bytes(abstract) / 1e9,
        "files_gb": sum(size for size, _ in entries.values()) / 1e9,
        "num_files": len(entries),
        "seconds_in_training_thread": in_thread,
        "seconds_of_save": whole,
        "thread_share": [a / b for a, b in zip(in_thread, whole, strict=True)],
        "median_thread_share": statistics.median(a / b for a, b in zip(in_thread, whole, strict=True)),
        "seconds_of_checksums": checksums,
        "seconds_of_check": check,
        "seconds_of_restore": restore,
    }


def time_sigterm(size: str, folder: str) -> dict[str, Any]:
    """Returns the seconds from SIGTERM to the line of the saved step, and to the end, of a real run on a CPU."""
    from limba.cli.demo import pydoc_corpus

    corpus = f"{folder}/corpus.jsonl"
    pydoc_corpus(corpus)
    arguments = [
        "--gin_file=gin/demo.gin",
        f"--gin_file=gin/models/t5_1_1/{size}.gin",
        "--gin.VOCABULARY='byte'",
        f"--gin.CORPUS={corpus}",
        "--gin.BATCH_SIZE=8",
        "--gin.config.DataConfig.num_data_shards=4",
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 64}",
        "--gin.TRAIN_STEPS=100000",
        "--gin.DROPOUT_RATE=0.0",
        "--gin.LOG_PERIOD=1",
        "--gin.EVAL_PERIOD=100000",
        "--gin.EVAL_STEPS=1",
        "--gin.CHECKPOINT_PERIOD=100000",
        f"--gin.MODEL_DIR={folder}/run",
    ]
    command = [sys.executable, "-u", "-m", "limba", "train", *arguments]
    variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = subprocess.Popen(
        command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert started.stdout is not None
    asked = saved = 0.0
    steps, lines = [], []
    deadline = time.monotonic() + 60 * MINUTES
    for line in started.stdout:
        lines.append(line)
        if line.startswith("step ") and " | loss " in line:
            steps.append(time.monotonic())
            if len(steps) == 4:
                asked = time.monotonic()
                started.send_signal(signal.SIGTERM)
        if asked and " saved in " in line:
            saved = time.monotonic()
        if time.monotonic() > deadline:
            started.kill()
    started.wait()
    if not saved:
        raise InputError(f"The run did not save after SIGTERM: {''.join(lines[-5:])}")
    return {
        "seconds_per_step": steps[3] - steps[2],
        "seconds_from_sigterm_to_saved": saved - asked,
        "seconds_from_sigterm_to_end": time.monotonic() - asked,
        "exit_status": started.returncode,
    }


def main(argv: Sequence[str]) -> None:
    """Prints the figures as one line of JSON."""
    parser = Parser("-m benchmarks.checkpoint", __doc__ or "", "python")
    parser.add_argument("--family", default="t5_1_1", help="folder in gin/models")
    parser.add_argument("--size", default="base", help="file in that folder, without .gin")
    parser.add_argument("--saves", type=int, default=3, help="number of saves")
    parser.add_argument("--folder", help="where to save; default: a temporary folder")
    parser.add_argument("--sigterm", action="store_true", help="time a real run's answer to SIGTERM instead")
    args = parser.parse_args(argv)
    if args.saves < 1:
        raise InputError(f"--saves is {args.saves}; give a whole number above 0.")
    from limba.cli.gin import read_model

    model = read_model(str(ROOT / "gin" / "models" / args.family / f"{args.size}.gin"), [])
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, environment.quiet_imports():
        figures = time_sigterm(args.size, folder) if args.sigterm else time_saves(model, args.saves, folder)
    print(json.dumps(figures))


if __name__ == "__main__":
    environment.set_variables()
    environment.use_large_pages()  # as a run on a CPU
    sys.exit(program.exit_code(main, sys.argv[1:]))
