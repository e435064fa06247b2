"""A process that reads through TensorFlow ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shipped import ROOT

# Reads one batch of a task as T5X's users register it, twice, and ends while TensorFlow still reads ahead.
PROGRAM = """
import sys
import seqio
from limba.config import DataConfig
from limba.data.objectives import derive_lengths
from limba.data.sources import FileSource
from limba.data.stream.processes import open_stream
from limba.data.tasks import resolve_task
from limba.tools.migrate.t5_names import preprocessors
features = {name: seqio.Feature(seqio.ByteVocabulary(125)) for name in ("inputs", "targets")}
steps = [
    lambda dataset: dataset.map(lambda example: {"inputs": "", "targets": example["text"]}),
    seqio.preprocessors.tokenize,
    preprocessors.span_corruption,
    seqio.preprocessors.append_eos_after_trim,
]
source = FileSource(sys.argv[1], validation_percent=0.0)
seqio.TaskRegistry.add("theirs", source=source, preprocessors=steps, output_features=features)
config = DataConfig("theirs", {"inputs": 64, "targets": 32}, batch_size=16, num_data_shards=16, validation_percent=0.0)
task = resolve_task(config)
lengths = derive_lengths(task, config.task_feature_lengths)
streams = [open_stream(task, lengths, config, range(16)) for _ in range(2)]
for stream in streams:
    next(stream)
print("read")
"""


@pytest.mark.slow
def test_a_process_ends_while_tensorflow_reads_ahead(tmp_path: Path) -> None:
    """Without `bridge._close` it hung each time, since TensorFlow's threads wait for the interpreter that ends."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{number} {'word ' * 20}\n" for number in range(3000)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(corpus)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr[-3000:]
