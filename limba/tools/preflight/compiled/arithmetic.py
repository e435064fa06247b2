"""Memory and time of a training step by arithmetic, without a compiler or a chip, in well under a second.

A device holds its part of the state, a copy of the parameters in the activations' dtype, what the backward pass keeps
of each layer for one micro-batch, and, one after the other, the logits, a layer at work, and the gradient.
docs/development/preflight.md compares it with compilers' figures.
"""

from __future__ import annotations

import dataclasses

from limba.api import PlannedRun, flops_per_sequence
from limba.config import ModelConfig, RunConfig
from limba.config.speed import LEAST_STEP_SECONDS as LEAST_STEP_SECONDS
from limba.config.speed import MFU as MFU
from limba.config.speed import Work, step_seconds
from limba.tools.preflight.compiled.topologies import Topology

MOST_ROWS = 1 << 20  # of a device, beyond which the largest batch is not looked for
# As the training step computes the logits.
WHOLE_LOGITS = 2 << 30  # bytes of logits, above which they come in chunks
CHUNK = 1 << 30  # bytes of one chunk
# As attention is computed.
MOST_KEYS = 2_048  # of a row, in the kernel for TPUs
GPU_HEADS = (16, 32, 64, 128)  # widths that the kernel for GPUs has
WINDOWS_IN_LONG_ROWS = 4  # a row with as many windows is computed in blocks by the einsum
SCORE_BYTES = 6  # of a score that is kept: float32, and its weight in bfloat16
AGAIN_BYTES = 8  # of a score that is computed again: the gradient of its weight, in bfloat16, is held beside it


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one device, by what they are for."""

    state: float
    copies: float  # of the parameters in the activations' dtype, and sums of gradients
    activations: float  # that a micro-batch keeps for the backward pass
    transient: float  # the most of what comes one after the other: logits, a layer at work, the decoder's gradient

    @property
    def total(self) -> float:
        return self.state + self.copies + self.activations + self.transient


def memory(run: PlannedRun, chips: Topology, changed: RunConfig | None = None, batch_size: int | None = None) -> Memory:
    """Returns the bytes that a step takes on a device of the chips.

    `changed` is the run with other choices that leave its state as it is, `batch_size` another one than the run's.
    Raises ConfigError for a mesh that these chips cannot make.
    """
    config = changed or run.config
    network = config.model
    data, fsdp, model = config.mesh.sizes(chips.devices)
    parts = fsdp * model  # devices that share the parameters
    if parts == 1 and config.mesh.shard_update:  # as in ZeRO, devices with all parameters share the optimizer's state
        state = run.num_bytes / data
    else:
        state = run.num_bytes / parts
    size = 4 if network.dtype == "float32" else 2  # bytes of an activation
    sums = 4 if config.num_microbatches > 1 else 0  # bytes of a parameter's summed gradient
    rows = (batch_size or config.data.batch_size) / (data * fsdp) / config.num_microbatches
    lengths = run.row_lengths
    predicted = lengths[1] if config.data.num_predicted is None else config.data.num_predicted
    logits = 4 * rows * predicted * network.vocab_size / model
    if logits > WHOLE_LOGITS and network.has_plain_head and config.loss.logits != "whole":
        logits = CHUNK
    gradient = size * _decoder_parameters(network) / parts
    of_all_layers, of_one_layer = row_bytes(network, lengths, _has_kernels(network, lengths, chips), size)
    return Memory(
        state=state,
        copies=run.num_parameters * (size + sums) / parts,
        activations=rows * of_all_layers / model,
        transient=max(logits, gradient, rows * of_one_layer / model),
    )


def _has_kernels(network: ModelConfig, lengths: tuple[int, int], chips: Topology) -> bool:
    """Returns whether attention on these chips has a kernel for rows of these lengths."""
    is_too_long = chips.platform == "tpu" and max(lengths) > MOST_KEYS
    if is_too_long and network.attention != "memory_efficient":
        return False
    has_other_heads = chips.platform == "gpu" and network.head_dim not in GPU_HEADS
    if has_other_heads and network.attention != "memory_efficient":
        return False
    return chips.has_kernels


def row_bytes(network: ModelConfig, lengths: tuple[int, int], has_kernels: bool, size: int) -> tuple[float, float]:
    """Returns the bytes of a row that all layers keep for the backward pass, and of the one at work beside them.

    Activations have `size` bytes. `remat` full keeps each layer's input; minimal also what matrix products and
    attention give; none all of a layer, with norms, the parts of the MLP, and scores where attention has no kernel. A
    network with windows computes a long row's again, one layer after the other.
    """
    inputs, targets = lengths
    d = network.emb_dim
    mlp = network.mlp_dim
    inner = network.num_heads * network.head_dim
    # A token's input, query, key, value, attended value, and what comes out of attention and MLP.
    token = 3 * d + 2 * inner + 2 * network.kv_heads * network.head_dim + len(network.mlp_activations) * mlp
    crossed = 0 if network.is_decoder_only else d + 2 * inner
    # The keys and values of the encoder's output, in each layer of the decoder.
    of_encoded = 0 if network.is_decoder_only else 2 * inner * inputs
    # Of one layer of the encoder, and of one of the decoder.
    full = (size * d * inputs, size * d * targets)
    minimal = (size * inputs * token, size * (targets * (token + crossed) + of_encoded))
    more = size * (6 * d + 3 * mlp)  # of a token: norms, and the parts of the MLP
    scores = 0 if has_kernels and network.attention != "einsum" else SCORE_BYTES * network.num_heads
    window = (network.local_attention or (0,))[0]
    again = 0.0
    if window and targets >= WINDOWS_IN_LONG_ROWS * window and scores:
        again = scores * targets**2 * AGAIN_BYTES / SCORE_BYTES
        scores = 0  # none are kept
    whole = (
        minimal[0] + more * inputs + scores * inputs**2,
        minimal[1] + more * targets + scores * targets * (targets + inputs),
    )
    of_encoder, of_decoder = {"none": whole, "minimal": minimal, "full": full}[network.remat]
    kept = network.num_encoder_layers * of_encoder + network.num_decoder_layers * of_decoder
    if network.remat == "none":
        return kept, again
    return kept, again + max(whole)  # the backward pass computes one layer again, and has all of it


def _decoder_parameters(network: ModelConfig) -> int:
    """Returns the parameters of the matrices of the decoder's layers."""
    d = network.emb_dim
    inner = network.num_heads * network.head_dim
    attention = 2 * d * (inner + network.kv_heads * network.head_dim)
    if not network.is_decoder_only:
        attention += 4 * d * inner
    return network.num_decoder_layers * (attention + (len(network.mlp_activations) + 1) * d * network.mlp_dim)


def largest_batch(run: PlannedRun, chips: Topology, limit: float) -> int:
    """Returns the most rows whose step fits in so many bytes of a device, divisible as the run's are; 0: none."""
    data, fsdp, _ = run.config.mesh.sizes(chips.devices)
    step = data * fsdp * run.config.num_microbatches

    def fits(number: int) -> bool:
        return memory(run, chips, batch_size=number * step).total <= limit

    # Doubled until it does not fit any more, then halved into: `low` always fits, and `high` does not.
    low = 0
    high = 1
    while high < MOST_ROWS and fits(high):
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low * step


def seconds_per_step(run: PlannedRun, chips: Topology) -> tuple[float, float] | None:
    """Returns the shortest and longest time of a step; None for devices whose peak is not known."""
    data = run.config.data
    return seconds_of(run.config.model, data.batch_size, run.row_lengths, data.num_predicted, chips)


def seconds_of(
    network: ModelConfig, batch: int, lengths: tuple[int, int], predicted: int | None, chips: Topology
) -> tuple[float, float] | None:
    """Returns the shortest and longest time of a step of a network on so many rows; None where no peak is known.

    `predicted` are the tokens of a row with logits, None for all targets.
    """
    speed = chips.speed
    if speed is None:
        return None
    flops = batch * flops_per_sequence(network, *lengths, predicted)
    has_kernels = _has_kernels(network, lengths, chips) and network.attention != "einsum"
    scores = 0.0 if has_kernels else batch * _scores(network, lengths)
    return step_seconds(Work(flops, scores, network.emb_dim), speed)


def _scores(network: ModelConfig, lengths: tuple[int, int]) -> float:
    """Returns the scores of a row's attention, of all heads and layers."""
    inputs, targets = lengths
    encoder = network.num_encoder_layers * inputs**2
    decoder = network.num_decoder_layers * targets * (targets + inputs)
    return float(network.num_heads * (encoder + decoder))
