"""What only a card or a TPU can measure, in the order of its worth, in one call of at most eight minutes.

    python -m benchmarks.card --output=FOLDER
    python -m benchmarks.card --output=FOLDER --parts=base,torch
    python -m benchmarks.card --output=FOLDER --bucket=gs://BUCKET/FOLDER     # on a TPU VM: and a run in that bucket
    python -m benchmarks.card --output=FOLDER --dry_run       # on the CPU in tiny sizes: does every command run?
    python -m benchmarks.card --output=FOLDER --dry_run=tpu   # the same of a TPU's parts

Needs jax for the card or the TPU; neither TensorFlow nor a network. torch is measured where it is installed.
A card is compared with torch and with what its compiler says; of a TPU these are the first ten minutes: its devices, a
step beside its compiled account, a run that is killed and resumed, and its export.

FOLDER/PART.json has a part's commands with their seconds, exit codes and figures, the device and jax's version;
FOLDER/card.md has the figures as a table. Both are written after each command, and a command that has ended is not run
again: the same call goes on with the rest. Ends with 1 if a command has failed.
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
from limba.tools.preflight.compiled import nvidia, topologies
from tasks.demo import pydoc_corpus

ROOT = Path(__file__).parent.parent
SECONDS = 480.0  # that a call may take
LEAST_SECONDS = 20.0  # that a command is begun with: the imports and the compilation of a step take as long
DEVICE = """
import json, jax
device = jax.devices()[0]
found = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
print(json.dumps(found | {"devices": jax.device_count(), "processes": jax.process_count()}))
"""
SHAPE = {"inputs": 512, "targets": 114, "dtype": "bfloat16"}
TINY = {"size": "tiny", "batch": 8, "inputs": 32, "targets": 16}
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
LETTERS = 5  # of a token at least, so that the steps of `fast` and Adafactor are at most four passes over the text
SHOWN = {  # in card.md; the parts' files have all figures
    "devices", "seconds_per_step", "estimated_seconds", "mfu", "estimated_mfu", "tokens_per_second",
    "tokens_per_cpu_second", "live_gib_per_chip", "device_peak_gib",
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
    number: int = 1  # of the devices
    bucket: str = ""
    seconds: float = SECONDS  # of the call

    @property
    def topology(self) -> str:
        """The name of these devices among those that a step can be compiled for, which need not be here."""
        topology = topologies.of_devices(self.kind, self.number)
        can_compile = topology is not None and (topology.platform == "tpu" or topology.kind in nvidia.CARDS)
        return topology.name if topology is not None and can_compile else "cpu-1"

    def program(self, name: str, *flags: str, **values: object) -> list[str]:
        """Returns the command of one of these programs, with tiny sizes if this is a dry run."""
        if self.is_tiny and "size" in values:
            values |= TINY
            if "predicted" in values:
                values["predicted"] = TINY["targets"] // 2
        choices = [f"--{key}" if values[key] is None else f"--{key}={values[key]}" for key in values]
        return [sys.executable, "-m", f"benchmarks.{name}", *flags, *choices]

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
        variants = [{"size": size, "batch": batch, "remat": remat, **choices} for remat, batch in batches.items()]
        return {", ".join(f"{name} {value}" for name, value in one.items()): card.step(**one) for one in variants}

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
    """Returns transformers' T5 beside ours: compiled with torch's FlexAttention, as its users run it fastest, first."""
    if not all(map(importlib.util.find_spec, ("torch", "transformers"))):
        return {}
    values = {"size": "base", "batch": 64, **SHAPE, "rounds": 1, "steps": 1 if card.is_tiny else 5}
    plain = card.program("peers", "--torch", "--json", **values)
    with_flex = [*plain, "--compile", "--torch_attention=flex_attention"]
    # FlexAttention has no gradient on a CPU.
    fastest = {} if card.is_tiny else {"base, batch 64, torch.compile, flex_attention": with_flex}
    return fastest | {
        "base, batch 64, torch.compile, sdpa": [*plain, "--compile"],
        "base, batch 64, sdpa, not compiled": plain,
    }


def _encoder(card: Card) -> Commands:
    """Returns a step of ModernBERT base with its windows, 30 % of 1,024 tokens masked."""
    shape = {"targets": 1024, "predicted": 320, "dtype": "bfloat16", "optimizer": "adamw"}
    batches = {"none": 32, "minimal": 64}
    return {
        f"modernbert base, batch {batch}, remat {remat}": card.step(
            **{**shape, "family": "modernbert", "size": "base", "batch": batch, "remat": remat}
        )
        for remat, batch in batches.items()
    }


def _language_model(card: Card) -> Commands:
    shape = {"targets": 1024, "dtype": "bfloat16", "optimizer": "adamw", "remat": "minimal"}
    return {"lm 1.0b, batch 32": card.step(**shape, family="lm", size="1.0b", batch=32)}


def _repeats(card: Card) -> Commands:
    """Returns the step of `base` with operations whose sums have one order: what exact resumption costs on a GPU."""
    flags = f"XLA_FLAGS={DETERMINISTIC}"
    return {
        f"base, batch {batch}, remat {remat}, {DETERMINISTIC}": [
            "env", flags, *card.step(size="base", batch=batch, remat=remat)
        ]
        for remat, batch in {"none": 64, "minimal": 128}.items()
    }  # fmt: skip


def _tpu_step(card: Card) -> Commands:
    """Returns a step of base as a scan, and what the compiler says of it."""
    values = {"size": "base", "batch": 32 * card.number, "remat": "minimal", **SHAPE}
    return {
        "measured": card.step(**{**values, "scan": None}),
        "said by the compiler": card.program("compiled", "--json", "--no-packed", topology=card.topology, **values),
    }


def _export(card: Card) -> Commands:
    """Returns a short run and its folder for transformers; that is proven where torch is installed."""
    run = card.folder / "export"
    train = _train(card, run, steps=20)
    proof = [] if all(map(importlib.util.find_spec, ("torch", "transformers"))) else ["--no_check"]
    convert = [sys.executable, "-m", "limba", "convert", str(run), str(card.folder / "huggingface"), *proof]
    return {"limba train, 20 steps": train, "limba convert": convert}


def _bucket(card: Card) -> Commands:
    """Returns a run in the bucket, and the same one resumed for as many steps again."""
    if not card.bucket:
        return {}
    run = f"{card.bucket.rstrip('/')}/limba-card"
    return {"begun": _train(card, run, steps=20), "resumed": _train(card, run, steps=40)}


def _train(card: Card, model_dir: Path | str, steps: int) -> list[str]:
    gin = {
        "CORPUS": card.corpus, "VOCABULARY": "byte", "VOCAB_SIZE": 384, "TASK_FEATURE_LENGTHS": {"inputs": 64},
        "TRAIN_STEPS": steps, "CHECKPOINT_PERIOD": 20, "EVAL_PERIOD": 20, "MODEL_DIR": model_dir,
    }  # fmt: skip
    return [sys.executable, "-m", "limba", "train", "gin/demo.gin", *(f"--gin.{name}={gin[name]}" for name in gin)]


def _fast(card: Card) -> Commands:
    depth = 1 if card.is_tiny else 2
    letters = card.corpus.stat().st_size
    steps = 3 if card.is_tiny else max(3, int(4 * letters / LETTERS / INPUTS / size_of(depth).rows))
    flags = [f"--corpus={card.corpus}", f"--board={card.folder / 'board'}", "--recipe=adafactor,fast", "--json"]
    return {f"{steps} steps": card.program("speedrun", *flags, seeds=1, steps=steps, depth=depth)}


# In the order of their worth, as far as eight minutes go.
GPU_PARTS: dict[str, Callable[[Card], Commands]] = {
    "base": _steps("base", {"none": 64, "minimal": 128}),
    "torch": _torch,
    "encoder": _encoder,
    "lm": _language_model,
    "repeats": _repeats,
    "tests": _tests,
    "attention": _steps("base", {"none": 64, "minimal": 128}, attention="einsum"),  # beside the kernels' in `base`
    "demo": _demo,
    "memory": _memory,
    "large": _steps("large", {"minimal": 96, "none": 24, "full": 128}, vocab=64_000),
    "full": _steps("base", {"full": 128}),
    "mt5": _steps("base", {"none": 48, "minimal": 96, "full": 128}, family="mt5"),
    "data": _data,
    "fast": _fast,
}
TPU_PARTS: dict[str, Callable[[Card], Commands]] = {
    "devices": lambda card: {"devices": [sys.executable, "-c", DEVICE]},
    "step": _tpu_step,
    "demo": _demo,
    "export": _export,
    "bucket": _bucket,
    "encoder": _encoder,
    "lm": _language_model,
    "data": _data,
}
PARTS = {"gpu": GPU_PARTS, "tpu": TPU_PARTS}


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
        wrong = f"over {seconds:.0f} s"
    elif code != 0:
        wrong = f"ended with {code}: {_last(errors) or _last(out)}"
    result = {"command": command, "seconds": time.monotonic() - began, "exit_code": code, "wrong": wrong}
    return {**result, "is_over": is_over, "figures": _figures(out), "output": (out + errors)[-4000:]}


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


def table(folder: Path, parts: Sequence[str]) -> str:
    """Returns the figures of the parts' files as a Markdown table."""
    lines = ["| part | device | what | seconds | figures |", "| --- | --- | --- | --- | --- |"]
    for part in parts:
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


def _commands(card: Card, part: str, parts: Mapping[str, Callable[[Card], Commands]]) -> Commands:
    """Returns the commands of a part; of a dry run the first of each program."""
    commands = parts[part](card)
    if not card.is_tiny:
        return commands
    first: dict[tuple[str, ...], tuple[str, list[str]]] = {}
    for what, command in commands.items():
        program_of = tuple(word for word in command if word.startswith("benchmarks.")) or tuple(command[2:4])
        first.setdefault(program_of, (what, command))
    return dict(first.values())


def _run(card: Card, part: str, commands: Commands, device: Mapping[str, str], seconds: float) -> bool:
    """Runs the commands of a part that have not ended yet, in so many seconds; returns whether all have.

    Its file and the table are written after each command. A command that the call's end cuts off has not failed, unless
    it had nearly all of the call.
    """
    end = time.monotonic() + seconds
    done = _done(card.folder, part)
    runs = done["runs"] if done.get("platform") == device["platform"] else {}  # not a dry run's
    for what, command in commands.items():
        left = end - time.monotonic()
        if what in runs:
            continue
        if left < min(LEAST_SECONDS, card.seconds / 2):
            return False
        print(f"{part}: {what} …", flush=True)
        result = ran(command, left, card.is_tiny)
        if result.pop("is_over") and left < 0.9 * card.seconds:
            print("  no time is left for it; the next call begins with it", flush=True)
            return False
        runs[what] = result
        print(f"  {result['wrong'] or '; '.join(shown(result['figures']))}", flush=True)
        write_whole(card.folder / f"{part}.json", json.dumps({"part": part, **device, "runs": runs}, indent=1))
        (card.folder / "card.md").write_text(table(card.folder, list(PARTS[_kind(device)])) + "\n")
    return True


def _kind(device: Mapping[str, str]) -> str:
    return "tpu" if device["platform"] == "tpu" or device.get("as") == "tpu" else "gpu"


def main(argv: Sequence[str]) -> int:
    began = time.monotonic()
    parser = Parser("-m benchmarks.card", __doc__ or "", "python")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="for the parts' files and card.md")
    parser.add_argument("--parts", help="names with commas between; default: all of the device's, in their order")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="text; default: Python's language reference")
    parser.add_argument("--bucket", default="", metavar="gs://…", help="on a TPU: where a run is begun and resumed")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="that this call may take; default: 480")
    parser.add_argument(
        "--dry_run",
        nargs="?",
        const="gpu",
        choices=list(PARTS),
        help="tiny sizes on the CPU, of a card's parts or a TPU's",
    )
    args = parser.parse_args(argv)
    # In a process of its own: jax keeps a card's memory while its process lives.
    probe = ran([sys.executable, "-c", DEVICE], args.seconds, bool(args.dry_run))
    device = probe["figures"]
    if probe["wrong"] or (device["platform"] not in PARTS and not args.dry_run):
        seen = probe["wrong"] or device["device"]
        raise InputError(f"jax sees neither a GPU nor a TPU here ({seen}); --dry_run tries the commands.")
    device = {**device, "as": args.dry_run or device["platform"]}
    there = PARTS[_kind(device)]
    parts = args.parts.split(",") if args.parts else list(there)
    for part in parts:
        if part not in there:
            raise InputError(f"--parts has {part}{did_you_mean(part, there)[:-1]}; the parts are {', '.join(there)}.")
    args.output.mkdir(parents=True, exist_ok=True)
    folder = args.output.resolve()
    if args.corpus is None:
        pydoc_corpus(folder / "corpus.jsonl")
    corpus = (args.corpus or folder / "corpus.jsonl").resolve()
    card = Card(folder, device["device"], corpus, bool(args.dry_run), device["devices"], args.bucket, args.seconds)
    left = []
    for part in parts:
        seconds = args.seconds - (time.monotonic() - began)
        if not _run(card, part, _commands(card, part, there), device, seconds):
            left.append(part)
    failed = [part for part in parts if any(run["wrong"] for run in _done(folder, part)["runs"].values())]
    print(f"{folder / 'card.md'} has the table.")
    if left:
        print(f"Left: {', '.join(left)}; the same command goes on with them.")
    if failed:
        print(f"Failed: {', '.join(failed)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
