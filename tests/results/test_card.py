"""What is refused before time is spent: a card of another language, one that cannot be read, a library that lacks."""

import contextlib
import sys

import pytest

from limba.cli import main
from limba.config import CardConfig, InputError, RunConfig, saved_config
from limba.tools.results import card
from limba.tools.results.results import _check_language
from limba.tools.results.suites import read_suite
from limba.tools.results.table import Table
from tests import tiny
from tests.export.runs import folder_of, write_run
from tests.http_server import ModelHubHandler, as_hub, serving


def test_a_suite_for_another_language_than_the_cards_is_refused(workdir, vocabulary, monkeypatch, capsys) -> None:
    folder = workdir / "hub" / "me" / "model" / "main"
    folder.mkdir(parents=True)
    folder_of(tiny.model(vocab_size=1_024), vocabulary, folder)
    (folder / "README.md").write_text("---\nlanguage:\n  - ro\n  - 'mo'\n---\n")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with serving(workdir / "hub", handler=ModelHubHandler) as server:
        as_hub(server, workdir / "cache", monkeypatch)
        for model in (str(folder), "me/model"):
            assert main.main(["results", model, "--suite=./suite.gin"]) == 2
            says = f"The suite suite is in en, and the card of {model} names ro, mo; give another"
            assert says in capsys.readouterr().err
    assert not (workdir / "results").exists()


@pytest.mark.parametrize(
    ("language", "languages"),
    [("no", ["no"]), ("'no'", ["no"]), ("[ro, en-GB]", ["ro", "en-GB"]), ("", []), ("[ro", [])],
)  # fmt: skip
def test_languages_are_those_of_a_cards_metadata(language, languages, tmp_path) -> None:
    (tmp_path / "README.md").write_text(f"---\nlanguage: {language}\n---\n")
    assert card.languages(tmp_path / "README.md") == languages


@pytest.mark.parametrize("language", ["no", "[no, nn]"])
def test_norwegian_stays_a_language_of_a_card_with_results(language, tmp_path) -> None:
    """YAML reads `no` as False, which was written back."""
    readme = tmp_path / "README.md"
    readme.write_text(f"---\nlanguage: {language}\n---\nA model.\n")
    card.put(readme, ["model"], Table(), read_suite("ro"), [])
    assert card.languages(readme) == language.strip("[]").split(", ") and "false" not in readme.read_text()


@pytest.mark.parametrize(
    ("language", "said", "fits"),
    [("nb", "no", True), ("no", "nb", True), ("en", "en-GB", True), ("en", "multilingual", True), ("nn", "nb", False)],
)
def test_a_code_stands_for_its_languages(language, said, fits) -> None:
    suite = read_suite("ro")._replace(language=language)
    with contextlib.nullcontext() if fits else pytest.raises(InputError, match="the card of m names nb"):
        _check_language("m", [said], None, suite)


def test_the_language_of_a_run_is_that_of_its_card(workdir, vocabulary, capsys) -> None:
    model = tiny.model(vocab_size=1_024)
    data = tiny.demo_data(workdir / "train.txt", vocabulary)
    write_run(workdir / "run", model)
    run = RunConfig(model, data, str(workdir / "run"), 5, card=CardConfig(language=("ro",)))
    (workdir / "run" / saved_config.FILE).write_text(saved_config.to_text(run))
    assert main.main(["results", "run", "--suite=./suite.gin"]) == 2
    assert "The suite suite is in en, and the card of run names ro; give another suite" in capsys.readouterr().err


def test_a_card_that_cannot_be_read_is_said_before_a_model_is_opened(workdir, vocabulary, capsys) -> None:
    folder = folder_of(tiny.model(vocab_size=1_024), vocabulary, workdir / "model")
    (folder / "README.md").write_text("---\nlanguage: [ro\n---\n")
    assert main.main(["results", "model", "--suite=./suite.gin", "--card"]) == 2
    error = capsys.readouterr().err
    assert "README.md cannot be read (" in error and error.count("\n") == 1, error
    assert not (workdir / "results").exists()


def test_the_harness_is_installed_by_its_own_extra(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "limba.tools.results.harness", raising=False)
    assert main.main(["results", "lm-eval", "ls"]) == 2
    assert capsys.readouterr().err.endswith(", which is not installed; run pip install -e '.[harness]'.\n")
