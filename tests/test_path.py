"""What a run of three steps enters: the files and functions that one must know to follow a batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharding.processes import xla_flags
from tests.shipped import ROOT

# Numbers that may only fall. The goals: 60 files with 8,000 lines, and 2,000 lines of functions in the loop.
# A few functions are called or not as the clock has it (a lease is renewed in a slow run): the last number has room.
MOST_FILES, MOST_LINES, MOST_LINES_IN_THE_LOOP = 82, 18_800, 3_450

# Trains three steps, and prints the functions of limba/ that are called after the imports: [file, first line, last
# line, whether it was called in the loop], of this thread and all others. What other threads call counts as in the
# loop at any time: they read the text for it, and how far they are when it begins depends on the machine.
PROGRAM = """
import json, sys, threading
from pathlib import Path
import limba.run, limba.training.loop, tasks.demo
from limba.config import DataConfig, ModelConfig, RunConfig
folder, root = Path(sys.argv[1]), sys.argv[2] + "/limba/"
corpus = folder / "corpus.jsonl"
texts = [f"{number} " + "the of and to in was he " * 9 for number in range(400)]
corpus.write_text("".join(json.dumps({"text": text}) + "\\n" for text in texts))
model = ModelConfig(384, 16, 2, 8, 32, 1, 1)
data = DataConfig("demo_span_corruption", {"inputs": 48}, batch_size=4, vocabulary="byte", data_files=str(corpus))
config = RunConfig(model, data, str(folder / "run"), 3, log_every_steps=1)
loop, entered, begun, first = limba.training.loop.Loop.run.__code__, {}, set(), threading.get_ident()
def called(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and code.co_flags & 1:  # 1: a function, not a class's body
        if code is loop:
            begun.add(True)
        entered[code] = entered.get(code) or bool(begun) or threading.get_ident() != first
    elif event == "return" and frame.f_code is loop:
        begun.clear()
threading.setprofile(called)
sys.setprofile(called)
try:
    limba.run.train(config)
finally:
    sys.setprofile(None)
    threading.setprofile(None)
last = lambda code: max(line for *_, line in code.co_lines() if line)
print(json.dumps([[code.co_filename, code.co_firstlineno, last(code), inside] for code, inside in entered.items()]))
"""


@pytest.mark.slow
def test_a_run_of_three_steps_enters_few_files(tmp_path: Path) -> None:
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(ROOT)]
    done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    entered = json.loads(done.stdout.splitlines()[-1])
    files = {file for file, *_ in entered}
    lines = sum(Path(file).read_text().count("\n") for file in files)
    in_the_loop = {(file, line) for file, first, last, inside in entered if inside for line in range(first, last + 1)}
    names = sorted(Path(file).relative_to(ROOT).as_posix() for file in files)
    assert {"limba/run.py", "limba/training/loop.py", "limba/training/step.py", "limba/model/t5.py"} <= set(names)
    found = (len(files), lines, len(in_the_loop))
    print("files, lines, lines of functions in the loop:", *found)
    assert found[0] <= MOST_FILES and found[1] <= MOST_LINES and found[2] <= MOST_LINES_IN_THE_LOOP, (found, names)
