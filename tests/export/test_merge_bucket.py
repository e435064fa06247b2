"""`limba merge` and the beginning of a branch in a bucket; a process of its own has the bucket's clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bucket_server import serving_buckets
from tests.sharding.processes import xla_flags

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
import jax
import numpy as np
jax.config.update("jax_num_cpu_devices", 2)
from etils import epath
from limba.cli import branch
from limba.config import DataConfig, OptimizerConfig, optimizer_config, RunConfig, ScheduleConfig, saved_config
from limba.storage import manifest
from limba.training.checkpoints import branches
from limba.training.checkpoints.directory import Checkpoints
from tests import tiny
from tests.training.checkpoints import states
run = epath.Path("gs://bucket/run")
states.save(run, 10, 20, 30)
optimizer = optimizer_config(schedule=ScheduleConfig("warmup_stable_decay", 0.01))
config = RunConfig(tiny.MODEL, DataConfig("t", {"inputs": 8}, batch_size=1), str(run), 40, optimizer)
(run / "config.json").write_text(saved_config.to_text(config))
answers = []
def damage(path):
    answers.append(manifest.check(str(path)))
for out in ("gs://bucket/merged", "gs://bucket/merged"):
    branch.merge([str(run), "--last=2", f"--output={out}"])
damage("gs://bucket/merged/checkpoints/30")
with Checkpoints("gs://bucket/merged", states.CONFIG, states.DATA) as checkpoints:
    found = checkpoints.restore_latest(states.abstract()).state.params
mean = lambda one, two: np.mean([np.asarray(one, float), np.asarray(two, float)], axis=0).astype(np.float32)
wanted = jax.tree.map(mean, states.state(20).params, states.state(30).params)
jax.tree.map(np.testing.assert_array_equal, found, wanted)
branch = branches.chosen(str(run), [10, 20, 30], 4, "linear", 20, None)
with branches.begun(branch, config, {}):
    pass  # in config.model_dir, which has checkpoints: nothing is done
assert not (run / "branch.json").exists()
place = branches.changed(config, {"RunConfig.model_dir": branch.name()})
with branches.begun(branch, place, {}):
    pass
damage(branch.name() + "/checkpoints/20")
with Checkpoints(branch.name(), states.CONFIG, states.DATA) as checkpoints:
    states.assert_is(checkpoints.restore_latest(states.abstract()), 20)
answers.append(branches.chosen(str(run), [30, 40], 4, "linear", None, None).step)
print(json.dumps(answers))
"""


def test_they_are_whole_there() -> None:
    with serving_buckets() as server:
        variables = {**os.environ, **server.environment(), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags()}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert not [name for _, name in server.objects if name.endswith("/lease")]
    assert json.loads(done.stdout.splitlines()[-1]) == [[], [], 20]
    assert "has this average already" in done.stdout
