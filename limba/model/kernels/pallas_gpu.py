"""Attention for NVIDIA GPUs that never writes its scores to memory, with T5's bias and its gradient.

FlashAttention-2's blocks (Dao 2023, arXiv:2307.08691), lowered by Triton. The bias is equal along each diagonal, so a
program reads the diagonals, [H, Q + K], which stay in its cache; reading an array [H, Q, K] from the L2 cache would
take longer than the attention itself. In the backward pass one kernel computes the gradient of the query, one of
key and value, one of the bias: a tile of one head, accumulated in registers over the examples. There are no atomic
additions: the kernels repeat bit for bit. `to_x` is the gradient of x.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from limba.model.kernels.einsum import HIDDEN_SCORE
from limba.model.layers import ATTENDED
from limba.model.masks import Rule
from limba.model.trees import Ref

WIDTHS = (16, 32, 64, 128)  # of a head
PROGRAMS = 512  # at least, for the bias's gradient: a few for each of a card's 108 or 132 multiprocessors
LOG2_E = math.log2(math.e)
NO_ID = -1  # of a query that sees nothing; no key has it

KEY_SIDE = ("key", "value", "key_ids", "to_key", "to_value")
STATISTICS = ("highest", "share", "mean")
OF_MASK = ("query_ids", "key_ids", "first_beyond", "reach")


class Blocks(NamedTuple):
    """How a kernel is cut: queries and keys of a tile, warps of a program, tiles that are prefetched."""

    queries: int
    keys: int
    warps: int
    stages: int


# For two-byte arrays on cards with wgmma (H100, H200), whose products read shared memory: the fastest of 36 that were
# tried on an H100 (by benchmarks/attention_blocks.py), or within a tenth of it. Heads of 128 have two stages.
WGMMA_BLOCKS = {
    "forward": Blocks(queries=64, keys=64, warps=4, stages=3),
    "to_query": Blocks(queries=64, keys=32, warps=4, stages=3),
    "to_key": Blocks(queries=64, keys=64, warps=4, stages=3),
    "to_bias": Blocks(queries=128, keys=64, warps=4, stages=2),
}
# For all else the largest that NVIDIA's compiler keeps in registers without spilling.
SMALL_BLOCKS = {
    "forward": Blocks(queries=64, keys=32, warps=8, stages=2),
    "to_query": Blocks(queries=32, keys=32, warps=4, stages=2),
    "to_key": Blocks(queries=64, keys=32, warps=8, stages=2),
    "to_bias": Blocks(queries=64, keys=32, warps=8, stages=2),
}


# The most shared memory that one of the kernels takes, in KiB, cut as above: by the card's major compute capability,
# the bytes of a number and the width of a head. tests/benchmarks/test_kernels_of_cards.py asks NVIDIA's compiler.
MOST_SHARED_KIB = {
    8: {2: {16: 12.2, 32: 17.0, 64: 33.0, 128: 57.0}, 4: {16: 16.2, 32: 24.2, 64: 49.0, 128: 97.0}},
    9: {2: {16: 32.0, 32: 48.5, 64: 96.5, 128: 192.5}, 4: {16: 18.2, 32: 28.2, 64: 56.0, 128: 112.0}},
    10: {2: {16: 14.7, 32: 24.8, 64: 48.8, 128: 96.8}, 4: {16: 18.2, 32: 28.2, 64: 56.1, 128: 112.1}},
    12: {2: {16: 12.2, 32: 17.0, 64: 33.0, 128: 57.0}, 4: {16: 16.2, 32: 24.2, 64: 49.0, 128: 97.0}},
}


def shared_kib(capability: float, bytes_of_number: int, head_dim: int) -> float:
    """Returns the most shared memory, in KiB, that a kernel takes on a card; the most of all for one that is newer."""
    of_card = MOST_SHARED_KIB.get(int(capability))
    if of_card is not None:
        return of_card[bytes_of_number][head_dim]
    return max(sizes[bytes_of_number][head_dim] for sizes in MOST_SHARED_KIB.values())


class Call(NamedTuple):
    """The lengths and choices of a call."""

    queries: int
    keys: int
    rule: Rule
    has_wgmma: bool
    interpret: bool

    def blocks(self, kernel: str, query: Array) -> Blocks:
        """Returns how one of the four kernels is cut for queries [B, Q, H, C]."""
        has_two_bytes = query.dtype.itemsize == 2
        table = WGMMA_BLOCKS if self.has_wgmma and has_two_bytes else SMALL_BLOCKS
        head_dim = query.shape[-1]
        if head_dim > 64:
            return table[kernel]._replace(stages=2)
        return table[kernel]


def pallas_attention(
    query: Float[Array, "B Q H C"],
    key: Float[Array, "B K H C"],
    value: Float[Array, "B K H C"],
    diagonals: Float[Array, "H P"] | None,
    mask: tuple[Int[Array, "B Q"], Int[Array, "B K"], Int[Array, " 1"] | None],
    rule: Rule,
    has_wgmma: bool = True,
    interpret: bool = False,
) -> Float[Array, "B Q H C"]:
    """Returns softmax(q k^T + bias) v; scores and softmax in float32, products in the inputs' dtype.

    The bias of query q and key k is `diagonals[:, k - q + Q]`, P = Q + K. `mask` is `Mask.for_kernels`; a rule other
    than the ids' is for self-attention. A query that sees no key has equal weights for all keys, or with a reach 0. C
    is one of WIDTHS. `has_wgmma`: compute capability 9.
    """
    query_ids, key_ids, reach = mask
    call = Call(query.shape[1], key.shape[1], rule, has_wgmma, interpret)
    # Blocks after the diagonal are skipped for queries before the first one whose weights are on keys there.
    goes_beyond = query_ids & 1 == 1 if rule.by_token else jnp.zeros(query_ids.shape, bool)
    goes_beyond |= (query_ids == 0) & (reach is None)
    beyond = jnp.where(goes_beyond, jnp.arange(call.queries)[None], call.queries)
    ids = {"query_ids": query_ids, "key_ids": key_ids, "first_beyond": jnp.min(beyond, axis=1, keepdims=True)}
    ids |= {} if reach is None else {"reach": reach}
    return _attend(call, {"query": query, "key": key, "value": value}, diagonals, ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: Call, heads: dict[str, Array], diagonals: Array | None, ids: dict[str, Array]) -> Array:
    return _attend_forward(call, heads, diagonals, ids)[0]


def _attend_forward(call: Call, heads: dict, diagonals: Array | None, ids: dict) -> tuple[Array, dict]:
    arrays = heads | ids | ({} if diagonals is None else {"diagonals": diagonals})
    results = _run("forward", call, arrays, ["attended", "highest", "share"])
    arrays |= {name: checkpoint_name(result, ATTENDED) for name, result in results.items()}
    return arrays["attended"], arrays


def _attend_backward(call: Call, saved: dict, gradient: Array) -> tuple:
    arrays = saved | {"gradient": gradient}
    gradients = _run("to_query", call, arrays, ["to_query", "mean"])
    del arrays["attended"]
    arrays["mean"] = gradients["mean"]
    gradients |= _run("to_key", call, arrays, ["to_key", "to_value"])
    to_diagonals = None
    if "diagonals" in arrays:
        to_diagonals = _sums_of_diagonals(jnp.sum(_run("to_bias", call, arrays, ["to_bias"])["to_bias"], axis=0))
    to_heads = {name: gradients[f"to_{name}"] for name in ("query", "key", "value")}
    return to_heads, to_diagonals, dict.fromkeys(array_name for array_name in saved if array_name in OF_MASK)


_attend.defvjp(_attend_forward, _attend_backward)


def _sums_of_diagonals(bias: Float[Array, "H Q K"]) -> Float[Array, "H P"]:
    """Returns [h, p], the sum over q of bias[h, q, q + p - Q]: rows of P - 1, read as rows of P."""
    heads, queries, keys = bias.shape
    rows = jnp.pad(bias, ((0, 0), (0, 0), (0, queries - 1))).reshape(heads, -1)
    return jnp.sum(jnp.pad(rows, ((0, 0), (queries, 0))).reshape(heads, queries, queries + keys), axis=1)


def _run(kernel: str, call: Call, arrays: dict[str, Array], results: list[str]) -> dict[str, Array]:
    """Returns the results of a kernel, run over (blocks of a row, heads, examples).

    The kernel of the bias's gradient runs over (tiles, heads, groups of examples).
    """
    query = arrays["query"]
    batch, queries, heads, width = query.shape
    keys = call.keys
    blocks = call.blocks(kernel, query)
    query_blocks = pl.cdiv(queries, blocks.queries)
    key_blocks = pl.cdiv(keys, blocks.keys)
    programs = key_blocks if kernel == "to_key" else query_blocks
    group = 1
    if kernel == "to_bias":
        # A program adds up all examples of its group; smaller groups where the card would not be full.
        programs = query_blocks * key_blocks
        group = batch
        while group % 2 == 0 and programs * heads * (batch // group) < PROGRAMS:
            group //= 2

    def part_of(name: str) -> tuple[tuple[int, ...], DTypeLike, pl.BlockSpec]:
        """Returns an array's shape, its dtype and a program's part of it."""
        if name == "diagonals":
            return (heads, queries + keys), jnp.float32, pl.BlockSpec((None, queries + keys), lambda i, h, b: (h, 0))
        if name == "to_bias":
            part = pl.BlockSpec((None, None, queries, keys), lambda i, h, b: (b, h, 0, 0))
            return (batch // group, heads, queries, keys), jnp.float32, part
        if name == "reach":
            return (1,), jnp.int32, pl.BlockSpec((1,), lambda i, h, b: (0,))
        if name == "first_beyond":
            return (batch, 1), jnp.int32, pl.BlockSpec((group, 1), lambda i, h, b: (b, 0))
        length = keys if name in KEY_SIDE else queries
        if name.endswith("_ids"):
            return (batch, length), jnp.int32, pl.BlockSpec((group, length), lambda i, h, b: (b, 0))
        if name in STATISTICS:
            part = pl.BlockSpec((group, None, length), lambda i, h, b: (b, h, 0))
            return (batch, heads, length), jnp.float32, part
        part = pl.BlockSpec((group, length, None, width), lambda i, h, b: (b, 0, h, 0))
        return (batch, length, heads, width), query.dtype, part

    def body(*refs: Ref) -> None:
        KERNELS[kernel](call, blocks, group, dict(zip([*arrays, *results], refs, strict=True)))

    marks = {"causal": call.rule.causal, "mixed": call.rule.by_token, "near": "reach" in arrays}
    marks |= {"bias": "diagonals" in arrays}
    outputs = pl.pallas_call(
        body,
        grid=(programs, heads, batch // group),
        in_specs=[part_of(name)[2] for name in arrays],
        out_specs=[part_of(name)[2] for name in results],
        out_shape=[jax.ShapeDtypeStruct(*part_of(name)[:2]) for name in results],
        compiler_params=plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=call.interpret,
        name="_".join([f"attention_{kernel}_{queries}x{keys}", *(mark for mark in marks if marks[mark])]),
    )(*arrays.values())
    return dict(zip(results, outputs, strict=True))


class Side(NamedTuple):
    """The queries, or the keys, of a tile: `size` of them from position `first` on; `length` is the number of all."""

    first: Array
    size: int
    length: int

    @property
    def positions(self) -> Array:
        return self.first + jnp.arange(self.size, dtype=jnp.int32)

    @property
    def is_ragged(self) -> bool:
        """True if a tile may reach past the end."""
        return self.length % self.size > 0

    def _inside(self, shape: tuple[int, ...]) -> Array | None:
        inside = self.positions < self.length
        return jnp.broadcast_to(inside if len(shape) == 1 else inside[:, None], shape) if self.is_ragged else None

    def load(self, refs: dict[str, Ref], example: Array | int, *names: str) -> tuple[Array, ...]:
        """Returns these rows of each array, and zeros past its end."""
        rows = []
        for name in names:
            at = refs[name].at[
                (jnp.int32(example), pl.ds(self.first, self.size), *[slice(None)] * (refs[name].ndim - 2))
            ]
            rows.append(plgpu.load(at, mask=self._inside(at.shape), other=0 if self.is_ragged else None))
        return tuple(rows)

    def store(self, refs: dict[str, Ref], **results: Array) -> None:
        for name, rows in results.items():
            at = refs[name].at[(jnp.int32(0), pl.ds(self.first, self.size), *[slice(None)] * (rows.ndim - 1))]
            plgpu.store(at, rows.astype(refs[name].dtype), mask=self._inside(rows.shape))


class Tile(NamedTuple):
    """The scores of some queries and keys, [Q, K], or with `keys_first` [K, Q]."""

    call: Call
    queries: Side
    keys: Side
    keys_first: bool = False

    def of_query(self, x: Array) -> Array:
        return jnp.expand_dims(x, 0 if self.keys_first else 1)

    def of_key(self, x: Array) -> Array:
        return jnp.expand_dims(x, 1 if self.keys_first else 0)

    def product(self, of_query: Float[Array, "Q C"], of_key: Float[Array, "K C"]) -> Array:
        return _product(of_key, of_query, 1, 1) if self.keys_first else _product(of_query, of_key, 1, 1)

    def bias(self, refs: dict[str, Ref]) -> Array | None:
        if "diagonals" not in refs:
            return None
        query_positions = self.of_query(self.queries.positions)
        key_positions = self.of_key(self.keys.positions)
        diagonals = refs["diagonals"].at[key_positions - query_positions + self.queries.length]
        if not (self.queries.is_ragged or self.keys.is_ragged):
            return plgpu.load(diagonals)
        inside = (query_positions < self.queries.length) & (key_positions < self.keys.length)
        return plgpu.load(diagonals, mask=inside, other=0)

    def scores(
        self, refs: dict[str, Ref], pair: tuple[Array, Array], ids: tuple[Array, Array], bias: Array | None
    ) -> tuple[Array, Array]:
        """Returns the scores of queries and keys, and True where they are visible; keys past the end have -infinity."""
        causal, by_token, _ = self.call.rule
        of_query, of_key = ids
        scores = self.product(*pair)
        of_query = jnp.where(of_query == 0, NO_ID, of_query)
        if bias is not None:
            scores = scores + bias
        query_positions = self.of_query(self.queries.positions)
        key_positions = self.of_key(self.keys.positions)
        ids = (of_query >> 1, of_key >> 1) if by_token else (of_query, of_key)
        visible = self.of_query(ids[0]) == self.of_key(ids[1])
        if causal:
            visible &= key_positions <= query_positions
        if by_token:
            odd = jnp.where(of_query & 1 == 1, of_query, NO_ID), jnp.where(of_key & 1 == 1, of_key, 0)
            visible |= self.of_query(odd[0]) == self.of_key(odd[1])
        if "reach" in refs:
            visible &= jnp.abs(key_positions - query_positions) <= refs["reach"][0]
        scores = jnp.where(visible, scores, HIDDEN_SCORE)
        if self.keys.is_ragged:
            scores = jnp.where(key_positions < self.keys.length, scores, -jnp.inf)
        return scores, visible


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    return jax.lax.dot_general(a, b, (((a_axis,), (b_axis,)), ((), ())), preferred_element_type=jnp.float32)


def _exp(x: Array) -> Array:
    return jnp.exp2(x * LOG2_E)  # one instruction; exp takes ten


def _queries(call: Call, blocks: Blocks, block: Array) -> Side:
    return Side(block * blocks.queries, blocks.queries, call.queries)


def _keys(call: Call, blocks: Blocks, block: Array) -> Side:
    return Side(block * blocks.keys, blocks.keys, call.keys)


def _key_blocks(call: Call, blocks: Blocks, refs: dict[str, Ref], queries: Side) -> tuple[Array | int, Array | int]:
    """Returns the first block of keys that these queries see, and the one after the last."""
    first, end = _within_reach(refs, queries, blocks.keys, pl.cdiv(call.keys, blocks.keys))
    if not call.rule.causal:
        return first, end
    after = queries.first + queries.size
    seen = jnp.minimum(jax.lax.div(after + blocks.keys - 1, blocks.keys), end)
    return first, jnp.where(after > refs["first_beyond"][0, 0], end, seen)


def _within_reach(refs: dict[str, Ref], side: Side, size: int, count: int) -> tuple[Array | int, Array | int]:
    """Returns the first of `count` blocks of the other side within the reach of this one, and the one after the last.

    A block has `size` places.
    """
    if "reach" not in refs:
        return 0, count
    reach = refs["reach"][0]
    end = jax.lax.div(side.first + side.size + reach + size - 1, size)
    return jax.lax.div(jnp.maximum(side.first - reach, 0), size), jnp.minimum(end, count)


def _forward_kernel(call: Call, blocks: Blocks, group: int, refs: dict[str, Ref]) -> None:
    queries = _queries(call, blocks, pl.program_id(0))
    query, query_ids = queries.load(refs, 0, "query", "query_ids")

    def step(block: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        sums, highest, total = carry
        tile = Tile(call, queries, _keys(call, blocks, block))
        key, value, key_ids = tile.keys.load(refs, 0, "key", "value", "key_ids")
        scores, _ = tile.scores(refs, (query, key), (query_ids, key_ids), tile.bias(refs))
        higher = jnp.maximum(highest, jnp.max(scores, axis=1))
        weights = _exp(scores - higher[:, None])
        shrunk = _exp(highest - higher)
        sums = sums * shrunk[:, None] + _product(weights.astype(value.dtype), value, 1, 0)
        return sums, higher, total * shrunk + jnp.sum(weights, axis=1)

    start = jnp.zeros(query.shape, jnp.float32), jnp.full(queries.size, -jnp.inf), jnp.zeros(queries.size)
    sums, highest, total = jax.lax.fori_loop(*_key_blocks(call, blocks, refs, queries), step, start)
    share = 1 / total
    if "reach" in refs:
        share = jnp.where(highest > HIDDEN_SCORE / 2, share, 0)
    queries.store(refs, attended=sums * share[:, None], highest=highest, share=share)


def _to_query_kernel(call: Call, blocks: Blocks, group: int, refs: dict[str, Ref]) -> None:
    queries = _queries(call, blocks, pl.program_id(0))
    query, gradient, attended = queries.load(refs, 0, "query", "gradient", "attended")
    query_ids, highest, share = queries.load(refs, 0, "query_ids", "highest", "share")
    # The mean of the weights' gradients, except for the rounding of `attended`; `lost` corrects that below.
    mean = jnp.sum(gradient.astype(jnp.float32) * attended.astype(jnp.float32), axis=1)

    def step(block: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        to_query, lost = carry
        tile = Tile(call, queries, _keys(call, blocks, block))
        key, value, key_ids = tile.keys.load(refs, 0, "key", "value", "key_ids")
        scores, visible = tile.scores(refs, (query, key), (query_ids, key_ids), tile.bias(refs))
        weights = _exp(scores - highest[:, None]) * share[:, None]
        to_scores = jnp.where(visible, weights * (tile.product(gradient, value) - mean[:, None]), 0)
        return to_query + _product(to_scores.astype(key.dtype), key, 1, 0), lost + jnp.sum(to_scores, axis=1)

    start = jnp.zeros(query.shape, jnp.float32), jnp.zeros(queries.size)
    to_query, lost = jax.lax.fori_loop(*_key_blocks(call, blocks, refs, queries), step, start)
    queries.store(refs, to_query=to_query, mean=mean + lost)


def _to_key_kernel(call: Call, blocks: Blocks, group: int, refs: dict[str, Ref]) -> None:
    keys = _keys(call, blocks, pl.program_id(0))
    key, value, key_ids = keys.load(refs, 0, "key", "value", "key_ids")

    def step(block: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        to_key, to_value = carry
        tile = Tile(call, _queries(call, blocks, block), keys, keys_first=True)
        query, gradient, query_ids = tile.queries.load(refs, 0, "query", "gradient", "query_ids")
        highest, share, mean = tile.queries.load(refs, 0, "highest", "share", "mean")
        scores, visible = tile.scores(refs, (query, key), (query_ids, key_ids), tile.bias(refs))
        weights = _exp(scores - highest[None]) * share[None]
        to_value = to_value + _product(weights.astype(gradient.dtype), gradient, 1, 0)
        to_scores = jnp.where(visible, weights * (tile.product(gradient, value) - mean[None]), 0)
        return to_key + _product(to_scores.astype(query.dtype), query, 1, 0), to_value

    first, end = _within_reach(refs, keys, blocks.queries, pl.cdiv(call.queries, blocks.queries))
    if call.rule.causal:  # before the diagonal only these queries see them
        first = jnp.maximum(first, jax.lax.div(jnp.minimum(keys.first, refs["first_beyond"][0, 0]), blocks.queries))
    start = jnp.zeros(key.shape, jnp.float32), jnp.zeros(key.shape, jnp.float32)
    to_key, to_value = jax.lax.fori_loop(first, end, step, start)
    keys.store(refs, to_key=to_key, to_value=to_value)


def _to_bias_kernel(call: Call, blocks: Blocks, group: int, refs: dict[str, Ref]) -> None:
    key_blocks = pl.cdiv(call.keys, blocks.keys)
    queries = _queries(call, blocks, jax.lax.div(pl.program_id(0), key_blocks))
    tile = Tile(call, queries, _keys(call, blocks, jax.lax.rem(pl.program_id(0), key_blocks)))
    bias = tile.bias(refs)

    def step(example: Array, to_bias: Array) -> Array:
        query, gradient, query_ids = queries.load(refs, example, "query", "gradient", "query_ids")
        highest, share, mean = queries.load(refs, example, "highest", "share", "mean")
        key, value, key_ids = tile.keys.load(refs, example, "key", "value", "key_ids")
        scores, visible = tile.scores(refs, (query, key), (query_ids, key_ids), bias)
        weights = _exp(scores - highest[:, None]) * share[:, None]
        return to_bias + jnp.where(visible, weights * (tile.product(gradient, value) - mean[:, None]), 0)

    # Tiles after the diagonal have no gradient, unless some tokens see those after them.
    has_any = tile.keys.first < queries.first + queries.size
    count = group * has_any.astype(jnp.int32) if call.rule.causal and not call.rule.by_token else group
    to_bias = jax.lax.fori_loop(0, count, step, jnp.zeros((queries.size, tile.keys.size), jnp.float32))
    at = refs["to_bias"].at[pl.ds(queries.first, queries.size), pl.ds(tile.keys.first, tile.keys.size)]
    inside = (queries.positions < call.queries)[:, None] & (tile.keys.positions < call.keys)[None]
    plgpu.store(at, to_bias, mask=inside)


KERNELS = {
    "forward": _forward_kernel,
    "to_query": _to_query_kernel,
    "to_key": _to_key_kernel,
    "to_bias": _to_bias_kernel,
}
