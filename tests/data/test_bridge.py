"""What TensorFlow reads of these data sets: again, at several places, and while its process ends."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from limba.data.bridge import Numbered
from limba.data.dataset import TEXT, TOKENS, Elements, Spec
from tests.shipped import ROOT

# Reads one batch of a task as T5X's users register it, twice, and ends while TensorFlow still reads ahead.
PROGRAM = """
import sys
import seqio
from limba.config import DataConfig
from limba.data.objectives import derive_lengths
from limba.data.sources import FileSource
from limba.data.stream.stages import open_stream
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


@pytest.mark.parametrize("kind", [TEXT, TOKENS])
def test_elements_are_read_again_and_at_two_places(kind: Spec) -> None:
    values = [b"%d" % n if kind == TEXT else np.full(n % 5, n, np.int32) for n in range(150)]
    dataset = Numbered(lambda: Elements([{"text": value} for value in values], {"text": kind})).in_tensorflow()

    def plain(elements: Iterable) -> list:
        return [each["text"] if kind == TEXT else each["text"].tolist() for each in elements]

    expected = plain({"text": value} for value in values)
    assert plain(dataset.as_numpy_iterator()) == expected
    first, second = dataset.as_numpy_iterator(), dataset.skip(100).as_numpy_iterator()
    pairs = [(next(first), next(second)) for _ in range(50)]
    assert plain(one for one, _ in pairs) == expected[:50] and plain(other for _, other in pairs) == expected[100:]
