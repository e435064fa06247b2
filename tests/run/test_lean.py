"""Runs without TensorFlow and seqio: where they are not installed, and where nothing needs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharding.processes import xla_flags
from tests.shipped import ROOT

HEAVY = ("tensorflow", "tensorflow_text", "seqio", "clu", "keras")
ABSENT = (*HEAVY, "tensorflow_datasets", "gcsfs", "bokeh", "rouge_score")
# Imports of what `pip install limba` does not bring fail as there; LEAN=1 brings gcsfs and bokeh.
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
heavy = {"tensorflow", "seqio", "tensorflow_datasets", "torch", "huggingface_hub", "aiohttp", "matplotlib"}
print("imported", sorted(heavy & set(sys.modules)))
"""
# What users type: each command's status and what it prints.
COMMANDS = """
import contextlib, io, json, sys
from pathlib import Path
from limba.cli import main
main.environment.use_large_pages = lambda pages=None: None  # starts the process again
folder = Path(sys.argv[1])
texts = [f"{number} " + "the of and to in was he " * 9 for number in range(400)]
(folder / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\\n" for text in texts))
sys.path.append(str(folder))
sizes = ("vocab_size=384", "emb_dim=32", "num_heads=2", "head_dim=8", "mlp_dim=32", "num_encoder_layers=1",
         "num_decoder_layers=1")
small = [f"config.ModelConfig.{size}" for size in sizes]
small += ["VOCABULARY=byte", "TASK_FEATURE_LENGTHS={'inputs': 32}", "BATCH_SIZE=8", "TRAIN_STEPS=2", "EVAL_STEPS=1",
          "config.DataConfig.num_data_shards=2", f"MODEL_DIR={folder / 'run'}"]
def tell(*command):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main.main([*map(str, command)])
    print(json.dumps([status, out.getvalue()]))
def train(gin, *choices):
    tell("train", gin, *(f"--gin.{choice}" for choice in (*small, *choices)))
"""
TRAINED = """
train("gin/demo.gin", f"CORPUS={folder / 'corpus.jsonl'}")
tell("generate", folder / "run", "--prompt=the of <extra_id_0>", "--max_tokens=4")
tell("evaluate", folder / "run", "--num_examples=2")
"""
FEATURES = """
from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.registry import Feature, TaskRegistry
from limba.data.sources import FileSource, TfdsSource
from limba.data.vocabulary import ByteVocabulary
features = dict.fromkeys(("inputs", "targets"), Feature(ByteVocabulary(100)))
steps = [tokenize_documents, span_corruption]
"""
MODULES = {  # of users, each with a task of its name
    "with_seqio": """
import seqio
feature = seqio.Feature(seqio.ByteVocabulary(100))
seqio.TaskRegistry.add("with_seqio", seqio.TextLineDataSource({"train": "corpus.txt"}), [], {"targets": feature})
""",
    "with_tfds": f"""{FEATURES}
source = TfdsSource("own_text/ro", {{"train": "train"}}, data_dir="tfds")
TaskRegistry.add("with_tfds", source=source, preprocessors=steps, output_features=features)
""",
    "with_step": f"""{FEATURES}
def capitals(dataset):
    import tensorflow as tf
    return dataset.map(lambda example: {{"text": tf.strings.upper(example["text"])}})
source = FileSource(f"{{__file__.rpartition('/')[0]}}/corpus.jsonl")
TaskRegistry.add("with_step", source=source, preprocessors=[capitals, *steps], output_features=features)
""",
}
REFUSED = """
for module in sys.argv[2:]:
    train(folder / f"{module}.gin", f"MIXTURE_OR_TASK_NAME='{module}'", "CORPUS=None")
"""
NO_VOCABULARY = """
vocabulary = f"{folder}/new.model"
train(folder / "with_tfds.gin", "MIXTURE_OR_TASK_NAME='with_tfds'", "CORPUS=None", f"VOCABULARY='{vocabulary}'",
      "config.DataConfig.new_vocabulary_size=384")
"""
OF_TFDS = """
import sys
from pathlib import Path
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath
from limba.data.sources import TfdsSource
from limba.data.sources.array_record import example_class
from limba.data.sources.order import Reading
from limba.data.sources.tfds import masked
import tensorflow_datasets as tfds

def describe(folder, suffix, lengths):
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(folder), dataset_name="cc100", split="train", filetype_suffix=suffix
    )
    split = tfds.core.SplitInfo(name="train", shard_lengths=lengths, num_bytes=1000, filename_template=template)
    features = tfds.features.FeaturesDict({"text": tfds.features.Text()})
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=[split], filename_template=template, check_data=False
    )

records = []
for number in range(100):
    example = example_class()()
    example.features.feature["text"].bytes_list.value.append(f"日本語 {number}".encode())
    records.append(example.SerializeToString())

folder = Path(sys.argv[1]) / "cc100" / "ja" / "1.0.0"
folder.mkdir(parents=True)
writer = ArrayRecordWriter(str(folder / "cc100-train.array_record-00000-of-00001"), "group_size:1")
for record in records:
    writer.write(record)
writer.close()
describe(folder, "array_record", [100])

folder = Path(sys.argv[1]) / "cc100" / "ko" / "1.0.0"
folder.mkdir(parents=True)
for shard, part in enumerate((records[:30], records[30:])):
    with open(folder / f"cc100-train.tfrecord-0000{shard}-of-00002", "wb") as file:
        for record in part:
            length = len(record).to_bytes(8, "little")
            file.write(length + masked(length) + record + masked(record))
describe(folder, "tfrecord", [30, 70])

for language in ("ja", "ko"):
    source = TfdsSource(f"cc100/{language}", {"train": "train[:90%]"}, data_dir=sys.argv[1], validation_percent=0)
    texts = [each["text"].decode() for each in source.dataset(Reading("train", 0, 1, 1, False, 1, 0, False))]
    print(source.builder.info.file_format.value, *sorted(texts, key=lambda text: int(text.split()[1])), sep=", ")
"""


def printed(program: str, *arguments: str, absent: tuple[str, ...] = ()) -> list[str]:
    """Runs a program, in which imports of `absent` fail; returns the lines that it printed."""
    start = f"absent = {absent}\n{WITHOUT}" if absent else ""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", start + program, *arguments]
    done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("absent", [(), pytest.param(ABSENT, marks=pytest.mark.night)])
def test_a_run_of_our_tasks_needs_neither(tmp_path: Path, absent: tuple[str, ...]) -> None:
    assert printed(RUN, str(tmp_path), absent=absent)[-1] == "imported []"


@pytest.mark.night
def test_a_model_is_trained_asked_and_evaluated_without_them(tmp_path: Path) -> None:
    told = [json.loads(line) for line in printed(COMMANDS + TRAINED, str(tmp_path), absent=ABSENT)]
    assert [status for status, _ in told] == [0, 0, 0], told
    trained, generated, evaluated = (text for _, text in told)
    assert "step 2 saved" in trained and "== the of <extra_id_0>\n" in generated and " bits per byte" in evaluated
    assert (tmp_path / "run" / "checkpoints" / "2").is_dir()


@pytest.mark.slow
def test_a_task_that_needs_them_is_named_before_the_run(tmp_path: Path) -> None:
    for module, text in MODULES.items():
        (tmp_path / f"{module}.py").write_text(text)
        demo = (ROOT / "gin" / "demo.gin").read_text()
        (tmp_path / f"{module}.gin").write_text(demo.replace("from tasks import demo", f"import {module}"))
    *lines, without_vocabulary = printed(COMMANDS + REFUSED + NO_VOCABULARY, str(tmp_path), *MODULES, absent=ABSENT)
    end = "which is not installed; run LEAN=0 bash launch/setup.sh.\n"
    of_tfds = "which is not installed; run pip install -e '.[tfds]'.\n"  # TensorFlow is not needed for its files
    assert [json.loads(line) for line in lines] == [
        [2, f"The module with_seqio needs seqio, {end}"],
        [2, f"The data set own_text/ro of task with_tfds needs tensorflow_datasets, {of_tfds}"],
        [2, f"A preprocessor in TensorFlow of task with_step needs seqio, {end}"],
    ]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    status, told = json.loads(without_vocabulary)
    assert status == 2 and told.endswith(
        f"The data set own_text/ro of task with_tfds needs tensorflow_datasets, {of_tfds}"
    ), told


@pytest.mark.slow
def test_tfds_is_read_without_tensorflow(tmp_path: Path) -> None:
    texts = ", ".join(f"日本語 {number}" for number in range(90))
    assert printed(OF_TFDS, str(tmp_path), absent=HEAVY) == [f"array_record, {texts}", f"tfrecord, {texts}"]
