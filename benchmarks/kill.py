"""Kills a run at random moments, resumes it each time on another number of hosts, and compares every batch.

    python -m benchmarks.kill --times=20
    python -m benchmarks.kill --times=20 --lm --corpus='ja/*.jsonl.gz'
    python -m benchmarks.kill --times=4 --steps=80 --with=readers,stages    # made and read in other ways

A run like the demo's (real text, shuffled, dropout on), or a language model's (documents packed, a vocabulary that the
run trains itself), is started as 1, 2 or 4 processes joined by jax.distributed on CPU, killed with SIGKILL, and
started again until it ends. The hash of every shard's every batch, and every logged loss, must equal the ones of a run
that is never killed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.cli import program
from limba.cli.arguments import Parser
from limba.config import InputError, RestartError, environment

ROOT = Path(__file__).parent.parent
DEVICES = 4
MINUTES = 10  # for a start's first step
LONGEST_WAIT = 4.0  # seconds from the first batches to a kill
MOST_BATCHES = 100  # that a start reads beyond the one before it: however slow this process is, the run waits for it
SMALL = (
    "--gin.BATCH_SIZE=8",
    "--gin.config.DataConfig.num_data_shards=4",
    "--gin.EVAL_PERIOD=100000",
    "--gin.EVAL_STEPS=1",
    "--gin.CHECKPOINT_PERIOD=5",
    "--gin.CHECKPOINTS_KEPT=2",
    "--gin.DROPOUT_RATE=0.1",
)
# `limba train`, with a line "shard batch hash" for all rows that a process takes from its stream, whatever that is made
# of; at the batch STUCK_AT it stands still.
RECORDING = """
import hashlib, os, sys, time
from limba.config import environment
environment.set_variables()
with environment.quiet_imports():
    from limba.data.stream import stages
    from limba.cli.main import main
def record(kind):
    begin = kind.begin
    taken = kind.__next__
    def begin_and_count(stream, step, positions=None):
        stream.batch_taken = step
        begin(stream, step, positions)
    def taken_and_recorded(stream):
        rows = taken(stream)
        stream.batch_taken += 1
        while str(stream.batch_taken) == os.environ.get("STUCK_AT"):
            time.sleep(1)
        with open(os.environ["HASHES"], "a") as file:
            for shard, part in rows.items():
                content = b"".join(part[name].tobytes() for name in sorted(part))
                digest = hashlib.blake2b(content, digest_size=8).hexdigest()
                file.write(f"{shard} {stream.batch_taken} {digest}\\n")
        return rows
    kind.begin = begin_and_count
    kind.__next__ = taken_and_recorded
opened = stages.open_stages
kinds = set()
def recorded(*arguments):
    stream = opened(*arguments)
    if type(stream) not in kinds:
        kinds.add(type(stream))
        record(type(stream))
    return stream
stages.open_stages = recorded
sys.exit(main(["train", *sys.argv[1:]]))
"""
# What --with adds to the demo's run: the ways in which rows are made and read.
CHOICES = {
    "readers": ["--gin.config.DataConfig.num_reader_processes=2"],
    "mixture": ["--gin.MIXTURE_OR_TASK_NAME='killed_mixture'", "--gin.CORPUS=None"],
    "function": ["--gin.MIXTURE_OR_TASK_NAME='killed_function'", "--gin.CORPUS=None"],
    "stages": ["--gin.config.DataConfig.stages=((25, 'killed_mixture'), (50, 'killed_spans'))"],
    "packing": ["--gin.PACK=True"],
    "epochs": ["--gin.config.DataConfig.num_epochs=3", "--gin.MAX_EXAMPLES=100"],
    "window": ["--gin.config.DataConfig.shuffle_buffer=32"],
}


def environments(hosts: int, hashes: Path) -> list[dict[str, str]]:
    """Returns the variables of the processes of one start, which write their batches' hashes to the file `hashes`.

    0 hosts are one process on this machine's own devices.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    of_processes = []
    for index in range(hosts or 1):
        devices = f"--xla_force_host_platform_device_count={DEVICES // (hosts or 1)}"  # the last number counts
        simulated = f"{os.environ.get('XLA_FLAGS', '')} {devices}".strip()
        variables = {**os.environ, "HASHES": str(hashes)}
        variables[environment.LARGE_PAGES[0]] = environment.LARGE_PAGES[1]  # else each process would start itself again
        if hosts:
            variables |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": simulated}
        if hosts > 1:
            variables |= {"COORDINATOR_ADDRESS": address, "NUM_PROCESSES": str(hosts), "PROCESS_ID": str(index)}
        of_processes.append(variables)
    return of_processes


def _start(arguments: Sequence[str], hosts: int, hashes: Path, last_batch: int = 0) -> list[subprocess.Popen]:
    """Starts the processes of a run; those of one that is to be killed stand still at their last batch."""
    return [
        subprocess.Popen(
            [sys.executable, "-c", RECORDING, *arguments],
            env={**variables, "STUCK_AT": str(last_batch)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for variables in environments(hosts, hashes)
    ]


def losses_in(directory: Path) -> dict[int, float]:
    """Returns the logged losses of a run by step."""
    from limba.training.metrics.logging import read_metrics

    return {record["step"]: record["loss"] for record in read_metrics(str(directory)) if record["kind"] == "train"}


def hashes_in(path: Path) -> dict[tuple[int, int], set[str]]:
    """Returns the hashes of the batches in a file by (shard, batch): one each, if a batch is always the same."""
    hashes: dict[tuple[int, int], set[str]] = {}
    for line in path.read_text().splitlines():
        parts = line.split()
        if len(parts) == 3 and len(parts[2]) == 16:  # a kill may cut the last line
            hashes.setdefault((int(parts[0]), int(parts[1])), set()).add(parts[2])
    return hashes


def _finish(started: list[subprocess.Popen]) -> None:
    outputs = [process.communicate(timeout=1200)[0] for process in started]
    for process, output in zip(started, outputs, strict=True):
        if process.returncode:
            raise InputError(f"A run failed, with {output.strip()[-500:]!r}.")


def _kill_once(arguments: Sequence[str], hosts: int, hashes: Path, directory: Path, moments: random.Random) -> bool:
    """Starts the run and kills it; returns False if it has ended before."""
    before = len(hashes.read_text().splitlines()) if hashes.exists() else 0
    newest = max((batch for _, batch in hashes_in(hashes)), default=0) if hashes.exists() else 0
    started = _start(arguments, hosts, hashes, newest + MOST_BATCHES)
    deadline = time.monotonic() + 60 * MINUTES
    at_once = moments.random() < 0.15  # while it still imports, restores or compiles
    enough = before + 8 * moments.randint(1, 6)
    while not at_once and all(process.poll() is None for process in started):
        if hashes.exists() and len(hashes.read_text().splitlines()) > enough:
            break
        if time.monotonic() > deadline:
            for process in started:
                process.kill()
            raise InputError(f"The run in {directory} made no step in {MINUTES} minutes.")
        time.sleep(0.05)
    time.sleep(moments.uniform(0.0, LONGEST_WAIT))
    alive = [process for process in started if process.poll() is None]
    moments.shuffle(alive)
    for process in alive:
        process.send_signal(signal.SIGKILL)
        time.sleep(moments.uniform(0.0, 0.2))
    for process in started:
        output = process.communicate()[0]
        if process not in alive and process.returncode not in (0, RestartError.exit_status):
            raise InputError(f"A run failed before it was killed, with {output.strip()[-500:]!r}.")
    return bool(alive)


def compare(times: int, steps: int, seed: int, hosts: Sequence[int], arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the figures of one whole run and of one killed `times` times; InputError if their batches differ."""
    moments = random.Random(seed)
    one = min(1, *hosts)
    with tempfile.TemporaryDirectory() as directory:
        whole = Path(directory, "whole")
        killed = Path(directory, "killed")
        common = [*arguments, f"--gin.TRAIN_STEPS={steps}", "--gin.LOG_PERIOD=1"]
        _finish(_start([*common, f"--gin.MODEL_DIR={whole}"], one, Path(directory, "whole.txt")))
        kills = 0
        saved_before_kills = []
        hosts_in_turn = [hosts[i % len(hosts)] for i in range(times)]
        for number in hosts_in_turn:
            kills += _kill_once(
                [*common, f"--gin.MODEL_DIR={killed}"], number, Path(directory, "killed.txt"), killed, moments
            )
            saved = [int(path.name) for path in killed.glob("checkpoints/*") if path.name.isdigit()]
            saved_before_kills.append(max(saved, default=0))
        _finish(_start([*common, f"--gin.MODEL_DIR={killed}"], one, Path(directory, "killed.txt")))
        expected = hashes_in(Path(directory, "whole.txt"))
        read = hashes_in(Path(directory, "killed.txt"))
        # A killed run may have read ahead of the whole one: its further batches have nothing to be compared with.
        wrong = [batch for batch, hashes in read.items() if hashes != expected.get(batch, hashes)]
        missing = [batch for batch in expected if batch[1] <= steps and batch not in read]
        if wrong or missing:
            raise InputError(f"Of {len(expected)} batches {len(wrong)} differ and {len(missing)} are missing.")
        losses = losses_in(whole)
        again = losses_in(killed)
        if {*hosts} == {one} and losses != again:  # on another number of hosts sums are added in another order
            others = [step for step in losses if again.get(step) != losses[step]]
            raise InputError(f"All batches are the same, and the losses of {len(others)} steps differ: {others[:5]}.")
        return {
            "kills": kills,
            "saved_before_kills": saved_before_kills,
            "hosts": sorted(set(hosts_in_turn)),
            "batches_compared": len(expected.keys() & read.keys()),
            "batches_read_again": len(Path(directory, "killed.txt").read_text().splitlines()) - len(read),
            "steps": len(again),
            "relative_difference_of_the_loss_by_step": {
                upto: max(abs(again[s] / losses[s] - 1) for s in losses if s <= upto)
                for upto in sorted({10, steps // 4, steps // 2, steps})
            },
        }


def demo_arguments(corpus: str, vocabulary: str) -> list[str]:
    """Returns a small run over these files."""
    return [
        "--gin_file=gin/demo.gin",
        f"--gin.VOCABULARY={vocabulary}",
        f"--gin.CORPUS={corpus}",
        "--gin.VOCAB_SIZE=1024",
        "--gin.TASK_FEATURE_LENGTHS={'inputs': 64}",
        *SMALL,
    ]


def chosen_arguments(names: Sequence[str], corpus: str, vocabulary: str, directory: Path) -> list[str]:
    """Returns what the choices of `--with` add to a run over these files; its processes find the tasks by variables."""
    if not names:
        return []
    os.environ["KILL_CORPUS"] = corpus
    os.environ["KILL_VOCABULARY"] = vocabulary
    if "function" in names:
        os.environ["KILL_FUNCTION"] = "1"
    imports = directory / "tasks.gin"
    imports.write_text("from __gin__ import dynamic_registration\nfrom benchmarks import kill_tasks\n")
    return [f"--gin_file={imports}", *itertools.chain.from_iterable(CHOICES[name] for name in names)]


def language_model_arguments(corpus: str) -> list[str]:
    """Returns a small decoder-only run over these files, which trains its own vocabulary."""
    return [
        "--gin_file=gin/ja_lm_0.1b.gin",
        "--gin_file=gin/models/lm_modern/tiny.gin",
        f"--gin.CORPUS={corpus}",
        "--gin.NEW_VOCABULARY_SIZE=2000",
        "--gin.VOCAB_SIZE=2048",
        "--gin.DTYPE=float32",
        "--gin.WARMUP_STEPS=20",
        "--gin.TASK_FEATURE_LENGTHS={'targets': 64}",
        *SMALL,
    ]


def main(argv: Sequence[str]) -> None:
    parser = Parser("-m benchmarks.kill", __doc__ or "", "python")
    parser.add_argument("--times", type=int, default=20, help="number of kills")
    parser.add_argument("--steps", type=int, default=400, help="steps of the run")
    parser.add_argument(
        "--hosts", default="2,1,4", help="processes of the starts: 1, 2, 4; 0: one, on this machine's devices"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--lm", action="store_true", help="a decoder-only language model instead of a T5")
    parser.add_argument("--with", dest="choices", default="", help=f"of the demo's run: some of {','.join(CHOICES)}")
    parser.add_argument("--corpus", help="text files; default: Python's language reference")
    args = parser.parse_args(argv)
    if args.times < 0 or args.steps < 1:
        raise InputError("Kills and steps must be whole numbers, steps above 0.")
    if set(args.hosts.split(",")) - {"0", "1", "2", "4"}:
        raise InputError(f"--hosts is {args.hosts!r}; give some of 0,1,2,4.")
    choices = args.choices.split(",") if args.choices else []
    if unknown := set(choices) - set(CHOICES):
        raise InputError(
            f"--with is {args.choices!r}, and {min(unknown)} is not a choice; give some of {','.join(CHOICES)}."
        )
    if {"mixture", "function"} <= set(choices):
        raise InputError("--with has mixture and function, and each chooses the task; leave out one of them.")
    if choices and args.lm:
        raise InputError(
            "--with chooses how the demo's rows are made, and --lm trains on others; leave out one of them."
        )
    hosts = [int(number) for number in args.hosts.split(",")]
    with tempfile.TemporaryDirectory() as directory:
        with environment.quiet_imports():
            from limba.data.tasks import source_of_files
            from limba.data.vocabulary.train import train_vocabulary
            from tasks.demo import pydoc_corpus

        corpus = args.corpus or f"{directory}/corpus.jsonl"
        if args.corpus is None:
            pydoc_corpus(corpus)
        if args.lm:
            arguments = language_model_arguments(corpus)
        else:
            vocabulary = f"{directory}/vocabulary.model"
            train_vocabulary(source_of_files(corpus, "text", 0.0).texts("train"), 800, vocabulary)
            arguments = demo_arguments(corpus, vocabulary)
            arguments += chosen_arguments(choices, corpus, vocabulary, Path(directory))
        print(json.dumps(compare(args.times, args.steps, args.seed, hosts, arguments)))


if __name__ == "__main__":
    environment.set_variables()
    sys.exit(program.exit_code(main, sys.argv[1:]))
