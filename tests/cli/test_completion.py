"""`limba completion`: a real bash completes commands, flags, values, gin names and files."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from limba.cli.arguments import Parser, parser_of
from limba.cli.main import COMMANDS, main
from limba.cli.start import completion

DRIVER = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_limba
printf '%s\\n' ${COMPREPLY[@]+"${COMPREPLY[@]}"}
"""


@pytest.fixture(scope="module")
def table() -> list[completion.Command]:
    return completion.commands()


@pytest.fixture(scope="module")
def script(table: list[completion.Command], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bash") / "limba"
    path.write_text(completion.bash(table))
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["limba", "conv"], {"convert", "convert-gin"}),
        (["limba", "convert", "--dry"], {"--dry-run"}),
        (["limba", "convert", "--to", "="], {"huggingface", "t5x", "limba", "list"}),  # as bash splits --to=
        (["limba", "convert", "--to", "=", "t"], {"t5x"}),
        (["limba", "vocabulary", "--normalization", "i"], {"identity"}),
        (["limba", "prepare", "--format", "=", "p"], {"parquet"}),  # alternatives of the help text
        (["limba", "train", "--gin.TRAIN_S"], {"--gin.TRAIN_STEPS="}),
        (["limba", "train", "gin/ro_t5x_b"], {"gin/ro_t5x_base.gin"}),  # of Limba, also from another folder
        (["limba", "train", "my"], {"my run.gin"}),
        (["limba", "score", "--input", "=", "my"], {"my run.gin"}),
        (["limba", "doctor", ""], set()),
        (["limba", "nothing", "--"], set()),
    ],
)
def test_bash_completes(words: list[str], expected: set[str], script: Path, tmp_path: Path) -> None:
    (tmp_path / "my run.gin").touch()
    command = ["bash", "--norc", "-c", DRIVER, "bash", str(script), *words]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(filter(None, ended.stdout.splitlines())) == expected, ended.stderr


# What is typed, and what the shell offers then. zsh and fish complete a word with its `=` as one.
TYPED = [
    ("limba tr", {"train"}),
    ("limba convert --to=", {"huggingface", "t5x", "limba", "list"}),
    ("limba vocabulary --normalization ", {"identity", "nfkc", "nmt_nfkc"}),
    ("limba prepare --format=p", {"parquet"}),
    ("limba train --gin.TRAIN_S", {"--gin.TRAIN_STEPS"}),
    ("limba train gin/ro_t5x_b", {"gin/ro_t5x_base.gin"}),
    ("limba train my", {"my_run.gin"}),
    ("limba score --input=my", {"my_run.gin"}),
    ("limba new --c", {"--corpus", "--column"}),
    ("limba completion ", {"bash", "zsh", "fish"}),
]
# A zsh on a terminal of its own; every word that it offers is printed in <>. It completes once its line editor is on.
ZSH = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PROMPT= ; fpath=('$1' $fpath); autoload -Uz compinit; compinit -u -D; setopt nobeep; LISTMAX=10000
  compadd() {
    if [[ "${@[1,(i)(-|--)]}" != *-(O|A|D)* ]]; then
      local -a offered; builtin compadd -A offered "$@"; print -rl -- "<"${^offered}">"
    fi
    builtin compadd "$@"
  }
  zle-line-init() { print REA""DY }; zle -N zle-line-init'
zpty -r shell line '*READY*'
zpty -w -n shell "$2"$'\t'
zpty -w -n shell $'\x15'  # the line is left out
zpty -w shell 'print END""ED'
zpty -r shell line '*ENDED*'
print -r -- $line
zpty -d shell
"""


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_fish_completes(typed: str, expected: set[str], table: list[completion.Command], tmp_path: Path) -> None:
    (tmp_path / "my_run.gin").touch()
    (tmp_path / "limba.fish").write_text(completion.fish(table))
    command = ["fish", "--no-config", "-c", f"source limba.fish; complete -C '{typed}'"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    offered = {line.split("\t")[0] for line in ended.stdout.splitlines()}
    before = typed.rpartition("=")[0] + "=" if "=" in typed else ""  # fish offers the whole word
    before = before.rpartition(" ")[2]
    assert {each.removeprefix(before).rstrip("=") for each in offered} == expected, ended.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_zsh_completes(typed: str, expected: set[str], table: list[completion.Command], tmp_path: Path) -> None:
    (tmp_path / "my_run.gin").touch()
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "_limba").write_text(completion.zsh(table))
    command = ["zsh", "-f", "-c", ZSH, "zsh", str(tmp_path / "functions"), typed]
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert set(re.findall(r"<([^<>]+)>", ended.stdout)) == expected, ended.stdout + ended.stderr


def test_every_command_and_flag_is_in_each_script(table: list[completion.Command]) -> None:
    assert [command.name for command in table] == list(COMMANDS)
    flags = {command.name: {flag.name for flag in command.flags} for command in table}
    assert {"--corpus", "--hardware", "--days"} <= flags["new"] and {"--steps", "--step", "--npz"} <= flags["convert"]
    for shell in completion.SHELLS:
        text = getattr(completion, shell)(table)
        for command in table:
            assert re.search(rf"\b{re.escape(command.name)}\b", text)
            assert all((flag.name if shell != "fish" else f"-l {flag.name[2:]}") in text for flag in command.flags)
        quotes = re.sub(r"'\\''|\\'", "", text).count("'") - text.count("limba's") - text.count("parser's")
        assert quotes % 2 == 0, shell
        if (program := shutil.which(shell)) is not None:
            subprocess.run([program, "-n"], input=text, text=True, check=True)


def test_a_parser_is_found_and_nothing_runs() -> None:
    def command(argv: object) -> None:
        parser = Parser("x", "about")
        parser.add_argument("--flag")
        parser.parse([])
        raise AssertionError

    found = parser_of(command)
    assert found is not None and "--flag" in found.format_help()
    assert parser_of(lambda _: None) is None and Parser("y", "").parse([]).gin == []


def test_an_unknown_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.strip() == "The shell is tcsh; give bash, zsh or fish, as in limba completion bash."
    assert main(["completion", "bash"]) == 0 and capsys.readouterr().out.startswith("# Completion")
