"""The guard beside recorded runs and in compiled steps: no false alarm, what a step drops, rows' losses, the ledger."""

import dataclasses
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from limba.config import (
    ConfigError,
    DataConfig,
    GuardConfig,
    InputError,
    LossConfig,
    MeshConfig,
    ModelConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
)
from limba.model import Network
from limba.training.guard import Guard
from limba.training.metrics.logging import Metrics
from limba.training.metrics.recent_steps import RecentSteps
from limba.training.optimizer import make_optimizer
from limba.training.row_losses import jit_row_losses
from limba.training.schedule import make_schedule
from limba.training.skipped_batches import SkippedBatches, entries_of
from limba.training.state import TrainState, state_shardings
from limba.training.step import Gradient, jit_train_step, without_update
from tests import tiny

GOLDEN = Path(__file__).parent.parent / "golden"
SMALL = tiny.model(emb_dim=64, num_encoder_layers=1, num_decoder_layers=1)
NO_LIMITS = np.full(2, np.inf, np.float32)


def ordinary() -> dict[str, np.ndarray]:
    """Loss and gradient norm of every step of ordinary runs; of T5X's recorded run the loss."""
    runs = dict(np.load(GOLDEN / "ordinary_steps.npz"))
    losses = np.load(GOLDEN / "curve_t5_1_1.npz")["loss_per_token"]
    return {**runs, "t5x": np.stack([losses, np.ones_like(losses)], 1)}


@pytest.mark.parametrize("size", [50, 200])
def test_ordinary_runs_raise_no_false_alarm(size: int, guarded: "Guarded") -> None:
    for name, steps in ordinary().items():
        guard = guarded("warn", window=size, threshold=6.0)  # the default is 8
        for step, (loss, norm) in enumerate(steps, 1):
            guard.after(step, {}, metrics(loss, norm), ())
        assert guard.spikes(len(steps)) == [], name


class Guarded:
    """Makes guards of a run in a folder, which remembers what they say."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.said = []

    def config(self, action: str, **choices: float) -> RunConfig:
        data = DataConfig("task", {"inputs": 24, "targets": 10}, batch_size=8, num_data_shards=2)
        return RunConfig(SMALL, data, str(self.directory), 1_000, guard=GuardConfig(action, **choices))

    def __call__(self, action: str, **choices: float) -> Guard:
        config = self.config(action, **choices)
        with Metrics(str(self.directory), 0, 1_000, writes=True) as lines:
            lines.say = self.said.append
            recent = RecentSteps(config, config.data.task_feature_lengths, 1, lines)
            guard = Guard(config, Network(SMALL), SkippedBatches(config), recent, lambda rows: rows)
        lines.event = lambda step, values: None  # the file is closed
        guard.begin(0, None)
        return guard


@pytest.fixture
def guarded(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


def metrics(loss: float, norm: float, update: float = 1.0) -> dict[str, np.ndarray]:
    values = {"loss": loss, "gradient_norm": norm, "update_norm": update}
    return {name: jax.numpy.float32(value) for name, value in values.items()}


def test_one_sentence_is_said_about_the_spikes_of_a_line(guarded: Guarded) -> None:
    guard = guarded("warn")
    for step in range(1, 60):
        loss = {50: 9.0, 52: 3.0, 53: 9.5}.get(step, 3.0 + step % 7 / 50)
        norm = {52: 40.0, 55: math.nan}.get(step, 1.0)
        guard.after(step, {}, metrics(loss, norm), ())
    spikes = guard.spikes(59)
    assert [spike.step for spike in spikes] == [50, 52, 53, 55] and "gradient norm 40" in spikes[1].reason
    guard.warn(spikes)  # step 55 ends the run
    (sentence,) = guarded.said
    assert sentence.startswith("Step 50 spikes: its loss 9 is above") and "2 more up to step 53" in sentence


# The model, its optimizer, the mesh and the number of micro-batches.
CASES = {
    "adafactor-scan-micro-batches": (SMALL, "adafactor", MeshConfig(), 2),
    "adamw-fsdp-unrolled": (dataclasses.replace(SMALL, scan_layers=False), "adamw", MeshConfig(2, 2, 2), 1),
    "adafactor-fsdp-micro-batches": (SMALL, "adafactor", MeshConfig(2, 4, 1), 2),
}


def leaves(state: TrainState) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in jax.tree.leaves((state.params, state.opt_state))]


def two_steps(model: ModelConfig, name: str, axes: MeshConfig, parts: int) -> tuple:
    """Returns a state on eight devices, a step that may drop, and one that may not."""
    schedule = ScheduleConfig("linear", base_learning_rate=1e-2, warmup_steps=0)
    config = optimizer_config(name, schedule)
    mesh = tiny.mesh_of(axes, 8)
    network = Network(model, mesh)
    optimizer = make_optimizer(config, 10)
    shardings = state_shardings(network, optimizer, mesh)
    gradient = Gradient(network, LossConfig(), parts)
    both = [
        jit_train_step(gradient, optimizer, make_schedule(schedule, 10), shardings, drops) for drops in (True, False)
    ]
    return tiny.state(network, optimizer, mesh, 0), *both


@pytest.mark.night
@pytest.mark.parametrize("case", CASES)
def test_a_dropped_step_changes_nothing_but_the_number(case: str) -> None:
    """By the loss, by the gradient norm and by a NaN; a step within its limits is the ordinary one."""
    state, dropping, plain = two_steps(*CASES[case])
    batch = tiny.batch(16)
    key = jax.random.key(1)
    copied = jax.tree.map(lambda leaf: leaf.copy(), state)
    expected, figures = plain(copied, batch, key) if "scan" in case else dropping(copied, batch, key, NO_LIMITS)
    loss = float(figures["loss"])
    norm = float(figures["gradient_norm"])
    before = leaves(state)
    for number, limits in enumerate(([loss * 0.99, np.inf], [np.inf, norm * 0.99], [np.nan, np.inf]), 1):
        state, _ = dropping(state, batch, key, np.array(limits, np.float32))
        assert int(state.step) == number
        for now, then in zip(leaves(state), before, strict=True):
            np.testing.assert_array_equal(now, then)
    state = without_update(state)
    assert int(state.step) == 4 and state.step.sharding == expected.step.sharding
    limits = np.array([loss * 1.01, norm * 1.01], np.float32)
    state, _ = dropping(dataclasses.replace(state, step=state.step - 4), batch, key, limits)
    for now, wanted in zip(leaves(state), leaves(expected), strict=True):
        np.testing.assert_allclose(now, wanted, rtol=1e-6, atol=1e-7)
    assert any((a != b).any() for a, b in zip(leaves(state), before, strict=True))


@pytest.mark.night
def test_a_batch_that_gives_nan_is_dropped_and_its_row_named(guarded: Guarded) -> None:
    """A token that only one row has is NaN in the embedding, as an overflow leaves it."""
    state, dropping, _ = two_steps(SMALL, "adamw", MeshConfig(), 1)
    poisoned = tiny.batch()
    clean = tiny.batch(seed=1)
    for batch in (poisoned, clean):
        batch["encoder_input_tokens"] = np.minimum(batch["encoder_input_tokens"], 240)
        batch["decoder_input_tokens"] = np.minimum(batch["decoder_input_tokens"], 240)
    poisoned["encoder_input_tokens"][5, 3] = 249
    table = state.params["token_embedder"]["embedding"]
    state.params["token_embedder"]["embedding"] = table.at[249].set(np.nan)
    before = leaves(state)
    state, figures = dropping(state, poisoned, jax.random.key(1), NO_LIMITS)
    assert math.isnan(figures["loss"]) and int(state.step) == 1
    for now, then in zip(leaves(state), before, strict=True):
        np.testing.assert_array_equal(now, then)
    guard = guarded("skip")
    guard._model = Network(SMALL, tiny.mesh_of(MeshConfig(), 8))
    guard.after(1, {}, figures, (NO_LIMITS,))
    (spike,) = guard.spikes(1)
    guard._place_batch = lambda rows: poisoned
    guard.drop(spike, state)
    (entry,) = entries_of(guard.skipped_batches.path.read_text(), "ledger")
    assert entry["rows"] == [{"shard": 1, "row": 1, "loss": None}]
    assert "row 1 of shard 1" in guarded.said[0] and 1 in guard.skipped_batches and 2 not in guard.skipped_batches
    state, figures = dropping(state, clean, jax.random.key(1), NO_LIMITS)
    assert math.isfinite(figures["loss"]) and any((a != b).any() for a, b in zip(leaves(state), before, strict=True))


@pytest.mark.slow
def test_losses_of_rows_are_those_of_the_batch() -> None:
    network = Network(SMALL, tiny.mesh_of(MeshConfig(2, 2, 2), 8))
    params = tiny.parameters(SMALL)
    batch = tiny.batch(16)
    batch["decoder_loss_weights"][3] = 0
    losses = np.asarray(jit_row_losses(network, LossConfig())(params, batch))
    assert losses.shape == (16,) and losses[3] == -np.inf
    alone = jit_row_losses(Network(SMALL), LossConfig())
    for row in (0, 7, 15):
        (one,) = alone(params, {name: array[row : row + 1] for name, array in batch.items()})
        assert losses[row] == pytest.approx(float(one), rel=1e-5)


def test_a_ledger_is_read_again_and_a_wrong_one_is_named(guarded: Guarded, tmp_path: Path) -> None:
    config = guarded.config("off")
    other = tmp_path / "other.jsonl"
    ledger = SkippedBatches(config)
    ledger.append([{"batch": 5, "rows": []}])
    ledger.append([{"batch": 7, "rows": [{"shard": 1, "row": 3, "loss": None}]}])
    assert [number for number in range(10) if number in SkippedBatches(config)] == [5, 7]

    def given(text: str | None) -> RunConfig:
        if text is not None:
            other.write_text(text)
        return dataclasses.replace(config, data=dataclasses.replace(config.data, skip=str(other)))

    with pytest.raises(ConfigError, match=r"DataConfig.skip is .*other.jsonl, which cannot be read \(No such file"):
        SkippedBatches(given(None))
    both = SkippedBatches(given('{"batch": 9, "rows": [{"shard": 1, "row": 3}]}\n\n'))
    assert 9 in both and 5 in both
    with pytest.raises(InputError, match=r"Line 2 of .*other.jsonl is not a batch of a ledger"):
        SkippedBatches(given('{"batch": 9}\n{"batch"'))
    with pytest.raises(ConfigError, match=r"batch 9 has row 0 of shard 2, and this run has 2 shards of 4 rows"):
        SkippedBatches(given('{"batch": 9, "rows": [{"shard": 2, "row": 0}]}'))
    (tmp_path / "skipped_batches.jsonl").write_text("[]\n")
    with pytest.raises(InputError, match=r"Line 1 of .*skipped_batches.jsonl is not a batch of a ledger"):
        SkippedBatches(config)
