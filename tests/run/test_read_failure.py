"""A corpus that cannot be read any more, in real processes: what was trained is saved, and resumes exactly."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    MeshConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
    saved_config,
)
from limba.training.metrics.logging import read_metrics
from tests import tiny
from tests.run.test_hosts import finish, start

# In each process: a whole run; then one whose corpus the first process damages when it has ended; and after the repair
# that one again. The corpora are neither counted nor checked before a run, which would find the damage.
PROGRAM = """
import sys
from pathlib import Path
from limba.cli import program
from limba.config import environment
environment.set_variables()
environment.set_logging()

def run(argv):
    from limba.sharding import joining, others, preemption
    with preemption.listening():
        import jax
        from jax.experimental.multihost_utils import sync_global_devices
        from limba.config import InputError, saved_config
        from limba.data.sources import splits
        from limba.run import train
        import tasks.text_to_text
        splits.COUNTED_BYTES = 0
        splits.BYTES_CHECKED = 1
        whole, broken = (saved_config.from_text(Path(path).read_text(), path) for path in argv[:2])
        corpus, place = Path(whole.data.data_files["train"]), int(argv[2])

        def put(letter):
            sync_global_devices(f"before {letter}")
            if jax.process_index() == 0:
                content = corpus.read_bytes()
                corpus.write_bytes(content[:place] + letter + content[place + 1 :])
            sync_global_devices(f"after {letter}")

        with others.ending_together():
            joining.join_hosts(whole)
            train(whole)
            put(b"?")
            try:
                train(broken)
            except InputError as error:
                print("ENDED", error, flush=True)
            put(b"{")
            train(broken)

sys.exit(program.exit_code(run, sys.argv[1:]))
"""
NUM_STEPS = 120
DAMAGED = 0.6  # of the file: after what the first steps have prefetched, and before the last step's rows


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Pairs in order; the letters make each row a chunk's part, so that a shard reads on between two batches."""
    path = tmp_path / "pairs.jsonl"
    pairs = [{"inputs": f"{n} " + chr(97 + n % 26) * 2000, "targets": f"{n}"} for n in range(1500)]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def write_config(folder: Path, corpus: Path, readers: int) -> str:
    """Writes the config.json of a run of this name, with so many reader processes; returns its path."""
    data = DataConfig(
        "text_to_text", {"inputs": 16, "targets": 8}, 8, "byte",
        data_files={"train": str(corpus), "validation": str(corpus)}, shuffle=False, num_data_shards=4,
        num_reader_processes=readers, task_modules=("tasks.text_to_text",),
    )  # fmt: skip
    small = {"vocab_size": 384, "emb_dim": 32, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}
    config = RunConfig(
        tiny.model(**small, num_encoder_layers=1, num_decoder_layers=1),
        data,
        str(folder),
        train_steps=NUM_STEPS,
        mesh=MeshConfig(data=2),
        optimizer=optimizer_config("adamw", ScheduleConfig("factors", 0.01, warmup_steps=0, factors="constant")),
        checkpoint=CheckpointConfig(every_steps=1000),
        evaluation=EvaluationConfig(every_steps=1000, num_batches=1),
        log_every_steps=1,
    )
    path = folder.with_suffix(".json")
    path.write_text(saved_config.to_text(config))
    return str(path)


def figures(folder: Path) -> dict[int, tuple[float, float]]:
    lines = [record for record in read_metrics(str(folder)) if record["kind"] == "train"]
    return {line["step"]: (line["loss"], line["gradient_norm"]) for line in lines}


@pytest.mark.long
@pytest.mark.parametrize(("num_processes", "readers"), [(2, 1), (2, 2)])
def test_what_was_trained_is_saved_in_all_processes(
    corpus: Path, tmp_path: Path, num_processes: int, readers: int
) -> None:
    """One of them finds the damage, all save after the same step; after the repair the losses are a whole run's."""
    whole = tmp_path / "whole"
    broken = tmp_path / "broken"
    offset = corpus.read_bytes().index(b"{", int(DAMAGED * corpus.stat().st_size))
    program = ["-c", PROGRAM, write_config(whole, corpus, 1), write_config(broken, corpus, readers), str(offset)]
    all_ends = finish(start(program, num_processes, 2 // num_processes))
    sentences = [
        re.findall(r"ENDED .* What was trained, up to step (\d+), is saved\.", output) for output, _ in all_ends
    ]
    (step,) = {int(step) for steps in sentences for step in steps}
    assert all(len(steps) == 1 for steps in sentences) and "is not JSON" in "".join(output for output, _ in all_ends)
    assert 1 < step < NUM_STEPS and (broken / "checkpoints" / str(step)).is_dir()
    assert figures(broken) == figures(whole) and len(figures(whole)) == NUM_STEPS
