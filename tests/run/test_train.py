"""Whole runs: the loss falls, a stopped run goes on as if it had not stopped, bad checkpoints are met with sense."""

import dataclasses
import json
import math
import os
import re
import shutil
import signal
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from etils import epath

import tasks.demo  # noqa: F401  registers the task
from limba.cli.use.sources import Source
from limba.config import (
    CheckpointConfig,
    ConfigError,
    DataConfig,
    EvaluationConfig,
    InputError,
    MeshConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)
from limba.evaluation import report
from limba.export.card import write_card
from limba.model import Network
from limba.run import train
from limba.sharding.mesh import make_mesh
from limba.training import auto_mesh
from limba.training.checkpoint import Checkpoints
from limba.training.logging import read_metrics
from limba.training.optimizer import make_optimizer
from limba.training.state import TrainState, abstract_state, gather_parameters
from tests import tiny


@pytest.fixture
def config(tmp_path: Path, corpus: Path, vocabulary: Path) -> RunConfig:
    data = DataConfig(
        "demo_span_corruption",
        {"inputs": 48},
        batch_size=16,
        vocabulary=str(vocabulary),
        data_files=str(corpus),
        validation_percent=5.0,
        num_data_shards=4,
    )
    return RunConfig(
        model=tiny.model(vocab_size=1024, emb_dim=64, num_heads=2, mlp_dim=128, num_decoder_layers=2),
        data=data,
        model_dir=str(tmp_path / "run"),
        train_steps=100,
        optimizer=OptimizerConfig(schedule=ScheduleConfig(warmup_steps=100, base_learning_rate=0.3)),
        mesh=MeshConfig(2, 2, 2),
        checkpoint=CheckpointConfig(every_steps=25, keep=3),
        evaluation=EvaluationConfig(every_steps=50, num_batches=2),
        log_every_steps=1,
    )


def losses(config: RunConfig) -> dict[int, float]:
    return {record["step"]: record["loss"] for record in read_metrics(config.model_dir) if record["kind"] == "train"}


def changed(config: RunConfig, **changes: object) -> RunConfig:
    return dataclasses.replace(config, **changes)


def test_a_resumed_run_equals_one_that_never_stopped(config: RunConfig, tmp_path: Path) -> None:
    checkpoint, evaluation = CheckpointConfig(every_steps=10, keep=3), EvaluationConfig(every_steps=20, num_batches=2)
    config = changed(config, train_steps=40, checkpoint=checkpoint, evaluation=evaluation)
    result = train(config)
    expected = losses(config)
    assert result["step"] == 40 and not result["interrupted"]
    assert abs(expected[1] - math.log(1024)) < 1 and expected[40] < expected[1] - 1.5
    assert result["validation"]["loss"] < expected[1] - 1.0
    assert 1.0 < result["validation"]["bits_per_byte"] < 8.0
    assert sorted(int(p.name) for p in (Path(config.model_dir) / "checkpoints").iterdir() if p.name.isdigit()) == [
        20,
        30,
        40,
    ]

    stopped = changed(config, model_dir=str(tmp_path / "stopped"))
    train(changed(stopped, train_steps=20))
    train(stopped)
    assert losses(stopped) == expected  # bit for bit, the shuffle on

    text = report.summary(config)
    assert "steps               40" in text and "bits per byte" in text
    assert len(report.plot_loss(config).read_bytes()) > 5_000
    (text, filled, masked), *_ = report.infills(config)
    assert "[" in text and "[" in filled and text.split("[")[0] == filled.split("[")[0]
    assert masked.split("<extra_id_0>")[0] == text.split("[")[0]

    run = epath.Path(config.model_dir)
    source = Source(run, run, {40: run / "checkpoints" / "40"}, "Limba", config.model, config)
    write_card(tmp_path, source, 40, ("pytorch",), "float32", ["proved"], "apache-2.0", "2 cores", True)
    written = (tmp_path / "README.md").read_text()
    held_out = [record for record in read_metrics(config.model_dir) if record["kind"] == "validation"][-1]
    for part in ("license: apache-2.0", "2 cores", "* proved", "TPU Research Cloud", f"{held_out['loss']:.3f} at step"):
        assert part in written
    assert (tmp_path / "loss.png").read_bytes() == (run / "loss.png").read_bytes()


def test_a_checkpoint_is_read_by_other_numbers_of_devices_however_they_share_the_update(tmp_path: Path) -> None:
    """`(4, False)` is how all checkpoints lay before shares."""
    optimizer, data = make_optimizer(OptimizerConfig(), 1), DataConfig("t", {"inputs": 1}, batch_size=1)

    def laid_out(devices: int, shard_update: bool) -> TrainState:
        mesh = tiny.mesh_of(MeshConfig(), devices)
        return abstract_state(Network(tiny.MODEL, mesh), optimizer, mesh, shard_update)

    random = np.random.default_rng(0)
    arrays = jax.tree.map(lambda x: random.standard_normal(x.shape).astype(x.dtype), laid_out(1, True))
    for step, (devices, shared) in enumerate(((4, False), (2, True)), 1):
        there, directory = laid_out(devices, shared), str(tmp_path / str(step))
        state = jax.tree.map(lambda array, leaf: jax.device_put(array, leaf.sharding), arrays, there)
        with Checkpoints(directory, CheckpointConfig(), data) as checkpoints:
            checkpoints.save(step, state, {0: b"position"})
        for here in ((1, True), (2, True), (8, True), (4, False)):
            abstract = laid_out(*here)
            with Checkpoints(directory, CheckpointConfig(), data) as checkpoints:
                restored, _ = checkpoints.restore_latest(abstract)
            jax.tree.map(np.testing.assert_array_equal, restored, arrays)
            assert all(jax.tree.leaves(jax.tree.map(lambda x, y: x.sharding == y.sharding, restored, abstract)))
    kernel = state.params["encoder"]["layers"]["mlp"]["wo"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 2 == kernel.size
    whole = gather_parameters(Network(tiny.MODEL, tiny.mesh_of(MeshConfig(), 2)), state.params)
    jax.tree.map(np.testing.assert_array_equal, whole, arrays.params)
    assert all(leaf.addressable_shards[0].data.size == leaf.size for leaf in jax.tree.leaves(whole))


def test_the_smallest_sharding_that_fits_is_chosen_compiled_once_and_kept(
    config: RunConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = dataclasses.replace(config.model, num_encoder_layers=12, num_decoder_layers=12, remat="full")
    config = changed(config, model=network, optimizer=OptimizerConfig(name="adamw"), train_steps=2)
    mesh = make_mesh(MeshConfig(fsdp=2))
    state = abstract_state(Network(network, mesh), make_optimizer(config.optimizer, 1), mesh)
    halves = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state))
    config = changed(config, mesh=MeshConfig(auto=True, shard_update=False, memory_gib=(halves + 1024) / 2**30))

    with monkeypatch.context() as patch:
        patch.delattr(train, "jit_train_step")  # what was compiled to find out is what runs
        assert train(config)["step"] == 2
    printed = capsys.readouterr().out
    tried = re.findall(r"Mesh data (\d) x fsdp (\d) x model 1: (\S+) GiB a device of (\S+?)(,? .*)?\n", printed)
    assert [(data, fsdp) for data, fsdp, *_ in tried] == [("8", "1"), ("4", "2"), ("2", "4"), ("1", "8")][: len(tried)]
    assert [float(gib) <= float(limit) for _, _, gib, limit, _ in tried] == [False] * (len(tried) - 1) + [True]
    assert (
        len(tried) > 2 and [how for *_, how in tried[:2]] == [" for the state alone", ""] and tried[-1][-1] == ", taken"
    )

    with monkeypatch.context() as patch:
        patch.delattr(auto_mesh, "jit_train_step")
        assert train(changed(config, train_steps=3))["step"] == 3
    assert auto_mesh.mesh_of_run(config).shape["fsdp"] == int(tried[-1][1])


def test_a_mesh_that_cannot_be_chosen_is_said(config: RunConfig) -> None:
    with pytest.raises(InputError, match=r"No mesh of 8 devices fits .* REMAT"):
        auto_mesh.choose(changed(config, mesh=MeshConfig(auto=True, memory_gib=1e-6)), {})
    with pytest.raises(InputError, match=r"does not tell .*memory_gib"):
        auto_mesh.choose(changed(config, mesh=MeshConfig(auto=True)), {})
    with pytest.raises(InputError, match="gradient_reduce_dtype is 'bfloat16'.* fsdp 2"):
        train(changed(config, gradient_reduce_dtype="bfloat16"))


def test_sigterm_saves_and_the_run_goes_on(config: RunConfig) -> None:
    config = changed(config, train_steps=100_000, evaluation=EvaluationConfig(every_steps=100_000), profile_steps=1)
    started = threading.Event()

    def stop() -> None:
        while not losses(config) if Path(config.model_dir, "metrics.jsonl").exists() else True:
            started.wait(0.2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    result = train(config)
    thread.join()
    assert result["interrupted"] and result["step"] == max(losses(config))
    if result["step"] >= 3:
        assert list(Path(config.model_dir, "profile").rglob("*.xplane.pb"))
    again = train(changed(config, train_steps=result["step"] + 2))
    assert again["step"] == result["step"] + 2


def test_checkpoints_that_cannot_be_used(config: RunConfig, caplog: pytest.LogCaptureFixture) -> None:
    config = changed(config, train_steps=4, checkpoint=CheckpointConfig(every_steps=2))
    train(config)
    expected = losses(config)
    directory = Path(config.model_dir) / "checkpoints"

    wider = changed(config, model=dataclasses.replace(config.model, mlp_dim=256))
    with pytest.raises(
        ConfigError, match=r"another model's: decoder/layers/mlp/wi_0/kernel is .*128.* there and .*256.* here"
    ):
        train(wider)
    with pytest.raises(InputError, match=r"another optimizer's: .*absent"):
        train(changed(config, optimizer=OptimizerConfig("adamw", ScheduleConfig("cosine", 1e-3, warmup_steps=2))))
    with pytest.raises(InputError, match="at step 4 and TRAIN_STEPS is 3"):
        train(changed(config, train_steps=3))
    assert sorted(path.name for path in directory.iterdir()) == ["2", "4"]  # all of them good, none put aside
    with pytest.raises(InputError, match="num_data_shards 4, and this run has 8"):
        train(changed(config, data=dataclasses.replace(config.data, num_data_shards=8)))

    for path in (directory / "4").rglob("*"):  # the newest is broken: the one before is taken
        if path.is_file():
            path.write_bytes(b"\0" * 7)
    train(config)
    assert "step 4 cannot be read" in caplog.text
    assert losses(config) == expected and (directory / "4.broken").is_dir() and (directory / "4").is_dir()

    for step in ("2", "4"):
        shutil.rmtree(directory / step / "state")
    with pytest.raises(InputError, match="None of the checkpoints"):
        train(config)


def test_starts_from_another_run_s_checkpoint(config: RunConfig, tmp_path: Path) -> None:
    short = changed(config, train_steps=2, model_dir=str(tmp_path / "2024"))  # a name like a step's
    train(short)
    on = changed(config, model_dir=str(tmp_path / "on"), initial_checkpoint_path=short.model_dir, train_steps=3)
    train(on)
    assert set(losses(on)) == {3}
    with pytest.raises(InputError, match="holds no checkpoints"):
        train(changed(on, model_dir=str(tmp_path / "new"), initial_checkpoint_path=str(tmp_path)))


def test_a_loss_that_is_no_number_stops_the_run(config: RunConfig) -> None:
    schedule = ScheduleConfig("linear", base_learning_rate=1e30, warmup_steps=0)
    config = changed(config, optimizer=OptimizerConfig(schedule=schedule), log_every_steps=10)
    with pytest.raises(
        train.NonFiniteError, match=r"Step 1 gave loss 7\..*update norm inf.*nothing was saved"
    ) as caught:
        train(config)
    (written,) = Path(config.model_dir).glob("non_finite_step_*.npz")
    assert str(written) in str(caught.value)
    assert np.load(written)["inputs/0"].shape == (4, 48)


def test_bad_choices_end_before_compiling(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "jit", lambda *_, **__: pytest.fail("compiled"))

    def fails(match: str, **data: object) -> None:
        with pytest.raises(InputError, match=match):
            train(changed(config, data=dataclasses.replace(config.data, **data)))

    fails("No task or mixture is called 'demo_span'", mixture_or_task_name="demo_span")
    fails("nothing.txt", data_files=str(tmp_path / "nothing.txt"))
    fails("nothing.model", vocabulary=str(tmp_path / "nothing.model"))
    fails("column", column="texte")
    fails("targets", task_feature_lengths={"inputs": 48, "targets": 3})
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    fails("empty.jsonl", data_files=str(empty))
    with pytest.raises(InputError, match="ids.* 512 rows"):
        train(changed(config, model=dataclasses.replace(config.model, vocab_size=512)))
    with pytest.raises(InputError, match="does not divide"):
        train(
            changed(config, data=dataclasses.replace(config.data, batch_size=6, num_data_shards=2), mesh=MeshConfig(8))
        )
    with pytest.raises(InputError, match="NUM_MICROBATCHES 8 parts over 4 groups"):
        train(changed(config, num_microbatches=8))
    with pytest.raises(InputError, match="does not fit 8 devices"):
        train(changed(config, mesh=MeshConfig(3, 1, 1)))
    file = tmp_path / "file"
    file.write_text(json.dumps({}))
    with pytest.raises(InputError, match="cannot be written"):
        train(changed(config, model_dir=str(file / "run")))


def test_the_run_ends_with_its_corpus_where_told(config: RunConfig) -> None:
    data = dataclasses.replace(config.data, num_epochs=1, batch_size=64)
    ended = train(changed(config, data=data, train_steps=10_000, evaluation=EvaluationConfig(10_000, 1)))
    steps = list(losses(config))
    assert ended["step"] == steps[-1] == len(steps) < 100
    assert ended["validation"]["loss"] > 0
    records = [record for record in read_metrics(config.model_dir) if record["kind"] == "train"]
    assert records[0]["epochs/demo_span_corruption"] < 0.5 < records[-1]["epochs/demo_span_corruption"] <= 1
    assert (Path(config.model_dir) / "checkpoints" / str(steps[-1])).is_dir()
