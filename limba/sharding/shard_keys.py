"""Random keys with which each device draws the rows of its own shard, as one device would draw all of them."""

import functools
import math
from collections.abc import Callable, Hashable

import jax
import jax.extend.random as extended
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def shard_key(key: Array, shard: Array, num_shards: int) -> Array:
    """Returns a key that draws the rows of a shard, where `key` draws an array [B, …] of all shards' rows.

    So each device draws its own rows only, and a run's dropout is the same on any number of devices. An array
    [B / num_shards, …] that is drawn with it, or with what it is split or folded into, is part `shard` of the whole.
    `shard` may be traced.

    >>> key, shape = jax.random.key(3), (4, 5)
    >>> parts = [jax.random.uniform(shard_key(key, jnp.uint32(shard), 2), (2, 5)) for shard in range(2)]
    >>> bool((jnp.concatenate(parts) == jax.random.uniform(key, shape)).all())
    True
    """
    data = jnp.append(jax.random.key_data(key), shard.astype(jnp.uint32))
    return jax.random.wrap_key_data(data, impl=_kind(jax.random.key_impl(key), data.size, num_shards))


@functools.cache
def _kind(kind: Hashable, size: int, num_shards: int) -> Hashable:
    """Returns the kind of a key whose data are the data of a key of `kind`, and after them the shard."""

    def followed(data: Array, change: Callable[[Array], Array]) -> Array:
        made = jax.random.key_data(change(jax.random.wrap_key_data(data[:-1], impl=kind)))
        return jnp.concatenate([made, jnp.broadcast_to(data[-1], (*made.shape[:-1], 1))], axis=-1)

    def bits(data: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
        number = math.prod(shape)  # that this shard draws
        shard = data[-1]
        if kind == "threefry2x32" and bit_width == 32 and number * num_shards <= 2**32:
            # A number depends only on its index in the whole array: the other shards' numbers are not drawn.
            indices = shard * jnp.uint32(number)
            for axis in range(len(shape)):
                stride = jnp.uint32(math.prod(shape[axis + 1 :]))
                indices = indices + stride * lax.broadcasted_iota(jnp.uint32, shape, axis)
            first, second = extended.threefry2x32_p.bind(data[0], data[1], jnp.zeros_like(indices), indices)
            return first ^ second
        whole = (shape[0] * num_shards, *shape[1:])
        drawn = jax.random.bits(jax.random.wrap_key_data(data[:-1], impl=kind), whole, f"uint{bit_width}")
        return lax.dynamic_slice_in_dim(drawn, shard * shape[0], shape[0])

    return extended.define_prng_impl(
        key_shape=(size,),
        seed=lambda seed: jnp.append(jax.random.key_data(jax.random.key(seed, impl=kind)), jnp.uint32(0)),
        split=lambda data, shape: followed(data, lambda key: jax.random.split(key, shape)),
        random_bits=bits,
        fold_in=lambda data, number: followed(data, lambda key: jax.random.fold_in(key, number)),
        name=f"{kind} of {num_shards} shards",
    )
