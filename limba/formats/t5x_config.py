"""The network of a T5X checkpoint, from the names and shapes of its arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from limba.config import InputError, ModelConfig
from limba.formats.t5x import own_name

_SCANNED = re.compile(r"(encoder|decoder)/\1/")
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/")


def network_of(shapes: Mapping[str, tuple[int, ...]], place: str) -> ModelConfig:
    """Returns the T5, or decoder-only network of T5X, with parameters of these names and shapes, in float32.

    Shapes do not show the activation: a gated MLP is assumed to be T5 1.1's ("gelu", "linear"), a plain one T5 1.0's
    ("relu",). `relpos_max_distance` and `layer_norm_epsilon` keep T5's values. Raises InputError, which names `place`,
    if an array that determines a size is missing.
    """
    num_layers = {"encoder": 0, "decoder": 0}
    found: dict[str, tuple[int, ...]] = {}  # a layer's arrays without the layer's number
    for name, shape in ((own_name(name), shape) for name, shape in shapes.items()):
        if scanned := _SCANNED.match(name):
            num_layers[scanned[1]] = shape[1]
            found[_SCANNED.sub(r"\1/", name)] = (shape[0], *shape[2:])
        elif layer := _LAYER.match(name):
            num_layers[layer[1]] = max(num_layers[layer[1]], int(layer[2]) + 1)
            found[_LAYER.sub(r"\1/", name)] = shape
        else:
            found[name] = shape
    gate = "wi_0" if "decoder/mlp/wi_0/kernel" in found else "wi"
    try:
        vocab_size, emb_dim = found["token_embedder/embedding"]
        num_heads, num_buckets = found["decoder/relpos_bias/rel_embedding"]
        joined = math.prod(found["decoder/self_attention/query/kernel"][1:])
        mlp_dim = found[f"decoder/mlp/{gate}/kernel"][1]
    except KeyError as error:
        raise InputError(
            f"{place} has no array {error.args[0]}, so its network is not known; give the network's configuration."
        ) from None
    per_layer = [name for name in shapes if name.endswith("relpos_bias/rel_embedding") and name.count("/") > 2]
    return ModelConfig(
        vocab_size=vocab_size,
        emb_dim=emb_dim,
        num_heads=num_heads,
        head_dim=joined // num_heads,
        mlp_dim=mlp_dim,
        num_encoder_layers=num_layers["encoder"],
        num_decoder_layers=num_layers["decoder"],
        mlp_activations=("gelu", "linear") if gate == "wi_0" else ("relu",),
        logits_via_embedding="decoder/logits_dense/kernel" not in found,
        relative_bias_per_layer=bool(per_layer),
        num_relpos_buckets=num_buckets,
        dtype="float32",
    )
