"""`limba completion`: real shells complete commands, flags, values, gin names and files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from limba.cli.main import main

ROOT = Path(__file__).parents[2]
# What is typed, and what the shell offers then.
TYPED = [
    ("limba tr", {"train"}),
    ("limba conv", {"convert"}),
    ("limba convert --dry", {"--dry_run"}),
    ("limba convert --to=", {"huggingface", "t5x", "limba", "list"}),
    ("limba convert --to=t", {"t5x"}),
    ("limba convert --to=t5x --st", {"--step="}),  # a flag of this form alone
    ("limba vocabulary --normalization ", {"identity", "nfkc", "nmt_nfkc"}),
    ("limba train --gin.TRAIN_S", {"--gin.TRAIN_STEPS="}),
    ("limba train gin/ro_t5x_b", {"gin/ro_t5x_base.gin"}),  # of Limba, also from another folder
    ("limba train my", {"my run.gin"}),
    ("limba generate --input=my", {"my run.gin"}),
    ("limba generate --top", {"--top=", "--top_k=", "--top_p="}),
    ("limba new --c", {"--corpus=", "--column="}),
    ("limba completion ", {"bash", "zsh", "fish"}),
    ("limba preflight --env", {"--environment"}),
]
BASH = """
source script
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


def completed(shell: str, typed: str, folder: Path, *command: str) -> str:
    """Returns what a shell prints, where `limba` and the file `my run.gin` are, and its script `script`."""
    (folder / "my run.gin").touch()
    (folder / "limba").write_text(f'#!/bin/sh\nexec {sys.executable} -m limba "$@"\n')
    (folder / "limba").chmod(0o755)
    environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{folder}:{environment['PATH']}"
    printed = subprocess.run(
        ["limba", "completion", shell], env=environment, capture_output=True, text=True, check=True
    )
    (folder / "script").write_text(printed.stdout)
    ended = subprocess.run([*command, typed], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    assert not ended.stderr
    return ended.stdout


def after_flag(offered: str, typed: str) -> str:
    """Returns what is offered without the flag of the word typed; fish and zsh offer the whole word."""
    flag, sign, _ = typed.rpartition(" ")[2].partition("=")
    return offered.removeprefix(flag + sign) if sign else offered


@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_bash_completes(typed: str, expected: set[str], tmp_path: Path) -> None:
    printed = completed("bash", typed, tmp_path, "bash", "--norc", "-c", BASH, "bash")
    assert {line.strip().replace("\\", "") for line in printed.splitlines()} - {""} == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_fish_completes(typed: str, expected: set[str], tmp_path: Path) -> None:
    printed = completed("fish", typed, tmp_path, "fish", "--no-config", "-c", "source script; complete -C $argv[1]")
    assert {after_flag(line.split("\t")[0], typed) for line in printed.splitlines()} == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(("typed", "expected"), TYPED)
def test_zsh_completes(typed: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "_limba").symlink_to(tmp_path / "script")
    printed = completed("zsh", typed, tmp_path, "zsh", "-f", "-c", ZSH, "zsh", str(tmp_path / "functions"))
    offered = {after_flag(each, typed) for each in re.findall(r"<([^<>]+)>", printed)}
    assert {each.replace("\\", "") for each in offered} == expected, printed


def test_an_unknown_shell_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.strip() == "The shell is tcsh; give bash, zsh or fish, as in limba completion bash."
    assert main(["completion", "bash"]) == 0 and "limba" in capsys.readouterr().out
