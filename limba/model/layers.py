"""The pieces a layer is made of besides attention: embedding, dense, norms, gated MLP, dropout.

Raffel et al. 2020 (arXiv:1910.10683) sections 2.1 and 3.1; the gated MLP is Shazeer 2020
(arXiv:2002.05202). Parameter names, logical axes and initial values are T5X's, so that a
checkpoint's names and a first loss of about ln V + 0.5 come out the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.nn.initializers import Initializer
from jaxtyping import Array, Float, Int

kernel_init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
attention_kernel_init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")

# What a layer's backward pass needs and a second forward pass would cost most to make again.
DENSE, ATTENDED = "dense", "attended"

ACTIVATION_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": functools.partial(nn.gelu, approximate=True),
    "silu": nn.silu,
    "linear": lambda x: x,
}


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Float[Array, "... I"], kernel: Float[Array, "I O"], output_dtype: jnp.dtype) -> Float[Array, "... O"]:
    """Returns x @ kernel. Its gradient to the kernel is asked for as x^T g.

    Automatic differentiation asks for (g^T x)^T; XLA on a CPU then writes g transposed, and works out what
    made g (an activation's derivative, say) in that transposed order: the MLP took twice the time.
    """
    return jnp.matmul(x, kernel, preferred_element_type=output_dtype)


def _matmul_forward(x: Array, kernel: Array, output_dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    return jnp.matmul(x, kernel, preferred_element_type=output_dtype), (x, kernel)


def _matmul_backward(output_dtype: jnp.dtype, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    # That of float32 logits is rounded, as in the chunked loss: a GPU multiplies float32 at half the speed at best.
    gradient = gradient.astype(x.dtype)
    last, rows = gradient.ndim - 1, tuple(range(x.ndim - 1))
    to_x = jax.lax.dot_general(gradient, kernel, (((last,), (1,)), ((), ())), preferred_element_type=output_dtype)
    to_kernel = jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())), preferred_element_type=output_dtype)
    return to_x.astype(x.dtype), to_kernel.astype(kernel.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def _gate(activations: tuple[str, ...], branches: tuple[Array, ...]) -> Array:
    return math.prod(ACTIVATION_FUNCTIONS[name](x) for name, x in zip(activations, branches, strict=True))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gated(activations: tuple[str, ...], branches: tuple[Float[Array, "... F"], ...]) -> Float[Array, "... F"]:
    """Returns the product of the branches, each through its activation.

    Branches and their gradients are arrays, by barriers: on a TPU XLA would work out a branch's gradient anew in each
    product that reads it, and one branch's own product inside that of the whole.
    """
    return _gate(activations, jax.lax.optimization_barrier(branches))


def _gated_forward(activations: tuple[str, ...], branches: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
    branches = jax.lax.optimization_barrier(branches)  # kept so too: both passes then share what they have in common
    return _gate(activations, branches), branches


def _gated_backward(
    activations: tuple[str, ...], branches: tuple[Array, ...], gradient: Array
) -> tuple[tuple[Array, ...]]:
    (to_branches,) = jax.vjp(functools.partial(_gate, activations), branches)[1](gradient)
    return (jax.lax.optimization_barrier(to_branches),)


gated.defvjp(_gated_forward, _gated_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _gather_both(
    table: Float[Array, "V D"], first: Int[Array, "B K"], second: Int[Array, "B Q"], dtype: jnp.dtype
) -> tuple[Float[Array, "B K D"], Float[Array, "B Q D"]]:
    """Returns two gathers of one table. Its gradient is one scatter, not the sum of two tables as large."""
    return jnp.take(table, first, axis=0).astype(dtype), jnp.take(table, second, axis=0).astype(dtype)


def _gather_both_forward(table: Array, first: Array, second: Array, dtype: jnp.dtype) -> tuple[tuple, tuple]:
    return _gather_both(table, first, second, dtype), (table, first, second)


def _gather_both_backward(dtype: jnp.dtype, saved: tuple, gradients: tuple[Array, Array]) -> tuple[Array, None, None]:
    table, first, second = saved
    ids, rows = jnp.concatenate([first, second], axis=1), jnp.concatenate(gradients, axis=1)
    return jnp.zeros_like(table).at[ids].add(rows.astype(table.dtype)), None, None


_gather_both.defvjp(_gather_both_forward, _gather_both_backward)


class Embed(nn.Module):
    """Token embeddings N(0, 1), gathered: a one-hot product costs 14-74 % of a base step."""

    vocab_size: int
    emb_dim: int
    dtype: jnp.dtype
    deviation: float = 1.0  # of the initial values

    def setup(self) -> None:
        init = nn.with_logical_partitioning(nn.initializers.normal(self.deviation), ("vocab", "embed"))
        self.embedding = self.param("embedding", init, (self.vocab_size, self.emb_dim), jnp.float32)

    def __call__(self, ids: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return jnp.take(self.embedding, ids, axis=0).astype(self.dtype)

    def both(
        self, first: Int[Array, "B K"], second: Int[Array, "B Q"]
    ) -> tuple[Float[Array, "B K D"], Float[Array, "B Q D"]]:
        """Returns the embeddings of two inputs; the table's gradient is then made once."""
        return _gather_both(self.embedding, first, second, jnp.dtype(self.dtype))

    def attend(self, x: Float[Array, "B L D"]) -> Float[Array, "B L V"]:
        """Returns float32 logits against the embeddings: the tied head of T5 1.0."""
        return jnp.einsum("bld,vd->blv", x, self.embedding.astype(self.dtype), preferred_element_type=jnp.float32)


class Kernel(nn.Module):
    """A dense layer's matrix alone, in the activations' dtype, under the layer's own name."""

    shape: tuple[int, int]
    axes: tuple[str, str]
    dtype: jnp.dtype
    init: Initializer = kernel_init

    @nn.compact
    def __call__(self) -> Float[Array, "I O"]:
        init = nn.with_logical_partitioning(self.init, self.axes)
        return self.param("kernel", init, self.shape, jnp.float32).astype(self.dtype)


class Dense(nn.Module):
    """`x @ kernel`, which `remat = 'minimal'` keeps, over the last axis, plus a bias where told; T5 has none."""

    features: int
    axes: tuple[str, str]  # logical names of the kernel's two axes
    dtype: jnp.dtype
    init: Initializer = kernel_init
    output_dtype: jnp.dtype | None = None  # float32 for logits
    has_bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        init = nn.with_logical_partitioning(self.init, self.axes)
        kernel = self.param("kernel", init, (x.shape[-1], self.features), jnp.float32)
        y = matmul(x.astype(self.dtype), kernel.astype(self.dtype), self.output_dtype or self.dtype)
        y = checkpoint_name(y, DENSE)
        if not self.has_bias:
            return y
        bias_init = nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:])
        bias = self.param("bias", bias_init, (self.features,), jnp.float32)
        return y + bias.astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))


class RMSNorm(nn.Module):
    """x / rms(x) * scale, the mean of squares taken in float32 (Zhang & Sennrich, arXiv:1910.07467)."""

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        init = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
        scale = self.param("scale", init, (x.shape[-1],), jnp.float32)
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return x.astype(self.dtype) * scale.astype(self.dtype)[None, None]


class LayerNorm(nn.Module):
    """(x - mean) / deviation * scale + bias, the statistics taken in float32 (Ba et al. 2016, arXiv:1607.06450)."""

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        ones = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
        zeros = nn.with_logical_partitioning(nn.initializers.zeros, ("embed",))
        scale = self.param("scale", ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", zeros, (x.shape[-1],), jnp.float32)
        x = x.astype(jnp.float32)
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return (x * scale[None, None] + bias[None, None]).astype(self.dtype)


class Dropout(nn.Module):
    """Dropout whose mask is shared along the length, as T5's: fewer random bits, same effect."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "... L D"], deterministic: bool) -> Float[Array, "... L D"]:
        return nn.Dropout(self.rate, broadcast_dims=(-2,))(x, deterministic=deterministic)


class MlpBlock(nn.Module):
    """wo(act(wi_0 x) * wi_1 x), or wo(act(wi x)) with one activation (T5 1.0)."""

    mlp_dim: int
    activations: tuple[str, ...]
    dropout_rate: float
    dtype: jnp.dtype
    has_biases: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], deterministic: bool) -> Float[Array, "B L D"]:
        names = ("wi",) if len(self.activations) == 1 else ("wi_0", "wi_1")
        branches = tuple(
            Dense(self.mlp_dim, ("embed", "mlp"), self.dtype, has_bias=self.has_biases, name=name)(x) for name in names
        )
        hidden = gated(self.activations, branches)
        hidden = Dropout(self.dropout_rate)(hidden, deterministic)
        return Dense(x.shape[-1], ("mlp", "embed"), self.dtype, has_bias=self.has_biases, name="wo")(hidden)
