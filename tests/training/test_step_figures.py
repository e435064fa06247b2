"""What a step of a network of width 16 says of itself, drops, draws and adds up over devices."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.config import LossConfig, MeshConfig, ModelConfig
from limba.model import Network
from limba.training import losses
from limba.training import step as training_step
from limba.training.losses import cross_entropy
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, state_shardings, trained_shardings
from limba.training.step import Gradient, _count_inputs, gradients, jit_train_step, without_update
from tests import tiny
from tests.training.test_small_step import ADAM, LOSS, T5


def mesh_state(config: ModelConfig, devices: int, **choices: object) -> tuple[TrainState, Callable]:
    """A state on some devices, and its step."""
    mesh = tiny.mesh_of(MeshConfig(devices, 1, 1), devices)
    schedule = make_schedule(ADAM.schedule, 10)
    network = Network(config, mesh)
    optimizer = make_optimizer(ADAM, 10)
    shardings = state_shardings(network, optimizer, mesh)
    step = jit_train_step(Gradient(network, LOSS), optimizer, schedule, shardings, **choices)  # pyright: ignore[reportArgumentType]
    return tiny.state(network, optimizer, mesh, 0), step


def norm(tree: object) -> float:
    return float(np.sqrt(sum(np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(tree))))


@pytest.mark.slow
def test_a_step_says_what_it_did_and_may_be_dropped() -> None:
    """Its figures against the logits; at its limits it is taken, above one of them or not finite nothing changes."""
    (state, step) = mesh_state(T5, 1, drops=True)
    batch = tiny.batch()
    key = jax.random.key(1)
    params = jax.device_get(state.params)
    infinite = np.full(2, np.inf, np.float32)
    next_state, figures = step(state, batch, key, infinite)
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(state))  # the state is donated
    logits = jax.jit(Network(T5).apply)(params, jax.tree.map(jnp.asarray, batch))
    weights = batch["decoder_loss_weights"]
    targets = batch["decoder_target_tokens"]
    trained, plain, correct = cross_entropy(logits, jnp.asarray(targets), LOSS)
    for name, values in (("loss", trained), ("cross_entropy", plain), ("accuracy", correct)):
        assert float(figures[name]) == pytest.approx(float((values * weights).sum() / weights.sum()), rel=1e-5), name
    compute = jax.jit(lambda params, batch: gradients(Gradient(Network(T5), LOSS), params, batch, None))
    gradient, sums = compute(params, batch)
    after = jax.device_get(next_state.params)
    for name, value in (
        ("target_tokens", weights.sum()),
        ("input_tokens", (batch["encoder_input_tokens"] > 0).sum()),
        ("learning_rate", 0.0),
        ("gradient_norm", norm(gradient) / float(sums["weights"])),
        ("parameter_norm", norm(params)),
        ("update_norm", norm(jax.tree.map(np.subtract, after, params))),
    ):
        assert float(figures[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
    kept = jax.device_get(next_state)  # from this step on the rate is above 0
    _, figures = step(jax.device_put(kept), batch, key, infinite)
    limits = np.array([figures["loss"], figures["gradient_norm"]], np.float32)
    below = [limits * np.array(factors, np.float32) for factors in ([1, 1], [0.99, 2], [2, 0.99], [np.nan, 2])]
    for number, bounds in enumerate(below):
        ended, _ = step(jax.device_put(kept), batch, key, bounds)
        assert int(ended.step) == 2
        for now, then in ((ended.params, kept.params), (ended.opt_state, kept.opt_state)):
            same = [np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (now, then)), strict=True)]
            assert all(same) if number else not any(same[:5])
    later = without_update(ended)
    assert int(later.step) == 3 and jax.tree.leaves(later.params)[0] is jax.tree.leaves(ended.params)[0]


@pytest.mark.slow
def test_one_token_has_its_own_loss_and_dropout_goes_by_the_step() -> None:
    batch = tiny.batch()
    key = jax.random.key(1)
    infinite = np.full(2, np.inf, np.float32)
    batch["decoder_loss_weights"] = np.zeros_like(batch["decoder_loss_weights"])
    batch["decoder_loss_weights"][1, 0] = 1
    state, calm = mesh_state(T5, 1, drops=True)
    logits = jax.jit(Network(T5).apply)(state.params, jax.tree.map(jnp.asarray, batch))
    trained, _, _ = cross_entropy(logits, jnp.asarray(batch["decoder_target_tokens"]), LOSS)
    state, step = mesh_state(dataclasses.replace(T5, dropout_rate=0.5), 1, drops=True)
    losses = []
    for run, number in ((calm, 0), (step, 0), (step, 0), (step, 1)):
        begun = jax.device_put(jax.device_get(dataclasses.replace(state, step=np.int32(number))))
        losses.append(float(run(begun, batch, key, infinite)[1]["loss"]))
    assert losses[0] == pytest.approx(float(trained[1, 0]), rel=1e-5)
    assert losses[1] == losses[2] and len(set(losses)) == 3


def test_inputs_of_a_decoder_are_its_prefix() -> None:
    batch = {"decoder_target_tokens": np.array([[5, 1, 7, 1, 0]]), "decoder_loss_weights": np.array([[0, 0, 1, 1, 0]])}
    assert float(_count_inputs(jax.tree.map(jnp.asarray, batch))) == 2
    batch["encoder_input_tokens"] = np.array([[1, 9, 8, 0]])
    assert float(_count_inputs(jax.tree.map(jnp.asarray, batch))) == 3


def collectives(jaxpr: Any) -> Counter[tuple[str, str]]:
    """The collectives of arrays in a traced function, scalars left out, by name and dtype."""
    counts: Counter[tuple[str, str]] = Counter()
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                counts += collectives(inner) if hasattr(inner, "eqns") else Counter()
        name = equation.primitive.name.split("_invariant")[0]
        if name in ("psum", "reduce_scatter", "all_gather"):
            counts += Counter((name, str(invar.aval.dtype)) for invar in equation.invars if invar.aval.ndim)
    return counts


# Each choice stands beside each other one; the rest of the products are of the night.
LANDING = [
    ("auto", 1, False), ("auto", 1, True), ("auto", 2, True),
    ("bfloat16", 1, True), ("bfloat16", 2, False), ("float32", 2, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reduce_dtype", "parts", "sharded"),
    [
        pytest.param(*choices, marks=[pytest.mark.night] * (choices not in LANDING))
        for choices in itertools.product(["auto", "float32", "bfloat16"], [1, 2], [False, True])
    ],
)
@pytest.mark.slow
def test_devices_add_their_gradients_once_in_the_dtype_that_is_asked_for(
    reduce_dtype: str, parts: int, sharded: bool
) -> None:
    config = dataclasses.replace(T5, dtype="bfloat16")
    mesh = tiny.mesh_of(MeshConfig(2, 1, 1), 2)
    network = Network(config, mesh)
    params = jax.eval_shape(Network(config).init, jax.random.key(0))
    specs = jax.tree.map(lambda sharding: sharding.spec, trained_shardings(network, mesh)) if sharded else None
    num_sharded = sum(map(bool, jax.tree.leaves(specs))) if sharded else 0
    of = Gradient(network, LOSS, parts, reduce_dtype, specs)
    traced = jax.make_jaxpr(lambda p, b: gradients(of, p, b, None))(params, tiny.batch())
    counts = collectives(traced.jaxpr)
    whole = len(jax.tree.leaves(params)) - num_sharded
    if parts == 1 and reduce_dtype == "auto" and not sharded:
        assert not counts  # the compiler's
        return
    dtype = "float32" if reduce_dtype == "auto" else reduce_dtype
    of_shards = "bfloat16" if reduce_dtype == "auto" and parts == 1 else dtype
    assert (num_sharded > 5) == sharded
    wanted = Counter({("psum", dtype): whole, ("all_gather", "bfloat16"): num_sharded})
    assert counts == +(wanted + Counter({("reduce_scatter", of_shards): num_sharded}))


def test_the_loss_goes_in_chunks_where_its_logits_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = jnp.ones((4, 6), jnp.int32)
    biased = tiny.language_model(biases=("logits",))
    network = Network(T5)
    size = 4 * 4 * 6 * T5.vocab_size
    for room, chunked in ((size, False), (size - 1, True)):
        monkeypatch.setattr(losses, "WHOLE_LOGITS_BYTES", room)
        assert training_step._in_chunks(network, LossConfig(), targets) == chunked
        assert not training_step._in_chunks(network, LossConfig(logits="whole"), targets)
        assert training_step._in_chunks(network, LossConfig(logits="chunked"), targets)
        assert not training_step._in_chunks(Network(biased), LossConfig(), targets)
