"""Configurations as plain data: every one comes back the same, and any other text is refused in a sentence."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    GenerationConfig,
    InputError,
    MeshConfig,
    ModelConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.config.saved_config import from_text, moved, to_text
from tests import tiny

CONFIGS = {
    "T5": RunConfig(
        model=tiny.MODEL,
        data=DataConfig("task", {"inputs": 512, "targets": 114}, 8, data_files=("a.txt", "ț.jsonl.gz")),
        model_dir="run",
        train_steps=10,
        optimizer=optimizer_config(
            schedule=ScheduleConfig("linear", 1e-3), frozen=("encoder", ".*/relpos_bias"), clip_global_norm=1
        ),
        evaluation=EvaluationConfig(num_batches=None, patience=2),
        checkpoint=CheckpointConfig(keep=None, best_metric="loss", best_mode="min"),
        generation=GenerationConfig(num_beams=4, num_samples=2, early_stopping="never"),
    ),
    "language model": RunConfig(
        model=tiny.language_model(biases=("attention", "mlp")),
        data=DataConfig("task", {"targets": 256}, 16, new_vocabulary_size=1000, data_files={"train": "a", "dev": "b"}),
        model_dir="gs://bucket/run",
        train_steps=10,
        evaluation=EvaluationConfig(prompts="Once", sampling=GenerationConfig(sample=True, top_k=5, top_p=0.9)),
        mesh=MeshConfig(fsdp=2),
    ),
    "model": tiny.MODEL,
    "columns": RunConfig(
        model=tiny.MODEL,
        data=DataConfig("t", {"inputs": 5}, 2, data_files="a", column={"inputs": "en"}, task_modules=("tasks.demo",)),
        model_dir="~/run",
        train_steps=1,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_comes_back_the_same(name: str) -> None:
    config = CONFIGS[name]
    text = to_text(config)
    assert from_text(text, "config.json") == config
    assert to_text(from_text(text, "config.json")) == text


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(
    data=st.builds(
        DataConfig,
        TEXT,
        st.dictionaries(st.sampled_from(["inputs", "targets"]), st.integers(1, 1000), min_size=1),
        st.sampled_from([16, 32, 48]),
        prefix=st.none() | st.just("") | TEXT,
        noise_density=st.none() | st.floats(0.01, 0.99),
        data_files=st.none() | TEXT | st.lists(TEXT, min_size=1).map(tuple) | st.dictionaries(TEXT, TEXT, min_size=1),
        seed=st.integers(0, 2**63 - 1),
        shuffle=st.booleans(),
        read_timeout_seconds=st.integers(1, 9) | st.floats(0.1, 1e6),
    )
)
@pytest.mark.slow
def test_any_data_come_back_the_same(data: DataConfig) -> None:
    model = tiny.MODEL if data.sequence_length is None else tiny.LANGUAGE_MODEL
    run = RunConfig(model, data, "run", 10)
    assert from_text(to_text(run), "config.json") == run


def test_a_field_that_is_left_out_has_its_default() -> None:
    document = json.loads(to_text(CONFIGS["T5"]))
    del document["run"]["mesh"], document["run"]["data"]["seed"]
    assert from_text(json.dumps(document), "config.json") == CONFIGS["T5"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 3}, "has format 3, and this version of Limba reads format 2; install a newer version."),
        ({"format": 1}, "has format 1, and this version of Limba reads format 2; use the version that wrote it."),
        ({"format": None}, "is not a Limba configuration: it needs 'format', and 'run' or 'model'."),
        ({"run": None, "model": None}, "is not a Limba configuration: it needs 'format', and 'run' or 'model'."),
        ({"run": []}, "RunConfig is []; give its fields."),
        ({"trainsteps": 5}, "RunConfig has no field 'trainsteps'; did you mean train_steps?"),
        ({"qqq": 5}, "RunConfig has no field 'qqq'; remove it."),
        ({"train_steps": "5"}, "RunConfig.train_steps is '5'; give a whole number or None."),
        ({"train_steps": True}, "RunConfig.train_steps is True; give a whole number or None."),
        ({"train_steps": -1}, "RunConfig.train_steps is -1; give a whole number above 0, or None."),
        ({"mesh": 3}, "MeshConfig is 3; give its fields."),
        ({"mesh": {"fsdp": 1.5}}, "MeshConfig.fsdp is 1.5; give a whole number."),
        ({"model": {"vocab_size": 128}}, "ModelConfig.emb_dim is missing; add it."),
        ({"evaluation": {"prompts": "a"}}, "EvaluationConfig.prompts is 'a'; give a list, each a string."),
        (
            {"evaluation": {"sampling": {"top_k": [1]}}},
            "GenerationConfig.top_k is [1]; give a whole number or None.",
        ),
    ],
)
def test_a_text_that_cannot_be_read_ends_with_a_sentence(change: dict, sentence: str) -> None:
    document = json.loads(to_text(CONFIGS["T5"]))
    if change.keys() <= {"format"} or isinstance(change.get("run", {}), list):
        document |= change
    elif "run" in change:
        del document["run"]
    else:
        document["run"] |= change
    with pytest.raises(InputError) as caught:
        from_text(json.dumps(document), "run/config.json")
    assert str(caught.value).removeprefix("run/config.json").lstrip(": ") == sentence


def test_a_torn_text_is_said() -> None:
    with pytest.raises(InputError, match=r"run/config.json is not JSON \(.*\); restore it from a copy\."):
        from_text(to_text(tiny.MODEL)[:50], "run/config.json")


def test_a_run_that_was_copied_finds_its_own_vocabulary(tmp_path: Path) -> None:
    data = DataConfig("task", {"inputs": 9}, 8, new_vocabulary_size=1000)
    run = RunConfig(tiny.MODEL, data, "/somewhere/run", 10)
    there = moved(run, str(tmp_path))
    assert (there.model_dir, there.data.vocabulary) == (str(tmp_path), f"{tmp_path}/vocabulary.model")
    (tmp_path / "vocabulary.model").write_bytes(b"")
    with_own = dataclasses.replace(run, data=dataclasses.replace(data, vocabulary="/shared/vocabulary.model"))
    assert moved(with_own, str(tmp_path)).data.vocabulary == "/shared/vocabulary.model"


def test_every_field_is_written() -> None:
    document = json.loads(to_text(CONFIGS["T5"]))["run"]
    assert set(document) == {entry.name for entry in dataclasses.fields(RunConfig)}
    assert set(document["model"]) == {entry.name for entry in dataclasses.fields(ModelConfig)}
    assert document["model_dir"] == str(Path("run").absolute())
