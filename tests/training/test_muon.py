"""Muon's rule against optax's, its momentum, its precision, and the shares of the devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from optax import contrib

from limba.config import MeshConfig, ScheduleConfig, optimizer_config
from limba.model import Network
from limba.sharding.mesh import named_leaves
from limba.tools.preflight.compiled.program import costs_of_program
from limba.training import muon
from limba.training.muon import orthogonalized, orthogonalized_by_shares, sized
from limba.training.optimizer import make_optimizer
from limba.training.state import state_shardings, trained_shardings
from tests import tiny

CONSTANT = ScheduleConfig("factors", base_learning_rate=0.5, factors="constant", warmup_steps=0)


def is_matrix(name: str) -> bool:
    return name.endswith("/kernel") and "layers" in name


def gradients(params: dict, seed: int) -> dict:
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda p: random.standard_normal(p.shape, np.float32), params)


@pytest.mark.core
def test_the_update_is_optax_s_in_float32() -> None:
    """With momentum 0, which optax corrects for its start and the papers do not."""
    params = tiny.parameters(tiny.MODEL)
    numbers = [contrib.MuonDimensionNumbers(1, 2) if is_matrix(name) else None for name in named_leaves(params)]
    theirs = contrib.muon(
        0.5, beta=0.0, nesterov=False, consistent_rms=0.2,
        muon_weight_dimension_numbers=jax.tree.structure(params).unflatten(numbers),
    )  # fmt: skip
    ours = make_optimizer(optimizer_config("muon", CONSTANT, muon_beta=0.0, muon_dtype="float32"), 1)
    states = ours.init(params), theirs.init(params)
    for seed in range(2):
        grads = gradients(params, seed)
        (one, first), (two, second) = (
            jax.jit(rule.update)(grads, state, params) for rule, state in zip((ours, theirs), states, strict=True)
        )
        states = first, second
        for (name, a), b in zip(named_leaves(one).items(), jax.tree.leaves(two), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5, err_msg=name)
    rms = {float(jnp.sqrt(jnp.mean(x**2))) for name, x in named_leaves(one).items() if is_matrix(name)}
    assert all(0.085 < scale < 0.1 for scale in rms)  # 0.2 x the learning rate, as singular values are a little below 1


@pytest.mark.core
def test_momentum_is_nesterov_s() -> None:
    shape = (2, 24, 16)
    params = {"decoder": {"layers": {"mlp": {"wo": {"kernel": jnp.zeros(shape)}}}}, "embedding": jnp.zeros((3, 2))}
    rule = make_optimizer(optimizer_config("muon", CONSTANT, muon_dtype="float32"), 1)
    state = rule.init(params)
    momentum = np.zeros(shape)
    for seed in range(3):
        grads = gradients(params, seed)
        updates, state = rule.update(grads, state, params)
        (gradient,) = (np.asarray(g, np.float64) for name, g in named_leaves(grads).items() if is_matrix(name))
        momentum = 0.95 * momentum + gradient
        wanted = -0.5 * sized(orthogonalized(jnp.asarray(gradient + 0.95 * momentum, jnp.float32)), 0.2)
        np.testing.assert_allclose(updates["decoder"]["layers"]["mlp"]["wo"]["kernel"], wanted, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 32, 96), (3, 96, 32), (2, 64, 64)])
@pytest.mark.slow
def test_singular_values_end_near_one_also_in_bfloat16(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    left, _, right = np.linalg.svd(random.standard_normal(shape), full_matrices=False)
    values = np.geomspace(1.0, 0.02, min(shape[1:]))
    x = jnp.asarray(left * values @ right, jnp.float32) * 1e-9  # as small as a late gradient
    exact = orthogonalized(x)
    rounded = orthogonalized(x.astype(jnp.bfloat16)).astype(jnp.float32)
    for matrix in (exact, rounded):
        singular_values = np.linalg.svd(matrix, compute_uv=False)
        assert singular_values.min() > 0.6 and singular_values.max() < 1.25
    error = np.linalg.norm(rounded - exact, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
    assert error.max() < 0.03  # both matrices have a norm of sqrt(n)
    assert not np.any(orthogonalized(jnp.zeros((1, 4, 6))))  # of a parameter without a gradient


@pytest.mark.core
def test_matrices_of_one_shape_are_computed_together_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    shapes = {"a": (3, 4, 6), "b": (2, 4, 6), "c": (1, 6, 4), "d": (1, 4, 6), "e": (4, 4, 6), "f": (4, 6)}
    stacks = {name: jnp.asarray(random.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}
    wanted = {
        name: orthogonalized(stack.reshape(-1, *stack.shape[-2:])).reshape(stack.shape)
        for name, stack in stacks.items()
    }
    asked = []
    compute = muon._by_shares
    monkeypatch.setattr(
        muon, "_by_shares", lambda group, *others: asked.append(sum(map(len, group))) or compute(group, *others)
    )
    for most, numbers in ((1 << 29, [11, 1]), (6 * 96, [6, 5, 1]), (6 * 96 - 1, [5, 5, 1, 1]), (1, [3, 2, 1, 4, 1, 1])):
        monkeypatch.setattr(muon, "MOST_BYTES", most)
        asked.clear()
        results = orthogonalized_by_shares(stacks, 5, "float32")
        assert list(results) == list(stacks) and asked == numbers
        for name, matrix in results.items():
            np.testing.assert_allclose(matrix, wanted[name], atol=1e-5, err_msg=name)


@pytest.mark.night
def test_a_run_in_bfloat16_iterations_has_the_losses_of_one_in_float32() -> None:
    schedule = ScheduleConfig("linear", base_learning_rate=1e-2, warmup_steps=0)
    losses = [
        tiny.train(optimizer_config=optimizer_config("muon", schedule, muon_dtype=dtype), steps=6)[0]
        for dtype in ("float32", "bfloat16")
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)
    assert losses[1] != losses[0]  # tokens are random: nothing can be learned of them


@pytest.mark.parametrize(
    ("mesh_config", "shard_update", "kinds"),
    [
        (MeshConfig(), True, {"other"}),  # layers of neither stack divide by 8
        (MeshConfig(), False, {"all-gather"}),  # replicated: results are gathered, once
        (MeshConfig(2, 2, 2), True, {"other", "all-gather"}),
    ],
)
@pytest.mark.slow
def test_each_device_makes_its_share_of_the_matrices_orthogonal(
    mesh_config: MeshConfig, shard_update: bool, kinds: set[str]
) -> None:
    mesh = tiny.mesh_of(mesh_config, 8)
    model = Network(tiny.MODEL, mesh)
    random = np.random.default_rng(0)
    shardings = trained_shardings(model, mesh, shard_update)
    names = [name for name in named_leaves(shardings) if is_matrix(name)]
    shapes = named_leaves(jax.eval_shape(Network(tiny.MODEL).init, jax.random.key(0)))
    stacks = {name: random.standard_normal(shapes[name].shape, np.float32) for name in names}
    placed = {name: jax.device_put(stack, named_leaves(shardings)[name]) for name, stack in stacks.items()}
    outputs = {name: named_leaves(shardings)[name] for name in names}
    state = state_shardings(model, make_optimizer(optimizer_config("muon"), 1), mesh, shard_update)
    momenta = {name.partition("/trace/")[2]: array for name, array in named_leaves(state.opt_state).items()}
    assert outputs == {name: momenta[name] for name in names}  # each device keeps the momentum of its part

    alone = jax.jit(lambda x: orthogonalized_by_shares(x, 5, "float32")).lower(stacks).compile()
    function = jax.jit(lambda x: orthogonalized_by_shares(x, 5, "float32", shardings), out_shardings=outputs)
    shared = function.lower(placed).compile()
    results = shared(placed)
    for name, wanted in alone(stacks).items():
        np.testing.assert_allclose(results[name], wanted, atol=1e-5, err_msg=name)

    whole, of_shared = (costs_of_program(program.as_text()) for program in (alone, shared))
    assert of_shared.product_flops * 8 < 1.5 * whole.product_flops  # shares are whole matrices: some have one more
    assert {kind for kind, size in of_shared.collective_bytes.items() if size} == kinds
    matrices = sum(4 * stack.size for stack in stacks.values())
    assert sum(of_shared.collective_bytes.values()) < (0.6 if kinds == {"other"} else 1.6) * matrices


def test_bad_choices_have_a_sentence() -> None:
    for choice, match in (
        ({"name": "moun"}, r"OptimizerConfig.name is 'moun'; .*muon"),
        ({"name": "muon", "muon_dtype": "float16"}, r"OptimizerConfig.muon_dtype is 'float16'"),
    ):
        with pytest.raises(ValueError, match=match):
            optimizer_config(**choice)  # pyright: ignore[reportArgumentType]
    everything = make_optimizer(optimizer_config("muon", frozen=("encoder", "decoder", "token_embedder")), 1)
    with pytest.raises(ValueError, match="nothing would be trained"):
        everything.init(tiny.parameters(tiny.MODEL))
