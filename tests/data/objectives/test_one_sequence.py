"""Rows of a decoder-only model: documents split, prefixes joined to what follows, texts made of a data set's rows."""

import doctest
import json

import numpy as np
import pytest
import seqio
import tensorflow as tf

import tasks.cc100
import tasks.lm1b
import tasks.text_to_text
import tasks.wiki40b
from limba.config import DataConfig, InputError
from limba.data import run_data as validation
from limba.data.bridge.seqio_objects import as_seqio
from limba.data.objectives import derive_lengths
from limba.data.objectives.choice import reads_prefix
from limba.data.objectives.language_modeling import causal_lm, lm_adaptation_lengths, prefix_lm, prefix_lm_lengths
from limba.data.sources import HubSource
from limba.data.stream import streams
from limba.data.tasks import resolve_task

BYTES = seqio.ByteVocabulary(extra_ids=0)
FEATURES = {"targets": seqio.Feature(BYTES, dtype=tf.int32)}


def stream_of(*batches):
    return tf.data.Dataset.from_generator(
        lambda: ({"targets": np.array(batch, np.int32)} for batch in batches),
        output_signature={"targets": tf.TensorSpec([None], tf.int32)},
    )


def test_whole_documents_are_cut_at_their_ends_and_at_the_length():
    batches = [[5, 6, 1, 7, 8, 9, 10, 11, 1, 12], [1], [13, 1, 1]]
    rows = causal_lm(stream_of(*batches), {"targets": 4}, FEATURES, whole_documents=True)
    targets = [row["targets"].tolist() for row in rows.as_numpy_iterator()]
    assert targets == [[5, 6, 1], [7, 8, 9, 10], [11, 1], [12], [1], [13, 1], [1]]


def test_a_prefix_and_what_follows_fill_the_sequence():
    lengths = prefix_lm_lengths({"targets": 12})
    tokens = list(range(2, 2 + 60))
    rows = list(prefix_lm(stream_of(tokens), lengths, FEATURES, append_eos=False).as_numpy_iterator())
    assert [len(row["inputs"]) + len(row["targets"]) for row in rows] == [12] * 5
    assert [int(token) for row in rows for side in ("inputs", "targets") for token in row[side]] == tokens
    assert sum(lm_adaptation_lengths({"targets": 13}).values()) == 13


@pytest.mark.parametrize(
    ("task", "objective", "expected"),
    [("cc100_ja_causal_lm_stream", name, name != "causal_lm") for name in ("prefix_lm", "lm_adaptation", "causal_lm")]
    + [("cc100_ja_causal_lm_stream", None, False), ("text_to_text", None, True)],
)
def test_it_is_known_whether_a_model_s_rows_have_inputs(task, objective, expected):
    config = DataConfig(task, {"targets": 16}, 8, "byte", objective=objective, data_files="corpus.jsonl")
    assert reads_prefix(resolve_task(config), config.task_feature_lengths) is expected


def test_a_packed_stream_ends_every_document_and_keeps_all_of_it(corpus):
    data = DataConfig(
        "lm1b_causal_lm",
        {"targets": 64},
        8,
        "byte",
        0,
        pack=True,
        data_files=str(corpus),
        num_data_shards=1,
        num_epochs=1,
    )
    task = resolve_task(data)
    assert derive_lengths(task, data.task_feature_lengths) == {"targets": 64}
    stream = streams.TrainStream(task, {"targets": 64}, data, [0])
    rows = [part for batch in stream for part in batch.values()]
    stream.close()
    tokens = np.concatenate([part["targets"].ravel() for part in rows])
    texts = [json.loads(line)["text"].encode() for line in corpus.read_text().splitlines()]
    batches = validation.validation_batches(task, {"targets": 64}, data, None)
    others = [batch["decoder_target_tokens"].ravel() for batch in batches]
    read = np.concatenate([tokens, *others])
    assert (read > 2).sum() == sum(map(len, texts)) and (read == 1).sum() >= len(texts)
    assert (tokens > 0).mean() > 0.97  # of the places in the rows


def test_objectives_with_an_encoder_are_refused():
    data = DataConfig("lm1b_causal_lm", {"targets": 64}, 8, "byte", 0, objective="prefix_lm")
    assert derive_lengths(resolve_task(data), {"targets": 64}) == {"inputs": 63, "targets": 63}
    with pytest.raises(InputError, match="choose one of prefix_lm"):
        DataConfig("lm1b_causal_lm", {"targets": 64}, 8, "byte", 0, objective="ul2")


@pytest.mark.parametrize("module", [tasks.wiki40b, tasks.cc100])
def test_examples_in_the_tasks_docstrings(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def test_rows_of_the_hub_are_rewritten_and_its_test_split_taken(tmp_path):
    lines = ("海は広くて大きいものである。", "深い。", "そして波は高くなるだろう。")
    article = "\n_START_ARTICLE_\n海\n_START_PARAGRAPH_\n" + "_NEWLINE_".join(lines) + "\n"
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"text": article + split * 10}) + "\n")
    source = HubSource(str(tmp_path), validation_split="test", rewrite=tasks.wiki40b.paragraphs)
    wanted = [lines[0], lines[2]]
    for split in ("train", "validation"):
        texts = [e["text"].decode() for e in source.documents(split, shuffle=False, num_epochs=1)]
        assert texts == wanted
    assert list(source.pinned("main").texts("train")) == wanted


@pytest.mark.parametrize(("lengths", "sides"), [({"targets": 26, "prefix": 20}, (20, 6)), ({"targets": 20}, (10, 10))])
@pytest.mark.slow
def test_a_row_of_a_pair_is_that_of_seqio_s_prefix_lm(lengths, sides, tmp_path):
    """As T5X's decoder-only models read inputs and targets, of equal lengths and of others."""
    texts = ["a", "many words are too long for the inputs", "short", "as long as it may"]
    pairs = [
        {"inputs": text, "targets": text[::-1][:length]} for text, length in zip(texts, (1, 30, 5, 3), strict=True)
    ]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")}
    data = DataConfig("text_to_text", lengths, 4, "byte", 0, data_files=files)
    task = resolve_task(data)
    derived = derive_lengths(task, lengths)
    assert derived == dict(zip(("inputs", "targets"), sides, strict=True))
    (batch,) = validation.validation_batches(task, derived, data, 1)
    rows = as_seqio(task).get_dataset(derived, "validation", shuffle=False)
    theirs = list(seqio.PrefixLMFeatureConverter(pack=False)(rows, derived).as_numpy_iterator())
    assert set(theirs[0]) == set(batch) and len(theirs) == 4
    for name in batch:
        assert sorted(batch[name].tolist()) == sorted(row[name].tolist() for row in theirs), name


def test_a_prefix_is_for_pairs():
    data = DataConfig("lm1b_causal_lm", {"targets": 64, "prefix": 32}, 8, "byte", 0)
    with pytest.raises(InputError, match="gives 'prefix', which rows of pairs have"):
        derive_lengths(resolve_task(data), data.task_feature_lengths)
    assert lm_adaptation_lengths({"targets": 64, "prefix": 48}) == {"inputs": 48, "targets": 16}
    with pytest.raises(InputError, match="'prefix' is the inputs' part of 'targets'"):
        DataConfig("lm1b_causal_lm", {"targets": 64, "prefix": 64}, 8, "byte", 0)
