"""Attention for TPUs that never writes its scores to memory, with T5's bias and its gradient.

One program of the grid holds all scores of some queries of one head. Arrays are feature-major, [B, H, C, length]:
with C = 64 last, half of a TPU's 128 lanes would be empty. Scores are [K, Q], so that maxima run across registers, not
across lanes; sums over the keys are matrix products. The batch is the grid's innermost axis: a head's bias stays in
VMEM for all examples, and its gradient is accumulated there. The backward pass needs the inputs and two numbers per
query: its highest score and the inverse of its weights' sum (Dao et al. 2022, arXiv:2205.14135, without the blocks
over keys). `to_x` is the gradient of x.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, PyTree

from limba.model.kernels.einsum import HIDDEN_SCORE
from limba.model.layers import ATTENDED
from limba.model.masks import EVERYWHERE, Rule
from limba.model.trees import Ref

LANES = 128
SUBLANES = 16  # of a tile of two-byte values; of four-byte values a tile has half as many
SCORES_IN_VMEM = 512 * 512  # of one example; a float32 copy takes 1 of VMEM's 16 MiB, and about eight are live at once
MOST_KEYS = SCORES_IN_VMEM // LANES  # of a row: a program has at least as many queries as lanes
MOST_OF_A_BLOCK = LANES * (math.isqrt(SCORES_IN_VMEM // 3) // LANES)  # a program has a block of queries, three of keys
WIDEST_WINDOW = 2 * MOST_OF_A_BLOCK
SCORES_PER_PROGRAM = 2 * SCORES_IN_VMEM  # a second example uses the time that matrix units wait: a tenth fewer cycles
MAX_EXAMPLES_PER_PROGRAM = 8  # their code is unrolled
SHORT_ROW = 4  # blocks, of which a window's program reads three: all keys take fewer cycles there


class Plan(NamedTuple):
    """How a call is divided into programs (some queries against all keys, some examples), and its options.

    Where queries see few keys, a program reads their own block of keys and its two neighbours.
    """

    query_block: int
    rows: int
    rule: Rule
    interpret: bool
    is_near: bool = False

    @classmethod
    def of(cls, batch: int, queries: int, keys: int, rule: Rule, interpret: bool) -> Plan:
        """Returns the plan for these sizes; ValueError if the scores of 128 queries do not fit."""
        if not fits(keys, None):
            raise ValueError(
                f"{keys} keys are more than the {MOST_KEYS} of this kernel; set ModelConfig.attention to auto."
            )
        block = queries if queries * keys <= SCORES_IN_VMEM else LANES * (SCORES_IN_VMEM // (LANES * keys))
        return cls(block, _rows(batch, block * keys), rule._replace(reach=None), interpret)

    @classmethod
    def near(cls, batch: int, rule: Rule, reach: int, interpret: bool) -> Plan:
        """Returns the plan of a layer whose queries see `reach` keys to each side."""
        block = _near_block(reach)
        return cls(block, _rows(batch, 3 * block**2), rule, interpret, True)

    @property
    def steps(self) -> tuple[int, ...]:
        """The blocks of keys of a program, counted from the block of its queries; (0,) if it reads all keys."""
        return (-1, 0, 1) if self.is_near else (0,)


def _rows(batch: int, scores: int) -> int:
    wanted = min(MAX_EXAMPLES_PER_PROGRAM, SCORES_PER_PROGRAM // scores)
    return math.gcd(batch, 1 << (wanted.bit_length() - 1))


def _near_block(reach: int) -> int:
    return LANES * max(1, -(-reach // LANES))  # the smallest that reach covers: a block sees its two neighbours


def fits(keys: int, reach: int | None) -> bool:
    """Returns True if the kernel can attend to that many keys, and if not None in some layers to `reach` on each side.

    >>> fits(2048, None), fits(2049, None), fits(2048, 256), fits(2048, 257)
    (True, False, True, False)
    """
    scores = LANES * keys
    if reach is not None:
        scores = max(scores, 3 * _near_block(reach) ** 2)
    return scores <= SCORES_IN_VMEM


def pallas_attention(
    projections: tuple[Float[Array, "B _ H C _"], ...],
    bias: Float[Array, "H K Q"] | None,
    mask: tuple[Int[Array, "B Q"], Int[Array, "B K"], Int[Array, " 1"] | None],
    rule: Rule,
    interpret: bool = False,
) -> Float[Array, "B H C Q"]:
    """Returns (softmax(q k^T + bias) v)^T; scores and softmax in float32, products in the inputs' dtype.

    `projections` [B, N, H, C, L] is one array of query, key and value (N = 3), two: the query (N = 1), and key and
    value (N = 2), or one for each. `mask` is `Mask.for_kernels`. A query that sees no key has equal weights for all
    keys, or 0 where only blocks near it are read. ValueError for more than 2,048 keys (see `fits`).
    """
    query_ids, key_ids, reach = mask
    batch, queries = query_ids.shape
    keys = key_ids.shape[-1]
    plans = (Plan.of(batch, queries, keys, rule, interpret),)
    if rule.reach is not None:
        is_short = keys <= SHORT_ROW * _near_block(rule.reach)
        if is_short:
            plans += (plans[0]._replace(rule=rule),)
        else:
            plans += (Plan.near(batch, rule, rule.reach, interpret),)
    # No key has the id -1.
    ids = (jnp.where(query_ids == 0, -1, query_ids)[:, None], key_ids[:, None])
    return _attend(plans, projections, bias, ids, reach)


def _padded(x: Array, count: int) -> Array:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)]) if count else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    plans: tuple[Plan, ...], projections: tuple[Array, ...], bias: Array | None, ids: tuple, reach: Array | None
) -> Array:
    return _either(_forward, plans, reach, projections, bias, ids)[0]


def _attend_forward(plans: tuple[Plan, ...], *inputs: PyTree) -> tuple[Array, tuple]:
    *others, reach = inputs
    attended, statistics = _either(_forward, plans, reach, *others)
    return attended, (*inputs, checkpoint_name(statistics, ATTENDED))


def _attend_backward(plans: tuple[Plan, ...], saved: tuple, gradient: Array) -> tuple:
    *inputs, reach, statistics = saved
    return *_either(_backward, plans, reach, *inputs, statistics, gradient), (None, None), None


_attend.defvjp(_attend_forward, _attend_backward)


def _either(run: Callable[..., PyTree], plans: tuple[Plan, ...], reach: Array | None, *arrays: PyTree) -> PyTree:
    """Returns what `run` gives by the plan of this layer: over all keys, or over the keys within its reach."""
    if reach is None:
        return run(plans[0], *arrays)
    everywhere, near = (functools.partial(run, plan) for plan in plans)
    return jax.lax.cond(reach[0] == EVERYWHERE, everywhere, near, *arrays)


def _whole_blocks(
    plan: Plan, projections: tuple[Array, ...], bias: Array | None, ids: tuple[Array, Array]
) -> tuple[tuple[Array, ...], Array | None, tuple[Array, Array]]:
    """Returns the same arrays, padded so that the queries, and with a reach the keys, are whole blocks."""
    short = -ids[0].shape[-1] % plan.query_block
    if short and len(projections) == 1:
        projections = (projections[0][:, :1], projections[0][:, 1:])
    query, *others = projections
    of_keys = short if plan.is_near else 0
    projections = (_padded(query, short), *(_padded(array, of_keys) for array in others))
    padded = None if bias is None else _padded(bias, short)
    return projections, padded, (_padded(ids[0], short), _padded(ids[1], of_keys))


def _forward(plan: Plan, projections: tuple[Array, ...], bias: Array | None, ids: tuple[Array, Array]) -> list[Array]:
    results = _call(plan, *_whole_blocks(plan, projections, bias, ids))
    return [array[..., : ids[0].shape[-1]] for array in results]


def _backward(
    plan: Plan,
    projections: tuple[Array, ...],
    bias: Array | None,
    ids: tuple[Array, Array],
    statistics: Array,
    gradient: Array,
) -> tuple[tuple[Array, ...], Array | None]:
    """Returns the gradients of the projections and of the bias."""
    queries, keys = (of_side.shape[-1] for of_side in ids)
    short = -queries % plan.query_block
    of_backward = (_padded(array, short) for array in (statistics, gradient))
    results = _call(plan, *_whole_blocks(plan, projections, bias, ids), *of_backward)
    to_bias = None if bias is None else results.pop()[..., :queries]
    if len(results) == 2:  # the gradient of the query; and of keys and values, a part from each block of queries
        to_query = results[0][..., :queries]
        summed = _summed(plan, results[1])[..., :keys]
        results = [to_query, summed] if len(projections) > 1 else [jnp.concatenate([to_query, summed], axis=1)]
        if len(projections) == 3:
            results[1:] = summed[:, :1], summed[:, 1:]
    return tuple(results), to_bias


def _summed(plan: Plan, parts: Float[Array, "I B 2 H C J"]) -> Float[Array, "B 2 H C K"]:
    """Returns the sum over the programs of each block of queries; with a reach J is three blocks of the keys."""
    if not plan.is_near:
        if len(parts) == 1:
            return parts[0]
        return jnp.sum(parts, axis=0, dtype=jnp.float32).astype(parts.dtype)
    before, middle, after = (jnp.float32(part) for part in jnp.split(parts, 3, axis=-1))
    nothing = jnp.zeros_like(middle[:1])
    middle += jnp.concatenate([before[1:], nothing]) + jnp.concatenate([nothing, after[:-1]])
    return jnp.moveaxis(middle, 0, -2).reshape(*parts.shape[1:-1], -1).astype(parts.dtype)


class _Blocks(NamedTuple):
    """The part of each array that a program of the grid (heads, blocks of queries, groups of examples) holds."""

    plan: Plan
    width: int  # C, of a head
    keys: int  # K, of the whole array
    num_blocks: int  # of queries

    @property
    def num_keys(self) -> int:
        """The keys of one block: with a reach as many as queries, else all."""
        return self.plan.query_block if self.plan.is_near else self.keys

    def at_query(self, i: Array) -> Array:
        return i

    def at_key(self, step: int) -> Callable[[Array], Array | int]:
        """Returns from a block of queries to the block of keys that is `step` blocks after it."""
        if not self.plan.is_near:
            return lambda i: 0
        # Beyond the row's ends the nearest block is read again, and `Inputs.read` hides its keys.
        return lambda i: jnp.clip(i + step, 0, self.num_blocks - 1)

    def of_projection(self, part: int, length: int, at: Callable[[Array], Array | int], count: int = 1) -> pl.BlockSpec:
        """Returns the block of [B, N, H, C, L]: `count` of the N arrays from index `part` on."""
        shape = (self.plan.rows, count, 1, self.width, length)
        return pl.BlockSpec(shape, lambda h, i, b: (b, part, h, 0, at(i)))

    def of_ids(self, length: int, at: Callable[[Array], Array | int]) -> pl.BlockSpec:
        return pl.BlockSpec((self.plan.rows, 1, length), lambda h, i, b: (b, 0, at(i)))

    def of_attended(self) -> pl.BlockSpec:
        """Returns the block of [B, H, C, Q]."""
        return pl.BlockSpec((self.plan.rows, 1, self.width, self.plan.query_block), lambda h, i, b: (b, h, 0, i))

    def of_statistics(self) -> pl.BlockSpec:
        """Returns the block of [B, H, 2, Q]."""
        return pl.BlockSpec((self.plan.rows, 1, 2, self.plan.query_block), lambda h, i, b: (b, h, 0, i))

    def of_bias(self) -> pl.BlockSpec:
        """Returns the block of [H, K, Q]: the batch is not in it, so that it stays in VMEM for all examples."""
        return pl.BlockSpec((1, self.keys, self.plan.query_block), lambda h, i, b: (h, 0, i))


def _call(
    plan: Plan, projections: tuple[Array, ...], bias: Array | None, ids: tuple[Array, Array], *of_backward: Array
) -> list[Array]:
    """Returns the results of the kernel, run over (heads, blocks of queries, groups of examples).

    The forward kernel gives what is attended and the statistics. With `of_backward`, which are these statistics and the
    gradient of what is attended, the other one gives the gradients of the projections, and of the bias if there is one.
    """
    batch, _, heads, width, queries = projections[0].shape
    keys = ids[1].shape[-1]
    blocks = _Blocks(plan, width, keys, queries // plan.query_block)
    arrays, in_specs = _inputs(blocks, projections, ids)
    if of_backward:
        arrays += of_backward
        in_specs += [blocks.of_statistics(), blocks.of_attended()]
        shapes, out_specs = _gradients(blocks, projections)
    else:
        attended = jax.ShapeDtypeStruct((batch, heads, width, queries), projections[0].dtype)
        statistics = jax.ShapeDtypeStruct((batch, heads, 2, queries), jnp.float32)
        shapes = [attended, statistics]
        out_specs = [blocks.of_attended(), blocks.of_statistics()]
    if bias is not None:
        arrays.append(bias)
        in_specs.append(blocks.of_bias())
        if of_backward:
            shapes.append(jax.ShapeDtypeStruct(bias.shape, jnp.float32))
            out_specs.append(blocks.of_bias())
    scores = batch * heads * queries * len(plan.steps) * blocks.num_keys
    # Products of two matrices in a program: scores and values; backward both again and four gradients.
    num_products = 6 if of_backward else 2
    rule = plan.rule
    marks = {"causal": rule.causal, "mixed": rule.by_token, "near": rule.reach is not None, "bias": bias is not None}
    name = ["attention", "backward" if of_backward else "forward", f"{queries}x{keys}"]
    results = pl.pallas_call(
        functools.partial(_backward_kernel if of_backward else _forward_kernel, plan, bias is not None),
        grid=(heads, blocks.num_blocks, batch // plan.rows),
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=shapes,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * num_products * width * scores,
            transcendentals=scores,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in [*arrays, *shapes]),
        ),
        interpret=plan.interpret,
        name="_".join([*name, *(mark for mark in marks if marks[mark])]),
    )(*arrays)
    return list(results)


def _inputs(
    blocks: _Blocks, projections: tuple[Array, ...], ids: tuple[Array, Array]
) -> tuple[list[Array], list[pl.BlockSpec]]:
    """Returns the ids, the query, and each block of keys and values, with the block of each that a program reads."""
    # Which of the N arrays of its projection the keys, and the values, are.
    if len(projections) == 1:
        (query,) = projections
        key = query
        value = query
        of_key = 1
        of_value = 2
    elif len(projections) == 2:
        query, key = projections
        value = key
        of_key = 0
        of_value = 1
    else:
        query, key, value = projections
        of_key = 0
        of_value = 0
    query_ids, key_ids = ids
    block = blocks.plan.query_block
    size = blocks.num_keys
    at_keys = [blocks.at_key(step) for step in blocks.plan.steps]
    arrays = [query_ids, *[key_ids] * len(at_keys), query, *[key] * len(at_keys), *[value] * len(at_keys)]
    in_specs = [blocks.of_ids(block, blocks.at_query)]
    in_specs += [blocks.of_ids(size, at) for at in at_keys]
    in_specs.append(blocks.of_projection(0, block, blocks.at_query))
    in_specs += [blocks.of_projection(of_key, size, at) for at in at_keys]
    in_specs += [blocks.of_projection(of_value, size, at) for at in at_keys]
    return arrays, in_specs


def _gradients(
    blocks: _Blocks, projections: tuple[Array, ...]
) -> tuple[list[jax.ShapeDtypeStruct], list[pl.BlockSpec]]:
    """Returns the gradients of the projections that the kernel writes, and the blocks that a program writes of them."""
    batch, _, heads, width, queries = projections[0].shape
    dtype = projections[0].dtype
    plan = blocks.plan
    is_fused = len(projections) == 1
    if is_fused and blocks.num_blocks == 1:
        of_all = jax.ShapeDtypeStruct(projections[0].shape, dtype)
        return [of_all], [blocks.of_projection(0, blocks.keys, blocks.at_query, count=3)]
    to_query = jax.ShapeDtypeStruct((batch, 1, heads, width, queries), dtype)
    # Programs of different queries have gradients for the same keys: each writes its own part.
    num_keys = len(plan.steps) * blocks.num_keys
    to_keys = jax.ShapeDtypeStruct((blocks.num_blocks, batch, 2, heads, width, num_keys), dtype)
    of_part = pl.BlockSpec((1, plan.rows, 2, 1, width, num_keys), lambda h, i, b: (i, b, 0, h, 0, 0))
    return [to_query, to_keys], [blocks.of_projection(0, plan.query_block, blocks.at_query), of_part]


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _scores(
    plan: Plan,
    query: Float[Array, "C Q"],
    key: Float[Array, "C K"],
    bias: Float[Array, "K Q"] | None,
    ids: tuple[Int[Array, "1 Q"], Int[Array, "1 K"]],
) -> Float[Array, "K Q"]:
    """Returns the scores of a program; hidden keys have HIDDEN_SCORE."""
    scores = _product(key, query, 0, 0)
    if bias is not None:
        scores = scores + bias
    causal, by_token, reach = plan.rule
    query_ids, key_ids = ids
    if by_token:
        visible = _as_column(key_ids >> 1) == query_ids >> 1
    else:
        visible = _as_column(key_ids) == query_ids
    if causal or reach is not None:  # how many positions after the query a key is
        blocks = 1 if plan.is_near else pl.program_id(1)
        after = _iota(scores, 0) - _iota(scores, 1) - blocks * plan.query_block
    if causal:
        visible &= after <= 0
    if by_token:
        visible |= _as_column(jnp.where(key_ids & 1 == 1, key_ids, 0)) == jnp.where(query_ids & 1 == 1, query_ids, -2)
    if reach is not None:
        visible &= jnp.abs(after) <= reach
    return jnp.where(visible, scores, HIDDEN_SCORE)


def _iota(x: Array, axis: int) -> Array:
    return jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)


def _as_column(row: Int[Array, "1 K"]) -> Int[Array, "K 1"]:
    return jnp.transpose(jnp.broadcast_to(row, (8, row.shape[1])))[:, :1]


class Inputs(NamedTuple):
    """The arrays of a program; keys and values have one for each of the plan's `steps`."""

    query_ids: Ref
    key_ids: Sequence[Ref]
    query: Ref
    key: Sequence[Ref]
    value: Sequence[Ref]

    @classmethod
    def of(cls, plan: Plan, refs: Sequence[Ref]) -> tuple[Inputs, list[Ref]]:
        """Returns the inputs, and the other arrays."""
        n = len(plan.steps)
        inputs = cls(
            query_ids=refs[0],
            key_ids=refs[1 : 1 + n],
            query=refs[1 + n],
            key=refs[2 + n : 2 + 2 * n],
            value=refs[2 + 2 * n : 2 + 3 * n],
        )
        return inputs, list(refs[2 + 3 * n :])

    def read(self, plan: Plan, row: int) -> tuple[Array, Array, Array, tuple[Array, Array]]:
        """Returns query, key and value [C, L] of an example, and the ids."""
        ids = [ref[row] for ref in self.key_ids]
        if plan.is_near:
            # The first block has none before it, and the last one none after it. Another block is read instead (see
            # `at_key`), whose keys must not be seen: no query has the id -4, nor its half.
            block = pl.program_id(1)
            last = pl.num_programs(1) - 1
            ids[0] = jnp.where(block > 0, ids[0], -4)
            ids[2] = jnp.where(block < last, ids[2], -4)
        key = _joined([ref[row, 0, 0] for ref in self.key])
        value = _joined([ref[row, 0, 0] for ref in self.value])
        return self.query[row, 0, 0], key, value, (self.query_ids[row], _joined(ids))


def _joined(blocks: Sequence[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=-1)


def _forward_kernel(plan: Plan, has_bias: bool, *refs: Ref) -> None:
    inputs, rest = Inputs.of(plan, refs)
    attended, statistics = rest[-2:]
    for row in range(plan.rows):
        query, key, value, ids = inputs.read(plan, row)
        scores = _scores(plan, query, key, rest[0][0] if has_bias else None, ids)
        highest = jnp.max(scores, axis=0, keepdims=True)
        weights = jnp.exp(scores - highest).astype(value.dtype)
        # The product sums the weights too, for rows of ones below the values: half of the matrix units' rows are free.
        # On a v4 a sum of [K, Q] in vector units takes an eighth more cycles, and is of weights that are not rounded.
        width, num_keys = value.shape
        ones = jnp.ones((SUBLANES, num_keys), value.dtype)
        sums = _product(jnp.concatenate([value, ones], axis=0), weights, 1, 0)
        share = 1 / sums[width : width + 1]
        if plan.is_near:
            share = jnp.where(highest > HIDDEN_SCORE / 2, share, 0)
        attended[row, 0] = (sums[:width] * share).astype(attended.dtype)
        statistics[row, 0, 0:1] = highest
        statistics[row, 0, 1:2] = share


def _backward_kernel(plan: Plan, has_bias: bool, *refs: Ref) -> None:
    inputs, (statistics, gradient, *rest) = Inputs.of(plan, refs)
    bias, *outputs = rest if has_bias else (None, *rest)
    to_bias: Ref = outputs.pop() if has_bias else None
    if has_bias:

        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            to_bias[...] = jnp.zeros_like(to_bias)

    for row in range(plan.rows):
        q, k, v, ids = inputs.read(plan, row)
        scores = _scores(plan, q, k, None if bias is None else bias[0], ids)
        highest = statistics[row, 0, 0:1]
        share = statistics[row, 0, 1:2]
        weights = jnp.exp(scores - highest)
        rounded = weights.astype(v.dtype)
        # The softmax's division goes to the gradient, [C, Q], instead of to the weights, [K, Q].
        g = gradient[row, 0].astype(jnp.float32) * share
        to_value = _product(g.astype(v.dtype), rounded, 1, 1)
        # The weights of a query that sees nothing do not depend on its scores.
        g = jnp.where(highest > HIDDEN_SCORE / 2, g, 0).astype(v.dtype)
        # The mean of `to_weights` over the keys: what was attended, times its gradient. On a v4 one more product takes
        # a sixth fewer cycles than the sum of [K, Q], with heads of 128 a fortieth more. What was saved of the forward
        # pass is rounded once more, and made the bias's gradient 2-4 times less exact in bfloat16.
        sums = _product(v, rounded, 1, 0)
        mean = jnp.sum(sums * g.astype(jnp.float32), axis=0, keepdims=True) * share
        to_weights = _product(v, g, 0, 0)
        to_scores = weights * (to_weights - mean)
        if has_bias:
            to_bias[0] += to_scores
        to_scores = to_scores.astype(q.dtype)
        to_key = _product(q, to_scores, 1, 1)
        to_query = _product(k, to_scores, 1, 0)
        if len(outputs) == 1:
            targets = [(outputs[0], (row, part, 0)) for part in range(3)]
        else:
            targets = [(outputs[0], (row, 0, 0)), (outputs[1], (0, row, 0, 0)), (outputs[1], (0, row, 1, 0))]
        for (output, index), result in zip(targets, (to_query, to_key, to_value), strict=True):
            output[index] = result.astype(output.dtype)
