"""Broken runs on real text: how many preflight finds with a fix that works as typed, and alarms on healthy ones.

    python -m benchmarks.broken_runs fr=fr.jsonl ja=ja.jsonl.gz --english=en.jsonl [--only=22,43]

Each file has JSON lines {"text"} of one language, 600 or more. The runs are those of tests/preflight/broken_texts.py
and broken_runs.py, which were written with made-up sentences, on these documents: each is looked at as a user would,
with all sections and no compile, its fix is typed, and it is looked at again. Prints a line for each run that is not
found so, with the codes that were given, and what else is said; then the counts. Number 61, whose fix is hours of work,
counts as found by its fix alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

from limba.cli import program
from limba.config import environment
from tests.preflight import broken_runs, broken_texts
from tests.preflight.broken_texts import REAL, documents, typed, wrong

ROOT = Path(__file__).parents[1]
MACHINE = ("Environment",)  # what is wrong with this machine is not about the runs
SHOWN = 100  # letters of what else is said
LITTLE = {"too-many-epochs", "too-few-tokens", "unused-rows"}  # said of any run on so little text
MANY_LETTERS = ("ja", "zh")
NARROW = """
BATCH_SIZE = 32_768
config.ModelConfig:
  emb_dim = 8
  mlp_dim = 8
  num_encoder_layers = 1
  num_decoder_layers = 1
"""
SLOW = broken_runs.Broken("61 reading is too slow", NARROW, "h100-8", "reading-too-slow", sound=broken_runs.LOCAL)
Made = tuple[str, Callable[[str], list[str]], str]  # code of the finding, flags of a run in a language, answer


def table() -> dict[str, Made]:
    """Returns the 61 runs by name, each numbered one once."""
    found: dict[str, Made] = {name: (code, files, "") for name, (code, _, files) in broken_texts.RUNS.items()}
    for each in (*broken_runs.BROKEN, *broken_runs.OTHERS, SLOW):
        found[each.name] = each.code, lambda own, each=each: _of_gin(each, own), each.answer
    return {name: made for name, made in sorted(found.items()) if name[:2].isdigit()}


def _of_gin(broken: broken_runs.Broken, own: str) -> list[str]:
    """Writes the gin file of a run that its configuration breaks, and its text."""
    is_local = broken in broken_runs.OTHERS
    broken_texts.write("corpus.jsonl", documents(own, 400))
    lines = [line[:30] for text in documents(own, 600) for line in text.splitlines()][:900]
    Path("short.txt").write_text("".join(f"{number} {line}\n" for number, line in enumerate(lines)))
    Path("run.gin").write_text(f"{broken_runs.LOCAL if is_local else broken.sound}\n{broken.lines}\n")
    return ["run.gin", *([f"--topology={broken.chips}"] if broken.chips else [])]


def healthy() -> dict[str, Callable[[str], list[str]]]:
    """Returns runs of which nothing is to be said, but that so little text is read too often."""
    new = ["--gin.MODEL_DIR='run'", "--topology=v3-8"]
    small = "--gin.config.DataConfig.new_vocabulary_size=4000"
    text = lambda own: broken_texts.corpus(broken_texts.write("text.jsonl", documents(own, 600)))
    wide = "--gin.TASK_FEATURE_LENGTHS={'inputs': 4096, 'targets': 4096}"
    return {
        "bytes": lambda own: broken_texts.each(own, lambda _, t: t, f"--gin.LANGUAGE={own!r}"),
        "vocabulary": lambda own: broken_texts.each(
            own, lambda _, t: t, broken_texts.vocabulary(own, 1_000), "--gin.VOCAB_SIZE=4096"
        ),
        "pairs": lambda own: [*broken_texts.pairs(own), wide],
        "demo": lambda own: ["gin/demo.gin", text(own), *new, small],
        "encoder": lambda own: ["gin/nb_encoder_base.gin", text(own), *new, f"--gin.LANGUAGE={own!r}",
                                "--gin.NEW_VOCABULARY_SIZE=4000", "--gin.VOCAB_SIZE=4096"],
    }  # fmt: skip


@contextlib.contextmanager
def place(own: str) -> Iterator[None]:
    """A new folder, with the files that all runs have; keys and tokens of this machine are hidden."""
    before = os.getcwd()
    hidden = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "WANDB_API_KEY")}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, hidden, clear=True):
        os.environ["HF_HOME"] = f"{folder}/hub"
        os.chdir(folder)
        try:
            shutil.copytree(ROOT / "tests" / "golden" / "run" / "run", "golden")
            Path("sound.gin").write_text(broken_texts.SOUND + ("VOCAB_SIZE = 4096\n" if own in MANY_LETTERS else ""))
            Path("pairs.gin").write_text(broken_texts.SOUND + broken_texts.PAIRS)
            yield
        finally:
            os.chdir(before)


def looked_at(code: str, files: Callable[[str], list[str]], answer: str, own: str) -> tuple[str, str]:
    """Returns what is wrong with what is said of a broken run, "" if nothing, and what else is said."""
    with place(own):
        argv = files(own)
        found = wrong(argv)
        lines = [line for line in found if line["code"] == code]
        others = [line for line in found if line["section"] not in MACHINE and line["code"] not in {code, *LITTLE}]
        also = "; ".join(f"{line['code']}: {line['text'][:SHOWN]}" for line in others)
        if len(lines) != 1:
            return f"{len(lines)} such findings", also
        fix = answer or lines[0]["fix"]
        if not fix or ("…" in fix) or ("…" in lines[0]["fix"]) != bool(answer):
            return f"its fix is {fix!r}", also
        return "" if code == SLOW.code else _typed(code, fix, argv), also


def _typed(code: str, fix: str, argv: list[str]) -> str:
    """Returns why a fix does not work as it is typed; "" if it does."""
    if code == "gin-file":  # the name is typed anew
        name, text = fix.partition(" = ")[0], Path("run.gin").read_text()
        Path("run.gin").write_text(text.replace("config.OptimizerConfig.weigth_decay", name))
    elif fix.startswith("export "):
        name, value = fix.removeprefix("export ").split("=")
        os.environ[name] = value
    else:
        try:
            argv = typed(fix, argv)
        except Exception as error:  # noqa: BLE001  whatever it is, the fix does not work
            return f"its fix {fix!r} ends with {error!r}"
    left = wrong(argv)
    errors = [line["text"] for line in left if line["level"] == "error" and line["section"] not in MACHINE]
    if code in [line["code"] for line in left]:
        return f"its fix {fix!r} leaves it"
    return f"after its fix {fix!r}: {errors[0]}" if errors and code != "num-data-shards" else ""


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="+", metavar="LANGUAGE=FILE")
    parser.add_argument("--english", metavar="FILE", help="English text, for runs of two languages")
    parser.add_argument("--only", help="numbers of runs, 00 for the healthy ones")
    given = parser.parse_args(argv)
    for text in [*given.texts, *([f"en={given.english}"] if given.english else [])]:
        language, _, path = text.partition("=")
        with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
            REAL[language] = [json.loads(line)["text"] for line in file]
        random.Random(0).shuffle(REAL[language])
    for language in [text.partition("=")[0] for text in given.texts]:
        found = alarms = 0
        runs = {name: made for name, made in table().items() if not given.only or name[:2] in given.only.split(",")}
        for name, (code, files, answer) in runs.items():
            # A vocabulary of another script's language cannot have all letters beside a hundred pieces.
            code = "lost-letters" if name.startswith("46") and language in MANY_LETTERS else code
            why, others = looked_at(code, files, answer, language)
            found += not why
            if why or others:
                print(f"{language} {name}, {code}: {why or 'found'}{f'; also {others}' if others else ''}", flush=True)
        sound = healthy() if not given.only or "00" in given.only.split(",") else {}
        for name, files in sound.items():
            with place(language):
                said = [line for line in wrong(files(language)) if line["section"] not in MACHINE]
                said = [f"{line['code']}: {line['text']}" for line in said if line["code"] not in LITTLE]
                alarms += bool(said)
                if said:
                    print(f"{language} {name}, healthy: {'; '.join(said)}", flush=True)
        print(f"{language}: {found} of {len(runs)} found with a fix that works, {alarms} alarms on {len(sound)} sound")


if __name__ == "__main__":
    environment.set_variables()
    checks = "limba.tools.preflight.checks"
    # Reading is not timed, and this folder stands for a disk that all hosts see.
    with mock.patch(f"{checks}.data.SECONDS", 0.0), mock.patch(f"{checks}.estimate.OF_ONE_MACHINE", ("/dev/shm",)):
        sys.exit(program.exit_code(main, sys.argv[1:]))
