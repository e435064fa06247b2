"""Attention for NVIDIA GPUs against the plain einsum: by an interpreter here, on a card where there is one."""

import contextlib
import dataclasses
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import triton  # no public name: lets a text of Triton's be read, and so checked
from jax.experimental import pallas as pl
from jax.interpreters import mlir

from limba.config import LossConfig, MeshConfig, ModelConfig
from limba.model.kernels import choose
from limba.model.kernels.einsum import dot_product_attention
from limba.model.kernels.pallas_gpu import pallas_attention
from limba.model.masks import Mask
from tests import tiny
from tests.tiny import MODERN

ON_GPU = jax.default_backend() == "gpu"
# jax 0.11 says that Pallas's Triton will be removed; `choose` does without it then.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")


def inputs(
    batch: int, queries: int, keys: int, heads: int, width: int, causal: bool, has_bias: bool, dtype: str
) -> tuple[tuple, Mask, jax.Array]:
    """Returns query, key, value and the bias's diagonals; whose ids match; a direction to pull back."""
    random = np.random.default_rng(0)
    query, key, value, direction = (
        jnp.asarray(random.standard_normal((batch, length, heads, width)), jnp.dtype(dtype))
        for length in (queries, keys, keys, queries)
    )
    diagonals = jnp.asarray(random.standard_normal((heads, queries + keys)), jnp.float32) if has_bias else None
    # Packed rows that end in padding.
    query_ids, key_ids = (
        np.sort(random.integers(0, 3, (batch, length)), axis=1)[:, ::-1].astype(np.int32) for length in (queries, keys)
    )
    if queries == keys:
        query_ids[0, queries // 8] = 0  # padding in the middle, too
        key_ids = query_ids
    else:
        key_ids[0] = 2  # most queries of the first example see nothing
        query_ids[0] = 1
    mask = Mask(jnp.asarray(query_ids), jnp.asarray(key_ids), causal)
    return (query, key, value, diagonals), mask, direction


def outputs_and_gradients(attend, arrays: tuple, direction: jax.Array) -> list[np.ndarray]:
    @jax.jit
    def run(*arrays):
        attended, pull = jax.vjp(attend, *arrays)
        return attended, pull(direction.astype(attended.dtype))

    return [np.asarray(x, np.float32) for x in jax.tree.leaves(run(*arrays))]


def compare(arrays: tuple, mask: Mask, direction: jax.Array, has_wgmma: bool, interpret: bool) -> list[float]:
    """Returns how far output and gradients are from the einsum's in float32, beside their largest value."""
    queries = arrays[0].shape[1]
    keys = arrays[1].shape[1]
    of_pair = np.arange(keys)[None] - np.arange(queries)[:, None] + queries

    def ours(*arrays):
        return pallas_attention(*arrays, mask.for_kernels(), mask.rule, has_wgmma, interpret)

    def plain(query, key, value, diagonals):
        query, key, value = (x.astype(jnp.float32) for x in (query, key, value))
        bias = None if diagonals is None else diagonals[:, of_pair]
        attended = dot_product_attention(query, key, value, bias, mask.visible())
        return attended if mask.reach is None else jnp.where(sees_any[..., None, None], attended, 0)

    sees_any = jnp.any(mask.visible(), axis=2)
    with jax.default_matmul_precision("highest"):
        wanted = outputs_and_gradients(plain, arrays, direction)
        results = outputs_and_gradients(ours, arrays, direction)
    return [np.abs(a - b).max() / (np.abs(b).max() or 1) for a, b in zip(results, wanted, strict=True)]


SHAPES = [  # batch, queries, keys, heads, width, causal, has_bias, dtype, tolerance
    (2, 114, 114, 2, 16, True, True, "float32", 1e-5),
    (2, 29, 128, 2, 16, False, False, "float32", 1e-5),  # cross-attention
    (1, 229, 229, 1, 64, True, True, "float32", 1e-5),
    (2, 114, 200, 1, 32, False, True, "float32", 1e-5),
    (2, 160, 160, 1, 16, True, True, "bfloat16", 8e-3),  # in other blocks
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.slow
def test_the_interpreter_gives_what_the_einsum_gives(shape: tuple) -> None:
    *shape, tolerance = shape
    errors = compare(*inputs(*shape), has_wgmma=True, interpret=True)
    assert np.max(errors) < tolerance
    assert not shape[6] or errors[-1] < 1e-5  # the bias's gradient comes from float32 alone


def with_rule(mask: Mask, by_token: bool, reach: int | None, everywhere: bool = False) -> Mask:
    """A mask with some documents whose tokens see each other, and the prefix of another one, or with a window."""
    ids = np.asarray(mask.query_ids)
    both_ways = (ids == 1) | ((ids == 2) & (np.cumsum(ids == 2, axis=1) < 20))
    changes = {"both_ways": jnp.asarray(both_ways), "causal": True} if by_token else {}
    return dataclasses.replace(mask, reach=reach, everywhere=jnp.bool_(everywhere), **changes)


RULES = [  # length, bias, by token, window's half, everywhere
    (229, True, True, None, False),
    (114, False, True, None, False),
    (200, False, False, 1, False),
    (229, False, False, 33, False),
    (300, False, True, 70, False),
    (160, False, False, 4, True),  # a layer that sees all
]


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.night] * (rule[0] in (114, 200))) for rule in RULES], ids=str
)
@pytest.mark.parametrize("has_wgmma", [True, pytest.param(False, marks=pytest.mark.night)])
@pytest.mark.slow
def test_windows_and_tokens_own_masks_give_what_the_einsum_gives(rule: tuple, has_wgmma: bool) -> None:
    length, has_bias, *rule = rule
    arrays, mask, direction = inputs(2, length, length, 1, 16, False, has_bias, "float32")
    assert np.max(compare(arrays, with_rule(mask, *rule), direction, has_wgmma, interpret=True)) < 1e-5


@pytest.mark.slow
def test_blocks_beyond_a_window_and_after_a_causal_row_are_not_read() -> None:
    """A weight of 0 times NaN would be NaN."""
    (query, key, value, _), mask, _ = inputs(2, 320, 320, 1, 16, False, False, "float32")
    value = value.at[:, 256:].set(jnp.nan)
    ids = jnp.ones((2, 320), jnp.int32)
    causal = Mask(ids, ids, causal=True, both_ways=jnp.zeros(ids.shape, bool).at[1, 40:].set(True))
    for mask, rows in ((Mask(ids, ids, reach=30, everywhere=False), 2), (causal, 1)):
        for has_wgmma in (True, False):
            attended = pallas_attention(
                query, key, value, None, mask.for_kernels(), mask.rule, has_wgmma, interpret=True
            )
            assert np.isfinite(attended[:rows, :128]).all() and not np.isfinite(attended[:, 280:]).any()
            assert rows == 2 or not np.isfinite(attended[1, 64:]).any()


def a100() -> contextlib.AbstractContextManager:
    """Returns where jax 0.12 lowers Triton's kernels for that card; older versions do not ask which one it is."""
    if jax.__version_info__ < (0, 12):
        return contextlib.nullcontext()
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA A100-SXM4-40GB", num_cores=108, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))


@pytest.mark.parametrize(
    ("causal", "has_bias", "queries", "keys", "rule"),
    [
        (True, True, 114, 114, None),
        (False, False, 114, 512, None),
        (True, True, 229, 229, (True, None)),
        (True, False, 512, 512, (True, 64)),
    ],
)
@pytest.mark.slow
def test_triton_takes_the_kernels(
    causal: bool, has_bias: bool, queries: int, keys: int, rule: tuple[bool, int | None] | None
) -> None:
    """Lowered for CUDA, which needs no card; what a kernel holds is read back, which checks every operation of it."""
    arrays, mask, direction = inputs(4, queries, keys, 2, 64, causal, has_bias, "bfloat16")
    mask = mask if rule is None else with_rule(mask, *rule)

    def run(*arrays):
        attended, pull = jax.vjp(lambda *xs: pallas_attention(*xs, mask.for_kernels(), mask.rule), *arrays)
        return pull(attended * direction)

    with a100():
        module = jax.jit(run).trace(*arrays).lower(lowering_platforms=("cuda",)).compiler_ir()
    kernels = []

    def visit(operation):
        if "xla.gpu.triton" in str(operation.attributes.get("call_target_name", "")):
            kernels.append(operation.attributes["mhlo.backend_config"])
        return mlir.ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    names = {re.split(r"_\d", mlir.ir.StringAttr(kernel["name"]).value)[0] for kernel in kernels}
    assert names == {
        f"attention_{name}" for name in ("forward", "to_query", "to_key", "to_bias")[: 4 if has_bias else 3]
    }
    with mlir.make_ir_context() as context:
        triton.dialect.register_dialect(context)
        for kernel in kernels:
            parsed = mlir.ir.Module.parse(mlir.ir.StringAttr(kernel["ir"]).value_bytes)
            assert parsed.operation.verify() and "tt.dot" in str(parsed)


def pretend(monkeypatch: pytest.MonkeyPatch, compute_capability: str) -> None:
    """Makes this machine's devices look like GPUs, whose kernels an interpreter runs."""
    device = SimpleNamespace(platform="gpu", compute_capability=compute_capability, device_kind="a card")
    monkeypatch.setattr(choose, "device_of", lambda mesh: device)
    call = pl.pallas_call
    monkeypatch.setattr(pl, "pallas_call", lambda *args, **choices: call(*args, **(choices | {"interpret": True})))


@pytest.mark.parametrize(
    ("compute_capability", "head_dim", "kind"),
    [
        ("9.0", 64, choose.PallasGpu),
        ("8.0", 128, choose.PallasGpu),
        ("12.0", 32, choose.PallasGpu),
        ("7.5", 64, choose.Einsum),
        ("9.0", 48, choose.Einsum),
        ("gfx942", 64, choose.Einsum),  # another maker's
    ],
)
def test_a_gpu_takes_the_kernel_by_itself(
    compute_capability: str, head_dim: int, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, compute_capability)
    mesh = tiny.mesh_of(MeshConfig(), 8)

    def chosen(attention: str, batch: int, keys: int) -> type:
        return type(choose.choose(tiny.model(attention=attention, head_dim=head_dim), mesh, batch, 114, keys))

    assert chosen("auto", 8, 5000) is chosen("pallas", 8, 114) is kind
    assert chosen("auto", 4, 114) is choose.Einsum  # 4 rows on 8 devices
    assert chosen("einsum", 8, 114) is choose.Einsum


@pytest.mark.night
@pytest.mark.parametrize(
    "config", [tiny.model(num_encoder_layers=1), tiny.LANGUAGE_MODEL, MODERN], ids=["t5", "lm", "windows"]
)
def test_network_has_the_same_gradients_on_a_mesh_of_gpus(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples and heads cut in two, dropout, layers unrolled."""
    pretend(monkeypatch, "9.0")
    sizes = {"num_decoder_layers": 1, "dropout_rate": 0.2}
    plain = dataclasses.replace(config, attention="einsum", **sizes)
    kernel = dataclasses.replace(config, scan_layers=False, **sizes)
    tiny.assert_same_gradients((plain, MeshConfig(1), LossConfig()), (kernel, MeshConfig(1, 2, 2), LossConfig()))


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    "shape",
    [
        *SHAPES,
        (8, 512, 512, 12, 64, False, True, "bfloat16", 8e-3),
        (2, 600, 600, 4, 128, True, True, "float32", 1e-5),
        (2, 600, 600, 4, 128, True, True, "bfloat16", 8e-3),
    ],
    ids=str,
)
def test_a_card_gives_what_the_einsum_gives(shape: tuple) -> None:
    *shape, tolerance = shape
    has_wgmma = float(jax.devices()[0].compute_capability) >= 9
    assert np.max(compare(*inputs(*shape), has_wgmma, interpret=False)) < tolerance


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize(
    "config",
    [tiny.MODEL, tiny.LANGUAGE_MODEL, tiny.language_model(attention_mask="bidirectional"), MODERN],
    ids=["t5", "lm", "encoder", "windows"],
)
def test_a_card_trains_as_with_the_einsum_and_repeats_its_losses(config: ModelConfig) -> None:
    assert isinstance(choose.choose(config, tiny.mesh_of(MeshConfig(), 1), 8, 24, 24), choose.PallasGpu)
    with jax.default_matmul_precision("highest"):
        plain, kernel, again = (
            tiny.train(dataclasses.replace(config, attention=name), steps=5) for name in ("einsum", "auto", "auto")
        )
    np.testing.assert_allclose(kernel[0], plain[0], rtol=1e-5)
    assert kernel[0] == again[0]
    # The last bit differs, by something outside of the kernels (docs/development/proof.md).
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max()),
        kernel[1].params, again[1].params,
    )  # fmt: skip


def test_without_triton_a_card_takes_the_einsum_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "9.0")
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    mesh = tiny.mesh_of(MeshConfig(), 1)
    assert type(choose.choose(tiny.MODEL, mesh, 8, 114, 114)) is choose.Einsum
    card = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")
    assert "needs jax.experimental.pallas.triton, which jax" in choose.unfit(tiny.MODEL, card, 114)


def test_a_card_without_enough_shared_memory_takes_the_einsum_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = tiny.mesh_of(MeshConfig(), 1)
    large = tiny.model(head_dim=128, dtype="float32")
    for capability in ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0"):  # with 163, 99 or 227 KiB
        pretend(monkeypatch, capability)
        card = choose.device_of(mesh)
        assert type(choose.choose(large, mesh, 8, 114, 114)) is choose.PallasGpu and not choose.unfit(large, card, 114)
    monkeypatch.setitem(choose.SHARED_KIB, 8.6, 64)  # a card with as much as a T4's
    pretend(monkeypatch, "8.6")
    card = choose.device_of(mesh)
    assert type(choose.choose(large, mesh, 8, 114, 114)) is choose.Einsum
    assert type(choose.choose(tiny.model(head_dim=64, dtype="bfloat16"), mesh, 8, 114, 114)) is choose.PallasGpu
    sentence = choose.unfit(large, card, 114)
    assert sentence == (
        "Attention is computed by the einsum: the Pallas kernel needs 97 KiB of shared memory for heads of 128 in"
        " float32, and a card has 64."
    )
    pretend(monkeypatch, "13.0")  # a card of the future, of which nothing is written down
    newer = choose.unfit(tiny.model(head_dim=128, dtype="bfloat16"), choose.device_of(mesh), 114)
    assert newer.endswith(" for heads of 128 in bfloat16, and a card is not known to have more than 64."), newer
    odd = choose.unfit(tiny.model(head_dim=48), card, 114)
    assert odd.endswith("takes heads of 16, 32, 64, 128, and ModelConfig.head_dim is 48.")
