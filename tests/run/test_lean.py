"""Runs without TensorFlow and seqio: where they are not installed, and where nothing needs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shipped import ROOT

HEAVY = ("tensorflow", "tensorflow_text", "seqio", "clu", "keras")
# Imports of what a lean environment lacks fail as there.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
RUN = """
import json, sys
from pathlib import Path
import limba.run, tasks.demo
from limba.config import DataConfig, ModelConfig, RunConfig
folder = Path(sys.argv[1])
corpus = folder / "corpus.jsonl"
texts = [f"{number} " + "the of and to in was he " * 9 for number in range(400)]
corpus.write_text("".join(json.dumps({"text": text}) + "\\n" for text in texts))
model = ModelConfig(384, 16, 2, 8, 32, 1, 1)
data = DataConfig("demo_span_corruption", {"inputs": 48}, batch_size=4, vocabulary="byte", data_files=str(corpus))
limba.run.train(RunConfig(model, data, str(folder / "run"), 2, log_every_steps=1))
print("imported", sorted({"tensorflow", "seqio", "tensorflow_datasets", "torch"} & set(sys.modules)))
"""
OF_TFDS = """
import sys
from pathlib import Path
from array_record.python.array_record_module import ArrayRecordWriter
from limba.api import example_class
from limba.data.sources import TfdsSource
from limba.data.sources.order import Reading
from limba.tools.corpus.preparation.tfds import describe
folder = Path(sys.argv[1]) / "cc100" / "ja" / "1.0.0"
folder.mkdir(parents=True)
writer = ArrayRecordWriter(str(folder / "train-00000-of-00001.array_record"), "group_size:1")
for number in range(100):
    example = example_class()()
    example.features.feature["text"].bytes_list.value.append(f"日本語 {number}".encode())
    writer.write(example.SerializeToString())
writer.close()
describe(str(folder), "train", ["train-00000-of-00001.array_record"], 1000)
source = TfdsSource("cc100/ja", data_dir=sys.argv[1], splits={"train": "train[:90%]"}, validation_percent=0)
texts = [each["text"].decode() for each in source.dataset(Reading("train", 0, 1, 1, False, 1, 0, False))]
print(len(texts), texts[0], texts[-1])
"""


def printed(program: str, argument: str, absent: tuple[str, ...] = ()) -> list[str]:
    """Runs a program, in which imports of `absent` fail; returns the lines that it printed."""
    start = f"absent = {absent}\n{WITHOUT}" if absent else ""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", start + program, argument]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("absent", [(), (*HEAVY, "tensorflow_datasets", "gcsfs", "bokeh", "rouge_score")])
def test_a_run_of_our_tasks_needs_neither(tmp_path: Path, absent: tuple[str, ...]) -> None:
    assert printed(RUN, str(tmp_path), absent)[-1] == "imported []"


@pytest.mark.slow
def test_tfds_is_read_without_tensorflow(tmp_path: Path) -> None:
    assert printed(OF_TFDS, str(tmp_path), HEAVY) == ["90 日本語 0 日本語 89"]
