"""The public names: `import limba` and what it opens change nothing in the process, and load imports no front end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shipped import ROOT

# What a process has that others look at; the libraries set some of it when they are imported, so that comes first.
STATE = """import logging, os, sys
import jax, orbax.checkpoint, seqio, tensorboardX, tensorflow, tensorstore, transformers

def state():
    loggers = {name: each.level for name, each in logging.root.manager.loggerDict.items() if hasattr(each, "level")}
    named = {name: level for name, level in loggers.items() if level}
    return dict(os.environ), sys.meta_path[:], named, logging.root.level, logging.root.handlers[:]

before = state()
"""


def run(program: str, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TF_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True,
        env=kept | {"JAX_PLATFORMS": "cpu"} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_a_path_without_a_model_needs_neither_a_front_end_nor_what_trains() -> None:
    program = """import sys, limba
try:
    limba.load("nowhere")
except limba.InputError as error:
    assert "nowhere does not exist" in str(error)
print(*(name for name in sys.modules if name.partition(".")[0] == "limba"))"""
    above = ("limba.cli", "limba.tools", "limba.run", "limba.training.step", "limba.model", "limba.export.huggingface")
    modules = run(program).split()
    assert not [name for name in modules if name.startswith(above)], modules


@pytest.mark.slow
def test_import_load_and_train_leave_the_process_as_it_was(tmp_path: Path) -> None:
    """Variables, log levels, import hooks; compiled programs are kept all the same, and cli is not imported."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"Propoziția numărul {n} este aici, și este destul de lungă.\n" for n in range(300)))
    kept = tmp_path / "kept"
    program = f"""{STATE}
import limba
assert state() == before
config = limba.read_gin("gin/demo.gin", CORPUS={str(corpus)!r}, VOCABULARY="byte", VOCAB_SIZE=384, BATCH_SIZE=8,
    TRAIN_STEPS=1, EVAL_STEPS=1, MODEL_DIR={str(tmp_path / "run")!r},
    **{{f"config.ModelConfig.num_{{side}}_layers": 1 for side in ("encoder", "decoder")}})
for name in [name for name in sys.modules if name.startswith("limba.cli")]:
    del sys.modules[name]  # of read_gin, the one public name of a front end
assert limba.train(config)["step"] == 1
assert limba.load({str(tmp_path / "run")!r}).score([("a", "b")])
now = state()
assert [one for one, other in zip(now, before) if one != other] == [], [
    {{key: (one.get(key), other.get(key)) for key in one.keys() ^ other.keys() | one.keys()
        if one.get(key) != other.get(key)}} if isinstance(one, dict) else (one, other)
    for one, other in zip(now, before) if one != other]
print(*(name for name in sys.modules if name.startswith("limba.cli")))
"""
    assert run(program, COMPILE_CACHE=str(kept)).split("\n")[-2] == ""
    assert list(kept.iterdir())
