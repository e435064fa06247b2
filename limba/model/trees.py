"""Types of the trees of arrays that networks take and return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array, Float, Int, PyTree

Parameters = Mapping[str, PyTree]  # nested by T5X's names, layers stacked on axis 0
Ref = Any  # the memory that a Pallas kernel reads or writes; jax has no public name for it
Batch = Mapping[str, Array]  # seqio's feature names; a decoder-only network reads the decoder's
Cache = PyTree  # the KV cache: arrays with the rows on axis 0
# (cache, last ids, position) -> (logits of the next ids, cache)
DecodeStep = Callable[[Cache, Int[Array, " R"], Int[Array, ""]], tuple[Float[Array, "R V"], Cache]]
