"""Does to a training run what can happen to it, and checks what it says and that nothing is lost.

    python -m benchmarks.faults
    python -m benchmarks.faults --only='kill-*,disk-full' --times=3

Real processes train the demo's tiny model on real text. Each line of the table is a fault: what was done, the first
sentence that was printed, seconds until then, lines printed on one console (at most 5), exit statuses, and whether the
run that resumes afterwards is the undisturbed one, by a hash of each batch and by each loss. A fault has survived if
all of this is as docs/reliability.md promises. The last line is the numbers of faults tried and survived; the exit
status is 1 if these differ.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.breaking import checkpoints, corpora, disagreeing, signals, storage
from benchmarks.breaking.bench import Bench, NotTriedError, Row
from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment, reason_of

OWN_MOUNTS = "LIMBA_FAULTS_OWN_MOUNTS"  # set where the program has started itself again
HEAD = ("fault", "what was done", "what was said", "s", "lines", "exit", "resumed")


class Group(NamedTuple):
    """Faults that share runs: their names, and a function that yields the rows of those chosen."""

    names: Sequence[str]
    rows: Callable[[Bench, Sequence[str]], Iterator[Row]]


GROUPS = (
    *(
        Group(signals.names(number), functools.partial(lambda n, bench, chosen: signals.rows(bench, n, chosen), number))
        for number in (1, 2, 4)
    ),
    Group(checkpoints.names(), checkpoints.rows),
    *(Group([name], storage.rows) for name in storage.SCENES),
    Group(corpora.names(), corpora.rows),
    Group(list(disagreeing.DIFFERENCES), disagreeing.rows),
)


def chosen_names(only: str) -> list[str]:
    """Returns the names of the faults that match one of the patterns, in order; InputError for one without a match."""
    names, patterns = [name for group in GROUPS for name in group.names], only.split(",")
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise InputError(f"--only is {only}, and no fault is named {pattern}; see --list.")
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def rows(bench: Bench, chosen: Sequence[str]) -> Iterator[Row]:
    """Yields a row for each chosen fault. One that this machine cannot do is a row that says why."""
    for group in GROUPS:
        if not (missing := [name for name in group.names if name in chosen]):
            continue
        reason = "no row came of it"
        try:
            for row in group.rows(bench, list(missing)):
                missing = [name for name in missing if name != row.name]
                yield row
        except NotTriedError as error:
            yield Row(missing.pop(0), "", not_tried=str(error))
        except Exception as error:  # noqa: BLE001  it must not end the table
            reason = f"the fault could not be done: {reason_of(error)}"
            traceback.print_exc()
        yield from (Row(name, "", wrong=[reason]) for name in missing)


def line(row: Row) -> str:
    """Returns the row as a line of a Markdown table."""
    if row.not_tried:
        cells = [row.name, row.done, f"not tried: {row.not_tried}", "", "", "", ""]
    else:
        said = row.said if len(row.said) <= 160 else row.said[:157] + "…"
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        codes = ", ".join("hangs" if code is None else str(code) for code in row.codes)
        good = row.num_survived()
        result = row.resumed if good == row.tried else f"**{'; '.join(row.wrong[:3])}**"
        if row.tried > 1:
            result = f"{good} of {row.tried}: {result}"
        cells = [row.name, row.done, said, seconds, str(row.lines), codes, result]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def report(found: Sequence[Row], seconds: float) -> dict[str, object]:
    """Returns the figures: numbers tried and survived, and all rows."""
    tried = [row for row in found if not row.not_tried]
    return {
        "tried": sum(row.tried for row in tried),
        "survived": sum(row.num_survived() for row in tried),
        "not_tried": [row.name for row in found if row.not_tried],
        "minutes": round(seconds / 60, 1),
        "rows": [dataclasses.asdict(row) for row in found],
    }


def _hear_signals() -> None:
    """Undoes what nohup or a shell's background job set: processes inherit the signals that this one ignores."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _with_own_mounts() -> None:
    """Starts this program again where it may mount small file systems, which are gone when it ends."""
    ways = [["unshare", "-m"], ["unshare", "-rm"]]
    if OWN_MOUNTS in os.environ or shutil.which("unshare") is None:
        return
    for way in ways:
        if subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0:
            os.environ[OWN_MOUNTS] = "1"
            os.execvp(way[0], [*way, sys.executable, *sys.orig_argv[1:]])


def _bench(folder: Path, corpus: str | None, seed: int) -> Bench:
    """Writes the corpus as plain JSON lines, and trains a vocabulary on it."""
    with environment.quiet_imports():
        from limba.data.tasks import source_of_files
        from limba.data.vocabulary.train import train_vocabulary
        from tasks.demo import pydoc_corpus
    path, vocabulary = folder / "corpus.jsonl", folder / "vocabulary.model"
    if corpus is None:
        pydoc_corpus(path)
    else:
        with open(path, "w", encoding="utf-8") as file:
            for text in source_of_files(corpus, "text", 0.0).texts("train"):
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    train_vocabulary(source_of_files(str(path), "text", 0.0).texts("train"), 800, str(vocabulary))
    return Bench(folder, path, vocabulary, seed)


def main(argv: Sequence[str]) -> int:
    parser = Parser("-m benchmarks.faults", __doc__ or "", "python")
    parser.add_argument("--times", type=int, default=1, help="how often all are done, at other random moments")
    parser.add_argument("--only", default="*", help="names or patterns of names, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--corpus", help="text files of about 500 kB; default: Python's language reference")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON at the end")
    args = parser.parse_args(argv)
    if args.times < 1:
        raise InputError(f"--times is {args.times}; give a whole number above 0.")
    chosen = chosen_names(args.only)
    if args.list:
        print("\n".join(chosen))
        return 0
    _hear_signals()
    _with_own_mounts()
    began, found = time.monotonic(), []
    print("| " + " | ".join(HEAD) + " |\n" + "| --- " * len(HEAD) + "|", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for time_number in range(args.times):
            place = Path(folder, str(time_number))
            place.mkdir()
            for row in rows(_bench(place, args.corpus, args.seed + time_number), chosen):
                found.append(row)
                print(line(row), flush=True)
                if row.wrong:
                    print(f"{row.name}: {'; '.join(row.wrong)}\n{row.output[-4000:]}\n", file=sys.stderr, flush=True)
    figures = report(found, time.monotonic() - began)
    if args.json:
        print(json.dumps(figures))
    print(f"tried {figures['tried']}, survived {figures['survived']}, in {figures['minutes']} minutes")
    return int(figures["tried"] != figures["survived"])


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
