"""The rules of optimizers: each has its own fields, a field of another is refused, and earlier runs still load."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from limba.cli.gin import read_run
from limba.cli.gin.read import read_own
from limba.config import (
    ConfigError,
    DataConfig,
    InputError,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
    saved_config,
)
from limba.config.optimizer import RULES, fields_of
from limba.data import task_modules
from tests import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture
def _no_task_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_modules, "import_all", lambda modules: None)


def own_fields(rule: type[OptimizerConfig]) -> set[str]:
    return {field.name for field in dataclasses.fields(rule)} - {
        field.name for field in dataclasses.fields(OptimizerConfig)
    }


def test_a_rules_own_field_is_given_by_the_function_that_is_named() -> None:
    says = r"OptimizerConfig.beta2 is a field of adamw, muon, .* write limba\.optimizer_config\('muon', beta2=0\.98\)"
    with pytest.raises(ConfigError, match=says):
        OptimizerConfig("muon", beta2=0.98)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="unexpected keyword argument 'betta'"):
        OptimizerConfig(betta=1)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_takes_its_fields_and_refuses_those_of_others(name: str) -> None:
    rule = optimizer_config(name)
    assert type(rule) is RULES[name] and rule.name == name and optimizer_config(name, **vars_of(rule)) == rule
    foreign = set(fields_of(OptimizerConfig)) - {entry.name for entry in dataclasses.fields(rule)}
    assert own_fields(RULES[name]) and foreign
    for field in foreign:
        users = [other for other, kind in RULES.items() if field in own_fields(kind)]
        default = getattr(optimizer_config(users[0]), field)
        with pytest.raises(ConfigError) as caught:
            optimizer_config(name, **{field: default})
        assert caught.value.field == f"OptimizerConfig.{field}"
        assert f"is a field of {', '.join(users)}, and OptimizerConfig.name is {name!r}; leave it out" in str(
            caught.value
        )


@pytest.mark.parametrize("name", RULES)
def test_the_rate_auto_is_muons_by_the_parameters_scale_alone(name: str) -> None:
    with pytest.raises(ConfigError, match=f"is 'auto', which is known for Muon with .* and not for {name}; give a num"):
        optimizer_config(name, ScheduleConfig(base_learning_rate="auto"))
    with pytest.raises(ConfigError, match="is 'fast'; give a number or 'auto'"):
        ScheduleConfig(base_learning_rate="fast")


def vars_of(rule: OptimizerConfig) -> dict[str, Any]:
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule) if field.name != "name"}


def test_a_field_that_several_rules_have_means_the_same() -> None:
    hints: dict[str, Any] = {}
    for kind in RULES.values():
        for field in dataclasses.fields(kind):
            assert hints.setdefault(field.name, field.type) == field.type or field.name == "name", field.name


def test_a_rule_is_changed_copied_and_pickled_as_itself() -> None:
    rule = optimizer_config("muon", muon_beta=0.5)
    changed = dataclasses.replace(rule, schedule=ScheduleConfig("linear"))
    assert type(changed) is type(rule) and changed != rule
    assert dataclasses.replace(changed, schedule=rule.schedule) == rule
    assert pickle.loads(pickle.dumps(rule)) == rule == copy.deepcopy(rule)
    with pytest.raises(ConfigError, match="OptimizerConfig.name is 'adamw', and the fields are another rule's"):
        dataclasses.replace(rule, name="adamw")


@pytest.mark.parametrize("name", ["sgd", "", None, 3, ["adamw"]])
def test_a_name_without_a_rule_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"OptimizerConfig.name is .*; choose one of adafactor, adamw, "):
        optimizer_config(name)


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("adafactor", {"decay_rate": 1.5}, "decay_rate is 1.5; give a number from 0 to 1."),
        ("adafactor", {"clipping_threshold": 0.0}, "clipping_threshold is 0.0; give a number above 0, or None."),
        ("adafactor", {"momentum": 1.0}, "momentum is 1.0; give a number from 0 to below 1, or None."),
        ("adafactor", {"step_offset": -1}, "step_offset is -1; give 0 or more."),
        ("adafactor", {"min_dim_size_to_factor": 0.5}, "min_dim_size_to_factor is 0.5; give a whole number."),
        ("adamw", {"beta2": 1}, "beta2 is 1; give a number from 0 to below 1."),
        ("adamw", {"beta1": None}, "beta1 is None; give a number."),
        ("adamw", {"epsilon": -1.0}, "epsilon is -1.0; give 0 or more."),
        ("muon", {"muon_rms": 0}, "muon_rms is 0; give a number above 0."),
        ("muon", {"muon_others": "adam"}, "muon_others is 'adam'; choose one of adamw, adafactor."),
        ("adamw", {"weight_decay": -0.1}, "weight_decay is -0.1; give 0 or more."),
        ("adamw", {"clip_global_norm": 0}, "clip_global_norm is 0; give a number above 0, or None."),
    ],
)
def test_values_beyond_a_limit_are_refused(name: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        optimizer_config(name, **fields)
    assert str(caught.value) == f"OptimizerConfig.{sentence}"


def run_with(optimizer: OptimizerConfig) -> RunConfig:
    return RunConfig(tiny.MODEL, DataConfig("task", {"inputs": 9}, 8), "run", 10, optimizer)


@pytest.mark.parametrize("name", RULES)
def test_config_json_has_the_rule_s_own_fields(name: str) -> None:
    text = saved_config.to_text(run_with(optimizer_config(name, weight_decay=0.1)))
    assert set(json.loads(text)["run"]["optimizer"]) == {field.name for field in dataclasses.fields(RULES[name])}
    assert saved_config.from_text(text, "config.json") == run_with(optimizer_config(name, weight_decay=0.1))


def test_config_json_names_the_rules_that_there_are() -> None:
    document = json.loads(saved_config.to_text(run_with(optimizer_config())))
    document["run"]["optimizer"]["name"] = "sgd"
    with pytest.raises(InputError, match=r"config.json: OptimizerConfig.name is 'sgd'; choose one of adafactor,"):
        saved_config.from_text(json.dumps(document), "config.json")


@pytest.mark.usefixtures("_no_task_modules")
def test_another_name_leaves_the_fields_of_a_run_s_own_optimizer_behind(tmp_path: Path) -> None:
    """The fields that config.gin lists; a field given beside it must be the new optimizer's."""
    lines = "include 'gin/demo.gin'\ninclude 'gin/recipes/fast.gin'\nMODEL_DIR = '/runs/a'\nLEARNING_RATE = 0.1\n"
    (tmp_path / "my.gin").write_text(lines)
    own_text = read_run([str(tmp_path / "my.gin")]).text
    assert "config.OptimizerConfig.muon_beta" in own_text
    changed = read_own(own_text, "/runs/a/config.gin", ["config.OptimizerConfig.name=adamw"], ()).config.optimizer
    assert changed.name == "adamw" and not hasattr(changed, "muon_beta")
    with pytest.raises(InputError, match="momentum is a field of adafactor, and OptimizerConfig.name is 'muon'"):
        read_own(own_text, "/runs/a/config.gin", ["config.OptimizerConfig.momentum=0.9"], ())


@pytest.mark.usefixtures("_no_task_modules")
def test_an_included_recipe_s_fields_go_with_its_optimizer(tmp_path: Path) -> None:
    """The last name counts; fields that an earlier name has go with it, others are somebody's mistake."""
    lines = "include 'gin/demo.gin'\ninclude 'gin/recipes/fast.gin'\nMODEL_DIR = '/runs/a'\n"
    (tmp_path / "my.gin").write_text(lines)
    run = lambda *overrides: read_run(
        [str(tmp_path / "my.gin")], [f"config.OptimizerConfig.{override}" for override in overrides]
    )
    assert run().config.optimizer == dataclasses.replace(run("muon_beta=0.8").config.optimizer, muon_beta=0.9)
    with pytest.raises(InputError, match="LEARNING_RATE is 'auto', which is known for Muon"):
        run("name=adafactor")  # the recipe's rate is its optimizer's alone
    (tmp_path / "my.gin").write_text(f"{lines}LEARNING_RATE = 0.1\n")
    adafactor = run("name=adafactor", "momentum=0.5")
    assert adafactor.config.optimizer.name == "adafactor" and "muon" not in adafactor.text
    assert "config.OptimizerConfig.momentum = 0.5" in adafactor.text
    (tmp_path / "config.gin").write_text(adafactor.text)
    assert read_run([str(tmp_path / "config.gin")]).config == adafactor.config
    with pytest.raises(InputError, match="muon_rms is a field of muon, and OptimizerConfig.name is 'adafactor'"):
        run("name=adafactor", "muon_rms=0.3")
    with pytest.raises(InputError, match="momentum is a field of adafactor, and OptimizerConfig.name is 'muon'"):
        run("momentum=0.9")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> type[OptimizerConfig]:
    @dataclasses.dataclass(frozen=True)
    class Made(OptimizerConfig):
        """A rule that a contributor adds: this class, and its line in RULES."""

        name: str = "made_up"
        sharpness: float = 2.0

    monkeypatch.setitem(RULES, "made_up", Made)
    return Made


@pytest.mark.usefixtures("_no_task_modules")
def test_a_new_rule_is_known_everywhere(made_up: type[OptimizerConfig]) -> None:
    rule = optimizer_config("made_up", sharpness=3.0)
    assert isinstance(rule, made_up)
    assert saved_config.from_text(saved_config.to_text(run_with(rule)), "config.json") == run_with(rule)
    overrides = ["MODEL_DIR=/runs/a", "config.OptimizerConfig.name=made_up", "config.OptimizerConfig.sharpness=3"]
    assert getattr(read_run(["gin/demo.gin"], overrides).config.optimizer, "sharpness", None) == 3
    with pytest.raises(ConfigError, match="sharpness is a field of made_up, and OptimizerConfig.name is 'adamw'"):
        optimizer_config("adamw", sharpness=3.0)
    with pytest.raises(ConfigError, match="beta1 is a field of adamw, "):
        optimizer_config("made_up", beta1=0.9)


def test_every_rule_is_configured_without_jax() -> None:
    """jax and optax, whose import takes a second, build the rules; a wrong choice is refused before."""
    program = (
        "import sys; from limba.config.optimizer import RULES, optimizer_config; print(*map(optimizer_config, RULES));"
        "sys.exit(bool({'jax', 'optax', 'numpy'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "Muon(" in ended.stdout, ended.stderr


def test_the_page_of_settings_has_every_rule() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    table = page.partition("| `config.OptimizerConfig.name` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(RULES)
    comment = re.search(r"name: str = \"adafactor\"  # (.*)", (ROOT / "limba" / "config" / "optimizer.py").read_text())
    assert comment and re.findall(r"\w+", comment[1].replace(" or ", " ")) == list(RULES)
