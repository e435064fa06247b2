"""The FLOPs of a training step, and the peak FLOP/s of this machine's devices.

Only matrix products at the objective's exact lengths count; recomputation and padding do not. MFU is these FLOPs per
second over the peak (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
"""

from collections.abc import Mapping

from limba.config import ModelConfig, RunConfig, hardware


def flops_per_sequence(
    config: ModelConfig, inputs_length: int, targets_length: int, num_predicted: int | None = None
) -> float:
    """Returns the FLOPs of training on one sequence: three times the forward pass, since the backward one has twice.

    All tokens of a decoder-only model's sequence are targets; only `num_predicted` of an encoder's have logits.

    >>> base = ModelConfig(32128, 768, 12, 64, 2048, 12, 12)
    >>> round(flops_per_sequence(base, 512, 114) / 1e9)
    425
    """
    d = config.emb_dim
    inner = config.num_heads * config.head_dim
    matrices = len(config.mlp_activations) + 1  # a gated MLP has two in, one out
    mlp = matrices * d * config.mlp_dim
    num_logits = targets_length if num_predicted is None else num_predicted
    logits = 2 * num_logits * d * config.vocab_size
    if config.is_decoder_only:
        projections = 2 * d * (inner + config.kv_heads * config.head_dim)
        seen = 4 if config.is_encoder else 2  # a causal mask hides half of the scores
        layer = targets_length * 2 * (projections + mlp)
        width, every, _ = config.local_attention or (targets_length, 1, 0.0)
        layers = config.num_decoder_layers
        num_global = -(-layers // every)
        keys = num_global * targets_length + (layers - num_global) * min(width, targets_length)
        if config.is_modernbert:
            logits += 2 * num_logits * d * d  # the dense layer of its head
        return 3.0 * (layers * layer + seen * targets_length * keys * inner + logits)
    encoder_token = 2 * (4 * d * inner + mlp)
    encoder = inputs_length * encoder_token + 4 * inputs_length**2 * inner
    # The cross-attention's keys and values are projected from the encoder's output.
    decoder = targets_length * 2 * (6 * d * inner + mlp) + 4 * inputs_length * d * inner
    decoder += 2 * targets_length**2 * inner + 4 * targets_length * inputs_length * inner
    return 3.0 * (config.num_encoder_layers * encoder + config.num_decoder_layers * decoder + logits)


def peak_flops_per_device() -> float | None:
    """Returns the peak FLOP/s of one of this machine's devices, or None if it is not known, as for CPUs."""
    import jax  # not above: the report counts FLOPs where no devices are asked

    chip = hardware.of_device_kind(jax.devices()[0].device_kind)
    return None if chip is None else chip.tflops * 1e12


def flops_per_row(config: RunConfig, lengths: Mapping[str, int]) -> float:
    """Returns the FLOPs of training on a row."""
    return flops_per_sequence(config.model, *sides(config, lengths), config.data.num_predicted)


def sides(config: RunConfig, lengths: Mapping[str, int]) -> tuple[int, int]:
    """Returns the lengths of the encoder's and the decoder's rows; a decoder-only model reads one sequence."""
    length = config.data.sequence_length
    return (0, length) if length is not None else (lengths["inputs"], lengths["targets"])
