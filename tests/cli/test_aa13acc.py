"""What people wrote for version 0.1.0 still works: gin/ and tasks/ of commit aa13acc, unchanged."""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from limba.cli import flags, task_modules
from limba.cli.gin import old_names, read_model, read_run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "golden" / "aa13acc"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
# Modules of that version that have moved, each of which warns.
MOVED = ("text_metrics", "data.diacritics", "data.records", "data.supervised", "data.tokenizers_vocabulary")
IMPORTS = """
import importlib, json, sys, warnings
found = {}
for name in sys.argv[1:]:
    for module in [module for module in sys.modules if module in MOVED]:
        del sys.modules[module]
        vars(sys.modules[module.rpartition(".")[0]]).pop(module.rpartition(".")[2], None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DeprecationWarning)
        importlib.import_module(f"tasks.{name}")
    found[name] = [str(each.message).split()[0] for each in caught if str(each.message).startswith("limba.")]
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only gin/ of that commit is found first; task modules need not be imported for the configuration."""
    monkeypatch.chdir(FOLDER)
    monkeypatch.setattr(task_modules, "import_all", lambda modules: None)
    monkeypatch.setattr(task_modules, "check", lambda module, asked_by: None)


def today(path: str, value: Any) -> tuple[str, Any]:
    """Returns a field's path in RunConfig, and its value, in today's names."""
    fields = {old.rpartition(".")[2]: new for old, new in old_names.NAMES.items() if "." in old}
    owner, dot, field = path.rpartition(".")
    name = fields.get(field, "")
    return owner + dot + (name.rpartition(".")[2] or field), old_names.value_of_today(name, value)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_all_files_are_there() -> None:
    assert set(EXPECTED) == {path.relative_to(FOLDER).as_posix() for path in (FOLDER / "gin").rglob("*.gin")}
    assert len(EXPECTED) > 50


@pytest.mark.parametrize("name", EXPECTED)
def test_each_gin_file_makes_the_same_configuration(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = EXPECTED[name]["arguments"]
    if "/models/" in name:
        config: Any = read_model(name, [argument.removeprefix("--gin.") for argument in arguments[1:]])
    else:
        config = flags.parse_args(arguments).config
    for old, value in EXPECTED[name]["values"].items():
        path, value = today(old, value)
        found = config
        for part in path.split("."):
            found = getattr(found, part)
        if path != "data.task_modules":  # follows from the imports
            assert plain(found) == value, path
    uses_old = "BEST_IS" in (FOLDER / name).read_text() or "finetune" in (FOLDER / name).read_text()
    assert capsys.readouterr().err.count("\n") == ("/models/" not in name and uses_old)


def test_old_names_are_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    run = flags.parse_args(
        ["gin/en_ms_translation.gin", "--gin.MODEL_DIR=gs://a/b", "--gin.config.RunConfig.reduce_gradients_in=float32"]
    )
    assert run.config.gradient_reduce_dtype == "float32" and run.config.checkpoint.best_mode == "max"
    assert run.names["CheckpointConfig.best_mode"] == "BEST_MODE" and "BEST_IS" not in run.text
    (line,) = capsys.readouterr().err.splitlines()
    assert "BEST_IS is now BEST_MODE (gin/en_ms_translation.gin line 32)" in line
    assert "(--gin.config.RunConfig.reduce_gradients_in)" in line


def test_a_run_s_own_config_is_read_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    ours = read_run(["gin/en_ms_translation.gin"], ["MODEL_DIR=gs://bucket/run"])
    capsys.readouterr()
    theirs = read_run(["config.gin"])
    assert capsys.readouterr().err == ""
    assert theirs.config == ours.config and theirs.text == ours.text
    changed = read_run(["config.gin"], ["TRAIN_STEPS=7"]).config  # macros are kept
    assert changed == dataclasses.replace(ours.config, train_steps=7)


@pytest.mark.night
def test_task_modules_import_and_warn_once_for_each_moved_module() -> None:
    names = sorted(path.stem for path in (FOLDER / "tasks").glob("[!_]*.py"))
    moved = tuple(f"limba.{name}" for name in MOVED)
    code = f"MOVED = {moved!r}\n{IMPORTS}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *names]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for name, warned in json.loads(done.stdout.splitlines()[-1]).items():
        tree = ast.parse((FOLDER / "tasks" / f"{name}.py").read_text())
        froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
        old = [module for module in moved if any(f"{entry}.".startswith(f"{module}.") for entry in imported)]
        assert sorted(warned) == sorted(old), name


@pytest.mark.night
def test_a_run_from_that_folder(corpus: Path, tmp_path: Path) -> None:
    values = {"TRAIN_STEPS": 3, "BATCH_SIZE": 8, "CORPUS": corpus, "VOCABULARY": "byte", "VOCAB_SIZE": 384}
    values |= {"MODEL_DIR": tmp_path / "run", "LOG_PERIOD": 1, "EVAL_STEPS": 1, "config.ModelConfig.emb_dim": 32}
    command = [sys.executable, "-m", "limba", "train", "--gin_file=gin/demo.gin"]
    command += [f"--gin.{name}={value}" for name, value in values.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "3").is_dir()
    assert "from tasks import demo" in (tmp_path / "run" / "config.gin").read_text()
    assert not list(FOLDER.glob("runs"))
