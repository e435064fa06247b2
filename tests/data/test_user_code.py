"""What a user's own source or preprocessor raises is one sentence with the user's words, file and line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.config import DataConfig, InputError
from limba.data.run_data import RunData, validation_batches
from limba.data.sources import FileSource
from limba.data.stream.stages import open_stream
from limba.data.user_code import UserCodeError, is_users

LENGTHS = {"inputs": 16, "targets": 16}


class BadRowError(Exception):
    """An error of the user's own."""


def texts(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices({"text": [f"text {number}" for number in range(64)]})


def fails_at_once(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    raise KeyError("no_such_config")


def fails_later(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    def documents() -> Any:
        yield {"text": "the first"}
        raise BadRowError("row 2 has {no} tab:\nask Maria")

    return tf.data.Dataset.from_generator(documents, output_signature={"text": tf.TensorSpec((), tf.string)})


@seqio.map_over_dataset
def pair(example: dict[str, Any]) -> dict[str, Any]:
    ids = tf.cast(tf.io.decode_raw(example["text"], tf.uint8), tf.int32) + 3
    return {"inputs": ids, "targets": ids}


@seqio.map_over_dataset
def other_key(example: dict[str, Any]) -> dict[str, Any]:
    return {**example, "text": example["txt"]}


def asserts(dataset: tf.data.Dataset) -> tf.data.Dataset:
    raise AssertionError("this preprocessor wants pairs")


def in_numpy(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def cut(text: bytes) -> bytes:
        raise ValueError(f"{text.decode()} has no tab")

    return dataset.map(
        lambda example: {"text": tf.ensure_shape(tf.numpy_function(cut, [example["text"]], tf.string), [])}
    )


def in_python(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def cut(text: tf.Tensor) -> bytes:
        return {}[text.numpy()]  # pyright: ignore[reportAttributeAccessIssue]

    return dataset.map(lambda example: {"text": tf.ensure_shape(tf.py_function(cut, [example["text"]], tf.string), [])})


def in_graph(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def checked(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        check = tf.debugging.assert_less(tf.strings.length(example["text"]), 3, message="texts are too long")
        with tf.control_dependencies([check]):
            return {"text": tf.identity(example["text"])}

    return dataset.map(checked)


BROKEN: dict[str, tuple[Callable, list[Callable], str, str]] = {  # source, preprocessors, the words, the function
    "a source at once": (fails_at_once, [], "KeyError: 'no_such_config'", "fails_at_once"),
    "a source later": (fails_later, [], "BadRowError: row 2 has {no} tab: ask Maria", "documents"),
    "another key": (texts, [other_key], "KeyError: 'txt'", "other_key"),
    "an assertion": (texts, [asserts], "AssertionError: this preprocessor wants pairs", "asserts"),
    "numpy_function": (texts, [in_numpy], "has no tab", "cut"),
    "py_function": (texts, [in_python], "KeyError: b'text ", "cut"),
    "a check in the graph": (texts, [in_graph], "assertion failed: [texts are too long]", "in_graph"),
}


def sentence_of(read: Callable[[], object]) -> str:
    with pytest.raises(UserCodeError) as error:
        read()
    assert isinstance(error.value, InputError) and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("ours", [False, True], ids=["source of the user", "source of ours"])
@pytest.mark.parametrize("name", BROKEN)
def test_the_sentence_has_the_user_s_words_and_line(name: str, ours: bool, tmp_path: Path) -> None:
    """At the validation split, which is opened first, and in training."""
    function, steps, words, function_name = BROKEN[name]
    if ours and not steps:
        pytest.skip("the source is the user's own")
    (tmp_path / "corpus.txt").write_text("".join(f"text {number}\n" for number in range(64)))
    source: Any = FileSource(str(tmp_path / "corpus.txt"), validation_percent=50.0)
    if not ours:
        source = seqio.FunctionDataSource(function, splits=("train", "validation"))
    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=False)
    task = seqio.Task("broken", source, dict.fromkeys(LENGTHS, feature), [*steps, pair])
    config = DataConfig("broken", LENGTHS, batch_size=4, num_data_shards=2)

    def train() -> None:
        stream = open_stream(task, LENGTHS, config, range(2))
        for _ in range(20):
            next(stream)

    for read in (lambda: validation_batches(task, LENGTHS, config, 1), train):
        said = sentence_of(read)
        assert said.startswith("The code of task broken fails: ") and words in said, said
        assert f"{__file__} line " in said and function_name in said, said


def test_an_inspection_says_it_too() -> None:
    feature = seqio.Feature(seqio.ByteVocabulary(), add_eos=False)
    source = seqio.FunctionDataSource(fails_later, splits=("train",))
    task = seqio.Task("broken", source, dict.fromkeys(LENGTHS, feature), [pair])
    data = RunData(DataConfig("broken", LENGTHS, batch_size=4), task)
    said = sentence_of(lambda: list(data.elements(task, "train")))
    assert "BadRowError: row 2 has {no} tab: ask Maria" in said and "in documents)" in said


def test_libraries_and_limba_are_not_the_user_s() -> None:
    assert is_users(__file__)
    assert not any(map(is_users, (np.__file__, pytest.__file__, open_stream.__code__.co_filename, "<string>")))
    assert not is_users(Path(next(iter(np.__path__))).parent.as_posix() + "/seqio/utils.py")
