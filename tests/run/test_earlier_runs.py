"""A run directory that an earlier version wrote resumes here, with the losses of a run that was never stopped.

tests/golden/run_aa13acc/run was stopped by SIGKILL behind step 10 of 24, by the code of commit aa13acc; `whole` has
the losses of the same run without interruption.
"""

import base64
import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from limba.config.plain import from_text
from limba.training.metrics.logging import read_metrics

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "run_aa13acc"


def put_corpus_at(folder: Path, position: bytes) -> bytes:
    """Returns a data position as it would be had the corpus lain in `folder`: it names the corpus by its path."""
    units = [f"{folder}/corpus.jsonl[{start}:{min(start + 65536, 134039)}]" for start in range(0, 134039, 65536)]
    old, new = zipfile.ZipFile(io.BytesIO(position)), io.BytesIO()
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in old.namelist():
            content = old.read(name)
            if name == "about.json":
                about = json.loads(content)
                about["corpus"] = hashlib.blake2b(repr([units]).encode(), digest_size=8).hexdigest()
                content = json.dumps(about).encode()
            archive.writestr(name, content)
    return new.getvalue()


def losses(directory: Path) -> dict[int, float]:
    return {each["step"]: each["loss"] for each in read_metrics(str(directory)) if each["kind"] == "train"}


@pytest.mark.slow
def test_a_run_of_an_earlier_version_resumes(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    item = tmp_path / "run" / "checkpoints" / "10" / "data" / "metadata"
    data = json.loads(item.read_text())
    data["positions"] = {
        shard: base64.b64encode(put_corpus_at(tmp_path.resolve(), base64.b64decode(position))).decode()
        for shard, position in data["positions"].items()
    }
    item.write_text(json.dumps(data))

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)  # the run had one device
    command = [sys.executable, "-m", "launch.train", "--gin_file=run/config.gin", "--gin.MODEL_DIR=run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "resumes at step 10" in done.stdout

    expected, found = losses(tmp_path / "whole"), losses(tmp_path / "run")
    assert list(found) == list(range(11, 25))
    assert found == pytest.approx({step: expected[step] for step in found}, abs=1e-6)
    run = from_text((tmp_path / "run" / "config.json").read_text(), "config.json")
    assert (run.model_dir, run.data.data_files) == (str(tmp_path / "run"), "corpus.jsonl")


@pytest.mark.night
def test_a_diacritics_run_from_before_segments_had_a_choice_resumes(tmp_path: Path) -> None:
    """Its config.json lacks DataConfig.segments: its texts are still cut by 2.5 bytes a token, its batches the same."""
    import tasks.ro_diacritics  # noqa: F401  registers the task
    from limba.config import CheckpointConfig, DataConfig, EvaluationConfig, MeshConfig, RunConfig
    from limba.run import train
    from tests import tiny

    texts = [f"Știința numărul {n} și înțelepciunea țării, așa cum știți, e aici." for n in range(300)]
    (tmp_path / "ro.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = DataConfig(
        "ro_diacritics", {"inputs": 24, "targets": 24}, 8, "byte", data_files=str(tmp_path / "ro.jsonl"),
        num_data_shards=2, task_modules=("tasks.ro_diacritics",),
    )  # fmt: skip
    small = {"vocab_size": 384, "emb_dim": 32, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}

    def run(name: str, steps: int, segments: str) -> dict[int, float]:
        config = RunConfig(
            tiny.model(**small, num_encoder_layers=1, num_decoder_layers=1),
            dataclasses.replace(data, segments=segments),
            str(tmp_path / name),
            train_steps=steps,
            mesh=MeshConfig(data=8),
            checkpoint=CheckpointConfig(every_steps=100),
            evaluation=EvaluationConfig(every_steps=100, num_batches=1, num_examples=0),
            log_every_steps=1,
        )
        train(config)
        return losses(tmp_path / name)

    whole = run("whole", 8, "bytes")
    run("stopped", 4, "bytes")
    path = tmp_path / "stopped" / "config.json"
    saved = json.loads(path.read_text())
    assert saved["run"]["data"].pop("segments") == "bytes"
    path.write_text(json.dumps(saved))
    assert run("stopped", 8, "vocabulary") == whole and list(whole) == list(range(1, 9))
    assert json.loads(path.read_text())["run"]["data"]["segments"] == "bytes"
    assert run("today", 8, "vocabulary") != whole  # a new run has other segments, or this test would say nothing
