"""Attention for TPUs that never writes its scores to memory, with T5's bias and its gradient.

One program of the grid holds all scores of some queries of one head. Arrays are feature-major, [B, H, C, length]:
with C = 64 last, half of a TPU's 128 lanes would be empty. Scores are [K, Q], so that maxima and sums run across
registers, not across lanes. The batch is the grid's innermost axis: a head's bias stays in VMEM for all examples, and
its gradient is accumulated there. The backward pass needs the inputs and two numbers per query: its highest score and
the inverse of its weights' sum (Dao et al. 2022, arXiv:2205.14135, without the blocks over keys). `to_x` is the
gradient of x.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, PyTree

from limba.model.kernels.einsum import HIDDEN_SCORE
from limba.model.layers import ATTENDED
from limba.model.trees import Ref

LANES = 128
SCORES_IN_VMEM = 512 * 512  # of one example; a float32 copy takes 1 of VMEM's 16 MiB, and about eight are live at once
SCORES_PER_PROGRAM = 2 * SCORES_IN_VMEM  # a second example uses the time that matrix units wait: 18 % fewer cycles
MAX_EXAMPLES_PER_PROGRAM = 8  # their code is unrolled


class Plan(NamedTuple):
    """How a call is divided into programs (some queries against all keys, some examples), and its options."""

    query_block: int
    rows: int
    causal: bool
    interpret: bool

    @classmethod
    def of(cls, batch: int, queries: int, keys: int, causal: bool, interpret: bool) -> Plan:
        """Returns the plan for these sizes; ValueError if the scores of 128 queries do not fit."""
        if not fits(keys):
            most = SCORES_IN_VMEM // LANES
            raise ValueError(f"{keys} keys are more than the {most} of this kernel; set ModelConfig.attention to auto.")
        block = queries if queries * keys <= SCORES_IN_VMEM else LANES * (SCORES_IN_VMEM // (LANES * keys))
        wanted = min(MAX_EXAMPLES_PER_PROGRAM, SCORES_PER_PROGRAM // (block * keys))
        return cls(block, math.gcd(batch, 1 << (wanted.bit_length() - 1)), causal, interpret)


def fits(keys: int) -> bool:
    """Returns True if the kernel can attend to that many keys."""
    return LANES * keys <= SCORES_IN_VMEM


def pallas_attention(
    projections: tuple[Float[Array, "B _ H C _"], ...],
    bias: Float[Array, "H K Q"] | None,
    query_ids: Int[Array, "B Q"],
    key_ids: Int[Array, "B K"],
    causal: bool,
    interpret: bool = False,
) -> Float[Array, "B H C Q"]:
    """Returns (softmax(q k^T + bias) v)^T; scores and softmax in float32, products in the inputs' dtype.

    `projections` [B, N, H, C, L] is one array of query, key and value (N = 3), two: the query (N = 1), and key and
    value (N = 2), or one for each. A query sees the keys with its own id; with `causal` none after it; with id 0 none
    at all: its weights are then equal for all keys. ValueError for more than 2,048 keys (see `fits`).
    """
    queries = query_ids.shape[-1]
    plan = Plan.of(query_ids.shape[0], queries, key_ids.shape[-1], causal, interpret)
    short = -queries % plan.query_block
    if short:
        if len(projections) == 1:
            projections = (projections[0][:, :1], projections[0][:, 1:])
        query, query_ids = (_padded(x, short) for x in (projections[0], query_ids))
        projections, bias = (query, *projections[1:]), None if bias is None else _padded(bias, short)
    # No key has the id -1.
    ids = (jnp.where(query_ids == 0, -1, query_ids)[:, None], key_ids[:, None])
    return jnp.asarray(_attend(plan, projections, bias, ids))[..., :queries]


def _padded(x: Array, count: int) -> Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, projections: tuple[Array, ...], bias: Array | None, ids: tuple[Array, Array]) -> Array:
    return _call("forward", plan, projections, bias, ids)[0]


def _attend_forward(plan: Plan, *inputs: PyTree) -> tuple[Array, tuple]:
    attended, statistics = _call("forward", plan, *inputs)
    return attended, (*inputs, checkpoint_name(statistics, ATTENDED))


def _attend_backward(plan: Plan, saved: tuple, gradient: Array) -> tuple:
    projections, bias, ids, statistics = saved
    results = _call("backward", plan, projections, bias, ids, statistics, gradient)
    to_bias = None if bias is None else results.pop()
    if len(results) == 2:  # the gradient of the query, and that of keys and values from each block of queries
        parts = results[1]
        summed = parts[0] if len(parts) == 1 else jnp.sum(parts, axis=0, dtype=jnp.float32).astype(parts.dtype)
        results = [jnp.concatenate([results[0], summed], axis=1)] if len(projections) == 1 else [results[0], summed]
        if len(projections) == 3:
            results[1:] = summed[:, :1], summed[:, 1:]
    return tuple(results), to_bias, (None, None)


_attend.defvjp(_attend_forward, _attend_backward)


def _call(
    which: str,
    plan: Plan,
    projections: tuple[Array, ...],
    bias: Array | None,
    ids: tuple[Array, Array],
    *of_backward: Array,
) -> list[Array]:
    """Returns the results of the kernel, run over (heads, blocks of queries, groups of examples)."""
    (batch, _, heads, width, queries), dtype = projections[0].shape, projections[0].dtype
    keys, block, rows = ids[1].shape[-1], plan.query_block, plan.rows
    num_blocks, is_fused = queries // block, len(projections) == 1

    def projected(part: int, length: int, count: int = 1) -> pl.BlockSpec:
        along = (lambda i: i) if length == block and num_blocks > 1 else (lambda i: 0)
        return pl.BlockSpec((rows, count, 1, width, length), lambda h, i, b: (b, part, h, 0, along(i)))

    arrays = [*ids, *(projections * 3 if is_fused else (projections[0], projections[1], projections[-1]))]
    of_head = pl.BlockSpec((rows, 1, width, block), lambda h, i, b: (b, h, 0, i))
    in_specs = [
        pl.BlockSpec((rows, 1, block), lambda h, i, b: (b, 0, i)),
        pl.BlockSpec((rows, 1, keys), lambda h, i, b: (b, 0, 0)),
        *(projected(part, length) for part, length in _parts(len(projections), block, keys)),
    ]
    of_statistics = pl.BlockSpec((rows, 1, 2, block), lambda h, i, b: (b, h, 0, i))
    shapes = [(batch, heads, width, queries), (batch, heads, 2, queries)]
    shapes = [jax.ShapeDtypeStruct(shape, kind) for shape, kind in zip(shapes, (dtype, jnp.float32), strict=True)]
    out_specs = [of_head, of_statistics]
    if of_backward:
        arrays, in_specs = [*arrays, *of_backward], [*in_specs, of_statistics, of_head]
        if is_fused and num_blocks == 1:
            shapes, out_specs = [jax.ShapeDtypeStruct(projections[0].shape, dtype)], [projected(0, keys, 3)]
        else:
            # Programs of different queries have gradients for the same keys: each writes its own part.
            to_query = jax.ShapeDtypeStruct((batch, 1, heads, width, queries), dtype)
            shapes = [to_query, jax.ShapeDtypeStruct((num_blocks, batch, 2, heads, width, keys), dtype)]
            part = pl.BlockSpec((1, rows, 2, 1, width, keys), lambda h, i, b: (i, b, 0, h, 0, 0))
            out_specs = [projected(0, block), part]
    if bias is not None:
        of_bias = pl.BlockSpec((1, keys, block), lambda h, i, b: (h, 0, i))
        arrays, in_specs = [*arrays, bias], [*in_specs, of_bias]
        if of_backward:
            shapes, out_specs = [*shapes, jax.ShapeDtypeStruct(bias.shape, jnp.float32)], [*out_specs, of_bias]
    marks = ("_causal" if plan.causal else "") + ("_bias" if bias is not None else "")
    results = pl.pallas_call(
        functools.partial(_backward_kernel if of_backward else _forward_kernel, plan, bias is not None),
        grid=(heads, num_blocks, batch // rows),
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=shapes,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=(10 if of_backward else 4) * batch * heads * width * queries * keys,
            transcendentals=batch * heads * queries * keys,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in [*arrays, *shapes]),
        ),
        interpret=plan.interpret,
        name=f"attention_{which}_{queries}x{keys}{marks}",
    )(*arrays)
    return list(results)


def _parts(num_arrays: int, block: int, keys: int) -> tuple[tuple[int, int], ...]:
    """Returns for query, key and value their index along N and their length."""
    of_key, of_value = {1: (1, 2), 2: (0, 1), 3: (0, 0)}[num_arrays]
    return (0, block), (of_key, keys), (of_value, keys)


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _scores(
    query: Float[Array, "C Q"],
    key: Float[Array, "C K"],
    bias: Float[Array, "K Q"] | None,
    query_ids: Int[Array, "1 Q"],
    key_ids: Int[Array, "K 1"],
    first_query: Array | int | None,
) -> Float[Array, "K Q"]:
    """Returns the scores; `first_query` is the position of the first query, None without a causal mask."""
    scores = _product(key, query, 0, 0)
    if bias is not None:
        scores = scores + bias
    visible = key_ids == query_ids
    if first_query is not None:
        key_places = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        query_places = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        visible &= key_places <= query_places + first_query
    return jnp.where(visible, scores, HIDDEN_SCORE)


def _as_column(row: Int[Array, "1 K"]) -> Int[Array, "K 1"]:
    return jnp.transpose(jnp.broadcast_to(row, (8, row.shape[1])))[:, :1]


def _forward_kernel(plan: Plan, has_bias: bool, *refs: Ref) -> None:
    query_ids, key_ids, query, key, value, *rest = refs
    attended, statistics = rest[-2:]
    first_query = pl.program_id(1) * plan.query_block if plan.causal else None
    for row in range(plan.rows):
        bias = rest[0][0] if has_bias else None
        ids = _as_column(key_ids[row])
        scores = _scores(query[row, 0, 0], key[row, 0, 0], bias, query_ids[row], ids, first_query)
        highest = jnp.max(scores, axis=0, keepdims=True)
        weights = jnp.exp(scores - highest)
        share = 1 / jnp.sum(weights, axis=0, keepdims=True)
        sums = _product(value[row, 0, 0], weights.astype(value.dtype), 1, 0)
        attended[row, 0] = (sums * share).astype(attended.dtype)
        statistics[row, 0, 0:1], statistics[row, 0, 1:2] = highest, share


def _backward_kernel(plan: Plan, has_bias: bool, *refs: Ref) -> None:
    query_ids, key_ids, query, key, value, statistics, gradient, *rest = refs
    bias, *outputs = rest if has_bias else (None, *rest)
    to_bias: Ref = outputs.pop() if has_bias else None
    first_query = pl.program_id(1) * plan.query_block if plan.causal else None
    if has_bias:

        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            to_bias[...] = jnp.zeros_like(to_bias)

    for row in range(plan.rows):
        q, k, v = query[row, 0, 0], key[row, 0, 0], value[row, 0, 0]
        ids = _as_column(key_ids[row])
        scores = _scores(q, k, None if bias is None else bias[0], query_ids[row], ids, first_query)
        highest, share = statistics[row, 0, 0:1], statistics[row, 0, 1:2]
        weights = jnp.exp(scores - highest)
        # The softmax's division goes to the gradient, [C, Q], instead of to the weights, [K, Q].
        g = gradient[row, 0].astype(jnp.float32) * share
        to_value = _product(g.astype(v.dtype), weights.astype(v.dtype), 1, 1)
        # The weights of a query that sees nothing do not depend on its scores.
        g = jnp.where(highest > HIDDEN_SCORE / 2, g, 0).astype(v.dtype)
        to_weights = _product(v, g, 0, 0)
        # From the rounded output it is cheaper, but made the bias's gradient 2-4 times less exact in bfloat16.
        mean = jnp.sum(weights * to_weights, axis=0, keepdims=True) * share
        to_scores = weights * (to_weights - mean)
        if has_bias:
            to_bias[0] += to_scores
        to_scores = to_scores.astype(q.dtype)
        to_key, to_query = _product(q, to_scores, 1, 1), _product(k, to_scores, 1, 0)
        if len(outputs) == 1:
            places = [(outputs[0], (row, part, 0)) for part in range(3)]
        else:
            places = [(outputs[0], (row, 0, 0)), (outputs[1], (0, row, 0, 0)), (outputs[1], (0, row, 1, 0))]
        for (output, place), result in zip(places, (to_query, to_key, to_value), strict=True):
            output[place] = result.astype(output.dtype)
