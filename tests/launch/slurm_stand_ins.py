"""Programs in the place of sbatch, srun and scontrol: they record how they were called, and start real processes.

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
SRUN = """#!{python}
import json, os, pathlib, signal, subprocess, sys
folder = pathlib.Path({folder!r})
first = next(number for number, argument in enumerate(sys.argv) if number and not argument.startswith("--"))
options, command = sys.argv[1:first], sys.argv[first:]
with (folder / "srun.jsonl").open("a") as file:
    file.write(json.dumps([options, command]) + "\\n")
nodes, each = int(os.environ["STAND_IN_NODES"]), int(os.environ["STAND_IN_EACH"])
tasks = []
for number in range(nodes * each):
    variables = {{
        **os.environ, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number % each),
        "SLURM_NODEID": str(number // each), "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": f"{{each}}(x{{nodes}})",
    }}
    tasks.append(subprocess.Popen(command, env=variables))
for name in (signal.SIGTERM, signal.SIGINT):
    signal.signal(name, lambda received, _: [task.send_signal(received) for task in tasks])
codes = [task.wait() for task in tasks]
sys.exit(max(128 - code if code < 0 else code for code in codes))
"""
SCONTROL = """#!{python}
import pathlib, sys
folder = pathlib.Path({folder!r})
if sys.argv[1] == "show":
    print("JobId=4242 JobName=any\\n   JobState=" + (folder / "state").read_text() + " Reason=None")
else:
    assert sys.argv[1:] == ["requeue", "4242"]
    (folder / "requeued").write_text("")
"""


def write(folder: Path) -> Path:
    """Writes the programs; returns the folder to put first in PATH. They record into `folder`."""
    place = folder / "bin"
    place.mkdir(parents=True)
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scontrol", SCONTROL)):
        path = place / name
        path.write_text(text.format(python=sys.executable, folder=str(folder)))
        path.chmod(0o755)
    return place
