"""Makes each number that README.md shows of itself, and its picture.

    python -m benchmarks.readme               # the demo: a part of its output, and pictures of its pages
    python -m benchmarks.readme --seeds=1,2   # the demo with other seeds: in how many gaps it finds the hidden word
    python -m benchmarks.readme --proposal    # what limba new proposes for 10 GB of text and one H100

The part is chosen by the lines that README.md has now: each takes the numbers of the run's own line, `…` stays.
What was measured is kept in benchmarks/readme.json. `tests/run/test_readme.py` compares README.md with it, and at night
pastes README.md's blocks and compares both with what these print.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(?<=```text\n).*?(?=```)", re.DOTALL)
RECORD = ROOT / "benchmarks" / "readme.json"
CUT = "…"  # stands alone where lines are left out, and at the end of a line that is cut
NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]\d+)?|\bnan\b")
COLUMNS = 80
MOST_ROWS = 25  # of what the demo prints, besides the rows of progress
SECOND = "Another one learns"  # with which the demo says that its second training begins
HITS = re.compile(r"the hidden word is among its five likeliest in ([\d.]+)% of (\d+) gaps")
FLOOR = re.compile(r"commonest words .*in ([\d.]+)%")
SEEDS = re.compile(r"\d+ seeds: [\d.]+ to [\d.]+ %")
# Millions of parameters, hours and dollars, each from the least to the most, as README.md says them.
PROPOSAL = re.compile(r"(\d+) million parameters:\s([\d.]+)\sto\s([\d.]+)\shours,\s\$([\d.]+)\sto\s\$([\d.]+)")
TEXT_BYTES = 10_000_000_000  # of the text that `limba new` is asked about
COPIES = 200  # files that the text is divided into; each is a link to the first


def demo(folder: Path, *arguments: str, **variables: str) -> list[str]:
    """Returns the lines that launch/demo.sh prints, started in this folder, in which it writes runs/demo.

    It installs nothing there: its Python is this one.
    """
    shutil.copytree(ROOT / "launch", folder / "launch")
    (folder / "launch" / "setup.sh").write_text("exit 0\n")
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("MODEL_DIR", "CORPUS", "STEPS")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **variables}
    command = ["bash", str(folder / "launch" / "demo.sh"), *arguments]
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise InputError(f"The demo ended with {ended.returncode}:\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
    return ended.stdout.replace(f"{folder}/", "").splitlines()


def form(line: str) -> str:
    """Returns a line without its numbers, spaces made one.

    >>> form("step 20/600 | loss 7.842 | ETA 1 m")
    'step #/# | loss # | ETA # m'
    """
    return " ".join(NUMBER.sub("#", line).split())


def kind(line: str) -> str:
    """Returns what a line is about: its beginning, up to the first text that differs between runs.

    >>> kind("step 800 sample: The [of, not set] is"), kind("    and among the five commonest words (the, a) in 9%")
    ('step # sample', 'and among the five commonest words')
    """
    return re.split(r"[:|(]", form(line))[0].strip()


def shown() -> list[str]:
    """Returns the lines of README.md's output."""
    (block,) = BLOCK.findall(README.read_text(encoding="utf-8"))
    return block.splitlines()


def counterpart(line: str, printed: Sequence[str]) -> str | None:
    """Returns the last printed line with the form of a line of README.md, cut where that is cut; None if there is none.

    Of lines of training, which are many, the last is the one with the most to say.
    """
    wanted = form(line.removesuffix(CUT))
    for other in reversed(printed):
        if form(other) == wanted:
            return other
        cut = _beginning(other, wanted) if line.endswith(CUT) else None
        if cut is not None:
            return cut + CUT
    return None


def shown_of(line: str, printed: Sequence[str]) -> str | None:
    """Returns the counterpart of a line of README.md in what the demo prints: in its first training, or in its second.

    >>> shown_of("Loss 9 to 2", ["Loss 8 to 1", "Another one learns to", "Loss 7 to 0"])
    'Loss 8 to 1'
    """
    second = next((index for index, other in enumerate(printed) if other.startswith(SECOND)), len(printed))
    in_first = counterpart(line, printed[:second])
    return counterpart(line, printed[second:]) if in_first is None else in_first


def _beginning(line: str, wanted: str) -> str | None:
    """Returns the part of a line, from its beginning, that has the form `wanted`."""
    for end in range(len(line), 0, -1):
        if form(line[:end]) == wanted:
            return line[:end]
    return None


def record() -> dict[str, Any]:
    """Returns what was measured: the demo's output, its hits by seed, and the proposal."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def _write(**measured: object) -> None:
    RECORD.write_text(json.dumps({**record(), **measured}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def hits(printed: Sequence[str]) -> float:
    """Returns the percentage of gaps whose hidden word the demo's model finds, from what the demo prints."""
    (percentages,) = HITS.findall("\n".join(printed))
    return float(percentages[0])


def floor(printed: Sequence[str]) -> float:
    """Returns the percentage of those gaps whose hidden word is one of the five commonest words of the text."""
    (percentage,) = FLOOR.findall("\n".join(printed))
    return float(percentage)


def num_rows(printed: Sequence[str]) -> int:
    """Returns how many rows of COLUMNS columns these lines are.

    >>> num_rows(["short", "a" * 81, ""])
    4
    """
    return sum(max(1, -(-len(line) // COLUMNS)) for line in printed)


def range_of_seeds(by_seed: Mapping[str, float]) -> str:
    """Returns the text of README.md about all seeds.

    >>> range_of_seeds({"0": 40.5, "1": 31.8})
    '2 seeds: 31.8 to 40.5 %'
    """
    return f"{len(by_seed)} seeds: {min(by_seed.values())} to {max(by_seed.values())} %"


def proposal(folder: Path) -> list[float]:
    """Returns what `limba new` proposes for 10 GB of the demo's text and one H100: PROPOSAL, in order."""
    from tasks.demo import prose_corpus

    (folder / "data").mkdir()
    prose_corpus(folder / "prose.jsonl")
    prose = (folder / "prose.jsonl").read_bytes()
    first = folder / "data" / "0.jsonl"
    first.write_bytes(prose * (TEXT_BYTES // COPIES // len(prose)))
    for number in range(1, COPIES):
        (folder / "data" / f"{number}.jsonl").symlink_to(first)
    command = [sys.executable, "-m", "limba", "new", "en", "--corpus=data/*.jsonl", "--hardware=h100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
    return proposed(said)


def proposed(said: str) -> list[float]:
    """Returns the numbers of the safe choice as PROPOSAL has them, from what `limba new` prints.

    >>> proposed("  safe: T5 1.1 base, 247,381,248 parameters\\n 3.4 to 9.7 hours; $13 to $39\\n  Risk: little.")
    [247.0, 3.4, 9.7, 13.0, 39.0]
    """
    safe = said.partition("safe:")[2].partition("Risk:")[0]
    parameters = re.search(r"([\d,]+) parameters", safe)
    hours = re.search(r"([\d.]+) to ([\d.]+) hours", safe)
    dollars = re.search(r"\$([\d.]+) to \$([\d.]+)", safe)
    if parameters is None or hours is None or dollars is None:
        raise InputError(f"limba new names no parameters, hours or dollars:\n{said}")
    millions = round(int(parameters[1].replace(",", "")) / 1e6)
    return [float(number) for number in (millions, *hours.groups(), *dollars.groups())]


def main(argv: Sequence[str]) -> int:
    parser = Parser("-m benchmarks.readme", __doc__ or "", "python")
    parser.add_argument("--seeds", metavar="1,2", help="other seeds of the demo, instead of its own run")
    parser.add_argument("--proposal", action="store_true", help="what limba new proposes, instead of the demo")
    args = parser.parse(argv)
    if args.proposal:
        return _propose()
    if args.seeds:
        return _try_seeds(args.seeds.split(","))
    return _run_demo()


def _propose() -> int:
    with tempfile.TemporaryDirectory() as folder:
        numbers = proposal(Path(folder))
    _write(proposal=numbers)
    millions, *others = (f"{number:g}" for number in numbers)
    said = "{} million parameters: {} to {} hours, ${} to ${}".format(millions, *others)
    text = README.read_text(encoding="utf-8")
    README.write_text(PROPOSAL.sub(lambda _: said, text), encoding="utf-8")
    print(f"{said}; fold the lines of README.md by hand.")
    return 0


def _try_seeds(seeds: Sequence[str]) -> int:
    by_seed = record()["hits"]
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            printed = demo(Path(folder), f"--gin.RANDOM_SEED={seed}")
        by_seed[seed] = hits(printed)
        print(f"seed {seed}: {by_seed[seed]} % of the gaps, {floor(printed)} % by the five commonest words", flush=True)
    _write_hits(by_seed)
    return 0


def _write_hits(by_seed: Mapping[str, float]) -> None:
    _write(hits=by_seed)
    text = README.read_text(encoding="utf-8")
    README.write_text(SEEDS.sub(range_of_seeds(by_seed), text), encoding="utf-8")


def _run_demo() -> int:
    with tempfile.TemporaryDirectory() as folder:
        printed = demo(Path(folder))
        lines = [line if line == CUT else shown_of(line, printed) for line in shown()]
        lost = [line for line, printed_line in zip(shown(), lines, strict=True) if printed_line is None]
        if lost:
            raise InputError(f"README.md shows lines that the demo does not print: {lost}")
        text = "\n".join(line for line in lines if line is not None)
        README.write_text(BLOCK.sub(lambda _: f"{text}\n", README.read_text(encoding="utf-8")), encoding="utf-8")
        _write(printed=[line for line in printed if " | ETA " not in line])
        _write_hits({**record()["hits"], "0": hits(printed)})
        subprocess.run([sys.executable, "docs/site/screenshots.py", f"{folder}/runs/demo"], cwd=ROOT, check=True)
    print(f"{len(lines)} lines of README.md and the pictures are from this run.")
    return 0


if __name__ == "__main__":
    sys.exit(program.exit_code(main, sys.argv[1:]))
