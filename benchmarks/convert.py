"""Times conversions between a Limba checkpoint and folders of Hugging Face, beside `cp` of what each has written.

    python -m benchmarks.convert --size=base --folder=DIR --rounds=3
    python -m benchmarks.convert --size=xl --folder=DIR          # DIR needs 48 GB; what is made there is removed
    python -m benchmarks.convert --model=MODEL_DIR --folder=DIR  # a checkpoint that is there

A checkpoint of a T5 1.1 of this size, with random weights in float32, is converted by `limba convert` as users run it,
each time in a process of its own, without the proof (which computes with the whole model): to model.safetensors, to
flax_model.msgpack, and from model.safetensors back. After each conversion its files are copied by `cp`. What is read is
not in the page cache, and the seconds end when everything that was written is on the disk. Memory is the most that the
process had resident; the page cache is not part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, environment

SIZES = ("tiny", "mini", "small", "base", "large", "xl")
MIB = 1 << 20


class Figures(NamedTuple):
    """What one conversion took, and `cp` of its files."""

    seconds: float
    cpu_seconds: float
    mib: float  # the most memory of the process
    written_bytes: int
    cp_seconds: float


def make(size: str, out: Path) -> None:
    """Writes a Limba checkpoint of random weights, as `limba convert --to=limba` writes one."""
    import numpy as np

    from limba.cli.gin import read_model
    from limba.export.huggingface import write_start
    from limba.formats.architectures import rows
    from limba.formats.names import Arrays, Stored

    model = read_model(f"gin/models/t5_1_1/{size}.gin", ["DROPOUT_RATE=0.0", "VOCAB_SIZE=32128"])
    random = np.random.default_rng(0)

    def stored(shape: tuple[int, ...]) -> Stored:
        return Stored(shape, np.dtype(np.float32), lambda: random.standard_normal(shape, np.float32))

    with tempfile.TemporaryDirectory() as no_vocabulary:
        write_start(Path(no_vocabulary), Arrays({row.t5x: stored(row.shape) for row in rows(model)}), model, out)


def files_in(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path


def write_through(folder: Path) -> int:
    """Waits until all files below a folder are on the disk; returns their bytes."""
    total = 0
    for path in files_in(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            total += os.fstat(file.fileno()).st_size
    return total


def forget(folder: Path) -> None:
    """Takes the files below a folder, which are on the disk, out of the page cache."""
    for path in files_in(folder):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(command: Sequence[str]) -> tuple[float, float]:
    """Runs a command; returns (seconds of processor, MiB of memory at most). InputError if it fails.

    Linux counts at least what this process holds itself, so it imports neither numpy nor jax.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        last_line = (said.read().strip().splitlines() or ["no output"])[-1]
    if process.returncode:
        raise InputError(f"{' '.join(command)} failed: {last_line}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / MIB


def measure(source: Path, out: Path, flags: Sequence[str]) -> Figures:
    """Returns the figures of `limba convert SOURCE OUT FLAGS` and of `cp`; the copy is removed."""
    shutil.rmtree(out, ignore_errors=True)
    copy = out.with_name(f"{out.name}.copy")
    shutil.rmtree(copy, ignore_errors=True)
    write_through(source)
    forget(source)
    began = time.perf_counter()
    cpu_seconds, mib = run([sys.executable, "-m", "limba", "convert", str(source), str(out), *flags])
    written_bytes = write_through(out)
    seconds = time.perf_counter() - began
    forget(out)
    began = time.perf_counter()
    run(["cp", "-r", str(out), str(copy)])
    write_through(copy)
    cp_seconds = time.perf_counter() - began
    shutil.rmtree(copy)
    return Figures(seconds, cpu_seconds, mib, written_bytes, cp_seconds)


def one_round(model: Path, folder: Path) -> dict[str, Figures]:
    """Returns conversion -> its figures, in turn; the folders that they make are removed."""
    safetensors = folder / "safetensors"
    flax = folder / "flax"
    back = folder / "back"
    plain = ["--no_check", "--vocabulary=none"]
    figures: dict[str, Figures] = {}

    def note(name: str, measured: Figures) -> None:
        figures[name] = measured
        took = f"{measured.seconds:.1f} s, cp {measured.cp_seconds:.1f} s, {measured.mib:,.0f} MiB"
        print(f"{name}: {took}", file=sys.stderr, flush=True)

    note("Limba to safetensors", measure(model, safetensors, [*plain, "--formats=pytorch"]))
    note("Limba to Flax", measure(model, flax, [*plain, "--formats=flax"]))
    if not any(flax.glob("step_*/flax_model.msgpack")):
        raise InputError(f"{model} is not a T5, and has no flax_model.msgpack; give a run of a T5.")
    shutil.rmtree(flax)
    (step,) = safetensors.glob("step_*")
    note("safetensors to Limba", measure(step, back, ["--to=limba"]))
    shutil.rmtree(safetensors)
    shutil.rmtree(back)
    return figures


def table(rounds: Sequence[Mapping[str, Figures]]) -> Iterator[str]:
    """Yields the lines of a table, with the medians of the rounds and in brackets their least and largest."""
    yield "| conversion | GB | seconds | `cp` | times `cp` | CPU s | MiB |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name in rounds[0]:
        of_name = [figures[name] for figures in rounds]
        ratios = [figures.seconds / figures.cp_seconds for figures in of_name]
        spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
        cells = [
            name,
            f"{of_name[0].written_bytes / 1e9:.2f}",
            f"{statistics.median(figures.seconds for figures in of_name):.1f}",
            f"{statistics.median(figures.cp_seconds for figures in of_name):.1f}",
            f"{statistics.median(ratios):.2f}{spread}",
            f"{statistics.median(figures.cpu_seconds for figures in of_name):.1f}",
            f"{max(figures.mib for figures in of_name):,.0f}",
        ]
        yield f"| {' | '.join(cells)} |"


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments; InputError for wrong ones."""
    parser = Parser("-m benchmarks.convert", __doc__ or "", "python")
    parser.add_argument("--size", choices=SIZES, default="base", help="of the T5 1.1 that is made")
    parser.add_argument("--model", help="a Limba run or checkpoint of a T5 to convert, in place of one that is made")
    parser.add_argument("--folder", help="an empty or new folder on the disk that is measured")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures of each round")
    parser.add_argument("--only_make", metavar="OUT", help="write the checkpoint, and measure nothing")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        raise InputError(f"--rounds is {args.rounds}; give 1 or more.")
    if args.only_make:
        return args
    if args.folder is None:
        raise InputError("There is no --folder; give an empty or new folder on the disk that is measured.")
    if args.model is not None and not Path(args.model).is_dir():
        raise InputError(f"--model={args.model} is not a folder; give a run of Limba or one of its checkpoints.")
    folder = Path(args.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--folder={folder} is not empty, and all in it is removed afterwards; give a new folder.")
    return args


def main(argv: Sequence[str]) -> None:
    args = parsed(argv)
    if args.only_make:
        make(args.size, Path(args.only_make))
        return
    folder = Path(args.folder).resolve()  # also where it is a link to another disk
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if args.model is not None:
            model = Path(args.model)
        else:
            model = folder / "model"
            run([sys.executable, "-m", "benchmarks.convert", f"--size={args.size}", f"--only_make={model}"])
        rounds = [one_round(model, folder) for _ in range(args.rounds)]
        if args.json:
            print(json.dumps([{name: figures._asdict() for name, figures in one.items()} for one in rounds]))
        else:
            print("\n".join(table(rounds)))
    finally:
        for made in folder.iterdir():  # it was empty
            shutil.rmtree(made)
        if is_new:
            folder.rmdir()


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
