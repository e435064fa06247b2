"""The network's choices. `limba/config/` has the others, and is where all are imported from."""

from __future__ import annotations

from dataclasses import dataclass

from limba.config.errors import one_of, positive, require

ACTIVATIONS = ("relu", "gelu", "silu", "linear")
DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("auto", "einsum", "memory_efficient", "pallas")
POSITIONS = ("relative", "rotary", "learned", "sinusoidal")
NORMS = ("rms", "layer")
BIASED_PARTS = ("attention", "mlp", "logits")
REMAT_POLICIES = ("none", "minimal", "full")


@dataclass(frozen=True)
class ModelConfig:
    """The network: T5 1.0, T5 1.1, mT5, umT5, ByT5 and decoder-only language models differ only in these fields.

    Without encoder layers it is a decoder alone, and positions, norm, biases and num_kv_heads choose its layout;
    an encoder-decoder is a T5 and takes their defaults. Raises ConfigError for sizes below 1, unknown
    activations, dtypes or remat policies, and choices that do not go together.
    """

    vocab_size: int  # rows of the embedding, a multiple of 128 for the TPU's sake
    emb_dim: int
    num_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int  # 0: a decoder-only language model
    num_decoder_layers: int
    mlp_activations: tuple[str, ...] = ("gelu", "linear")
    logits_via_embedding: bool = False  # tied head; an encoder-decoder's has its input scaled by emb_dim^-1/2 (T5 1.0)
    relative_bias_per_layer: bool = False  # umT5
    num_relpos_buckets: int = 32
    relpos_max_distance: int = 128
    positions: str = "relative"  # T5's bias; a decoder alone has rotary, learned or sinusoidal ones
    rotary_base: float = 10_000.0  # of rotary positions; a larger one for longer texts
    max_length: int = 2048  # rows of learned positions
    norm: str = "rms"  # or layer, with scale and bias
    biases: tuple[str, ...] = ()  # the parts of a decoder alone that have them: attention, mlp, logits
    num_kv_heads: int | None = None  # of a decoder alone: fewer than num_heads share keys and values; None: as many
    layer_norm_epsilon: float = 1e-6
    dropout_rate: float = 0.0
    dtype: str = "bfloat16"  # of activations; parameters, softmax, logits and loss are float32
    scan_layers: bool = True  # compiles in a fraction of the time; False runs faster
    remat: str = "none"  # what the backward pass recomputes: none, minimal (all but matmuls and attention), full
    attention: str = "auto"  # einsum, memory_efficient, pallas (TPU, GPU; both keep no scores), auto: the fastest here

    def __post_init__(self) -> None:
        object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
        object.__setattr__(self, "biases", tuple(self.biases))
        sizes = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_decoder_layers", "max_length")
        encoder = () if self.is_decoder_only else ("num_encoder_layers",)
        positive(self, *sizes, *encoder, "num_relpos_buckets", "relpos_max_distance")
        require(
            self.num_relpos_buckets >= 4 and self.relpos_max_distance > self.num_relpos_buckets // 2,
            "ModelConfig.num_relpos_buckets",
            f"is {self.num_relpos_buckets} and relpos_max_distance"
            f" {self.relpos_max_distance}; give at least 4 buckets and a distance above half of them.",
        )
        for activation in self.mlp_activations:
            require(
                activation in ACTIVATIONS,
                "ModelConfig.mlp_activations",
                f"holds {activation!r}; choose from {', '.join(ACTIVATIONS)}.",
            )
        require(
            len(self.mlp_activations) in (1, 2),
            "ModelConfig.mlp_activations",
            f"has {len(self.mlp_activations)} entries; give one, or two for a gated MLP.",
        )
        require(
            0.0 <= self.dropout_rate < 1.0,
            "ModelConfig.dropout_rate",
            f"is {self.dropout_rate!r}; give a share from 0 up to, not including, 1.",
        )
        one_of(self, "dtype", DTYPES)
        one_of(self, "remat", REMAT_POLICIES)
        one_of(self, "attention", ATTENTIONS)
        one_of(self, "positions", POSITIONS)
        one_of(self, "norm", NORMS)
        self._check_decoder_only()

    def _check_decoder_only(self) -> None:
        if not self.is_decoder_only:
            for name in ("positions", "norm", "biases", "num_kv_heads"):
                value, default = getattr(self, name), ModelConfig.__dataclass_fields__[name].default
                require(
                    value == default,
                    f"ModelConfig.{name}",
                    f"is {value!r}, which an encoder-decoder, being a T5, has not; leave it"
                    f" {default!r}, or set num_encoder_layers to 0.",
                )
            return
        require(
            self.positions != "relative",
            "ModelConfig.positions",
            "is 'relative' and num_encoder_layers 0; choose rotary, learned or sinusoidal.",
        )
        require(
            self.attention != "pallas",
            "ModelConfig.attention",
            "is 'pallas' and num_encoder_layers 0; that kernel is an encoder-decoder's:"
            " choose auto, einsum or memory_efficient.",
        )
        for part in self.biases:
            require(
                part in BIASED_PARTS,
                "ModelConfig.biases",
                f"holds {part!r}; choose from {', '.join(BIASED_PARTS)}.",
            )
        require(
            not (self.logits_via_embedding and "logits" in self.biases),
            "ModelConfig.biases",
            "holds 'logits' and logits_via_embedding is True; a tied head has no bias.",
        )
        if self.num_kv_heads is not None:
            positive(self, "num_kv_heads")
        require(
            self.num_heads % self.kv_heads == 0,
            "ModelConfig.num_heads",
            f"{self.num_heads} does not divide by num_kv_heads {self.num_kv_heads}; make it a multiple.",
        )
        require(
            self.positions != "rotary" or self.head_dim % 2 == 0,
            "ModelConfig.head_dim",
            f"is {self.head_dim}, and rotary positions turn pairs; give an even one.",
        )
        require(
            self.rotary_base > 1,
            "ModelConfig.rotary_base",
            f"is {self.rotary_base!r}; give a number above 1, as 10000.0.",
        )

    @property
    def is_decoder_only(self) -> bool:
        return self.num_encoder_layers == 0

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads
