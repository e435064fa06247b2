"""Stand-ins for Slurm's programs: they record how they were called, and start real processes.

`write` makes them in a folder for PATH. sbatch runs the job at once, in the foreground, with the variables that Slurm
sets; when the file `signal` holds a step, it sends what --signal asks for as soon as the run has logged that step. A
job that scontrol has queued again is run again.
"""

from __future__ import annotations

import sys
from pathlib import Path

SBATCH = """#!{python}
import json, os, pathlib, re, signal, subprocess, sys, time
folder = pathlib.Path({folder!r})
given = dict(argument[2:].partition("=")[::2] for argument in sys.argv[1:])
with (folder / "sbatch.jsonl").open("a") as file:
    file.write(json.dumps(given) + "\\n")
if (folder / "refuses").exists():
    sys.exit("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified")
nodes, each = int(given["nodes"]), int(given["ntasks-per-node"])
print("Submitted batch job 4242", flush=True)
variables = {{
    **os.environ, "SLURM_JOB_ID": "4242", "SLURM_NTASKS": str(nodes * each), "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
    "STAND_IN_NODES": str(nodes), "STAND_IN_EACH": str(each),
}}
(folder / "state").write_text("RUNNING")
for start in range(20):
    (folder / "requeued").unlink(missing_ok=True)
    if start:
        variables["SLURM_RESTART_COUNT"] = str(start)
    with open(given["output"].replace("%j", "4242"), "a") as log:
        job = subprocess.Popen(["sh", "-c", given["wrap"]], cwd=given["chdir"], env=variables, stdout=log, stderr=log)
        asked = folder / "signal"
        while job.poll() is None:
            metrics = pathlib.Path(os.environ["MODEL_DIR"]) / "metrics.jsonl"
            if asked.exists() and metrics.exists() and f'"step": {{asked.read_text()}},' in metrics.read_text():
                asked.unlink()
                to_batch, name = re.fullmatch(r"(B:)?(\\w+)@\\d+", given["signal"]).groups()
                assert to_batch
                job.send_signal(getattr(signal, "SIG" + name))
            time.sleep(0.2)
    if not (folder / "requeued").exists():
        break
(folder / "status").write_text(str(job.returncode))
sys.exit(0)
"""
# As srun(1): a task's lines get its number, and the status is the highest of the tasks. SIGTERM is not sent on: srun
# 22.05.8 says "forcing job termination" and ends its step with SIGKILL (test_slurm_cluster.py has the real one).
SRUN = """#!{python}
import json, os, pathlib, signal, subprocess, sys, threading
folder = pathlib.Path({folder!r})
first = next(number for number, argument in enumerate(sys.argv) if number and not argument.startswith("--"))
options, command = sys.argv[1:first], sys.argv[first:]
with (folder / "srun.jsonl").open("a") as file:
    file.write(json.dumps([options, command]) + "\\n")
nodes, each = int(os.environ["STAND_IN_NODES"]), int(os.environ["STAND_IN_EACH"])

def labelled(number, lines):
    for line in lines:
        os.write(1, f"{{number}}: ".encode() + line.rstrip(b"\\n") + b"\\n")

def end(name, frame):
    print("srun: forcing job termination", flush=True)
    for task in tasks:
        os.killpg(task.pid, signal.SIGKILL)

tasks, writers = [], []
for number in range(nodes * each):
    variables = {{
        **os.environ, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number % each),
        "SLURM_NODEID": str(number // each), "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": f"{{each}}(x{{nodes}})",
    }}
    tasks.append(subprocess.Popen(
        command, env=variables, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ))
    writers.append(threading.Thread(target=labelled, args=[number, tasks[-1].stdout]))
    writers[-1].start()
for name in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(name, end)
(folder / "tasks").write_text(" ".join(str(task.pid) for task in tasks))
codes = [task.wait() for task in tasks]
for writer in writers:
    writer.join()
(folder / "tasks").unlink()
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""
# As scancel(1): a signal goes to the steps, not to the batch script, and there to every process (proctrack/cgroup).
SCANCEL = """#!{python}
import os, pathlib, signal, sys
folder = pathlib.Path({folder!r})
assert sys.argv[1:] == ["--signal=TERM", "4242"], sys.argv
if (folder / "silent").exists():
    (folder / "silent").unlink()
    sys.exit("scancel: error: Kill job error on job id 4242: Unable to contact slurm controller (connect failure)")

def signalled(process):
    try:
        below = pathlib.Path(f"/proc/{{process}}/task/{{process}}/children").read_text().split()
        os.kill(int(process), signal.SIGTERM)
    except OSError:
        return
    for each in below:
        signalled(each)

for task in (folder / "tasks").read_text().split() if (folder / "tasks").exists() else ():
    signalled(task)
"""
SCONTROL = """#!{python}
import pathlib, sys
folder = pathlib.Path({folder!r})
if sys.argv[1] == "show":
    print("JobId=4242 JobName=any\\n   JobState=" + (folder / "state").read_text() + " Reason=None PreemptTime=None")
else:
    assert sys.argv[1:] == ["requeue", "4242"]
    (folder / "requeued").write_text("")
"""


def write(folder: Path) -> Path:
    """Writes the programs; returns the folder to put first in PATH. They record into `folder`."""
    programs = {"sbatch": SBATCH, "srun": SRUN, "scontrol": SCONTROL, "scancel": SCANCEL}
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    for name, text in programs.items():
        path = bin_folder / name
        is_python = text.startswith("#!{python}")
        path.write_text(text.format(python=sys.executable, folder=str(folder)) if is_python else text)
        path.chmod(0o755)
    return bin_folder
