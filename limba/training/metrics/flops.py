"""The FLOPs of a training step, and the peak FLOP/s of devices.

Only matrix products at the objective's exact lengths count; recomputation and padding do not. MFU is these FLOPs per
second over the peak (Chowdhery et al. 2022, arXiv:2204.02311, appendix B).
"""

from limba.config import ModelConfig

# Dense bf16 TFLOP/s of one device, by a part of jax's `device_kind`. The first part that occurs counts.
PEAK_TFLOPS = {
    "TPU v6": 918.0,
    "TPU v5p": 459.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5": 459.0,
    "TPU v4": 275.0,
    "TPU v3": 61.5,  # of one core: for jax a chip of v2 or v3 is two devices
    "TPU v2": 23.0,
    "A100": 312.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2250.0,
    "L40S": 362.0,
    "L4": 121.0,
    "T4": 65.0,  # T4 and V100: float16, as they have no bfloat16
    "V100": 125.0,
    "MI250X": 191.5,  # of one of a card's two dies, which is a device
    "MI300X": 1307.0,
}


def flops_per_sequence(
    config: ModelConfig, inputs_length: int, targets_length: int, num_predicted: int | None = None
) -> float:
    """Returns the FLOPs of training on one sequence: three times those of the forward pass.

    All tokens of a decoder-only model's sequence are targets; only `num_predicted` of an encoder's have logits.

    >>> base = ModelConfig(32128, 768, 12, 64, 2048, 12, 12)
    >>> round(flops_per_sequence(base, 512, 114) / 1e9)
    425
    """
    if config.is_t5_encoder:  # of labeled texts, which are a row's targets
        inputs_length, targets_length = inputs_length or targets_length, 0
    d, inner = config.emb_dim, config.num_heads * config.head_dim
    matrices = len(config.mlp_activations) + 1
    mlp = matrices * d * config.mlp_dim
    logits = 2 * (targets_length if num_predicted is None else num_predicted) * d * config.vocab_size
    if config.is_decoder_only:
        projections = 2 * d * (inner + config.kv_heads * config.head_dim)
        seen = 4 if config.is_encoder else 2  # a causal mask hides half of the scores
        layer = targets_length * 2 * (projections + mlp)
        width, every, _ = config.local_attention or (targets_length, 1, 0.0)
        layers = config.num_decoder_layers
        num_global = -(-layers // every)
        keys = num_global * targets_length + (layers - num_global) * min(width, targets_length)
        if config.is_modernbert:
            logits += 2 * (targets_length if num_predicted is None else num_predicted) * d * d
        return 3.0 * (layers * layer + seen * targets_length * keys * inner + logits)
    encoder_token = 2 * (4 * d * inner + mlp)
    encoder = inputs_length * encoder_token + 4 * inputs_length**2 * inner
    # The cross-attention's keys and values are projected from the encoder's output.
    decoder = targets_length * 2 * (6 * d * inner + mlp) + 4 * inputs_length * d * inner
    decoder += 2 * targets_length**2 * inner + 4 * targets_length * inputs_length * inner
    return 3.0 * (config.num_encoder_layers * encoder + config.num_decoder_layers * decoder + logits)


def peak_flops_per_device() -> float | None:
    """Returns the peak bf16 FLOP/s of one of this machine's devices, or None if it is not known, as for CPUs."""
    import jax  # not above: the report counts FLOPs where no devices are asked

    kind = jax.devices()[0].device_kind
    return next((tflops * 1e12 for name, tflops in PEAK_TFLOPS.items() if name in kind), None)
