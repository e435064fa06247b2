"""Runs whose data change at a step: resumed, rewound and branched across it, by one process or two, bit for bit."""

import dataclasses
import functools
import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import seqio
import tensorflow as tf
from etils import epath

from limba.cli import main
from limba.config import CheckpointConfig, ConfigError, EvaluationConfig, InputError
from limba.data.objectives import span_corruption, tokenize_documents
from limba.data.sources import FileSource
from limba.data.stream import positions as positions_module
from limba.formats import limba_checkpoint
from limba.inference.step_documents import documents_of_step
from limba.run import train
from limba.tools.pages.page.page import page_of
from limba.training.metrics.logging import read_metrics
from tests.data.test_positions import write
from tests.evaluation.report_runs import opened
from tests.run import test_guard as guarded
from tests.run.test_branch import SMALL, assert_same, figures, limba_
from tests.run.test_guard import poisoned as poisoned
from tests.run.test_hosts import finish, start

MODULE = """
import seqio
import tasks.demo
from limba.data.sources import FileSource

task = seqio.TaskRegistry.get("demo_span_corruption")
for name in ("clean", "books"):
    source = FileSource(f"{folder}/{name}.txt", validation_percent=0.0)
    seqio.TaskRegistry.add_provider(f"later_{name}", task.replace(name=f"later_{name}", source=source))
seqio.MixtureRegistry.add("later_both", [("later_clean", 3.0), ("later_books", 1.0)])
"""
STAGES = "config.DataConfig.stages=((3, 'later_clean'), (5, 'later_both'))"
RUN = """
import sys, json
sys.path.insert(0, sys.argv[1])
from limba.config import environment
environment.set_variables()
import later_tasks
from limba.cli import main
sys.exit(main.main(json.loads(sys.argv[2])))
"""


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a module that registers two tasks and a mixture of them."""
    for name, text in (("clean", "Un text bun și lung"), ("books", "A book about a language")):
        write(tmp_path / f"{name}.txt", [f"{number} {text} {number * number}" for number in range(400)])
    (tmp_path / "later_tasks.py").write_text(MODULE.replace("{folder}", str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("later_tasks")
    yield tmp_path
    del sys.modules["later_tasks"]  # the next test's registers its tasks again
    seqio.MixtureRegistry.remove("later_both")
    for name in ("clean", "books"):
        seqio.TaskRegistry.remove(f"later_{name}")


def flags(corpus: Path, run: Path, *others: str) -> list[str]:
    words = (*SMALL, "EVAL_STEPS=1", "CHECKPOINT_PERIOD=1", "LEARNING_RATE=0.01", *others)
    return ["train", "gin/demo.gin", f"--gin.CORPUS={corpus}", f"--gin.MODEL_DIR={run}", *(f"--gin.{w}" for w in words)]


def copied(run: Path, there: Path, step: int) -> Path:
    """A copy of a run as a crash after a step leaves it."""
    shutil.copytree(run, there)
    for later_one in (there / "checkpoints").iterdir():
        if later_one.name.isdigit() and int(later_one.name) > step:
            shutil.rmtree(later_one)
    return there


def last_tokens(run: Path) -> dict[str, float]:
    last = [record for record in read_metrics(str(run)) if record["kind"] == "train"][-1]
    return {name: value for name, value in last.items() if name.startswith("tokens/")}


@pytest.mark.night
@pytest.mark.usefixtures("later")
def test_a_run_in_stages_resumes_and_branches_at_before_and_after_a_boundary(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    limba_(*flags(corpus, whole, "TRAIN_STEPS=7", STAGES))
    tokens = last_tokens(whole)
    for step in (3, 4):  # from before it: the branch below
        again = copied(whole, tmp_path / f"from {step}", step)
        limba_(*flags(corpus, again, "TRAIN_STEPS=7", STAGES))
        assert figures(again) == figures(whole) and last_tokens(again) == tokens
        assert_same(whole, again, 7)

    # Every token is one of a stage: what the log counts is what the stages have.
    lines = [record for record in read_metrics(str(whole)) if record["kind"] == "train"]
    staged = {name: value for name, value in tokens.items() if name.count("/") == 2}
    assert sum(staged.values()) == sum(value for name, value in tokens.items() if name not in staged)
    assert sum(staged.values()) == pytest.approx(
        sum(line["tokens_per_second"] * line["seconds_per_step"] for line in lines)
    )
    assert {name.split("/", 1)[1] for name in staged} == {
        "stage_0/demo_span_corruption", "stage_3/later_clean", "stage_5/later_clean", "stage_5/later_books"
    }  # fmt: skip
    text = page_of(opened(whole))
    for begins, name in ((0, "demo_span_corruption"), (3, "later_clean"), (5, "later_books")):
        number = tokens[f"tokens/stage_{begins}/{name}"]
        assert re.search(
            rf'<th scope="row">{begins}</th><td dir="auto">{name}</td><td dir="auto">{number:,.0f}</td>', text
        )

    # A branch keeps the stages, from before a boundary over it, and from after it.
    for step in (2, 6):
        out = tmp_path / f"branch from {step}"
        limba_("branch", whole, f"--decay={7 - step}", f"--step={step}", "--shape=constant", f"--output={out}")
        assert figures(out) == {at: record for at, record in figures(whole).items() if at > step}
        assert_same(whole, out, 7)

    # Stages that a branch sets work as if the run had had them from the start.
    plain = tmp_path / "plain"
    limba_(*flags(corpus, plain, "TRAIN_STEPS=3"))
    assert_same(plain, whole, 3)
    assert not last_tokens(plain)
    out = tmp_path / "set"
    branch = ["branch", plain, "--decay=4", "--step=3", "--shape=constant", f"--output={out}"]
    limba_(*branch, f"--gin.{STAGES}")
    assert figures(out) == {at: record for at, record in figures(whole).items() if at > 3}
    assert_same(whole, out, 7)

    # The stages before the checkpoint belong to it.
    moved = "config.DataConfig.stages=((2, 'later_clean'),)"
    for run, changes, said in (
        (plain, [moved], "has read 'demo_span_corruption'; leave the stages before that step as they were."),
        (whole, [], "has read 'later_both' since step 5; leave the stages before that step as they were."),
    ):
        capsys.readouterr()
        assert main.main(flags(corpus, run, "TRAIN_STEPS=9", *changes)) == 2
        assert said in capsys.readouterr().err
    capsys.readouterr()
    limba_("status", whole)
    assert "stage        3 of 3: later_both since step 5\n" in capsys.readouterr().out


def ledger(run: Path, step: int) -> dict[int, tuple[object, ...]]:
    """What the data positions of a checkpoint say of the batches and tokens of each stage, by shard."""
    positions = limba_checkpoint.positions_in(epath.Path(run / "checkpoints" / str(step)))
    saved = {shard: positions_module.opened(position, shard) for shard, position in positions.items()}
    return {
        shard: (saved_position.place.batch, saved_position.place.tokens, saved_position.stage)
        for shard, saved_position in saved.items()
    }


@pytest.mark.night
def test_two_processes_change_the_stage_like_one(corpus: Path, later: Path, tmp_path: Path) -> None:
    one, two, alone = (tmp_path / name for name in ("one", "two", "alone"))
    same = (STAGES, "DROPOUT_RATE=0.0")  # each device draws its own
    program = ["-c", RUN, str(later), json.dumps(flags(corpus, two, "TRAIN_STEPS=4", *same))]
    finish(start(program, 2, 1))
    copied(two, alone, 3)
    for directory in (alone, one):
        limba_(*flags(corpus, directory, "TRAIN_STEPS=7", *same))
    assert list(figures(two)) == [1, 2, 3, 4] and list(figures(alone)) == list(figures(one)) == list(range(1, 8))
    for directory in (two, alone):
        for step, values in figures(directory).items():
            assert figures(one)[step] == pytest.approx(values, rel=1e-3)  # of 2 devices, and of 8
    for step in (3, 4):
        assert ledger(two, step) == ledger(one, step) and set(ledger(one, step)) == {0, 1}
    assert ledger(alone, 7) == ledger(one, 7) and last_tokens(alone) == last_tokens(one)


@pytest.mark.night
def test_the_guard_rewinds_across_a_boundary_and_the_documents_are_found(
    poisoned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The poisoned documents are in the third batch of the second stage, step 57's."""
    texts = [json.loads(line)["text"] for line in poisoned.read_text().splitlines()]
    bad = [texts[number] for number in guarded.POISONED]
    clean = [text for text in texts if text not in bad]
    for number, text in zip((2, 202), bad, strict=True):
        texts[number] = text
        texts[number + 54] = clean[number]
    features = {side: seqio.Feature(seqio.ByteVocabulary(100), dtype=tf.int32) for side in ("inputs", "targets")}
    source = FileSource(str(write(tmp_path / "poisoned.txt", texts)), validation_percent=0.0)
    seqio.TaskRegistry.add(
        "rewound_stage", source=source, preprocessors=[tokenize_documents, span_corruption],
        output_features=features, shuffle_buffer_size=None,
    )  # fmt: skip
    words = write(tmp_path / "clean.jsonl", clean)
    try:
        stages = ((54, "rewound_stage"),)
        config = guarded.config_of(tmp_path / "run", words, "rewind", stages=stages)
        assert train(config)["step"] == guarded.LAST
        assert "The run has returned to step 40 and passes over" in capsys.readouterr().out
        entries = guarded.ledger_of(config)
        assert any(entry["batch"] == 57 and entry["data_batch"] == 57 and entry["rows"] for entry in entries)
        replay = guarded.config_of(
            tmp_path / "given", words, "rewind", stages=stages, skip=str(tmp_path / "run" / guarded.FILE)
        )
        train(replay)
        guarded.assert_same_run(replay, config)

        documents = documents_of_step(config.model_dir, 57, stood_out=True)
        assert {document.text for row in documents for document in row.documents} == set(bad)
        assert {document.source for row in documents for document in row.documents} == {"rewound_stage"}
    finally:
        seqio.TaskRegistry.remove("rewound_stage")


def test_stages_that_cannot_be_are_refused_before_the_compile(poisoned: Path, tmp_path: Path) -> None:
    demo = seqio.TaskRegistry.get("demo_span_corruption")
    longer = [*demo.preprocessors[:-1], functools.partial(span_corruption, noise_density=0.5)]
    there, absent = (FileSource(str(path), validation_percent=0.0) for path in (poisoned, tmp_path / "absent.txt"))
    others = {"unlike_stage": {"source": there, "preprocessors": longer}, "absent_stage": {"source": absent}}
    for name, changes in others.items():
        seqio.TaskRegistry.add_provider(name, demo.replace(name=name, **changes))
    config = guarded.config_of(tmp_path / "run", poisoned, "off")
    try:
        for name, sentence in (
            ("no_such_task", "DataConfig.stages names, from step 5 on, what is 'no_such_task', and no task"),
            (
                "unlike_stage",
                r"DataConfig.stages names unlike_stage from step 5 on, whose rows of \{.*differ from those in",
            ),
            ("absent_stage", "absent.txt"),
        ):
            with pytest.raises(InputError, match=sentence):
                train(dataclasses.replace(config, data=dataclasses.replace(config.data, stages=((5, name),))))
    finally:
        for name in others:
            seqio.TaskRegistry.remove(name)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, stages=((5, "later"),)))
    for owner, part in (
        ("checkpoint", CheckpointConfig("epoch")),
        ("evaluation", EvaluationConfig(every_steps="epoch")),
    ):
        with pytest.raises(ConfigError, match="every_steps is 'epoch', and DataConfig.stages"):
            dataclasses.replace(config, **{owner: part})
    assert not (tmp_path / "run" / "checkpoints").exists() or not list((tmp_path / "run" / "checkpoints").iterdir())
