"""Public runs of T5X make batches here, and the rows of decoder-only ones equal seqio's own feature converter's.

Each run's gin is converted; then its rows are made of a small corpus, by a task of the form that its name says.
"""

# pyright: reportMissingImports=false, reportArgumentType=false

import dataclasses
import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf
from t5.data import preprocessors

from limba.config import ConfigError, DataConfig, InputError
from limba.data.objectives.choice import derive_lengths, reads_prefix
from limba.data.run_data import validation_batches
from limba.data.stream.shard import Recipe, Shard, ShardPlace
from limba.data.stream.streams import feature_shapes
from limba.data.tasks import resolve_task
from tests.cli import t5x_public
from tests.cli.test_t5x_public import RUNS

TRAINED = [run for run in RUNS if "PassThroughFeatureConverter" not in run.text()]
BIGSCIENCE = {run.name.removeprefix("bigscience/gins/"): run for run in TRAINED}
DOCUMENTS = 24
BATCH = {"batch_size": 4, "num_data_shards": 2, "validation_split": "validation", "train_split": "train"}


def full_lm(dataset, sequence_length, output_features):
    """Full language modeling as its users wrote it, into a module of their own: t5 has no such function."""
    dataset = preprocessors.select_random_chunk(dataset, output_features, 65_536, feature_key="targets")
    dataset = seqio.preprocessors.append_eos(dataset, output_features)
    dataset = preprocessors.reduce_concat_tokens(dataset, feature_key="targets", batch_size=128)
    return preprocessors.split_tokens(dataset, max_tokens_per_segment=sequence_length["targets"])


def source(folder, is_pairs):
    """Documents of several lengths, as lines of text or pairs with a tab between."""
    numbers = np.random.default_rng(0)
    lines = []
    for _ in range(DOCUMENTS):
        words = [" ".join(map(str, numbers.integers(100, 999, numbers.integers(1, 120)))) for _ in range(2)]
        lines.append("\t".join(words) if is_pairs else words[0] * 3)
    file = folder / f"{'pairs' if is_pairs else 'text'}.txt"
    file.write_text("\n".join(lines) + "\n")
    return seqio.TextLineDataSource({"train": str(file), "validation": str(file)})


def form_of(name):
    """Returns the form of a public task: what its name says."""
    if "full_lm" in name:
        return "full_lm"
    if "prefix_lm" in name:
        return "prefix_lm"
    return "spans" if "span_corruption" in name or "gaussian" in name else "pairs"


@pytest.fixture
def register(tmp_path):
    """Registers tasks of the forms that the public runs name; they go at the end."""
    names = []

    def add(form, both=True):
        feature = functools.partial(seqio.Feature, seqio.ByteVocabulary())
        features = {"inputs": feature(required=False), "targets": feature()}
        if not both:
            del features["inputs"]
        keys = {"inputs": "inputs", "targets": "targets"} if form == "pairs" else {"inputs": None, "targets": "text"}
        objective = {"spans": [preprocessors.span_corruption], "prefix_lm": [preprocessors.prefix_lm],
                     "full_lm": [full_lm], "pairs": []}[form]  # fmt: skip
        parse = lambda dataset: dataset.map(
            lambda line: dict(zip(("inputs", "targets"), tf.unstack(tf.strings.split(line, "\t"), 2), strict=True))
        )
        text = lambda dataset: dataset.map(lambda line: {"text": line})
        steps = [
            parse if form == "pairs" else text,
            functools.partial(seqio.preprocessors.rekey, key_map=keys),
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            *objective,
        ]
        if form != "full_lm":  # its rows have ends where documents end
            steps.append(seqio.preprocessors.append_eos_after_trim)
        name = f"rows_of_{form}_{len(names)}"
        where = source(tmp_path, form == "pairs")
        seqio.TaskRegistry.add(name, source=where, preprocessors=steps, output_features=features)
        names.append(name)
        return name

    yield add
    for name in names:
        seqio.TaskRegistry.remove(name)


def config_of(run, folder, t5x):
    file = folder / "theirs.gin"
    file.write_text(run.text())
    run_of_theirs = t5x_public.original([str(file)], [folder, t5x])
    return t5x_public.converted([str(file)], t5x_public.filled(run_of_theirs), [folder])


@pytest.fixture(scope="module")
def t5x(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5x")
    t5x_public.write_tables(folder)
    return folder


def expected(task, lengths, pack):
    """Returns seqio's own rows of a task that gets these lengths, in T5X's words."""
    converter = seqio.DecoderFeatureConverter(pack=pack)
    choices = {"shuffle": False, "seed": 0, "num_epochs": 1, "try_in_mem_cache": False}
    return list(converter(task.get_dataset(lengths, "validation", **choices), lengths).as_numpy_iterator())


def rows_of(task, config):
    lengths = derive_lengths(task, config.task_feature_lengths)
    batches = validation_batches(task, lengths, config, None)
    rows = [
        {name: value[row] for name, value in batch.items()} for batch in batches for row in range(len(value_of(batch)))
    ]
    return [row for row in rows if row["decoder_target_tokens"].any()]


def value_of(batch):
    return batch["decoder_target_tokens"]


# Each layout lands packed or padded, one of each in every run: seqio makes a program of each, seconds.
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("c_dec_c4_lm_adapt", True),
        ("nc_dec_c4_span_corruption", False),
        pytest.param("c_dec_c4_full_lm", True, marks=pytest.mark.slow),
        pytest.param("c_dec_c4_span_corruption", True, marks=pytest.mark.slow),
        pytest.param("c_dec_c4_lm_adapt", False, marks=pytest.mark.night),
        pytest.param("nc_dec_c4_span_corruption", True, marks=pytest.mark.night),
        pytest.param("c_dec_c4_full_lm", False, marks=pytest.mark.night),
        pytest.param("c_dec_c4_span_corruption", False, marks=pytest.mark.night),
    ],
)
@pytest.mark.slow
def test_rows_of_each_layout_are_those_of_seqios_converter(name, pack, tmp_path, t5x, register):
    run = BIGSCIENCE[f"{name}.gin"]
    config = config_of(run, tmp_path, t5x)
    lengths = eval(run.settings["TASK_FEATURE_LENGTHS"])
    task_name = register(form_of(config.data.mixture_or_task_name), both="inputs" in lengths)
    data = dataclasses.replace(config.data, mixture_or_task_name=task_name, pack=pack, **BATCH)
    task = resolve_task(data)
    wanted = expected(seqio.get_mixture_or_task(task_name), lengths, pack)
    rows = rows_of(task, data)
    assert len(rows) == len(wanted) > 5
    if pack:  # rows leave a packer in an order of its own
        rows, wanted = (sorted(side, key=lambda row: value_of(row).tolist()) for side in (rows, wanted))
    for row, theirs in zip(rows, wanted, strict=True):
        assert set(theirs) - {"decoder_positions"} == set(row)
        for feature, value in row.items():
            np.testing.assert_array_equal(value, theirs[feature], feature)
    assert sum(row["decoder_loss_weights"].sum() for row in rows) > 500
    assert (
        ("decoder_causal_attention" in rows[0])
        == ("inputs" in lengths)
        == reads_prefix(task, data.task_feature_lengths)
    )


@pytest.mark.parametrize(
    ("form", "registers_inputs", "lengths"),
    [
        pytest.param("spans", True, {"inputs": 48, "targets": 48}, marks=pytest.mark.slow),
        pytest.param("spans", False, {"inputs": 64, "targets": 30}, marks=pytest.mark.slow),
        ("pairs", True, {"inputs": 48, "targets": 48}),
        ("pairs", True, {"inputs": 64, "targets": 30}),
        ("pairs", True, {"targets": 40}),
        ("pairs", False, {"targets": 40}),
        pytest.param("full_lm", True, {"targets": 400}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_the_lengths_say_what_a_row_is(form, registers_inputs, lengths, register, tmp_path, t5x):
    """As in T5X: with a length of inputs they are read, without one they are not, whatever the task registers."""
    data = data_of_lengths(lengths, register(form, registers_inputs), tmp_path, t5x)
    task = seqio.get_mixture_or_task(data.mixture_or_task_name)
    wanted = expected(task, lengths, False)
    rows = rows_of(resolve_task(data), data)
    assert len(rows) == len(wanted) > 5
    for row, theirs in zip(rows, wanted, strict=True):
        assert {name: value.tolist() for name, value in row.items()} == {
            name: value.tolist() for name, value in theirs.items()
        }


def data_of_lengths(lengths, name, folder, t5x):
    """Returns the data of a decoder-only run of T5X with these lengths, which reads a task of this name."""
    run = BIGSCIENCE["c_dec_c4_full_lm.gin"]
    run = run._replace(settings={**run.settings, "TASK_FEATURE_LENGTHS": repr(lengths)})
    config = config_of(run, folder, t5x)
    return dataclasses.replace(config.data, mixture_or_task_name=name, pack=False, **BATCH)


@pytest.mark.parametrize(
    ("form", "registers_inputs", "lengths"),
    [("pairs", False, {"inputs": 48, "targets": 48}), ("full_lm", True, {"inputs": 48, "targets": 48})],
)
@pytest.mark.slow
def test_a_length_of_inputs_that_the_task_does_not_make_is_one_sentence(
    form, registers_inputs, lengths, register, tmp_path, t5x
):
    data = data_of_lengths(lengths, register(form, registers_inputs), tmp_path, t5x)
    with pytest.raises(ValueError, match="inputs"):  # seqio's own
        expected(seqio.get_mixture_or_task(data.mixture_or_task_name), lengths, False)
    with pytest.raises(
        InputError, match="The task's preprocessors return no tokens 'inputs'; add the preprocessor that makes them"
    ):
        rows_of(resolve_task(data), data)


def forms():
    """Yields (name, run) of the public runs, one for each form of task, lengths, packing and network."""
    known = set()
    for run in TRAINED:
        name = run.settings.get("MIXTURE_OR_TASK_NAME", "pairs")
        key = (
            form_of(name),
            run.settings.get("TASK_FEATURE_LENGTHS"),
            run.includes[0].split("/")[2:4],
            run.includes[1],
        )
        if repr(key) not in known:
            known.add(repr(key))
            marks = () if "decoder_only" in run.includes[0] else (pytest.mark.night,)
            case = f"{form_of(name)}-{run.name}"
            yield pytest.param(case, run, id=case, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "run"), list(forms()))
def test_public_runs_make_a_batch(name, run, tmp_path, t5x, register):
    config = config_of(run, tmp_path, t5x)
    data = dataclasses.replace(config.data, mixture_or_task_name=register(name.partition("-")[0]), **BATCH)
    data = dataclasses.replace(data, vocabulary=None)  # their file is in their bucket
    task = resolve_task(data)
    lengths = derive_lengths(task, data.task_feature_lengths)
    shapes = feature_shapes(task, lengths, data)
    rows = next(Shard(Recipe(task, lengths, data), 0).read(ShardPlace.beginning())).rows
    assert rows["targets"].any() and rows["targets"].shape[1] == lengths["targets"]
    length = data.sequence_length
    assert shapes["decoder_target_tokens"] == (4, length or lengths["targets"])
    assert ("encoder_input_tokens" in shapes) == (length is None)


def test_a_prefix_for_an_objective_of_ours_is_refused():
    data = DataConfig("x", {"targets": 32, "prefix": 0}, 8)
    assert data.sequence_length == 32
    with pytest.raises(ConfigError, match="gives -1 for 'prefix'"):
        DataConfig("x", {"targets": 32, "prefix": -1}, 8)


@pytest.mark.parametrize(
    ("converter", "lengths", "sentence"),
    [
        (
            "LMFeatureConverter",
            "{'inputs': 8, 'targets': 8}",
            "it reads targets, and TASK_FEATURE_LENGTHS has inputs and",
        ),
        ("PrefixLMFeatureConverter", "{'targets': 8}", "it reads inputs and targets, and TASK_FEATURE_LENGTHS has"),
        ("PrefixSuffixLMFeatureConverter", "{'targets': 8}", "Limba makes the rows of seqio's DecoderFeatureConverter"),
        ("PrePackedLMFeatureConverter", "{'targets': 8}", "the task gives T5X's model features"),
        ("MyFeatureConverter", "{'targets': 8}", "Limba makes the rows of seqio's DecoderFeatureConverter"),
        ("EncDecFeatureConverter", "{'targets': 8}", "Limba makes the rows of seqio's DecoderFeatureConverter"),
        ("DecoderFeatureConverter", "{'targets': 8}", ""),
        ("LMFeatureConverter", "{'targets': 8}", ""),
        ("PrefixLMFeatureConverter", "{'inputs': 8, 'targets': 8}", ""),
    ],
)
def test_feature_converters(converter, lengths, sentence, tmp_path, t5x):
    settings = {"DecoderOnlyModel.feature_converter_cls": f"@seqio.{converter}", "TASK_FEATURE_LENGTHS": lengths}
    run = BIGSCIENCE["c_dec_c4_full_lm.gin"]
    run = run._replace(settings={**run.settings, **settings})
    if not sentence:
        assert config_of(run, tmp_path, t5x).data.task_feature_lengths["targets"] == sum(eval(lengths).values())
        return
    with pytest.raises(InputError, match=sentence):
        config_of(run, tmp_path, t5x)


def test_a_loss_on_inputs_is_refused(tmp_path, t5x):
    settings = {"DecoderOnlyModel.feature_converter_cls": "@seqio.PrefixLMFeatureConverter",
                "PrefixLMFeatureConverter.loss_on_targets_only": "False"}  # fmt: skip
    run = BIGSCIENCE["c_dec_c4_span_corruption.gin"]
    with pytest.raises(InputError, match="loss_on_targets_only to False: Limba's inputs have no loss"):
        config_of(run._replace(settings={**run.settings, **settings}), tmp_path, t5x)
