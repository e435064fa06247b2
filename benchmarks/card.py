"""A card's half hour: what only a GPU can measure, in parts of at most eight minutes, by the programs that are here.

    python -m benchmarks.card --output=FOLDER
    python -m benchmarks.card --output=FOLDER --parts=base,attention
    python -m benchmarks.card --output=FOLDER --dry_run       # on the CPU in tiny sizes: does every command run?

Needs jax 0.10 to 0.12 for the card; neither TensorFlow nor a network.
FOLDER/PART.json has a part's commands with their seconds, exit codes and figures, the device and jax's version;
FOLDER/card.md has the figures as a table. A part whose file is there is not run again; an interrupted one leaves none,
and is. Ends with 1 if a command has failed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.board.sizes import INPUTS, size_of
from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, did_you_mean, environment
from limba.storage.files import write_whole
from tasks.demo import pydoc_corpus

ROOT = Path(__file__).parent.parent
SECONDS = 480.0  # that a part may take
DEVICE = """
import json, jax
device = jax.devices()[0]
print(json.dumps({"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}))
"""
SHAPE = {"inputs": 512, "targets": 114, "dtype": "bfloat16"}
TINY = {"size": "tiny", "batch": 8, "inputs": 32, "targets": 16}
LETTERS = 5  # of a token at least, so that the steps of `fast` and Adafactor are at most four passes over the text
SHOWN = {  # in card.md; the parts' files have all figures
    "seconds_per_step", "mfu", "tokens_per_second", "tokens_per_cpu_second", "live_gib_per_chip", "device_peak_gib",
    "live_bytes", "compile_seconds", "kills", "batches_compared", "relative_difference_of_the_loss_by_step",
    "times_slower_than_limba", "loss", "bits_per_byte", "passes", "says",
}  # fmt: skip
Commands = dict[str, list[str]]  # by what each measures


@dataclasses.dataclass(frozen=True)
class Card:
    """The device, and what the parts' commands are made for."""

    folder: Path
    kind: str  # jax's device_kind
    corpus: Path
    is_tiny: bool

    @property
    def topology(self) -> str:
        """The name of such a card among those that a step can be compiled for, which need not be here."""
        return next((f"{name}-1" for name in ("a100", "h100", "h200") if name in self.kind.lower()), "cpu-1")

    def program(self, name: str, *flags: str, **values: object) -> list[str]:
        """Returns the command of one of these programs, with tiny sizes if this is a dry run."""
        values |= TINY if self.is_tiny and "size" in values else {}
        return [sys.executable, "-m", f"benchmarks.{name}", *flags, *(f"--{key}={values[key]}" for key in values)]

    def step(self, **values: object) -> list[str]:
        """Returns the command that times a step."""
        return self.program("train_step", "--json", **{**SHAPE, "steps": 1 if self.is_tiny else 10, **values})


def _tests(card: Card) -> Commands:
    files = [str(path) for path in (ROOT / "tests").rglob("test_*.py") if "@pytest.mark.gpu" in path.read_text()]
    chosen = ["JAX_PLATFORMS=cuda", "-m", "gpu"] if not card.is_tiny else ["JAX_PLATFORMS=cpu", "-k", "by_itself"]
    return {"gpu-marked": ["env", chosen[0], sys.executable, "-m", "pytest", "-q", *chosen[1:], *files]}


def _steps(size: str, batches: Mapping[str, int], **choices: object) -> Callable[[Card], Commands]:
    """Returns the part that times a step with each of these kinds of remat, at its batch."""

    def commands(card: Card) -> Commands:
        each = [{"size": size, "batch": batch, "remat": remat, **choices} for remat, batch in batches.items()]
        return {", ".join(f"{name} {value}" for name, value in one.items()): card.step(**one) for one in each}

    return commands


def _memory(card: Card) -> Commands:
    sizes = {"size": "base", "batch": 128, "remat": "minimal"}
    size, batch, inputs = ("tiny", 8, 32) if card.is_tiny else ("base", 128, 512)
    gin = {
        "CORPUS": card.corpus, "VOCABULARY": "byte", "VOCAB_SIZE": 32_128, "DTYPE": "bfloat16", "REMAT": "minimal",
        "BATCH_SIZE": batch, "TASK_FEATURE_LENGTHS": {"inputs": inputs}, "DROPOUT_RATE": 0.0,
        "MODEL_DIR": card.folder / "preflight",
    }  # fmt: skip
    command = ["limba", "preflight", "gin/demo.gin", f"gin/models/t5_1_1/{size}.gin", f"--topology={card.topology}"]
    compiled = card.program("compiled", "--json", "--no-packed", topology=card.topology, **SHAPE, **sizes)
    preflight = [sys.executable, "-m", *command, "--json", *(f"--gin.{name}={gin[name]}" for name in gin)]
    return {"used": card.step(**sizes), "said by benchmarks.compiled": compiled, "said by limba preflight": preflight}


def _demo(card: Card) -> Commands:
    times, steps = (1, 120) if card.is_tiny else (2, 2000)  # long enough to be alive when the kill comes
    return {f"limba train, killed {times} times": card.program("kill", "--hosts=0", times=times, steps=steps)}


def _data(card: Card) -> Commands:
    return {"span corruption": card.program("data_pipeline", "--json", megabytes=1 if card.is_tiny else 50)}


def _torch(card: Card) -> Commands:
    if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
        return {}
    values = {"size": "base", "batch": 64, **SHAPE, "rounds": 1, "steps": 1 if card.is_tiny else 5}
    plain = card.program("peers", "--torch", "--json", **values)
    return {"base, batch 64": plain, "base, batch 64, torch.compile": [*plain, "--compile"]}


def _fast(card: Card) -> Commands:
    depth = 1 if card.is_tiny else 2
    letters = card.corpus.stat().st_size
    steps = 3 if card.is_tiny else max(3, int(4 * letters / LETTERS / INPUTS / size_of(depth).rows))
    flags = [f"--corpus={card.corpus}", f"--board={card.folder / 'board'}", "--recipe=adafactor,fast", "--json"]
    return {f"{steps} steps": card.program("speedrun", *flags, seeds=1, steps=steps, depth=depth)}


PARTS: dict[str, Callable[[Card], Commands]] = {
    "tests": _tests,
    "base": _steps("base", {"none": 64, "minimal": 128, "full": 128}),
    "large": _steps("large", {"none": 24, "minimal": 96, "full": 128}, vocab=64_000),
    "mt5": _steps("base", {"none": 48, "minimal": 96, "full": 128}, family="mt5"),
    "attention": _steps("base", {"none": 64, "minimal": 128}, attention="einsum"),  # beside the kernels' in `base`
    "memory": _memory,
    "demo": _demo,
    "data": _data,
    "torch": _torch,
    "fast": _fast,
}


def ran(command: Sequence[str], seconds: float, is_tiny: bool) -> dict[str, Any]:
    """Runs a command; returns its seconds, exit code, figures, the end of its output, and what was `wrong`."""
    variables = os.environ | ({"JAX_PLATFORMS": "cpu"} if is_tiny else {})
    began = time.monotonic()
    is_over = False
    out = ""
    errors = ""
    started = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, errors = started.communicate(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        is_over = True
    finally:
        if started.returncode is None:
            os.killpg(started.pid, signal.SIGKILL)  # with all that it has started
            out, errors = started.communicate()
    code = started.returncode
    wrong = ""
    if is_over:
        wrong = f"over the part's {SECONDS:g} s"
    elif code != 0:
        wrong = f"ended with {code}: {_last(errors) or _last(out)}"
    result = {"command": command, "seconds": time.monotonic() - began, "exit_code": code, "wrong": wrong}
    return {**result, "figures": _figures(out), "output": (out + errors)[-4000:]}


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _figures(out: str) -> dict[str, Any]:
    """Returns the JSON that a program has printed, in all or as its last line; else that line."""
    for text in (out, _last(out)):
        try:
            figures = json.loads(text)
        except ValueError:
            continue
        if isinstance(figures, dict):
            return figures
    return {"says": _last(out)}


def shown(figures: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the figures of SHOWN in a program's JSON, each with the names on the way to it.

    >>> list(shown({"size": "base", "mfu": 0.4312, "1 core": {"tokens_per_second": 3e6, "rss_mb": 5}}))
    ['mfu 0.431', '1 core, tokens_per_second 3e+06']
    """
    if isinstance(figures, dict):
        for name, value in figures.items():
            yield from shown(value, (*path, name))
    elif isinstance(figures, list):
        for value in figures:
            yield from shown(value, path)
    elif figures is not None and SHOWN.intersection(path):
        yield f"{', '.join(path)} {figures if isinstance(figures, str) else f'{figures:.3g}'}"


def _done(folder: Path, part: str) -> dict[str, Any]:
    path = folder / f"{part}.json"
    return json.loads(path.read_text()) if path.exists() else {"runs": {}}


def table(folder: Path) -> str:
    """Returns the figures of the parts' files as a Markdown table."""
    lines = ["| part | device | what | seconds | figures |", "| --- | --- | --- | --- | --- |"]
    for part in PARTS:
        done = _done(folder, part)
        for what, run in done["runs"].items():
            figures = "; ".join(shown(run["figures"]))
            if run["wrong"]:
                figures = f"**failed**: {run['wrong']}"
            device = f"{done['device']}, jax {done['jax']}"
            lines.append(f"| {part} | {device} | {what} | {run['seconds']:.0f} | {figures.replace('|', '/')} |")
        if not done["runs"]:
            lines.append(f"| {part} | | not run | | |")
    return "\n".join(lines)


def _run(card: Card, part: str, device: Mapping[str, str]) -> None:
    """Runs a part's commands, and writes its file and the table."""
    commands = PARTS[part](card)
    runs = {}
    began = time.monotonic()
    if card.is_tiny:  # the first of each program is enough
        commands = dict({pair[1][2]: pair for pair in reversed(commands.items())}.values())
    for what, command in commands.items():
        print(f"{part}: {what} …", flush=True)
        runs[what] = ran(command, SECONDS - (time.monotonic() - began), card.is_tiny)
        print(f"  {runs[what]['wrong'] or '; '.join(shown(runs[what]['figures']))}", flush=True)
    if runs:
        write_whole(card.folder / f"{part}.json", json.dumps({"part": part, **device, "runs": runs}, indent=1))
    (card.folder / "card.md").write_text(table(card.folder) + "\n")


def main(argv: Sequence[str]) -> int:
    parser = Parser("-m benchmarks.card", __doc__ or "", "python")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for the parts' files and card.md")
    parser.add_argument("--parts", default=",".join(PARTS), help="names with commas between; default: all")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="text; default: Python's language reference")
    parser.add_argument("--dry_run", action="store_true", help="tiny sizes on the CPU")
    args = parser.parse_args(argv)
    parts = args.parts.split(",")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"--parts has {part}{did_you_mean(part, PARTS)[:-1]}; the parts are {', '.join(PARTS)}.")
    # In a process of its own: jax keeps a card's memory while its process lives.
    probe = ran([sys.executable, "-c", DEVICE], SECONDS, args.dry_run)
    device = probe["figures"]
    if probe["wrong"] or (device["platform"] != "gpu" and not args.dry_run):
        raise InputError(f"jax sees no GPU here ({probe['wrong'] or device['device']}); --dry_run tries the commands.")
    args.output.mkdir(parents=True, exist_ok=True)
    folder = args.output.resolve()
    if args.corpus is None:
        pydoc_corpus(folder / "corpus.jsonl")
    card = Card(folder, device["device"], (args.corpus or folder / "corpus.jsonl").resolve(), args.dry_run)
    for part in parts:
        if _done(folder, part).get("platform") != device["platform"]:  # not even after a dry run
            _run(card, part, device)
    failed = [part for part in parts if any(run["wrong"] for run in _done(folder, part)["runs"].values())]
    print(f"{folder / 'card.md'} has the table." + (f" Failed: {', '.join(failed)}." if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
