"""Each bad input gets one sentence and its exit status, before anything is compiled, and nothing is written over."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import limba.run
from limba.cli import main
from limba.data.vocabulary.load import load_vocabulary
from limba.formats.huggingface_files import Form, write_folder
from limba.inference.source import VocabularyName
from limba.training import start, update
from tests import tiny
from tests.cli import bad_files, bad_inputs, bad_models
from tests.cli.bad_inputs import Case

GOLDEN = Path(__file__).parent.parent / "golden" / "run"
CASES = [
    *bad_inputs.train_cases(),
    *bad_inputs.json_cases(),
    *bad_files.gin_cases(),
    *bad_files.text_cases(),
    *bad_files.data_cases(),
    *bad_models.cases(),
]
SMALL = {"vocab_size": 384, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 24}
COMPILED = "/jax/core/compile/backend_compile_duration"
compiled: list[str] = []


class Started(BaseException):
    """A bad input has come as far as the first compilation of a step."""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the cases read: texts, a run, and folders of a T5 and of a language model."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "corpus.jsonl").write_bytes(bad_files.LINES)
    (folder / "in.txt").write_text("A text.\nb\n")
    (folder / "pairs.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    (folder / "empty").mkdir()
    shutil.copytree(GOLDEN / "run", folder / "run")
    for name, model in (("hf", tiny.model(**SMALL)), ("lm", tiny.language_model(**SMALL, num_kv_heads=1))):
        arrays = limba_arrays(model)
        extra_ids = 0 if model.is_decoder_only else 100
        tokenizer = VocabularyName("byte", extra_ids), load_vocabulary("byte", extra_ids)
        write_folder(folder / name, arrays, model, Form(("pytorch",)), tokenizer)
    return folder


def limba_arrays(model: limba.config.ModelConfig) -> dict[str, np.ndarray]:
    from limba.formats.names import flatten, unstack_layers

    return unstack_layers({name: np.asarray(leaf) for name, leaf in flatten(tiny.parameters(model)).items()})


@pytest.fixture(scope="module", autouse=True)
def _counted() -> Iterator[None]:
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event == COMPILED else None
    )
    yield
    jax.monitoring.clear_event_listeners()


@pytest.fixture
def workdir(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(shelf, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def started(*_: object, **__: object) -> None:
        raise Started

    for module, name in ((update, "jit_train_step"), (limba.run, "Loop"), (start, "create_state")):
        monkeypatch.setattr(module, name, started)
    yield tmp_path
    import tasks

    tasks.__path__[:] = [folder for folder in tasks.__path__ if not folder.startswith(str(tmp_path))]
    for name in [name for name in sys.modules if name.startswith("tasks.")]:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_case_stands_twice() -> None:
    different = {(case.argv, tuple(case.files.items()), case.change, tuple(case.environment.items())) for case in CASES}
    assert len(different) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_one_sentence(
    case: Case, workdir: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in case.files.items():
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_bytes(data)
    if case.change is not None:
        case.change(workdir)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    before = contents(workdir)
    num_compiled = len(compiled)
    capfd.readouterr()
    code = main.main(list(case.argv))
    said = capfd.readouterr().err
    assert code == case.code
    (sentence,) = said.splitlines()
    assert case.says in sentence
    assert sentence.endswith((".", "?")) or "--import=" in sentence
    assert len(compiled) == num_compiled
    after = contents(workdir)
    assert {path: after.get(path) for path in before} == before, "written over"
