"""Runs that cannot work, each with one thing broken: found with its own sentence and the gin line that fixes it.

The files of tests/broken/ name both in their headers. All run in one process, and none comes to a compile.
"""

import json
import re
import shutil
from pathlib import Path

import jax
import pytest
import sentencepiece

from limba.cli import main
from limba.tools.preflight import preflight
from limba.tools.preflight.checks import compiler, data, sample

ROOT = Path(__file__).parents[2]
BROKEN = sorted((ROOT / "tests" / "broken").glob("*/*.gin"))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A corpus, a vocabulary of English letters without byte pieces, and a run with a checkpoint at step 10."""
    folder = tmp_path_factory.mktemp("broken")
    lines = corpus.read_text().splitlines(keepends=True)
    (folder / "corpus.jsonl").write_text("".join(lines[:120]))
    texts = [json.loads(line)["text"] for line in lines[:120]]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "english"), vocab_size=250, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    shutil.copytree(ROOT / "tests" / "golden" / "run" / "run", folder / "golden")
    (folder / "tests").mkdir()
    shutil.copytree(ROOT / "tests" / "broken", folder / "tests" / "broken")
    return folder


@pytest.fixture
def workdir(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shelf)
    monkeypatch.setattr(data, "SECONDS", 0.1)
    monkeypatch.setattr(sample, "SAMPLE_BYTES", 100_000)

    def compiled(*_: object, **__: object) -> None:
        raise AssertionError("it came to a compile")

    monkeypatch.setattr(compiler, "compiled", compiled)
    return shelf


def verdict(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = preflight.run([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def found(document: dict, level: str) -> list[dict]:
    return [line for section in document["sections"] for line in section["lines"] if line["level"] == level]


def test_there_are_twelve_of_all_kinds() -> None:
    assert len(BROKEN) >= 12
    assert {path.parent.name for path in BROKEN} == {"gin", "task", "vocabulary", "data", "storage"}


@pytest.mark.slow
def test_nothing_is_wrong_with_what_they_break(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = verdict(capsys, "tests/broken/sound.gin", "--no_compile", "--topology=v4-8")
    assert (code, document["verdict"]) == (0, "go"), found(document, "error") + found(document, "warning")
    titles = [section["title"] for section in document["sections"]]
    assert titles[:6] == ["Config", "Data", "Vocabulary", "Objective and schedule", "Storage", "Environment"]
    assert titles[6:] == ["Estimate", "Time and cost"]
    assert not (workdir / "run").exists()  # nothing is left behind


def test_nothing_is_wrong_with_the_run_that_is_resumed(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = verdict(capsys, "tests/broken/resumed.gin", "--no_compile")
    assert (code, document["verdict"]) == (0, "go"), found(document, "error") + found(document, "warning")


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_it_is_found_and_the_line_fixes_it(path: Path, workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, says, fix = re.findall(r"^# (?:says: |fix: )?(.+)$", path.read_text(), re.MULTILINE)[:3]
    name = f"tests/broken/{path.parent.name}/{path.name}"
    code, document = verdict(capsys, name, "--topology=v4-8")
    assert code == 1 == document["exit_status"] and document["verdict"] == "will fail"
    errors = found(document, "error")
    (line,) = [line for line in errors if says in line["text"]]
    assert line["fix"].startswith(fix), line
    assert "Environment" in [section["title"] for section in document["sections"]]  # the others go on
    if "…" in line["fix"] or path.stem in ("not_utf8", "misspelt_name"):
        return  # the value is the user's; or a command
    fixed = Path(workdir) / "tests" / "broken" / path.parent.name / f"fixed_{path.name}"
    fixed.write_text(f"{path.read_text()}\n{line['fix']}\n")
    _, document = verdict(capsys, str(fixed.relative_to(workdir)), "--no_compile")
    assert says not in json.dumps(document, ensure_ascii=False)


def test_wrong_flags_are_no_verdict(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, says in (
        (["--topology=v4-9"], "The topology v4-9 does not exist: v4 comes as v4-8"),
        (["--price=cheap"], "--price=cheap is not a number of dollars of a chip-hour above 0; write --price=2.5."),
        (["--days=0"], "--days=0 is not a number of days above 0"),
        (["--no-compil"], "did you mean --no_compile"),
    ):
        assert preflight.run(["tests/broken/sound.gin", *argv]) == 1
        out = capsys.readouterr()
        assert says in out.err + out.out


def test_the_command_is_in_the_table(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["preflight", "--list_topologies"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert {"v4-8", "v6e-16", "h100-8", "cpu-1"} <= set(names)
    assert jax.default_backend() == "cpu"
