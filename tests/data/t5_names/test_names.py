"""t5's names without the package t5: span corruption as recorded, the others by their documented examples."""

# pyright: reportMissingImports=false, reportArgumentType=false

import functools
import importlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import seqio
import tensorflow as tf

from limba.config import DataConfig, InputError
from limba.data import bridge, task_modules
from limba.data.objectives.supervised import is_supervised
from limba.data.seqio_tasks import as_seqio
from limba.data.sources import FileSource
from limba.data.tasks import failure_of_code, resolve_task
from limba.tools.migrate.t5_names import finder, written_tasks
from tests.data.objectives.test_objectives import GoldenVocabulary, features

ROOT = Path(__file__).parents[3]
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "span_corruption.json").read_text())
with finder.importing():
    preprocessors = importlib.import_module("t5.data.preprocessors")
    metrics = importlib.import_module("t5.evaluation.metrics")


def stream(documents):
    signature = {"targets": tf.TensorSpec([None], tf.int32)}
    return tf.data.Dataset.from_generator(lambda: ({"targets": each} for each in documents), output_signature=signature)


def elements(dataset):
    return [{name: value.tolist() for name, value in each.items()} for each in dataset.as_numpy_iterator()]


def texts(*values):
    names = values[0]
    return tf.data.Dataset.from_tensor_slices({name: [each[name] for each in values] for name in names})


def test_modules_are_found_and_unknown_names_are_named():
    with finder.importing():
        import t5.data
        from t5.data import preprocessors as again  # noqa: F401

    assert t5.data.ByteVocabulary is seqio.ByteVocabulary
    assert t5.data.get_default_vocabulary().extra_ids == 100
    with pytest.raises(AttributeError, match="t5.data.preprocessors.glue is not one of the names of t5"):
        preprocessors.glue  # noqa: B018
    with finder.importing(), pytest.raises(ImportError, match="glue"):
        from t5.data.preprocessors import glue  # noqa: F401
    with finder.importing(), pytest.raises(ModuleNotFoundError, match="t5.models"):
        import t5.models


def test_an_installed_package_has_priority(tmp_path, monkeypatch):
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "__init__.py").write_text("REAL = True\n")
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "t5"}
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with finder.importing():
            assert importlib.import_module("t5").REAL
    finally:
        del sys.modules["t5"]
        sys.modules.update(kept)


def test_noise_masks_are_t5s():
    for case in GOLDEN["noise_mask"]:
        choices = (case["length"], case["noise_density"], case["seeds"], case["mean_noise_span_length"])
        assert preprocessors.random_spans_noise_mask(*choices).numpy().astype(int).tolist() == case["mask"]


def test_lengths_are_t5s():
    for case in GOLDEN["random_spans_helper"]:
        choices = (case["inputs_length"], case["noise_density"], case["mean_noise_span_length"], 1, 1)
        assert preprocessors.random_spans_helper(*choices) == (case["tokens_length"], case["targets_length"])


def test_a_single_example_is_t5s():
    for case in GOLDEN["single_example_denoise"]:
        mask = functools.partial(
            preprocessors.random_spans_noise_mask, mean_noise_span_length=case["mean_noise_span_length"]
        )
        found = preprocessors.single_example_denoise(
            {"targets": tf.constant(case["tokens"])},
            tf.constant(case["seed"]),
            output_features=features(GoldenVocabulary(26, 1)),
            noise_density=case["noise_density"],
            noise_mask_fn=mask,
            inputs_fn=preprocessors.noise_span_to_unique_sentinel,
            targets_fn=preprocessors.nonnoise_span_to_unique_sentinel,
        )
        assert {name: value.numpy().tolist() for name, value in found.items()} == {
            "inputs": case["inputs"],
            "targets": case["targets"],
        }


def test_the_whole_span_corruption_is_t5s():
    for case in GOLDEN["span_corruption_pipeline"]:
        with seqio.map_seed_manager(case["map_seed"]):
            dataset = preprocessors.span_corruption(
                stream(GOLDEN["docs"]), case["sequence_length"], features(GoldenVocabulary(26, 1))
            )
        examples = elements(dataset)
        assert len(examples) == case["n"]
        for example, expected in zip(examples, case["examples"], strict=False):
            assert example == expected


def test_templates_are_as_documented():
    pair = texts({"de": "Das ist gut.", "en": "That is good."})
    found = preprocessors.translate(pair, source_language="de", target_language="en")
    expected = {"inputs": b"translate German to English: Das ist gut.", "targets": b"That is good."}
    assert list(found.as_numpy_iterator()) == [expected]
    with pytest.raises(ValueError, match="'qq'"):
        preprocessors.translate(texts({"qq": "a", "en": "b"}), source_language="qq", target_language="en")
    news = preprocessors.summarize(texts({"article": "Long.", "highlights": "L."}), "article", "highlights")
    assert list(news.as_numpy_iterator()) == [{"inputs": b"summarize: Long.", "targets": b"L."}]
    lines = tf.data.Dataset.from_tensor_slices(["6,7,42", "2,9,18"])
    numbers = preprocessors.preprocess_tsv(
        lines, field_delim=",", num_fields=3, inputs_format="numerator: {2} denominator: {1}",
        targets_format="quotient: {0}",
    )  # fmt: skip
    named = preprocessors.preprocess_tsv(
        lines, field_delim=",", field_names=["quot", "denom", "numer"],
        inputs_format="numerator: {numer} denominator: {denom}", targets_format="quotient: {quot}",
    )  # fmt: skip
    expected = [
        {"inputs": b"numerator: 42 denominator: 7", "targets": b"quotient: 6"},
        {"inputs": b"numerator: 18 denominator: 9", "targets": b"quotient: 2"},
    ]
    assert list(numbers.as_numpy_iterator()) == list(named.as_numpy_iterator()) == expected
    parsed = preprocessors.parse_tsv(tf.data.Dataset.from_tensors("a\tb"))
    assert list(parsed.as_numpy_iterator()) == [{"inputs": b"a", "targets": b"b"}]


@pytest.mark.parametrize("length", [1, 2, 17, 100])
def test_cutting_loses_no_token(length):
    documents = [list(range(2, 2 + size)) for size in (0, 1, 16, 17, 18, 40)]
    everything = [token for each in documents for token in each]
    cut = elements(preprocessors.split_tokens(stream(documents), max_tokens_per_segment=length))
    assert [token for each in cut for token in each["targets"]] == everything
    assert max(len(each["targets"]) for each in cut) <= length
    joined = elements(preprocessors.reduce_concat_tokens(stream(documents), batch_size=4))
    assert [len(each["targets"]) for each in joined] == [34, 58]
    assert [token for each in joined for token in each["targets"]] == everything


def test_chunks_are_parts_of_their_document_and_random_lengths_keep_their_bounds():
    document = list(range(2, 202))
    for start in (False, True):
        chunks = elements(
            preprocessors.select_random_chunk(
                stream([document] * 20), features(GoldenVocabulary(26, 1)), 50, uniform_random_start=start
            )
        )
        found = [each["targets"] for each in chunks]
        assert all(chunk == list(range(chunk[0], chunk[0] + len(chunk))) and len(chunk) <= 50 for chunk in found)
        assert len({chunk[0] for chunk in found}) > 1
    parts = elements(preprocessors.split_tokens(stream([document] * 8), 8, 64))
    assert all(len(each["targets"]) <= 64 for each in parts)
    assert sum(len(each["targets"]) for each in parts) == 8 * 200


def test_prefix_lm_and_denoising_lose_no_token():
    document = list(range(2, 26)) * 5
    lengths, own = {"inputs": 32, "targets": 32}, features(GoldenVocabulary(26, 1))
    examples = elements(preprocessors.prefix_lm(stream([document]), lengths, own))
    assert [token for each in examples for token in each["inputs"] + each["targets"]] == document
    assert all(each["inputs"] and each["targets"] for each in examples)
    for example in elements(preprocessors.iid_denoising(stream([document]), lengths, own)):
        sentinels = [token for token in example["inputs"] if token > 25]
        assert sentinels == sorted(sentinels, reverse=True)
        tokens = [token for name in ("inputs", "targets") for token in example[name] if token <= 25]
        assert len(tokens) <= 32
    kept = {
        "tokens": tf.range(2, 12),
        "noise_mask": tf.constant([True, False] * 5),
        "vocabulary": GoldenVocabulary(26, 1),
    }
    changed = preprocessors.noise_token_to_sentinel(**kept, seeds=[[0, 1], [2, 3]]).numpy()
    assert changed[1::2].tolist() == list(range(3, 12, 2))


def test_metrics_are_as_documented():
    assert metrics.accuracy([0, 1, 1], [0, 1, 0])["accuracy"] == pytest.approx(100 * 2 / 3)
    assert metrics.sequence_accuracy(["a b", "c"], ["a b", "d"]) == {"sequence_accuracy": 50.0}
    references = ["this is a string", "this is also a string"]
    assert metrics.bleu(references, references)["bleu"] == pytest.approx(100.0)
    assert metrics.rouge(references, references)["rougeLsum"] == pytest.approx(100.0)
    assert metrics.squad([["The answer."], ["2 men", "two"]], ["answer", "two women"]) == {
        "em": 50.0,
        "f1": pytest.approx((100 + 100 * 2 / 3) / 2),
    }
    assert metrics.trivia_qa([["Mario’s hat"]], ["mario s hat"]) == {"em": 100.0, "f1": 100.0}
    assert metrics.pearson_corrcoef([0, 2], [0, 1])["pearson_corrcoef"] == pytest.approx(100.0)
    assert metrics.spearman_corrcoef([1, 2, 3], [2, 3, 9])["spearman_corrcoef"] == pytest.approx(100.0)
    assert metrics.mean_multiclass_f1(3)([0, 1, 2, 2], [0, 1, 1, 2])["mean_3class_f1"] == pytest.approx(700 / 9)


def test_a_streaming_task_is_told_how_it_resumes(caplog, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "cli" / "t5x"))
    task_modules.import_all(["ro_t5x_tasks"])
    written_tasks._warn_once.cache_clear()
    config = DataConfig("ro_stream", {"inputs": 64, "targets": 32}, 8, vocabulary="byte")
    with caplog.at_level(logging.WARNING):
        task = resolve_task(config)
        resolve_task(config)
    (record,) = [each for each in caplog.records if "reads a function" in each.message]
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
    found = eval(form.removeprefix("source="), {"FileSource": FileSource})
    assert [unit.path for unit in found.units("train")] == [f"{tmp_path}/a.jsonl"]


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
        next(bridge.OfTensorflow(dataset, failure=lambda error: failure_of_code(task, error)))
    assert str(error.value) == (
        "The code of task fails fails: ValueError: BuilderConfig ParquetConfig(name='default') doesn't have"
        f" a 'use_auth_token' key ({__file__} line {line}, in documents); correct it, or register the task with"
        " source=HubSource('someone/ro-corpus', column=\"text\", splits=('train',))."
    )


def test_a_module_of_2022_calls_todays_datasets(tmp_path):
    """By each of the ways, at its import and later; the rest of the process finds today's `datasets`, and no t5."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "train.jsonl").write_text(json.dumps({"text": "Un text scurt."}) + "\n")
    (tmp_path / "theirs.py").write_text(
        "from datasets import load_dataset\nimport datasets, their_part, t5.data.preprocessors\n"
        "def texts(load):\n"
        f"    found = load(path={str(tmp_path / 'corpus')!r}, use_auth_token=True, streaming=True)\n"
        "    return [item['text'] for item in found['train']]\n"
        "def later():\n    import t5.evaluation.metrics\n    from datasets import load_dataset as load\n"
        "    return texts(load), t5.evaluation.metrics.bleu\n"
        "print(texts(load_dataset))\n"
    )
    (tmp_path / "their_part.py").write_text("from t5.data import postprocessors\n")
    program = """import sys
from limba.config import environment

environment.set_variables()  # as a command
from limba.data import task_modules
task_modules.import_all(["theirs"])
import datasets, theirs
print(theirs.texts(theirs.datasets.load_dataset))
print(theirs.later()[0])
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("limba.tools")]
assert not [name for name in sys.modules if name.partition(".")[0] == "t5"]
assert not hasattr(datasets.load_dataset, "__wrapped__") and type(theirs.datasets) is not type(datasets)
try:
    import t5
except ModuleNotFoundError:
    print("no t5")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "HF_HOME": str(tmp_path / "hf")},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.splitlines() == ["['Un text scurt.']"] * 3 + ["no t5"]


def test_files_replace_a_source_of_strings(tmp_path, monkeypatch):
    """Inputs have no end of sequence, since the task registers only targets: as in T5X."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "cli" / "t5x"))
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


@pytest.mark.parametrize("name", ["prefix_lm", "split_tokens_to_inputs_length"])
def test_a_task_without_inputs_that_is_cut_to_their_length_gets_a_sentence(name):
    """t5 raises KeyError: 'inputs' here, as public tasks of prefix LM with only targets show."""
    step = getattr(preprocessors, name)
    found = {"targets": seqio.Feature(seqio.ByteVocabulary(100), add_eos=True)}
    with pytest.raises(InputError, match="length of 'inputs', which its output_features lack .*; add 'inputs': seqio"):
        step(stream([[5, 6, 7]]), sequence_length={"inputs": 8, "targets": 8}, output_features=found)
