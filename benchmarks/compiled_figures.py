"""Compares what the compilers say of a few training steps with the figures that are recorded of them.

    python -m benchmarks.compiled_figures                        # the steps of each landing
    python -m benchmarks.compiled_figures --steps=t5,h100        # these; --steps=all: the night's too
    python -m benchmarks.compiled_figures --write                # records them anew

The record is tests/golden/compiled.json: cycles of fusions and kernels, bytes, memory, fusions and collectives with
their bytes, all exact, by the pinned jax and the compilers that it names. Where a change of the code changes a figure,
`tests/training/test_compiled_figures.py` fails and prints both. If the change is meant, write the record anew and
commit it with the code, so that a review sees what the change costs.

A landing's step has the digest of its traced program beside its figures. As long as the digest is the same, the figures
are, and nothing is compiled: that takes five seconds a step, and compiling one to two minutes of processor.
Needs libtpu (`bash launch/setup.sh tpu`), and for the cards' steps NVIDIA's compiler (`bash launch/setup.sh cuda12`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, did_you_mean
from limba.storage.files import write_whole

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tests" / "golden" / "compiled.json"
WRITE = "python -m benchmarks.compiled_figures --write"
BASE = "--size=base --batch=128 --inputs=512 --targets=114"
T5 = f"{BASE} --remat=minimal"
SHORT = "--no-scan --field=num_encoder_layers=2 --field=num_decoder_layers=2"
# At their own width, with two layers a side, one by one: further layers would only repeat the second.
LANDING = {
    "t5": f"{T5} {SHORT} --topology=v4-8",
    "language-model": (
        "--family=lm --size=1.0b --batch=64 --targets=1024 --fsdp=4 --optimizer=adamw --remat=minimal"
        " --no-scan --field=num_decoder_layers=2 --topology=v4-8"
    ),
    "encoder": (
        "--family=encoder --size=base --batch=256 --targets=512 --predicted=160 --optimizer=adamw --remat=minimal"
        " --no-scan --field=num_decoder_layers=2 --topology=v4-8"
    ),
}
NIGHT = {
    "t5-whole": f"{T5} --topology=v4-8",
    "t5-whole-full": f"{BASE} --remat=full --topology=v4-8",
    "t5-whole-muon": f"{BASE} --remat=full --optimizer=muon --topology=v4-8",
    "t5-whole-unrolled": f"{T5} --no-scan --topology=v4-8",
    "t5-v5e": f"{T5} {SHORT} --topology=v5e-4",
    "t5-v6e": f"{T5} {SHORT} --topology=v6e-4",
    "t5-h100": f"{T5} {SHORT} --topology=h100-1",
}
STEPS = LANDING | NIGHT
# Of what benchmarks.compiled prints: what a compiler says of a program, and not how long it takes or what follows.
FIGURES = (
    "fusion_cycles", "kernel_cycles", "total_cycles", "bytes_accessed", "live_bytes", "fusions", "collectives",
    "kernels",
)  # fmt: skip
# They would change what the compilers are told.
CLEARED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_COMPILATION_CACHE_DIR")


def recorded() -> dict[str, dict[str, Any]]:
    """Returns each step's flags, traced program and figures, as they are recorded."""
    return json.loads(RECORD.read_text())


def traced_program(step: str) -> str:
    """Returns the digest of a step's traced program, and compiles nothing."""
    return _run(step, "--trace")


def compiled(step: str) -> dict[str, Any]:
    """Returns what is recorded of a step, compiled now."""
    printed = json.loads(_run(step, "--json"))
    figures = {name: printed[name] for name in FIGURES if name in printed}
    kept = {"flags": STEPS[step], "figures": figures}
    if step in LANDING:
        kept["traced_program"] = printed["traced_program"]
    return kept


def _run(step: str, *more: str) -> str:
    """Returns the last line that benchmarks.compiled prints for a step; RuntimeError if it fails."""
    command = [sys.executable, "-m", "benchmarks.compiled", *STEPS[step].split(), *more]
    variables = {name: value for name, value in os.environ.items() if name not in CLEARED}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yields a line for each figure that differs, with its share where both are numbers.

    >>> list(differences({"fusions": 200, "calls": {"a": 1}}, {"fusions": 210, "calls": {"b": 1}}))
    ['calls.a: 1, now none', 'calls.b: none, now 1', 'fusions: 200, now 210 (+5.00 %)']
    """
    for name in sorted({*before, *now}):
        old = before.get(name)
        new = now.get(name)
        where = f"{path}{name}"
        if isinstance(old, dict) or isinstance(new, dict):
            yield from differences(old or {}, new or {}, f"{where}.")
        elif old != new:
            yield f"{where}: {_text(old)}, now {_text(new)}{_change(old, new)}"


def _text(figure: Any) -> str:
    if figure is None:
        return "none"
    return f"{figure:,}" if isinstance(figure, int | float) else str(figure)


def _change(old: Any, new: Any) -> str:
    if isinstance(old, int | float) and isinstance(new, int | float) and old:
        return f" ({100 * (new / old - 1):+.2f} %)"
    return ""


def main(argv: Sequence[str]) -> int:
    parser = Parser("-m benchmarks.compiled_figures", __doc__ or "", "python")
    parser.add_argument("--steps", help="names with commas between, or all; default: the steps of each landing")
    parser.add_argument("--write", action="store_true", help="record the figures of these steps")
    args = parser.parse_args(argv)
    steps = list(LANDING)
    if args.steps:
        steps = list(STEPS) if args.steps == "all" else args.steps.split(",")
    for step in steps:
        if step not in STEPS:
            raise InputError(f"--steps has {step}{did_you_mean(step, STEPS)[:-1]}; the steps are {', '.join(STEPS)}.")
    record = recorded() if RECORD.exists() else {}
    is_same = True
    for step in steps:
        print(f"{step}: compiling, a minute or two …", flush=True)
        now = compiled(step)
        lines = list(differences(record.get(step, {}), now))
        print("\n".join(f"  {line}" for line in lines) or "  as recorded", flush=True)
        is_same = is_same and not lines
        if args.write:  # each at once: the next one may fail
            record[step] = now
            ordered = {name: record[name] for name in STEPS if name in record}
            write_whole(RECORD, json.dumps(ordered, indent=1) + "\n")
    if args.write:
        print(f"Written to {RECORD}.")
    elif not is_same:
        print(f"If the change is meant, record it: {WRITE}{f' --steps={args.steps}' if args.steps else ''}")
    return 0 if is_same or args.write else 1


if __name__ == "__main__":
    sys.exit(program.exit_code(main, sys.argv[1:]))
