"""A trimmed run: the optimizer's averages are cut with the rows where that is exact, and begin anew where it is not."""

import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import tasks.demo  # noqa: F401  registers the task
from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    optimizer_config,
    saved_config,
)
from limba.export import trimming_run
from limba.export.trimming import trim
from limba.export.trimming_report import Trimmed
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.model import Network
from limba.run import train
from limba.sharding.mesh import named_leaves
from limba.training.checkpoints.directory import Checkpoints, load_limba_checkpoint
from limba.training.metrics.logging import read_metrics
from limba.training.optimizer import make_optimizer
from limba.training.state import TrainState, abstract_state
from tests import tiny

MODEL = tiny.model(vocab_size=1_024, num_encoder_layers=1, num_decoder_layers=1, logits_via_embedding=False)
STEP = 3
SCHEDULE = ScheduleConfig("linear", 0.01, warmup_steps=0, decay_steps=100)
EXACT = {
    "adamw": optimizer_config("adamw", SCHEDULE, weight_decay=0.1),
    "muon": optimizer_config("muon", SCHEDULE),
    "adafactor": optimizer_config("adafactor", min_dim_size_to_factor=2_000),
}
FACTORED = {
    "adafactor": optimizer_config("adafactor"),
    "muon": optimizer_config("muon", SCHEDULE, muon_others="adafactor"),
}


def optimizer_of(config: OptimizerConfig) -> optax.GradientTransformation:
    return make_optimizer(config, 100, average=0.9)


def gradients_of(params: dict, seed: int) -> dict:
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32), params)


def updated(config: OptimizerConfig, state: TrainState, gradients: dict) -> TrainState:
    """A state after one update."""

    @jax.jit
    def update(state: TrainState, gradients: dict) -> TrainState:
        updates, opt_state = optimizer_of(config).update(gradients, state.opt_state, state.params)
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state)

    return update(state, gradients)


def saved_run(directory: Path, config: OptimizerConfig, corpus: Path, vocabulary: Path) -> TrainState:
    """Saves a run after a few updates by random gradients; returns its state."""
    state = tiny.state(Network(MODEL), optimizer_of(config), tiny.mesh_of(MeshConfig(), 1), 0)
    for seed in range(STEP):
        state = updated(config, state, gradients_of(state.params, seed))
    data = tiny.demo_data(corpus, vocabulary)
    evaluation = EvaluationConfig(average=0.9)
    run = RunConfig(MODEL, data, str(directory), train_steps=100, optimizer=config, evaluation=evaluation)
    with Checkpoints(str(directory), CheckpointConfig(), data) as checkpoints:
        checkpoints.save(STEP, state, {})
    (directory / saved_config.FILE).write_text(saved_config.to_text(run))
    return state


def trimmed(run: Path, out: Path, corpus: Path) -> Trimmed:
    texts = [json.loads(line)["text"].encode() for line in corpus.read_text().splitlines()[:20]]
    result = trim(str(run), texts, [], str(out), coverage=0.9)
    assert result.rows < MODEL.vocab_size
    return result


def network_of(run: Path) -> ModelConfig:
    config = saved_config.from_text((run / saved_config.FILE).read_text(), str(run))
    assert isinstance(config, ModelConfig)
    return config


def restored(run: Path, step: int, config: OptimizerConfig) -> TrainState:
    """The state of a checkpoint, read as a run reads it that starts there."""
    mesh = tiny.mesh_of(MeshConfig(), 1)
    abstract = abstract_state(Network(network_of(run)), optimizer_of(config), mesh)
    return load_limba_checkpoint(run / "checkpoints" / str(step), abstract)


def kept_rows(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The places of the new rows among the old ones, which are all different."""
    places = {row.tobytes(): index for index, row in enumerate(np.asarray(old))}
    return np.array([places[row.tobytes()] for row in np.asarray(new)])


def check_cut(old: dict, new: dict, rows: np.ndarray) -> list[str]:
    """Each array is the old one, or has these rows of it, to the bit; returns the names of the cut ones."""
    assert new.keys() == old.keys()
    cut = []
    for name, array in old.items():
        axis = next((axis for table, axis in trimming_run.TABLES.items() if name.endswith(f"/{table}")), None)
        before = np.asarray(array)
        after = np.asarray(new[name])
        if axis is not None and before.shape != trimming_run.UNUSED:
            before = before.take(rows, axis)
            cut.append(name)
        assert before.dtype == after.dtype and before.shape == after.shape, name
        assert before.tobytes() == after.tobytes(), name
    return cut


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.slow
def test_averages_of_single_weights_are_cut_to_the_bit(name, corpus, vocabulary, tmp_path) -> None:
    config = EXACT[name]
    before = saved_run(tmp_path / "run", config, corpus, vocabulary)
    result = trimmed(tmp_path / "run", tmp_path / "smaller", corpus)
    assert f"goes on from step {STEP}" in result.note
    after = restored(tmp_path / "smaller", STEP, config)
    assert int(after.step) == STEP
    rows = kept_rows(
        before.params["token_embedder"]["embedding"],
        after.params["token_embedder"]["embedding"],
    )
    assert len(rows) == result.rows
    cut = check_cut(named_leaves(before), named_leaves(after), rows)
    moments = {"adamw": ("mu", "nu"), "muon": ("mu", "nu"), "adafactor": ("v",)}[name]
    for kind in (*moments, "average"):
        assert sum(f"/{kind}/" in array for array in cut) == 2, (kind, cut)  # the embedding's and the output layer's
    if name == "adafactor":
        return  # its updates depend on means over a whole matrix: of the weights, and of the update
    gradients = gradients_of(before.params, STEP)
    flat = named_leaves(gradients)
    tables = {f"params/{table}": axis for table, axis in trimming_run.TABLES.items()}
    kept = {
        array: value.take(rows, tables[f"params/{array}"]) if f"params/{array}" in tables else value
        for array, value in flat.items()
    }
    fewer = jax.tree.structure(gradients).unflatten(kept.values())
    old_next = updated(config, before, gradients)
    new_next = updated(config, after, fewer)
    check_cut(named_leaves(old_next), named_leaves(new_next), rows)


@pytest.mark.parametrize("name", ["adafactor", pytest.param("muon", marks=pytest.mark.night)])
@pytest.mark.slow
def test_means_over_a_matrix_begin_anew_and_are_named(name, corpus, vocabulary, tmp_path) -> None:
    saved_run(tmp_path / "run", FACTORED[name], corpus, vocabulary)
    result = trimmed(tmp_path / "run", tmp_path / "smaller", corpus)
    assert result.note.startswith("the optimizer begins anew: ") and "v_row/token_embedder/embedding" in result.note
    assert [path.name for path in (tmp_path / "smaller/checkpoints").iterdir()] == ["0"]
    whole = LimbaCheckpoint(tmp_path / "run/checkpoints" / str(STEP), average=True)
    fewer = LimbaCheckpoint(tmp_path / "smaller/checkpoints/0")
    assert fewer["token_embedder/embedding"].shape == (result.rows, MODEL.emb_dim)
    for array in whole.keys() - trimming_run.TABLES.keys():
        np.testing.assert_array_equal(whole[array], fewer[array])


@pytest.mark.night
def test_a_run_goes_on_from_its_step_with_fewer_rows(corpus, vocabulary, tmp_path) -> None:
    def run(directory: str, data: DataConfig, model: ModelConfig, steps: int, **more: str) -> RunConfig:
        return RunConfig(
            model,
            data,
            str(tmp_path / directory),
            train_steps=steps,
            optimizer=EXACT["adamw"],
            evaluation=EvaluationConfig(every_steps=100, average=0.9),
            checkpoint=CheckpointConfig(every_steps=100),
            log_every_steps=1,
            **more,
        )

    train(run("run", tiny.demo_data(corpus, vocabulary), MODEL, STEP))
    trimmed(tmp_path / "run", tmp_path / "smaller", corpus)
    data = tiny.demo_data(corpus, tmp_path / "smaller/spiece.model")
    model = network_of(tmp_path / "smaller")
    train(run("on", data, model, STEP + 2, initial_checkpoint_path=str(tmp_path / "smaller")))
    steps = [line["step"] for line in read_metrics(str(tmp_path / "on")) if line["kind"] == "train"]
    assert steps == [STEP + 1, STEP + 2]
    tree = LimbaCheckpoint(tmp_path / "on/checkpoints" / str(STEP + 2)).tree
    counts = [int(tree[name]) for name in tree if name.endswith("/count")]
    assert counts and set(counts) == {STEP + 2}
