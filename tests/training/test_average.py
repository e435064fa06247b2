"""The online average of the weights: its recursion, its start, and its life in checkpoints."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba.cli import convert
from limba.config import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    InputError,
    LossConfig,
    MeshConfig,
    optimizer_config,
    saved_config,
)
from limba.formats.limba_checkpoint import LimbaCheckpoint
from limba.formats.names import flatten, unstack_layers
from limba.formats.open import open_folder
from limba.inference.source import Source
from limba.model import Network
from limba.sharding.mesh import named_leaves
from limba.training.checkpoints.directory import Checkpoints
from limba.training.checkpoints.initial import load_initial
from limba.training.optimizer import AverageState, LossScale, evaluated_weights, make_optimizer, restarted
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, abstract_state, gather_parameters, state_shardings, trained_shardings
from limba.training.step import Gradient, jit_train_step
from tests import tiny

SMALL = tiny.model(
    vocab_size=64, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=48, num_encoder_layers=1, num_decoder_layers=1
)
DATA = DataConfig("t", {"inputs": 1}, batch_size=1)


class Run:
    """The state of a run on some devices, and its compiled step."""

    def __init__(
        self,
        optimizer: str = "adafactor",
        devices: int = 2,
        average: float | None = 0.9,
        dtype: str = "",
        **fields: object,
    ):
        name, _, others = optimizer.partition("+")
        of_muon = {"muon_dtype": "float32", "muon_others": others or "adamw"} if name == "muon" else {}
        choice = optimizer_config(name, **of_muon, **fields)
        self.name = name
        self.mesh = tiny.mesh_of(MeshConfig(), devices)
        self.model = Network(SMALL, self.mesh)
        shardings = trained_shardings(self.model, self.mesh)
        self.optimizer = make_optimizer(choice, 8, dtype or "float32", shardings=shardings, average=average)
        self.abstract = abstract_state(self.model, self.optimizer, self.mesh)
        shardings = state_shardings(self.model, self.optimizer, self.mesh)
        schedule = make_schedule(choice.schedule, 8)
        self._step = jit_train_step(Gradient(self.model, LossConfig()), self.optimizer, schedule, shardings)

    def new(self) -> TrainState:
        return tiny.state(self.model, self.optimizer, self.mesh, 0)

    def trained(self, state: TrainState, upto: int) -> TrainState:
        while (number := int(state.step)) < upto:
            batch = {name: array % 60 for name, array in tiny.batch(seed=number).items()}
            state, _ = self._step(state, batch, jax.random.key(7))
        return state

    def saved(self, directory: Path, state: TrainState) -> None:
        with Checkpoints(str(directory), CheckpointConfig(), DATA) as checkpoints:
            checkpoints.save(int(state.step), state, {0: {"about": {}}})

    def restored(self, directory: Path) -> TrainState:
        with Checkpoints(str(directory), CheckpointConfig(), DATA) as checkpoints:
            restored_step = checkpoints.restore_latest(self.abstract)
        assert restored_step is not None
        return restored_step.state


def average_of(state: TrainState) -> AverageState:
    return state.opt_state[-1]


def assert_equal(one: Any, two: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.core
def test_the_average_is_the_recursion_in_float64() -> None:
    decay = 0.97
    random = np.random.default_rng(0)
    rule = make_optimizer(optimizer_config("adamw"), 400, average=decay)
    params = {"kernel": jnp.asarray(random.standard_normal((4, 5)), jnp.float32)}
    state = rule.init(params)
    step = jax.jit(rule.update)
    assert evaluated_weights(params, state) is state[-1].average  # pyright: ignore[reportIndexIssue]
    wanted = np.asarray(params["kernel"], np.float64)
    for number in range(1, 401):
        grads = {"kernel": jnp.asarray(random.standard_normal((4, 5)), jnp.float32)}
        updates, state = step(grads, state, params)
        params = optax.apply_updates(params, updates)
        d = min(decay, (1 + number) / (10 + number))
        wanted = d * wanted + (1 - d) * np.asarray(params["kernel"], np.float64)
    average = evaluated_weights(params, state)["kernel"]
    np.testing.assert_allclose(average, wanted, rtol=2e-6, atol=1e-7)
    assert np.abs(average - params["kernel"]).max() > 1e-3
    plain = make_optimizer(optimizer_config("adamw"), 400)
    assert evaluated_weights(params, plain.init(params)) is params


@pytest.mark.core
def test_an_average_has_arrays_of_its_own() -> None:
    """A step donates the parameters and the average: no two arrays may be one."""
    params = {"kernel": jnp.ones((4, 5)), "scale": jnp.ones(5)}
    state = make_optimizer(optimizer_config("adamw"), 1, average=0.9).init(params)
    for each_state in (state, restarted(params, state)):
        places = [
            leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((params, evaluated_weights(params, each_state)))
        ]
        assert len(set(places)) == 4


@pytest.mark.parametrize(
    "optimizer",
    [
        "muon+adafactor",
        *(pytest.param(rule, marks=pytest.mark.night) for rule in ("muon", "adafactor", "adamw")),
    ],
)
@pytest.mark.slow
def test_a_resumed_run_repeats_bit_for_bit_with_its_average(tmp_path: Path, optimizer: str) -> None:
    run = Run(optimizer)
    half = run.trained(run.new(), 2)
    run.saved(tmp_path, half)
    whole = run.trained(half, 4)
    resumed = run.trained(run.restored(tmp_path), 4)
    assert_equal(resumed, whole)
    assert int(average_of(whole).average_updates) == 4
    with pytest.raises(AssertionError):
        assert_equal(average_of(whole).average, whole.params)


@pytest.mark.night
@pytest.mark.parametrize("optimizer", ["muon", "muon+adafactor"])
def test_averages_agree_on_one_and_eight_devices(optimizer: str) -> None:
    alone, shared = (run.trained(run.new(), 3) for run in (Run(optimizer, 1), Run(optimizer, 8)))
    for (name, a), b in zip(
        named_leaves(average_of(alone).average).items(), jax.tree.leaves(average_of(shared).average), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=2e-5, err_msg=name)
    kernel = average_of(shared).average["encoder"]["layers"]["mlp"]["wo"]["kernel"]
    assert kernel.addressable_shards[0].data.size * 8 == kernel.size  # sharded as the parameters
    network = Network(SMALL, tiny.mesh_of(MeshConfig(), 8))
    gathered = gather_parameters(network, evaluated_weights(shared.params, shared.opt_state))
    assert_equal(gathered, average_of(shared).average)


@pytest.mark.slow
def test_an_average_begins_and_ends_at_a_resume(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    without = Run(average=None)
    having = Run(average=0.9)
    assert not [name for name in named_leaves(without.abstract.opt_state) if "average" in name]
    state = without.new()
    without.saved(tmp_path / "run", state)
    begun = having.restored(tmp_path / "run")
    assert "holds no average of the weights: it begins here, as the weights of step 0." in caplog.text
    assert int(average_of(begun).average_updates) == 0
    assert_equal(average_of(begun).average, state.params)
    assert_equal(TrainState(begun.step, begun.params, begun.opt_state[:-1]), state)

    later = having.trained(begun, 2)  # the step donates the state: no two arrays of it may be one
    having.saved(tmp_path / "run", later)
    caplog.clear()
    ended = without.restored(tmp_path / "run")
    assert "holds an average of the weights, which is dropped: EvaluationConfig.average is None." in caplog.text
    assert_equal(ended, TrainState(later.step, later.params, later.opt_state[:-1]))
    caplog.clear()
    assert_equal(having.restored(tmp_path / "run"), later)
    assert not caplog.text

    with pytest.raises(InputError, match=r"a different optimizer: .* Set OptimizerConfig as it was, or give"):
        Run("muon").restored(tmp_path / "run")
    half = Run(average=0.9, dtype="float16")  # the loss's scale stands last, the average before it
    assert isinstance(half.abstract.opt_state[-1], LossScale)
    assert_equal(half.restored(tmp_path / "run").opt_state[-2], average_of(later))


@pytest.mark.slow
def test_an_average_goes_on_behind_another_chain(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weight decay moves it from opt_state/2 to opt_state/3: it began anew as the weights, in silence."""
    caplog.set_level(logging.WARNING)
    run = Run()
    state = run.trained(run.new(), 2)
    run.saved(tmp_path, state)
    other = Run(weight_decay=0.01)
    assert len(other.abstract.opt_state) == len(run.abstract.opt_state) + 1
    restored = other.restored(tmp_path)
    assert_equal(average_of(restored), average_of(state))
    assert int(average_of(restored).average_updates) == 2 and not caplog.text
    with pytest.raises(AssertionError):
        assert_equal(average_of(restored).average, state.params)


@pytest.mark.slow
def test_a_moved_array_of_the_optimizer_is_refused(tmp_path: Path) -> None:
    adafactor, adamw = (Run(name) for name in ("adafactor", "adamw"))
    for run in (adafactor, adamw):
        run.saved(tmp_path / run.name, run.new())
    for run, fields in (
        (adafactor, {"clip_global_norm": 1.0}),
        (adafactor, {"momentum": 0.9}),
        (adafactor, {"frozen": ("encoder",)}),
        (adamw, {"clip_global_norm": 1.0}),
        (adamw, {"weight_decay": 0.1}),
    ):
        with pytest.raises(InputError, match=r"a different optimizer: .* Set OptimizerConfig as it was, or give"):
            Run(run.name, **fields).restored(tmp_path / run.name)


@pytest.mark.slow
def test_a_model_that_is_used_is_the_average_unless_the_run_has_none(tmp_path: Path) -> None:
    run = Run()
    state = run.new()
    *others, before = state.opt_state
    state = state.replace(opt_state=(*others, before._replace(average=jax.tree.map(lambda x: x + 1, before.average))))
    run.saved(tmp_path / "run", state)
    folder = tmp_path / "run" / "checkpoints" / "0"
    trees = {True: average_of(state).average, False: state.params}
    wanted = {key: unstack_layers(flatten(jax.device_get(tree))) for key, tree in trees.items()}

    def assert_has(arrays: Any, average: bool) -> None:
        assert set(arrays) == set(wanted[average])
        for name, array in wanted[average].items():
            np.testing.assert_array_equal(arrays[name], array)

    for average in (True, False):
        checkpoint = LimbaCheckpoint(folder, average=average)
        assert checkpoint.has_average
        assert_has(checkpoint, average)
    assert_has(LimbaCheckpoint(folder), False)
    source = Source(str(folder), tmp_path / "run", {0: folder}, "Limba", model=SMALL)  # pyright: ignore[reportArgumentType]
    assert_has(source.arrays(0), True)

    (tmp_path / "run" / "config.json").write_text(saved_config.to_text(SMALL))
    for flags, average in (([], True), (["--trained_weights"], False), ([], True)):  # the same folder: each replaces it
        arguments = ["--formats=pytorch", "--vocabulary=none", "--no_check", *flags]
        convert.run([str(tmp_path / "run"), str(tmp_path / "out"), *arguments])
        assert_has(open_folder(tmp_path / "out" / "step_0", SMALL), average)

    # A run that starts at step 0 from this one begins with the average, and its own average as that.
    other = Run("muon")
    new = load_initial(str(tmp_path / "run"), other.abstract, SMALL, other.new(), reset_step=True)
    for tree in (new.params, average_of(new).average):
        assert_equal(tree, average_of(state).average)
    assert int(new.step) == 0 and int(average_of(new).average_updates) == 0


def test_a_decay_outside_of_0_to_1_has_a_sentence() -> None:
    for value in (0.0, 1.0, -0.5, 999.0):
        with pytest.raises(ValueError, match=rf"EvaluationConfig.average is {value}; give a number above 0 and below"):
            EvaluationConfig(average=value)
