"""Tasks that were written for T5X, with the real packages t5, seqio and TensorFlow."""

# pyright: reportMissingImports=false, reportArgumentType=false

import functools
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import seqio
import t5.data
import tensorflow as tf
from t5.data import preprocessors
from t5.evaluation import metrics

from limba.config import DataConfig, InputError
from limba.data import bridge, task_modules
from limba.data.bridge.seqio_objects import as_seqio
from limba.data.draws import Draws
from limba.data.objectives.choice import examples_of
from limba.data.objectives.supervised import is_supervised
from limba.data.sources import FileSource
from limba.data.tasks import failure_of_code, resolve_task
from limba.tools.migrate import written_tasks
from tests.shipped import ROOT

THEIRS = Path(__file__).parents[1] / "cli" / "t5x"  # the task modules of users of T5X


def test_a_streaming_task_is_told_how_it_resumes(caplog, monkeypatch):
    monkeypatch.syspath_prepend(str(THEIRS))
    task_modules.import_all(["ro_t5x_tasks"])
    written_tasks.warn_once.cache_clear()
    config = DataConfig("ro_stream", {"inputs": 64, "targets": 32}, 8, vocabulary="byte")
    with caplog.at_level(logging.WARNING):
        task = resolve_task(config)
        resolve_task(config)
    (record,) = [entry for entry in caplog.records if "reads a function" in entry.message]
    assert "source=HubSource('someone/ro-corpus', column=\"text\", splits=('train', 'validation'))" in record.message
    assert "\n" not in record.message
    assert not task.output_features["inputs"].add_eos and not is_supervised(task)


def test_the_line_for_files_names_the_files(tmp_path):
    """`json` is what load_dataset calls a form of files, no data set of the hub."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    params = {"path": "json", "data_files": {"train": f"{tmp_path}/a.jsonl"}}
    dataset_fn = functools.partial(
        lambda split, shuffle_files, seed=None, dataset_params=None: None, dataset_params=params
    )
    source = seqio.FunctionDataSource(dataset_fn, splits=("train",))
    task = seqio.Task("files", source, {"targets": seqio.Feature(seqio.ByteVocabulary())}, [])
    form = written_tasks.resumable_form(task)
    assert form is not None and form.startswith("source=FileSource(")
    files = eval(form.removeprefix("source="), {"FileSource": FileSource})
    assert [unit.path for unit in files.units("train")] == [f"{tmp_path}/a.jsonl"]


def test_a_function_that_fails_is_one_sentence():
    """As with a keyword that the installed version of `datasets` does not take any more."""

    def documents():
        raise ValueError("BuilderConfig ParquetConfig(name='default') doesn't have a 'use_auth_token' key.")
        yield

    def dataset_fn(split, shuffle_files, seed=None, dataset_params=None):
        return tf.data.Dataset.from_generator(documents, output_signature=tf.TensorSpec((), tf.string))

    line = documents.__code__.co_firstlineno + 1
    params = {"path": "someone/ro-corpus", "use_auth_token": True}
    source = seqio.FunctionDataSource(functools.partial(dataset_fn, dataset_params=params), splits=("train",))
    feature = seqio.Feature(seqio.ByteVocabulary())
    task = seqio.Task("fails", source, {"targets": feature}, [])
    dataset = source.get_dataset("train", shuffle=False)
    with pytest.raises(InputError) as error:
        next(iter(bridge.OfTensorflow(dataset, failure=lambda error: failure_of_code(task, error))))
    assert str(error.value) == (
        "The code of task fails fails: ValueError: BuilderConfig ParquetConfig(name='default') doesn't have"
        f" a 'use_auth_token' key ({__file__} line {line}, in documents); correct it, or register the task with"
        " source=HubSource('someone/ro-corpus', column=\"text\", splits=('train',))."
    )


@pytest.mark.slow
def test_a_module_of_2022_calls_todays_datasets(tmp_path):
    """By each of the ways, at its import and later; the rest of the process finds today's `datasets`."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.jsonl").write_text(json.dumps({"text": "Un text scurt."}) + "\n")
    (tmp_path / "theirs.py").write_text(
        "from datasets import load_dataset\nimport datasets, their_part\n"
        "def texts(load):\n"
        f"    found = load(path={str(tmp_path / 'corpus')!r}, use_auth_token=True, streaming=True)\n"
        "    return [item['text'] for item in found['train']]\n"
        "def later():\n    from datasets import load_dataset as load\n"
        "    return texts(load)\n"
        "print(texts(load_dataset))\n"
    )
    (tmp_path / "their_part.py").write_text("from datasets import load_dataset as again\n")
    program = """import sys
from limba.config import environment

environment.set_variables()  # as a command
from limba.data import task_modules
task_modules.import_all(["theirs"])
import datasets, theirs
print(theirs.texts(theirs.datasets.load_dataset))
print(theirs.texts(theirs.their_part.again))
print(theirs.later())
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("limba.tools")]
assert not hasattr(datasets.load_dataset, "__wrapped__") and type(theirs.datasets) is not type(datasets)
"""
    run = in_a_process(program, tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.splitlines() == ["['Un text scurt.']"] * 4


def in_a_process(program, folder):
    """Runs a program that finds modules in a folder, and returns how it ended."""
    variables = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "HF_HOME": str(folder / "hf")}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)


# Imports of a package, and of all that lies in it, fail as where it is not installed.
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from limba.config import InputError
from limba.data import task_modules
for module in {modules!r}:
    try:
        task_modules.import_tasks(module, "MIXTURE_OR_TASK_MODULE names")
    except InputError as error:
        print(error)
"""


@pytest.mark.parametrize("package", ["t5", pytest.param("sklearn", marks=pytest.mark.slow)])
def test_a_module_that_needs_t5_names_the_command_that_installs_it(package, tmp_path):
    """`sklearn` is missing where somebody installed t5 by hand, without what it needs."""
    (tmp_path / "theirs.py").write_text("from t5.evaluation import metrics\n")
    run = in_a_process(WITHOUT.format(package=package, modules=["theirs", "t5.data.mixtures"]), tmp_path)
    assert run.returncode == 0, run.stderr[-2000:]
    sentence = "The module {} needs {}, which is not installed; run bash launch/setup.sh t5."
    assert run.stdout.splitlines() == [sentence.format(module, package) for module in ("theirs", "t5.data.mixtures")]


def test_seqio_is_the_pinned_one_beside_t5():
    """t5 asks for seqio-nightly, which would lie over seqio: it is installed without what it asks for."""
    from importlib.metadata import PackageNotFoundError, version

    pinned = (ROOT / "requirements.txt").read_text()
    assert f"seqio=={version('seqio')} " in pinned
    for package in ("seqio-nightly", "tfds-nightly", "mesh-tensorflow"):
        with pytest.raises(PackageNotFoundError):
            version(package)


@pytest.mark.slow
def test_files_replace_a_source_of_strings(tmp_path, monkeypatch):
    """Inputs have no end of sequence, since the task registers only targets: as in T5X."""
    monkeypatch.syspath_prepend(str(THEIRS))
    task_modules.import_all(["ro_t5x_tasks"])
    (tmp_path / "corpus.txt").write_text("Un text scurt, dar destul de lung.\n" * 40)
    config = DataConfig(
        "ro_stream", {"inputs": 64, "targets": 32}, 8, vocabulary="byte", data_files=str(tmp_path / "corpus.txt")
    )
    task = resolve_task(config)
    dataset = as_seqio(task).get_dataset({"inputs": 64, "targets": 32}, "train", shuffle=False, num_epochs=1)
    first = next(iter(dataset.as_numpy_iterator()))
    assert first["targets"][-1] == 1 and first["inputs"][-1] != 1 and len(first["inputs"]) == 63
    sentinel = task.output_features["targets"].vocabulary.vocab_size - 1
    assert sentinel in first["inputs"] and first["inputs"][0] != sentinel and first["targets"][0] == sentinel


@pytest.mark.slow
def test_a_task_of_t5s_own_registry_makes_rows(tmp_path):
    """The form of 2020: t5.data.TaskRegistry, text and token preprocessors apart, a metric of t5's."""
    (tmp_path / "pairs.tsv").write_text("".join(f"das {number}\tthat {number}\n" for number in range(20)))
    feature = t5.data.Feature(t5.data.ByteVocabulary(), add_eos=True)
    t5.data.TaskRegistry.add(
        "of_2020",
        task_cls=t5.data.TextLineTask,
        split_to_filepattern={"train": str(tmp_path / "pairs.tsv")},
        text_preprocessor=[preprocessors.parse_tsv],
        output_features={"inputs": feature, "targets": feature},
        metric_fns=[metrics.bleu],
    )
    try:
        config = DataConfig("of_2020", {"inputs": 16, "targets": 16}, 8)
        task = resolve_task(config)
        assert is_supervised(task) and task.metric_fns == [metrics.bleu]
        dataset = as_seqio(task).get_dataset({"inputs": 16, "targets": 16}, "train", shuffle=False)
        rows = list(dataset.as_numpy_iterator())
    finally:
        seqio.TaskRegistry.remove("of_2020")
    decode = feature.vocabulary.decode
    assert [(decode(row["inputs"].tolist()), decode(row["targets"].tolist())) for row in rows[:2]] == [
        ("das 0", "that 0"),
        ("das 1", "that 1"),
    ]
    assert len(rows) == 20


def test_the_tasks_of_t5s_mixtures_are_found():
    """T5X's example files name them; their data sets are read when a run uses them."""
    task_modules.import_all(["t5.data.mixtures"])
    assert {"c4_v220_span_corruption", "wmt16_enro_v003", "wmt_t2t_ende_v003"} <= set(seqio.TaskRegistry.names())
    assert not is_supervised(seqio.TaskRegistry.get("c4_v220_span_corruption"))


@pytest.mark.parametrize("name", ["prefix_lm", "split_tokens_to_inputs_length"])
def test_a_task_without_inputs_that_is_cut_to_their_length_gets_a_sentence(name, tmp_path):
    """t5 raises KeyError: 'inputs' here, as public tasks of prefix LM with only targets show."""
    (tmp_path / "text.txt").write_text("A text.\n" * 8)
    source = FileSource(str(tmp_path / "text.txt"), validation_percent=0.0)
    features = {"targets": seqio.Feature(seqio.ByteVocabulary(100), add_eos=True)}
    task = seqio.Task("without_inputs", source, features, [targets_of_text, getattr(preprocessors, name)])
    documents = task.source.documents("train", shuffle=False, num_epochs=1)
    with pytest.raises(InputError, match=r"The code of task without_inputs fails: KeyError: 'inputs' .*correct it"):
        next(iter(examples_of(task, {"inputs": 8, "targets": 8}, documents, Draws(seed=0))))


@seqio.map_over_dataset
def targets_of_text(example):
    return {"targets": tf.cast(tf.io.decode_raw(example["text"], tf.uint8), tf.int32)}
