"""A path without a model gives one sentence, the same in every command that takes a model and in Python."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import limba
from limba.cli import main
from limba.config import InputError, NoModelError, saved_config
from limba.formats import hub_models
from limba.formats.huggingface_config import config_json
from limba.formats.open import look_at, open_path
from tests import tiny
from tests.bucket_server import emulated
from tests.cli.bad_inputs import TRAIN

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
# What is wrong -> the path, and words of the sentence.
PATHS = {
    "missing": ("nowhere", "does not exist: looked there for a Limba run"),
    "empty": ("empty", "is an empty folder: looked there for"),
    "no weights": ("unweighted", "has a config.json and no weights: looked there for model.safetensors"),
    "a file": ("in.txt", "is a file, and a model is a folder"),
    "a T5X step without files": ("t5x/checkpoint_3", "checkpoint_3 has neither the file checkpoint nor"),
    "a T5X run of such a step": ("t5x", "checkpoint_3 has neither the file checkpoint nor"),
    "a run without a checkpoint": ("begun", "is a run that holds no checkpoint yet"),
    "a step that is not there": ("run/checkpoints/99", "There is no checkpoint at step 99 in"),
    "a step without files": ("run/checkpoints/7", "is damaged: it has no state/manifest.ocdbt"),
    "an adapter": ("adapter", "an adapter (LoRA), which is a change of another model"),
    "Mesh TensorFlow": ("mt5/small/model.ckpt-1000000", "which is not read"),
    "a language model of Flax": ("flax", "has its weights as flax_model.msgpack alone"),
    "not on the hub": ("nobody/nothing", "nobody/nothing cannot be opened"),
}
COMMANDS = {
    "generate": "generate @ --prompt=a",
    "score": "generate @ --score --input=pairs.jsonl",
    "generate by gin": "generate --gin_file=run/config.gin --checkpoint=@ --prompt=a",
    "generate with changes": "generate @ --gin.BATCH_SIZE=8 --prompt=a",
    "evaluate": "evaluate @",
    "convert": "convert @ out",
    "convert to T5X": "convert @ out --to=t5x",
    "convert to Limba": "convert @ out --to=limba",
    "convert to a list": "convert @ --to=list",
    "branch": "branch @ --decay=2 --output=out",
    "merge": "merge @ --output=out",
    "trim": "vocabulary trim @ --keep=corpus.jsonl --output=out",
    "compare": "vocabulary compare @ byte --corpus=corpus.jsonl",
    "new": "new nb --corpus=corpus.jsonl --from=@ --hardware=cpu",
    "results": "results @ --suite=./suite.gin --output=out",
    "play": "play @",
    "train": f"{TRAIN} --gin.INITIAL_CHECKPOINT_PATH=@",
    "preflight": f"{TRAIN.replace('train', 'preflight', 1)} --gin.INITIAL_CHECKPOINT_PATH=@ --no_compile --json",
    "load": "",
    "finetune": "",
}
# A command -> the wrong paths of which it says something else, since it asks another question.
OTHERS = {
    "compare": ("a file",),  # a vocabulary is a file
    "preflight": ("not on the hub",),  # asks no server
}
PYTHON: dict[str, Callable[[str], object]] = {
    "load": limba.load,
    "finetune": lambda path: limba.finetune(path, [("a", "b")] * 8, steps=1),
}
SLOW = ("preflight", "results")  # two seconds each: once at landing


def cases() -> Iterator[object]:
    """Yields each command with each of the paths that are wrong for it."""
    for command in COMMANDS:
        for wrong in PATHS:
            if wrong not in OTHERS.get(command, ()):
                is_late = command in SLOW and wrong != "missing"
                marks = [pytest.mark.night] if is_late else []
                yield pytest.param(command, wrong, id=f"{command}, {wrong}", marks=marks)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wrong path of each kind, a run, and what the commands read beside a model."""
    folder = tmp_path_factory.mktemp("shelf")
    line = json.dumps({"text": "One line of a text that is long enough to be a row of its own."}) + "\n"
    (folder / "corpus.jsonl").write_text(line * 100)
    (folder / "in.txt").write_text("A text.\n")
    (folder / "pairs.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    (folder / "pairs.tsv").write_text("good\tbad\nOne is.\tOne are.\n")
    (folder / "suite.gin").write_text("agreement/MinimalPairs.file = 'pairs.tsv'\n")
    for name in ("empty", "unweighted", "begun", "adapter", "flax"):
        (folder / name).mkdir()
    (folder / "unweighted" / "config.json").write_text(json.dumps(config_json(tiny.MODEL)))
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "flax" / "config.json").write_text(json.dumps(config_json(tiny.language_model())))
    (folder / "flax" / "flax_model.msgpack").write_bytes(b"")
    shutil.copytree(GOLDEN / "t5x_legacy" / "checkpoint_3", folder / "t5x" / "checkpoint_3")
    (folder / "t5x" / "checkpoint_3" / "checkpoint").unlink()
    shutil.copytree(GOLDEN / "run" / "run", folder / "run")
    (folder / "run" / "checkpoints" / "7").mkdir()
    shutil.copyfile(GOLDEN / "run" / "run" / saved_config.FILE, folder / "begun" / saved_config.FILE)
    (folder / "begun" / "metrics.jsonl").write_text("")
    return folder


def test_the_newest_of_the_exports_in_a_folder_is_named(shelf: Path) -> None:
    out = shelf / "out"
    for step in (8, 24, 100):
        shutil.copytree(shelf / "unweighted", out / f"step_{step}")
    assert sentence_of(f"{out}/").endswith(f"exported steps, each a model; give one of them: {out}/step_100.")
    shutil.rmtree(out)


def sentence_of(path: str) -> str:
    """Returns what `open_path` says of a path."""
    with pytest.raises(InputError) as raised:
        open_path(path)
    return str(raised.value)


@pytest.mark.parametrize("wrong", PATHS)
def test_the_sentence_says_what_is_there(wrong: str, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shelf)
    path, words = PATHS[wrong]
    assert words in sentence_of(path)


def test_a_bucket_without_a_model_is_like_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    says = r"^gs://bucket/gone does not exist: looked there for a Limba run"
    with emulated(monkeypatch), pytest.raises(NoModelError, match=says):
        open_path("gs://bucket/gone")


@pytest.mark.parametrize("address", ["hf://me/small", "hf://datasets/x"])
def test_an_address_of_the_hub_is_not_asked_for_a_model(address: str) -> None:
    """Its file system has errors of its own, such as for an address without an owner."""
    assert look_at(address) is None
    with pytest.raises(NoModelError, match=f"^{address} is an address of files on the hub, and a model there"):
        open_path(address)


def test_a_copy_of_the_hub_without_weights_is_named(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a download of the small files alone leaves it, where the hub cannot be reached later."""
    monkeypatch.setattr(hub_models, "download", lambda path, weights: shelf / "unweighted")
    says = "^me/small is not a whole model in the hub's cache: .*unweighted has a config.json and no weights"
    with pytest.raises(NoModelError, match=says):
        open_path("me/small")


@pytest.mark.parametrize(("command", "wrong"), list(cases()))
@pytest.mark.slow
def test_all_commands_say_the_same(
    command: str, wrong: str, shelf: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shelf)
    path, _ = PATHS[wrong]
    expected = sentence_of(path)
    capfd.readouterr()
    if command in PYTHON:
        with pytest.raises(InputError) as raised:
            PYTHON[command](path)
        assert str(raised.value) == expected
        return
    argv = [argument.replace("@", path) for argument in COMMANDS[command].split()]
    assert main.main(argv) == (1 if command == "preflight" else 2)
    out, error = capfd.readouterr()
    if command == "preflight":
        texts = [line["text"] for line in lines_of(json.loads(out))]
        (said,) = [text for text in texts if text.startswith("INITIAL_CHECKPOINT_PATH")]
    else:
        (said,) = error.splitlines()
    prefix = "INITIAL_CHECKPOINT_PATH names no model: " if command in ("train", "preflight") else ""
    assert said in (prefix + expected, expected)
    if command in ("train", "results"):  # which take their folder before a model is read
        shutil.rmtree(shelf / "out", ignore_errors=True)
    assert not (shelf / "out").exists()


def lines_of(document: object) -> list[dict]:
    """Returns all objects with a text, however deep they lie in a JSON document."""
    if isinstance(document, list):
        return [line for part in document for line in lines_of(part)]
    if not isinstance(document, dict):
        return []
    own_lines = [document] if isinstance(document.get("text"), str) else []
    return own_lines + [line for part in document.values() for line in lines_of(part)]


# What tells one kind of path from another; `limba/formats/open.py` alone puts these together.
QUESTIONS = {
    ("limba_checkpoint", "is_own"), ("t5x", "is_t5x"), ("t5x", "checkpoints_of"), ("weights", "is_huggingface"),
    ("hub_models", "is_id"),
}  # fmt: skip


@pytest.mark.slow
def test_one_module_asks_what_a_path_is() -> None:
    asked: dict[tuple[str, str], set[str]] = {}
    for file in sorted((ROOT / "limba").rglob("*.py")):
        relative = str(file.relative_to(ROOT))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                asked.setdefault((node.value.id, node.attr), set()).add(relative)
            elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("limba.formats."):
                for alias in node.names:
                    asked.setdefault((node.module.rpartition(".")[2], alias.name), set()).add(relative)
    for question in QUESTIONS:
        assert asked.get(question) == {"limba/formats/open.py"}, question
