"""Real shells complete commands, flags, values, gin names and files, by the script that argcomplete prints."""

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from limba.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
# What is typed, and what the shell offers then.
TYPED = [
    ("limba ", set(COMMANDS)),
    ("limba tr", {"train"}),
    ("limba conv", {"convert"}),
    ("limba convert --dry", {"--dry_run"}),
    ("limba convert --to=", {"huggingface", "t5x", "limba", "list"}),
    ("limba convert --to=t", {"t5x"}),
    ("limba convert --to=t5x --st", {"--step="}),  # a flag of this form alone
    ("limba vocabulary --normalization ", {"identity", "nfkc", "nmt_nfkc"}),
    ("limba vocabulary trim --ke", {"--keep="}),
    ("limba train --gin.TRAIN_S", {"--gin.TRAIN_STEPS="}),
    ("limba train gin/ro_t5x_b", {"gin/ro_t5x_base.gin"}),  # of Limba, also from another folder
    ("limba train my", {"my run.gin"}),
    ("limba generate --input=my", {"my run.gin"}),
    ("limba generate --top", {"--top=", "--top_k=", "--top_p="}),
    ("limba new --co", {"--corpus=", "--column="}),
    ("limba preflight --env", {"--environment"}),
]
# What a shell may take apart or quote in a way of its own: a word, a flag's value, a space in a name. The words offered
# come from the same program for all shells, which bash asks for each of them.
IN_EACH_SHELL = {
    "limba tr", "limba convert --to=t", "limba train --gin.TRAIN_S", "limba train my", "limba generate --input=my",
}  # fmt: skip
TYPED_ELSEWHERE = [case for case in TYPED if case[0] in IN_EACH_SHELL]
BASH = """
source ./script
COMP_LINE=$1 COMP_POINT=${#1}
_python_argcomplete limba
printf '%s\\n' ${COMPREPLY[@]+"${COMPREPLY[@]}"}
"""
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


Completed = Callable[..., str]


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Completed:
    """Returns a function that gives what a shell prints, where `limba`, the file `my run.gin` and its `script` are."""
    base = tmp_path_factory.mktemp("completion")
    (base / "bin").mkdir()
    (base / "bin" / "limba").write_text(f'#!/bin/sh\nexec {sys.executable} -m limba "$@"\n')
    (base / "bin" / "limba").chmod(0o755)
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{base / 'bin'}:{environment['PATH']}"

    @functools.cache
    def folder_of(shell: str) -> Path:
        folder = base / shell
        (folder / "functions").mkdir(parents=True)
        (folder / "my run.gin").touch()
        asked = [Path(sys.executable).with_name("register-python-argcomplete"), "--no-defaults", "--shell", shell]
        printed = subprocess.run([*asked, "limba"], env=environment, capture_output=True, text=True, check=True)
        (folder / "script").write_text(printed.stdout)
        (folder / "functions" / "_limba").symlink_to(folder / "script")
        return folder

    def completed(shell: str, typed: str, *command: str) -> str:
        ended = subprocess.run(
            [*command, typed], cwd=folder_of(shell), env=environment, capture_output=True, text=True, check=True
        )
        assert not ended.stderr
        return ended.stdout

    return completed


def after_flag(offered: str, typed: str) -> str:
    """Returns what is offered without the flag of the word typed; fish and zsh offer the whole word."""
    flag, sign, _ = typed.rpartition(" ")[2].partition("=")
    return offered.removeprefix(flag + sign) if sign else offered


@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_bash_completes(typed: str, expected: set[str], completed: Completed) -> None:
    printed = completed("bash", typed, "bash", "--norc", "-c", BASH, "bash")
    assert {line.strip().replace("\\", "") for line in printed.splitlines()} - {""} == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(("typed", "expected"), TYPED_ELSEWHERE)
def test_fish_completes(typed: str, expected: set[str], completed: Completed) -> None:
    printed = completed("fish", typed, "fish", "--no-config", "-c", "source script; complete -C $argv[1]")
    assert {after_flag(line.split("\t")[0], typed) for line in printed.splitlines()} == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(("typed", "expected"), TYPED_ELSEWHERE)
def test_zsh_completes(typed: str, expected: set[str], completed: Completed) -> None:
    printed = completed("zsh", typed, "zsh", "-f", "-c", ZSH, "zsh", "functions")
    offered = {after_flag(match, typed) for match in re.findall(r"<([^<>]+)>", printed)}
    assert {word.replace("\\", "") for word in offered} == expected, printed
