"""Figures of docs/development/preflight.md: which models fit which chips by their compilers, and what a start takes.

    python -m benchmarks.preflight table --out=DIR    # all models on all topologies; again, only the missing ones
    python -m benchmarks.preflight table --out=DIR --models=base,large --topologies=v4-8,h100-8
    python -m benchmarks.preflight start              # to steps 1 and 2, without and with kept programs; imports; help
    python -m benchmarks.preflight verdict            # the whole command with its compile: seconds of base on v4-8

The table and the verdict need libtpu (`bash launch/setup.sh tpu`), the table also NVIDIA's compiler (`bash
launch/setup.sh cuda12`), and no chip.
Each cell is one compilation of the run's step, for TPUs with scanned layers, saved in DIR/MODEL.TOPOLOGY.json; a cell
that is there is not compiled again. The last number of a cell is the arithmetic's, as a share of the compiler's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from limba.api import PlannedRun
from limba.cli import program
from limba.cli.gin import read_gin
from limba.cli.gin.read import read_model
from limba.config import RunConfig, environment
from limba.tools.preflight.checks import compiler
from limba.tools.preflight.compiled import arithmetic
from limba.tools.preflight.compiled.memory import device_bytes
from limba.tools.preflight.compiled.process import compiled_step
from limba.tools.preflight.compiled.topologies import limit_bytes, topology

# Rows: the run's gin file, and the network of another one in its place. 128 rows of 512/114 each.
MODELS = {
    "base": ("gin/ro_t5x_base.gin", None),
    "large": ("gin/ro_t5x_large.gin", None),
    "mt5_large": ("gin/ro_mt5x_large.gin", None),
    "xl": ("gin/ro_t5x_large.gin", "gin/models/t5_1_1/xl.gin"),
}
STEPS = 2  # of the runs whose start is timed
TOPOLOGIES = ("v3-8", "v4-8", "v4-32", "v5e-16", "v6e-16", "h100-8")


def run_of(name: str) -> RunConfig:
    """Returns a row's run."""
    file, network = MODELS[name]
    run = read_gin(file, MODEL_DIR="unused")
    if network is None:
        return run
    same = {field: getattr(run.model, field) for field in ("vocab_size", "remat", "dropout_rate", "dtype")}
    return dataclasses.replace(run, model=dataclasses.replace(read_model(network), **same))


def table(args: argparse.Namespace) -> None:
    """Compiles the missing programs, and prints the table."""
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for chip in args.topologies.split(","):
        for name in args.models.split(","):
            path = out / f"{name}.{chip}.json"
            if path.exists():
                continue
            run = run_of(name)
            figures = compiled_step(compiler.stand_in(run, topology(chip)), compiler.feature_shapes(run), chip)
            if "failed" in figures:
                print(f"{name} on {chip}: {figures['failed']}", file=sys.stderr, flush=True)
                continue
            path.write_text(json.dumps(figures))
            print(f"{name} on {chip}: {cell(out, name, chip)}", file=sys.stderr, flush=True)
    places = args.topologies.split(",")
    print("| model | " + " | ".join(f"{column}, {limit_bytes(topology(column)) / 2**30:.2f}" for column in places))
    print("| --- " * (len(places) + 1) + "|")
    for name in args.models.split(","):
        print(f"| {name} | " + " | ".join(cell(out, name, column) for column in places) + " |")


def cell(out: Path, name: str, chip: str) -> str:
    """Returns a cell's text: fits or not, GiB a device, the compilation's processor seconds, the arithmetic's share."""
    path = out / f"{name}.{chip}.json"
    if not path.exists():
        return "not compiled"
    figures = json.loads(path.read_text())
    said = "fits" if compiler.fits(figures, topology(chip)) else "**does not fit**"
    cycles = f", {figures['fusion_cycles'] / 1e6:.0f} M + kernels" if figures.get("fusion_cycles") else ""
    live = device_bytes(figures)
    run = PlannedRun(run_of(name))
    ratio = arithmetic.memory(run, topology(chip)).total / live
    return f"{said}, {live / 2**30:.2f}{cycles} ({figures['cpu_seconds']:.0f} s); {ratio:.2f}"


def start_figures(folder: Path, gin: Sequence[str] = ()) -> list[dict[str, float]]:
    """Returns what two starts of the demo's run take to steps 1 and 2: seconds, and processor seconds.

    Also the processor seconds of the whole process, and the number of kept programs after it. The first start finds
    none, the second the first one's.
    """
    from tasks.demo import pydoc_corpus

    corpus = folder / "corpus.jsonl"
    figures = []
    pydoc_corpus(corpus)
    values = {"CORPUS": corpus, "VOCABULARY": "byte", "VOCAB_SIZE": 384, "TRAIN_STEPS": STEPS, "LOG_PERIOD": 1}
    values |= {"EVAL_PERIOD": 1_000_000, "CHECKPOINT_PERIOD": 1_000_000}
    for number in range(2):
        model_dir = folder / f"run{number}"
        flags = [f"--gin.{name}={value}" for name, value in (values | {"MODEL_DIR": model_dir}).items()]
        command = [sys.executable, "-m", "limba", "train", "gin/demo.gin", *flags, *gin]
        variables = {k: v for k, v in os.environ.items() if k not in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")}
        variables |= {"COMPILE_CACHE": str(folder / "compiled"), "JAX_PLATFORMS": "cpu"}
        before = _child_seconds()
        began = time.perf_counter()
        process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        logged = model_dir / "metrics.jsonl"
        took: dict[str, float] = {}
        step = 1
        while process.poll() is None:
            if logged.exists() and f'"step": {step},' in logged.read_text():
                took[f"seconds_to_step_{step}"] = time.perf_counter() - began
                took[f"cpu_seconds_to_step_{step}"] = _processor_seconds(process.pid)
                step += 1
            time.sleep(0.02)
        if process.returncode or step <= STEPS:
            raise RuntimeError(f"{command} ended with status {process.returncode} before its step {step} was seen")
        took["cpu_seconds"] = _child_seconds() - before
        took["programs"] = len(list((folder / "compiled").glob("*-cache")))
        figures.append(took)
    return figures


def _processor_seconds(process: int) -> float:
    """Returns the processor seconds of a process that still runs, all threads, by Linux's count."""
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    user, system = after_name[11:13]  # fields 14 and 15 in proc(5), whose first two are before
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command: Sequence[str]) -> tuple[dict[str, float], subprocess.CompletedProcess[str]]:
    """Returns the seconds of a command, of the clock and of the processor, and the ended command."""
    before = _child_seconds()
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    return {"seconds": time.perf_counter() - began, "cpu_seconds": _child_seconds() - before}, done


def best_of_three(*arguments: str) -> dict[str, float]:
    """Returns the figures of the quickest of three starts of Python with these arguments."""
    rounds = []
    for _ in range(3):
        took, done = timed([sys.executable, *arguments])
        done.check_returncode()
        rounds.append(took)
    return min(rounds, key=lambda took: took["seconds"])


def start(args: argparse.Namespace) -> None:
    """Prints both starts, and what a part of each takes: the imports of a run, and the command without work."""
    imports = best_of_three("-c", "import limba.run")
    help_text = best_of_three("-m", "limba", "--help")
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = start_figures(Path(folder))
    share = warm["seconds_to_step_1"] / cold["seconds_to_step_1"]
    figures = {"import limba.run": imports, "limba --help": help_text}
    print(json.dumps({**figures, "without": cold, "with": warm, "warm_over_cold": share}))


def verdict(args: argparse.Namespace) -> None:
    """Prints what a verdict with a compile takes, of base for a v4-8, with bytes for its vocabulary of 64,000 rows."""
    from tasks.demo import pydoc_corpus

    with tempfile.TemporaryDirectory() as folder:
        pydoc_corpus(f"{folder}/corpus.jsonl")
        values = {"CORPUS": f"{folder}/corpus.jsonl", "VOCABULARY": "byte", "MODEL_DIR": f"{folder}/run"}
        command = [sys.executable, "-m", "limba", "preflight", MODELS["base"][0], "--topology=v4-8", "--json"]
        command += [f"--gin.{name}={value}" for name, value in values.items()]
        took, done = timed(command)
    sections = {section["title"]: section for section in json.loads(done.stdout)["sections"]}
    figures = sections["Memory and speed"]["data"]
    if "live_bytes" not in figures:
        raise RuntimeError(sections["Memory and speed"]["lines"])
    gib = {"compiled": device_bytes(figures), "arithmetic": sections["Estimate"]["data"]["live_bytes"]}
    print(json.dumps({**took, "gib": {name: size / 2**30 for name, size in gib.items()}}))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "start", "verdict"])
    parser.add_argument("--out", default="preflight-table", help="folder of the table's cells")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--topologies", default=",".join(TOPOLOGIES))
    args = parser.parse_args(argv)
    {"table": table, "start": start, "verdict": verdict}[args.what](args)


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
