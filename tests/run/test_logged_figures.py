"""The figures that a run logs, as one reads them: its speed, its epochs and its file of figures."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from jax._src import compiler

import tasks.text_to_text  # noqa: F401  registers the task
from limba.config import CheckpointConfig, DataConfig, RunConfig
from limba.run import train
from limba.training.metrics import recent_steps
from limba.training.metrics.logging import read_metrics
from tests import tiny


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Fine-tuning on 100 pairs."""
    lines = [json.dumps({"inputs": f"{n} " + chr(97 + n % 26) * 5, "targets": f"{n}"}) for n in range(100)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    data = DataConfig(
        "text_to_text", {"inputs": 16, "targets": 8}, batch_size=8, vocabulary="byte", num_data_shards=4,
        data_files={"train": str(tmp_path / "pairs.jsonl")}, validation_percent=0.0,
    )  # fmt: skip
    small = {"vocab_size": 384, "emb_dim": 32, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}
    network = tiny.model(**small, num_encoder_layers=1, num_decoder_layers=1)
    return RunConfig(network, data, str(tmp_path / "run"), train_steps=4, log_every_steps=1)


def lines_of(config: RunConfig) -> dict[int, dict[str, Any]]:
    return {record["step"]: record for record in read_metrics(config.model_dir) if record["kind"] == "train"}


@pytest.mark.slow
def test_the_first_line_leaves_the_time_of_compiling_out(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each program takes eleven more days to compile here."""
    clock = time.monotonic
    passed = [0.0]
    compiled = compiler.compile_or_get_cached

    def slow(*arguments: Any, **options: Any) -> Any:
        passed[0] += 1e6
        return compiled(*arguments, **options)

    monkeypatch.setattr(compiler, "compile_or_get_cached", slow)
    monkeypatch.setattr(recent_steps.time, "monotonic", lambda: clock() + passed[0])
    train(config)
    assert passed[0] >= 1e6
    first = lines_of(config)[1]
    assert first["seconds_per_step"] < 1e5 and first["tokens_per_second"] > 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step 1/4 ")]
    assert " d" not in line.rpartition("ETA ")[2]


@pytest.mark.slow
def test_each_line_of_the_file_is_json_after_a_resume_and_after_a_kill(config: RunConfig) -> None:
    path = Path(config.model_dir) / "metrics.jsonl"
    for steps in (2, 3):
        train(dataclasses.replace(config, train_steps=steps, checkpoint=CheckpointConfig(every_steps=1)))
    before = path.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in before].count("start") == 2  # an empty line is not JSON
    path.write_text("\n".join(before) + '\n{"kind": "train", "st')  # as a killed run leaves it
    train(config)
    after = path.read_text().splitlines()
    assert after[: len(before)] == before and after[len(before)] == '{"kind": "train", "st'
    assert {json.loads(line)["step"] for line in after[len(before) + 1 :]} >= {3, 4}
