"""The parts of a layer besides attention: embedding, dense, norms, gated MLP, dropout.

Raffel et al. 2020 (arXiv:1910.10683) sections 2.1 and 3.1; the gated MLP is Shazeer 2020
(arXiv:2002.05202). Parameter names, logical axes and initial values are T5X's: checkpoints have the
same names, and the first loss is about ln V + 0.5.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int

from limba.config import ModelConfig

Initializer = Callable[..., Array]  # (key, shape, dtype) -> initial values
kernel_init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
attention_init = nn.initializers.variance_scaling(1.0, "fan_in", "normal")

# Names of the arrays for a layer's backward pass that are the most expensive to recompute: `remat = 'minimal'` saves
# them.
DENSE = "dense"
ATTENDED = "attended"
# The name of a dense layer's matrix [O, I] in a decode step on a CPU, in place of `kernel` [I, O]; see `dense_by_rows`.
KERNEL_ROWS = "kernel_rows"

# Of the approximation of GELU: the factors of x and of its cube.
GELU_LINEAR = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715 * GELU_LINEAR


def gelu(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Returns GELU by its approximation with tanh (Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2).

    In float32 it is flax's, and so T5X's, to the last bit; other dtypes are computed in float32, and rounded once.
    """
    if x.dtype == jnp.float32:
        return nn.gelu(x, approximate=True)
    return _wide_gelu(x)


@jax.custom_jvp
def _wide_gelu(x: Array) -> Array:
    """Returns GELU, computed in float32.

    Its derivative is written out, in two thirds of automatic differentiation's operations: a TPU computes it inside of
    a matrix product, which waits for it.
    """
    return _gelu_and_derivative(x)[0]


@_wide_gelu.defjvp
def _wide_gelu_jvp(inputs: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    value, derivative = _gelu_and_derivative(inputs[0])
    return value, derivative * tangents[0]


def _gelu_and_derivative(x: Array) -> tuple[Array, Array]:
    wide = x.astype(jnp.float32)
    square = wide * wide
    tanh = jnp.tanh(wide * (GELU_LINEAR + GELU_CUBIC * square))
    share = 0.5 * tanh + 0.5
    value = wide * share
    derivative = share + value * (1 - tanh) * (GELU_LINEAR + 3 * GELU_CUBIC * square)
    return value.astype(x.dtype), derivative.astype(x.dtype)


ACTIVATION_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "relu": nn.relu,
    "gelu": gelu,
    "gelu_exact": functools.partial(nn.gelu, approximate=False),
    "silu": nn.silu,
    "linear": lambda x: x,
}


def parameter(module: nn.Module, name: str, init: Initializer, axes: tuple[str, ...], shape: tuple[int, ...]) -> Array:
    """Returns a float32 parameter of the module, `axes` being the logical names of its axes."""
    partitioned: Any = nn.with_logical_partitioning(init, axes)
    return module.param(name, partitioned, shape, jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: Float[Array, "... I"], kernel: Float[Array, "I O"], output_dtype: jnp.dtype) -> Float[Array, "... O"]:
    """Returns x @ kernel, with the gradient of the kernel computed as x^T g.

    Automatic differentiation computes (g^T x)^T. XLA on a CPU then writes g transposed, and also computes its inputs
    (such as an activation's derivative) in transposed order: the MLP took twice the time.
    """
    return jnp.matmul(x, kernel, preferred_element_type=output_dtype)


def _matmul_forward(x: Array, kernel: Array, output_dtype: jnp.dtype) -> tuple[Array, tuple[Array, Array]]:
    return jnp.matmul(x, kernel, preferred_element_type=output_dtype), (x, kernel)


def _matmul_backward(output_dtype: jnp.dtype, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, kernel = saved
    # The gradient of float32 logits is rounded, as in the chunked loss: a GPU multiplies float32 at best half as fast.
    gradient = gradient.astype(x.dtype)
    last = gradient.ndim - 1
    rows = tuple(range(x.ndim - 1))
    to_x = jax.lax.dot_general(gradient, kernel, (((last,), (1,)), ((), ())), preferred_element_type=output_dtype)
    to_kernel = jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())), preferred_element_type=output_dtype)
    return to_x.astype(x.dtype), to_kernel.astype(kernel.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


def dense(
    x: Float[Array, "... I"], kernel: Float[Array, "I O"], output_dtype: jnp.dtype | None = None
) -> Float[Array, "... O"]:
    """Returns x @ kernel in the kernel's dtype, which `remat = 'minimal'` saves."""
    return checkpoint_name(matmul(x.astype(kernel.dtype), kernel, output_dtype or kernel.dtype), DENSE)


def dense_by_rows(
    x: Float[Array, "... I"], rows: Float[Array, "O I"], output_dtype: jnp.dtype | None = None
) -> Float[Array, "... O"]:
    """Returns x @ rows^T in the dtype of `rows`, for the few rows of x, but more than one, that a decode step has.

    With the larger matrix on the left, XLA on a CPU only reads it; on the right it is first copied into blocks. But the
    matrix [I, O] has to be transposed before the first token, so this pays only where many tokens follow.
    """
    flat = x.reshape(-1, x.shape[-1]).astype(rows.dtype)
    product = jax.lax.dot_general(
        rows, flat, (((1,), (1,)), ((), ())), preferred_element_type=output_dtype or rows.dtype
    )
    product = jax.lax.optimization_barrier(product)  # else XLA exchanges the two to save the transposition
    return product.T.reshape(*x.shape[:-1], -1)


def _gate(activations: tuple[str, ...], branches: tuple[Array, ...]) -> Array:
    factors = [ACTIVATION_FUNCTIONS[name](x) for name, x in zip(activations, branches, strict=True)]
    return functools.reduce(operator.mul, factors)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gated(activations: tuple[str, ...], branches: tuple[Float[Array, "... F"], ...]) -> Float[Array, "... F"]:
    """Returns the product of the branches, each through its activation.

    Barriers make XLA write the branches and their gradients to memory. Without them, on a TPU, it recomputes a branch's
    gradient in each matrix product that reads it, and fuses one branch's matrix product into this product.
    """
    return _gate(activations, jax.lax.optimization_barrier(branches))


def _gated_forward(activations: tuple[str, ...], branches: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
    branches = jax.lax.optimization_barrier(branches)  # saved after the barrier: both passes then share expressions
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
    """Returns two gathers of one table, whose gradient is one scatter and not the sum of two table-sized arrays."""
    return jnp.take(table, first, axis=0).astype(dtype), jnp.take(table, second, axis=0).astype(dtype)


def _gather_both_forward(table: Array, first: Array, second: Array, dtype: jnp.dtype) -> tuple[tuple, tuple]:
    return _gather_both(table, first, second, dtype), (table, first, second)


def _gather_both_backward(dtype: jnp.dtype, saved: tuple, gradients: tuple[Array, Array]) -> tuple[Array, None, None]:
    table, first, second = saved
    ids = jnp.concatenate([first, second], axis=1)
    rows = jnp.concatenate(gradients, axis=1)
    return jnp.zeros_like(table).at[ids].add(rows.astype(table.dtype)), None, None


_gather_both.defvjp(_gather_both_forward, _gather_both_backward)


class Embed(nn.Module):
    """Token embeddings, gathered: a one-hot product costs 14-74 % of a base step.

    They start as N(0, 1), which T5's tied head undoes by its scale D^-1/2. A decoder-only network whose tied head is
    not scaled starts with N(0, 1/D), so that its first logits are as large.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        is_unscaled = config.logits_via_embedding and config.tied_logits_scale == 1.0
        deviation = config.emb_dim**-0.5 if is_unscaled else 1.0
        init = nn.initializers.normal(deviation)
        shape = (config.vocab_size, config.emb_dim)
        self.embedding = parameter(self, "embedding", init, ("vocab", "embed"), shape)

    def __call__(self, ids: Int[Array, "B L"]) -> Float[Array, "B L D"]:
        return jnp.take(self.embedding, ids, axis=0).astype(self.config.residual_dtype)

    def both(
        self, first: Int[Array, "B K"], second: Int[Array, "B Q"]
    ) -> tuple[Float[Array, "B K D"], Float[Array, "B Q D"]]:
        """Returns the embeddings of two inputs; the table's gradient is then computed once."""
        return _gather_both(self.embedding, first, second, jnp.dtype(self.config.residual_dtype))

    def attend(self, x: Float[Array, "B L D"]) -> Float[Array, "B L V"]:
        """Returns float32 logits against the embeddings: the tied head of T5 1.0."""
        return jnp.einsum(
            "bld,vd->blv", x, self.embedding.astype(self.config.dtype), preferred_element_type=jnp.float32
        )

    def attend_by_rows(self, x: Float[Array, "R 1 D"]) -> Float[Array, "R 1 V"]:
        """Returns the same in a decode step on a CPU; see `dense_by_rows`."""
        return dense_by_rows(x, self.embedding.astype(self.config.dtype), jnp.dtype("float32"))


class Kernel(nn.Module):
    """The matrix of a dense layer, in the activations' dtype, under the layer's own name."""

    shape: tuple[int, int]
    axes: tuple[str, str]
    dtype: jnp.dtype
    init: Initializer = kernel_init

    @nn.compact
    def __call__(self) -> Float[Array, "I O"]:
        return parameter(self, "kernel", self.init, self.axes, self.shape).astype(self.dtype)


class Dense(nn.Module):
    """`x @ kernel` over the last axis, which `remat = 'minimal'` saves, plus a bias if it `has_bias` (T5's do not)."""

    features: int
    axes: tuple[str, str]  # logical names of the kernel's two axes
    dtype: jnp.dtype
    init: Initializer = kernel_init
    output_dtype: jnp.dtype | None = None  # float32 for logits
    has_bias: bool = False

    @nn.compact
    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        if self.has_variable("params", KERNEL_ROWS):
            y = dense_by_rows(x, self.get_variable("params", KERNEL_ROWS), self.output_dtype)
        else:
            kernel = parameter(self, "kernel", self.init, self.axes, (x.shape[-1], self.features))
            y = dense(x, kernel.astype(self.dtype), self.output_dtype)
        if not self.has_bias:
            return y
        bias = parameter(self, "bias", nn.initializers.zeros, self.axes[1:], (self.features,))
        return y + bias.astype(y.dtype).reshape((1,) * (y.ndim - 1) + (-1,))


def logits_dense(config: ModelConfig, name: str | None = None) -> Dense:
    """Returns the head from hidden states to float32 logits, if it is not tied to the embedding."""
    return Dense(
        config.vocab_size,
        ("embed", "vocab"),
        jnp.dtype(config.dtype),
        output_dtype=jnp.dtype("float32"),
        has_bias="logits" in config.biases,
        name=name,
    )


class LogitsBias(nn.Module):
    """The bias of logits whose matrix is the embedding."""

    @nn.compact
    def __call__(self, logits: Float[Array, "B L V"]) -> Float[Array, "B L V"]:
        return logits + parameter(self, "bias", nn.initializers.zeros, ("vocab",), logits.shape[-1:])[None, None]


class RMSNorm(nn.Module):
    """x / rms(x) * scale, the mean of squares in float32 (Zhang & Sennrich 2019, arXiv:1910.07467)."""

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        scale = parameter(self, "scale", nn.initializers.ones, ("embed",), x.shape[-1:])
        x = x.astype(jnp.float32)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        return x.astype(self.dtype) * scale.astype(self.dtype)[None, None]


class LayerNorm(nn.Module):
    """(x - mean) / deviation * scale + bias, the statistics in float32 (Ba et al. 2016, arXiv:1607.06450)."""

    epsilon: float
    dtype: jnp.dtype
    has_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        scale = parameter(self, "scale", nn.initializers.ones, ("embed",), x.shape[-1:])
        x = x.astype(jnp.float32)
        x = x - jnp.mean(x, axis=-1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.epsilon)
        x = x * scale[None, None]
        if self.has_bias:
            x = x + parameter(self, "bias", nn.initializers.zeros, ("embed",), x.shape[-1:])[None, None]
        return x.astype(self.dtype)


def norm(config: ModelConfig, name: str | None = None) -> RMSNorm | LayerNorm:
    """Returns the normalization that `config.norm` names: 'rms', which a T5 has, 'layer' or 'layer_scale'."""
    if config.norm == "rms":
        return RMSNorm(config.layer_norm_epsilon, jnp.dtype(config.dtype), name=name)
    return LayerNorm(config.layer_norm_epsilon, jnp.dtype(config.dtype), config.norm == "layer", name=name)


class Dropout(nn.Module):
    """Dropout with one mask for all positions of a sequence, as T5's: fewer random bits, same effect."""

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "... L D"], deterministic: bool) -> Float[Array, "... L D"]:
        return nn.Dropout(self.rate, broadcast_dims=(-2,))(x, deterministic=deterministic)


class MlpBlock(nn.Module):
    """wo(act(wi_0 x) * wi_1 x), or wo(act(wi x)) with one activation (T5 1.0)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], deterministic: bool) -> Float[Array, "B L D"]:
        config = self.config
        dtype = jnp.dtype(config.dtype)
        has_bias = "mlp" in config.biases
        names = ("wi",) if len(config.mlp_activations) == 1 else ("wi_0", "wi_1")  # T5X's
        branches = tuple(
            Dense(config.mlp_dim, ("embed", "mlp"), dtype, has_bias=has_bias, name=name)(x) for name in names
        )
        hidden: Any = gated(config.mlp_activations, branches)
        hidden = Dropout(config.dropout_rate)(hidden, deterministic)
        out = jnp.dtype(config.residual_dtype)  # a product of this matrix overflows float16 first
        return Dense(x.shape[-1], ("mlp", "embed"), dtype, output_dtype=out, has_bias=has_bias, name="wo")(hidden)
