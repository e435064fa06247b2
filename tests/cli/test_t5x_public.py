"""Public runs of T5X become the same runs here; a parser that shares nothing with Limba says what the originals are."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from limba.config import InputError
from tests.cli import t5x_public
from tests.cli.t5x_originals import original

FILE = Path(__file__).parent / "t5x" / "public_runs.txt"


class Run(NamedTuple):
    repository: str
    name: str
    includes: tuple[str, str]
    settings: Mapping[str, str]

    def text(self) -> str:
        lines = [f"include '{include}'" for include in self.includes]
        return "\n".join([*lines, *(f"{name} = {value}" for name, value in self.settings.items()), ""])


def public_runs() -> list[Run]:
    """Returns the runs of the table."""
    runs: list[Run] = []
    repository = ""
    script = ""
    common = {}
    for line in FILE.read_text().splitlines():
        if heading := re.fullmatch(r"\[(.+)\] (\w+)", line):
            (repository, script) = heading.groups()
            common = {}
        elif run := re.fullmatch(r"(\S+) < (\S+)", line):
            model = f"t5x/examples/{run[2]}.gin"
            runs.append(Run(repository, run[1], (model, f"t5x/configs/runs/{script}.gin"), dict(common)))
        elif line[0] != "#":
            settings = dict(part.split(" = ", 1) for part in line[2:].split("; "))
            (common if line[0] == "*" else runs[-1].settings).update(settings)  # pyright: ignore
    return runs


RUNS = public_runs()


@pytest.fixture(scope="module")
def t5x(tmp_path_factory):
    """T5X's own files as gin, for the other parser."""
    folder = tmp_path_factory.mktemp("t5x")
    t5x_public.write_tables(folder)
    return folder


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.repository.partition('/')[0]}-{run.name}")
def test_a_public_run_is_the_same_run_here(run, tmp_path, t5x):
    file = tmp_path / "theirs.gin"
    file.write_text(run.text())
    if "PassThroughFeatureConverter" in run.text():  # the task makes T5X's model features
        with pytest.raises(InputError, match="Limba makes them, of a task's inputs and targets"):
            t5x_public.compared([str(file)], [tmp_path], [t5x])
        return
    run_of_theirs, differs = t5x_public.compared([str(file)], [tmp_path], [t5x])
    assert not differs
    facts = run_of_theirs.facts()
    assert facts["batch"] and facts["sizes"][0] >= 512 and (facts.get("steps", 1) or 0) > 0


def test_65_of_71_convert_and_more():
    converts = [run for run in RUNS if "PassThroughFeatureConverter" not in run.text()]
    assert len(RUNS) >= 71 and len(converts) >= len(RUNS) - 6


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("network.T5Config.emb_dim = 1000", "sizes"),
        ("TASK_FEATURE_LENGTHS = {'inputs': 9, 'targets': 9}", "lengths"),
        ("BATCH_SIZE = 8", "batch"),
        ("create_learning_rate_scheduler.base_learning_rate = 7.0", "rate"),
        ("create_learning_rate_scheduler.factors = 'constant'", "factors"),
        ("TRAIN_STEPS = 3", "steps"),
        ("VOCABULARY = @seqio.SentencePieceVocabulary()\nseqio.SentencePieceVocabulary.sentencepiece_model_file = '/v'"
         "\nseqio.SentencePieceVocabulary.extra_ids = 3", "vocabulary"),
    ],
)  # fmt: skip
def test_a_changed_line_is_seen(line, fact, tmp_path, t5x):
    run = RUNS[0]
    (tmp_path / "theirs.gin").write_text(run.text())
    (tmp_path / "changed.gin").write_text(run.text() + line + "\n")
    kept, changed = (
        t5x_public.expected(original([str(tmp_path / name)], [tmp_path, t5x])) for name in ("theirs.gin", "changed.gin")
    )
    assert {name for name in kept if kept[name] != changed[name]} == {fact}
    assert not t5x_public.compared([str(tmp_path / "changed.gin")], [tmp_path], [t5x])[1]
