"""Runs that `limba new` proposes pass preflight on the machine that they were made for, from 3 MB to 40 GB of text.

Texts are real prose. Those of more than 300 MB are one file of this size under many names: their size is read from all,
their text from a part, as of other files. Runs on 40 GB are kept in a bucket, as on machines of several hosts, which
must all see it, and as checkpoints of 100 GB and more are: an emulated one, which preflight reaches over a socket.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from limba.cli.main import main
from limba.tools.preflight import preflight
from tests.bucket_server import serving_buckets

PART = 300_000_000  # bytes of a file; preflight compares smaller ones by their bytes


class Case(NamedTuple):
    """A text, a machine and days."""

    megabytes: int
    machine: str
    days: float
    kind: str = "t5"
    choice: str = "safe"
    compiles: bool = False
    in_bucket: bool = False


LANDING = Case(3, "4090", 1)
CASES = (
    Case(3, "cpu", 1),
    Case(3, "t4", 7, "encoder"),
    *(Case(3, machine, 1) for machine in ("rtx2080ti", "rtx3060", "8xa100")),
    *(Case(30, machine, days) for machine in ("cpu", "rtx4090", "v4-8") for days in (1, 7)),
    *(Case(300, machine, days) for machine in ("rtx3090", "t4", "l40s") for days in (1, 30)),
    *(Case(300, "h100", 1, kind) for kind in ("lm", "encoder")),
    *(Case(1_500, machine, 7) for machine in ("v100", "a6000", "v3-8", "cpu")),
    *(Case(5_000, machine, days) for machine in ("rtx4090", "8xh100") for days in (7, 90)),
    *(Case(40_000, machine, 30, choice="more", in_bucket=True) for machine in ("v4-32", "8xh100")),
    *(Case(40_000, machine, days, in_bucket=True) for machine, days in (("rtx5090", 30), ("v5e-16", 7), ("h200", 90))),
)
HAS_NVIDIA_S_COMPILER = importlib.util.find_spec("jax_cuda12_plugin") is not None
FOR_CARDS = pytest.mark.skipif(not HAS_NVIDIA_S_COMPILER, reason="needs bash launch/setup.sh cuda12")
COMPILED = (
    Case(3, "cpu", 1, compiles=True),
    pytest.param(Case(300, "h100", 1, compiles=True), marks=(pytest.mark.aot, FOR_CARDS)),
    pytest.param(Case(300, "v4-8", 1, compiles=True), marks=pytest.mark.aot),
)


def test_the_night_asks_of_many_machines_and_days() -> None:
    assert len(set(CASES)) == len(CASES)
    assert len({case.machine for case in CASES}) >= 9 and len({case.days for case in CASES}) == 4


@pytest.fixture(scope="session")
def texts(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """Returns a function from megabytes to the pattern of files with so much prose, each document another one."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    # The words of one module are another one's in each document, so that there are as many as a language has.
    sentences = [sentence for row in rows for sentence in re.split(r"(?<=[.!?])\s+", row) if len(sentence) > 40]

    def write(path: Path, size: int) -> None:
        choose = random.Random(size)
        written = 0
        with path.open("w") as file:
            while written < size:
                text = " ".join(choose.sample(sentences, 12))
                line = json.dumps({"text": f"{choose.randrange(10**9)}. {text}"}) + "\n"
                written += file.write(line)

    def pattern(megabytes: int) -> str:
        size = megabytes * 1_000_000
        subfolder = folder / str(megabytes)
        if subfolder.is_dir():
            return f"{subfolder}/*.jsonl"
        subfolder.mkdir()
        first = folder / f"{min(size, PART)}.jsonl"
        if not first.exists():
            write(first, min(size, PART))
        for number in range(max(1, round(size / PART))):
            os.link(first, subfolder / f"{number:04}.jsonl")
        return f"{subfolder}/*.jsonl"

    return pattern


def judged(case: Case, pattern: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Proposes a run and asks preflight about it; returns a line of a table. Asserts that both say the same."""
    name = re.sub(r"\W", "_", f"p{case.megabytes}_{case.machine}_{case.days}_{case.kind}_{case.compiles}").lower()
    argv = ["new", name, f"--corpus={pattern}", f"--hardware={case.machine}", f"--days={case.days}", "--language=en"]
    argv.append(f"--kind={case.kind}")
    status = main([*argv, f"--choice={case.choice}"])
    told = capsys.readouterr()
    assert status == 0, told.err
    (gin,) = re.findall(rf"gin/{name}_\S+?\.gin", told.out.partition("Next:")[0])
    topology = re.findall(r"--topology=(\S+)", told.out)[0]
    command = [gin, f"--topology={topology}", f"--days={case.days}", "--json"]
    if not case.compiles:
        command.append("--no_compile")
    if case.in_bucket:
        status, printed = preflight_in_a_bucket(command)
    else:
        status = preflight.run([*command, "--gin.MODEL_DIR=runs/run"])
        printed = capsys.readouterr().out
    document = json.loads(printed)
    wrong = [line for part in document["sections"] for line in part["lines"] if line["level"] != "ok"]
    assert (status, wrong) == (0, []), [line["text"] for line in wrong]
    figures = {part["title"]: part["data"] for part in document["sections"]}
    written = Path(gin).read_text()
    hours = figures["Time and cost"]["hours"]
    if not case.compiles:  # the same hours, by the same function
        assert re.search(rf"Time +{re.escape(words(hours))}", written), (hours, written[:600])
    passes = figures["Data"]["epochs"]
    verdict = re.sub(r"\s+", " ", told.out.partition("Verdict: ")[2].partition("\n\n")[0])
    model = re.findall(r"# (.+?) for ", written)[0]
    dollars = re.findall(r"(\$[\d.,]+ to \$[\d.,]+|under \$0.01) at", re.sub(r"\n#\s+", " ", written))
    cost = dollars[0] if dollars else "-"
    how = "compiled" if case.compiles else "arithmetic"
    columns = [
        f"{case.megabytes:,} MB", topology, f"{case.days:g}", case.choice, model, words(hours), cost, f"{passes:.1f}",
        verdict, f"{document['verdict']} ({how})",
    ]  # fmt: skip
    return f"| {' | '.join(columns)} |"


def preflight_in_a_bucket(command: list[str]) -> tuple[int, str]:
    """Returns the exit code of preflight for a run in an emulated bucket, and what it prints.

    It is a process of its own: a client of buckets keeps the address with which it was first used.
    """
    with serving_buckets() as server:
        program = [sys.executable, "-m", "limba", "preflight", *command, "--gin.MODEL_DIR=gs://bucket/run"]
        variables = {**os.environ, **server.environment(), "JAX_PLATFORMS": "cpu"}
        ended = subprocess.run(program, env=variables, capture_output=True, text=True, check=False)
        assert server.requests, "preflight did not look at the bucket"
    assert ended.stdout, ended.stderr
    return ended.returncode, ended.stdout


def words(hours: list[float]) -> str:
    from limba.config.speed import in_time

    return in_time(hours)


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # of a machine that has one
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_proposal_passes_preflight_on_its_machine(
    texts: Callable[[int], str], workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(LANDING, texts(LANDING.megabytes), capsys)


@pytest.mark.night
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.megabytes}-{case.machine}-{case.days}-{case.kind}")
def test_each_proposal_passes_preflight(
    case: Case, texts: Callable[[int], str], workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = judged(case, texts(case.megabytes), capsys)
    with capsys.disabled():
        print(f"\n{row}")


@pytest.mark.night
@pytest.mark.parametrize("case", COMPILED, ids=lambda case: f"{case.megabytes}-{case.machine}")
def test_proposals_fit_by_the_compiler(
    case: Case, texts: Callable[[int], str], workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = judged(case, texts(case.megabytes), capsys)
    with capsys.disabled():
        print(f"\n{row}")
