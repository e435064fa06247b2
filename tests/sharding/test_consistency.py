"""What processes compare before they train, and how a difference between them is named."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from limba.config import (
    DataConfig,
    EvaluationConfig,
    GenerationConfig,
    ModelConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.sharding import consistency

ROOT = Path(__file__).resolve().parents[2]
RUN = RunConfig(
    ModelConfig(384, emb_dim=64, num_heads=2, head_dim=32, mlp_dim=128, num_encoder_layers=2, num_decoder_layers=2),
    DataConfig("my_task", {"inputs": 512}, batch_size=16, vocabulary="/a/spiece.model"),
    "/runs/mine",
    train_steps=100,
)


def test_a_field_is_named_with_both_values() -> None:
    schedule = ScheduleConfig(base_learning_rate=0.1)
    other = dataclasses.replace(RUN, optimizer=optimizer_config(schedule=schedule), train_steps=200)
    first, own_fields = (consistency.fields_of(config) for config in (RUN, other))
    differences = consistency.differing(own_fields, first)
    assert differences == {
        "ScheduleConfig.base_learning_rate": ("0.1", "1.0"),
        "RunConfig.train_steps": ("200", "100"),
    }
    said = consistency.sentence([{}, differences])
    assert "process 1 has ScheduleConfig.base_learning_rate 0.1, process 0 has 1.0" in said
    assert said.count("\n") == 0 and said.endswith("on every worker.")


def test_each_field_has_one_name_and_those_that_are_free_have_none() -> None:
    fields = consistency.fields_of(RUN)
    assert fields["DataConfig.task_feature_lengths"] == "{'inputs': 512}"
    assert fields["GenerationConfig.max_tokens"] == "128"
    assert fields["EvaluationConfig.sampling.max_tokens"] == "64"  # a second GenerationConfig
    data = dataclasses.replace(RUN.data, vocabulary="/b/spiece.model", num_reader_processes=4)
    assert consistency.fields_of(dataclasses.replace(RUN, data=data, profile_steps=3)) == fields

    def leaves(part: Any) -> int:
        values = [getattr(part, field.name) for field in dataclasses.fields(part)]
        return sum(leaves(value) if dataclasses.is_dataclass(value) else 1 for value in values)

    assert len(fields) == leaves(RUN) - len(consistency.FREE_FIELDS)
    sampling = EvaluationConfig(sampling=GenerationConfig(max_tokens=32))
    changed = consistency.fields_of(dataclasses.replace(RUN, evaluation=sampling))
    assert "EvaluationConfig.sampling.max_tokens" in consistency.differing(changed, fields)
    assert "GenerationConfig.max_tokens" not in consistency.differing(changed, fields)


def test_what_is_absent_and_who_it_is_are_said() -> None:
    first = {"the corpus part a of t": "", "jax": "0.10.2", "x": "1", "y": "1"}
    differences = consistency.differing({"the corpus part b of t": "", "jax": "0.10.2", "x": "2", "y": "2"}, first)
    said = consistency.sentence([{}, differences, differences, {"x": ("3", "1")}])
    assert "processes 1 and 2 have the corpus part b of t, which process 0 does not have" in said
    assert "processes 1 and 2 have x 2, process 0 has 1; process 3 has x 3, process 0 has 1" in said
    assert "and 2 more differences" in said
    assert "process 1 does not have a, which process 0 has" in consistency.sentence([{}, {"a": (None, "")}])
    long = consistency.sentence([{}, {"a": ("x" * 500, "y" * 500)}])
    assert len(long) < 500


def test_code_is_compared_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = consistency.code()
    assert {f"{name} with content" for name in ("limba/run.py", "tasks/ro.py")} <= set(contents)
    assert not [name for name in contents if "__pycache__" in name]
    module = tmp_path / "mine_of_the_user.py"
    module.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("mine_of_the_user")
    before = consistency.code(["mine_of_the_user"])
    module.write_text("x = 2\n")
    assert list(consistency.differing(consistency.code(["mine_of_the_user"]), before)) == [
        "the module mine_of_the_user with content"
    ]
    # An installed package has nothing beside it.
    shutil.copytree(ROOT / "limba" / "sharding", tmp_path / "limba" / "sharding")
    monkeypatch.setattr(consistency, "ROOT", tmp_path)
    installed = consistency._digests_of_limba.__wrapped__()
    assert {"limba/sharding/agreement.py", "limba/sharding/mesh.py"} <= set(installed)
    assert all(name.startswith("limba/sharding/") and name.endswith(".py") for name in installed)
    assert installed["limba/sharding/mesh.py"] == consistency.code()["limba/sharding/mesh.py with content"]


def test_the_facts_of_a_run_are_its_fields_versions_and_code() -> None:
    facts = consistency.facts_of_run(RUN, ("tests.tiny",))
    assert {"RunConfig.model_dir", "Python", "jax", "jaxlib", "Limba"} <= set(facts)
