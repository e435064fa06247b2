"""The network's choices."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from limba.config import kinds
from limba.config.errors import all_of, largest_divisor, require
from limba.config.kinds import Limit, NonNegativeInt, PositiveFloat, PositiveInt, Share, choice

ACTIVATIONS = ("relu", "gelu", "gelu_exact", "silu", "linear")  # gelu: by tanh, T5's
ATTENTIONS = ("auto", "einsum", "memory_efficient", "pallas")
BIASED_PARTS = ("attention", "mlp", "logits", "head")
OF_POSITIONS = {  # what only networks with such positions read
    "relative": ("num_relpos_buckets", "relpos_max_distance", "relative_bias_per_layer"),
    "rotary": ("rotary_base",),
}
FREE_FIELDS = ("dtype", "dropout_rate", "remat", "scan_layers", "attention")  # that change no parameter's meaning
OF_ONE_STACK = ("positions", "norm", "biases", "num_kv_heads", "prefix_attention", "attention_mask", "local_attention")
Base = Annotated[float, Limit(lambda base: base > 1, "a number above 1, such as 10000.0")]


def fields_of_other_positions(positions: str) -> list[str]:
    """Returns the fields of ModelConfig that a network with these positions does not read.

    >>> fields_of_other_positions("relative")
    ['rotary_base']
    """
    fields: list[str] = []
    for kind, names in OF_POSITIONS.items():
        if kind != positions:
            fields.extend(names)
    return fields


@dataclass(frozen=True)
class ModelConfig:
    """The network: T5 1.0, T5 1.1, mT5, umT5, ByT5 and decoder-only language models differ only in these fields.

    Without encoder layers it is decoder-only, and the fields of OF_ONE_STACK choose its layout. With them it is a T5,
    which has their defaults. Raises ConfigError for sizes below 1, unknown activations, dtypes or remat policies, and
    choices that do not go together.

    >>> t5 = ModelConfig(32128, emb_dim=512, num_heads=6, head_dim=64, mlp_dim=1024, num_encoder_layers=8,
    ...                  num_decoder_layers=8)
    >>> t5.is_decoder_only, t5.mlp_activations
    (False, ('gelu', 'linear'))
    """

    vocab_size: PositiveInt  # rows of the embedding, on TPUs best a multiple of 128
    emb_dim: PositiveInt  # D: width of the model
    num_heads: PositiveInt  # H: attention heads
    head_dim: PositiveInt  # C: width of a head
    mlp_dim: PositiveInt  # F: width of the MLP
    num_encoder_layers: NonNegativeInt  # 0: a decoder-only language model
    num_decoder_layers: NonNegativeInt  # layers of the decoder, or of a language model; 0: a T5's encoder alone
    mlp_activations: tuple[str, ...] = ("gelu", "linear")  # one function, or two for a gated MLP
    logits_via_embedding: bool = False  # tied head; T5 1.0 scales its input by emb_dim^-1/2
    relative_bias_per_layer: bool = False  # umT5
    num_relpos_buckets: PositiveInt = 32  # buckets of T5's relative positions
    relpos_max_distance: PositiveInt = 128  # positions further apart share a bucket
    # T5's bias; decoder-only: that (T5X's decoder_only), rotary, learned, sinusoidal
    positions: Annotated[str, choice("relative", "rotary", "learned", "sinusoidal")] = "relative"
    rotary_base: Base = 10_000.0  # of rotary positions; larger for longer texts
    max_length: PositiveInt = 2048  # rows of learned positions, or the longest text of an encoder
    norm: Annotated[str, choice("rms", "layer", "layer_scale")] = "rms"  # layer has a scale and a bias
    # decoder-only: the parts that have one: attention, mlp, logits, and head, a ModernBERT's dense layer before them
    biases: tuple[str, ...] = ()
    # decoder-only: heads of keys and values, each for several queries; None: num_heads
    num_kv_heads: PositiveInt | None = None
    # decoder-only: how inputs before targets attend, in both directions or causal
    prefix_attention: Annotated[str, choice("full", "causal")] = "full"
    # decoder-only: causal, or bidirectional: an encoder, as BERT, which fills masks and continues no text; hybrid: one
    # whose tokens are predicted one position earlier, as a language model's are, which it also is
    attention_mask: Annotated[str, choice("causal", "bidirectional", "hybrid")] = "causal"
    # ModernBERT's layout: (128, 3, 10000.0) for a window of 128 tokens, in all but every third layer, the first one
    # included, and the rotary base there; also a norm of the embeddings, and a dense layer and a norm before the logits
    local_attention: tuple[int, int, float] | None = None
    # False: an encoder without an output layer, which gives hidden states: transformers' EuroBertModel and
    # ModernBertModel. The encoder of a T5 alone never has logits.
    has_logits: bool = True
    layer_norm_epsilon: PositiveFloat = 1e-6  # added to the mean square
    dropout_rate: Share = 0.0  # share of activations set to 0 in training
    # Of activations; parameters, softmax, logits and loss are float32. float16 is for cards that lack bfloat16 (V100,
    # T4): the sum over layers is then float32, and the loss is scaled.
    dtype: Annotated[str, choice("float32", "bfloat16", "float16")] = "bfloat16"
    # True: a scan over the layers, which compiles in a fraction of the time; False: a loop, whose steps are faster;
    # None: a loop on GPUs, else a scan
    scan_layers: bool | None = None
    # what the backward pass recomputes: none, minimal (all but matmuls and attention), full
    remat: Annotated[str, choice("none", "minimal", "full")] = "none"
    # einsum, memory_efficient, pallas (TPU, GPU); the last two store no scores; auto: the fastest
    attention: Annotated[str, choice(*ATTENTIONS)] = "auto"

    def __post_init__(self) -> None:
        kinds.check(self)
        if self.is_t5_encoder:
            object.__setattr__(self, "has_logits", False)
        require(
            self.num_relpos_buckets >= 4 and self.relpos_max_distance > self.num_relpos_buckets // 2,
            "ModelConfig.num_relpos_buckets",
            f"is {self.num_relpos_buckets}, and ModelConfig.relpos_max_distance {self.relpos_max_distance};"
            " give at least 4 buckets, and a distance above half of them.",
        )
        require(
            self.num_encoder_layers + self.num_decoder_layers > 0,
            "ModelConfig.num_decoder_layers",
            "is 0, and so is ModelConfig.num_encoder_layers; give layers to one of them.",
        )
        all_of("ModelConfig.mlp_activations", self.mlp_activations, ACTIVATIONS)
        require(
            len(self.mlp_activations) in (1, 2),
            "ModelConfig.mlp_activations",
            f"has {len(self.mlp_activations)} entries; give one, or two for a gated MLP.",
        )
        require(
            not (self.predicts_next and self.is_modernbert),
            "ModelConfig.local_attention",
            f"is {self.local_attention!r}, and attention_mask 'hybrid': a hybrid is also a language model, of Llama's"
            " layout; set local_attention to None.",
            ("ModelConfig.local_attention", None),
        )
        require(
            self.has_logits or self.attention_mask == "bidirectional" or self.is_t5_encoder,
            "ModelConfig.has_logits",
            "is False, which is for encoders, and ModelConfig.attention_mask is not 'bidirectional'; set it to True.",
            ("ModelConfig.has_logits", True),
        )
        if self.is_decoder_only:
            self._check_single_stack()
        else:
            self._check_encoder_decoder()

    def _check_encoder_decoder(self) -> None:
        """Refuses fields of a single stack, which the network of two stacks would not read."""
        for name in OF_ONE_STACK:
            value = getattr(self, name)
            default = ModelConfig.__dataclass_fields__[name].default
            require(
                value == default,
                f"ModelConfig.{name}",
                f"is {value!r}, and an encoder-decoder has {default!r}; set it to that, or"
                " ModelConfig.num_encoder_layers to 0.",
                (f"ModelConfig.{name}", default),
            )

    def _check_single_stack(self) -> None:
        """Refuses layouts of a decoder-only network or of an encoder that no class computes."""
        require(
            not self.relative_bias_per_layer,
            "ModelConfig.relative_bias_per_layer",
            "is True, which is for encoder-decoders, and ModelConfig.num_encoder_layers is 0; set it to False.",
            ("ModelConfig.relative_bias_per_layer", False),
        )
        all_of("ModelConfig.biases", self.biases, BIASED_PARTS)
        require(
            not (self.logits_via_embedding and "logits" in self.biases and not self.is_modernbert),
            "ModelConfig.biases",
            "holds 'logits', and ModelConfig.logits_via_embedding is True; a tied head has no bias: remove one of"
            " them.",
        )
        require(
            self.num_heads % self.kv_heads == 0,
            "ModelConfig.num_heads",
            f"is {self.num_heads}, which does not divide by ModelConfig.num_kv_heads {self.kv_heads}; give a multiple.",
            ("ModelConfig.num_kv_heads", largest_divisor(self.num_heads, self.kv_heads)),
        )
        require(
            self.positions != "rotary" or self.head_dim % 2 == 0,
            "ModelConfig.head_dim",
            f"is {self.head_dim}, and rotary positions rotate pairs; give an even number.",
        )
        require(
            not (self.is_encoder and self.is_t5_decoder),
            "ModelConfig.positions",
            "is 'relative', as in T5's decoder, which looks back only, and ModelConfig.attention_mask is"
            f" {self.attention_mask!r}; choose rotary.",
            ("ModelConfig.positions", "rotary"),
        )
        self._check_local_attention()
        require(
            self.is_modernbert or "head" not in self.biases,
            "ModelConfig.biases",
            "holds 'head', which a ModernBERT has, and ModelConfig.local_attention is None; remove it.",
        )

    def _check_local_attention(self) -> None:
        """Refuses ModernBERT's windows on a causal network, and windows that are not half on each side."""
        require(
            self.is_encoder or not self.is_modernbert,
            "ModelConfig.local_attention",
            f"is {self.local_attention}, which is for encoders, and ModelConfig.attention_mask is 'causal'; set it to"
            " None.",
            ("ModelConfig.local_attention", None),
        )
        width, every, base = self.local_attention or (2, 1, 10_000.0)
        require(
            width > 0 and width % 2 == 0 and every > 0 and base > 1,
            "ModelConfig.local_attention",
            f"is {self.local_attention}; give an even number of tokens, which are half on each side, a number of"
            " layers, and a base above 1, such as (128, 3, 10000.0).",
        )

    @property
    def residual_dtype(self) -> str:
        """The dtype of the sum over layers: T5's grows beyond float16."""
        return "float32" if self.dtype == "float16" else self.dtype

    @property
    def is_decoder_only(self) -> bool:
        return self.num_encoder_layers == 0

    @property
    def is_encoder(self) -> bool:
        """Whether it is an encoder alone: one stack, whose tokens see those before and after them."""
        return self.attention_mask != "causal"

    @property
    def exported(self) -> ModelConfig:
        """The network that is written for others: a hybrid's is the language model that it also is."""
        return dataclasses.replace(self, attention_mask="causal") if self.predicts_next else self

    @property
    def has_plain_head(self) -> bool:
        """Whether logits are states times a matrix, with nothing between or after."""
        return not self.is_modernbert and "logits" not in self.biases

    @property
    def is_modernbert(self) -> bool:
        """Whether the layout is ModernBERT's (Warner et al. 2024, arXiv:2412.13663)."""
        return self.local_attention is not None

    @property
    def predicts_next(self) -> bool:
        """Whether it is a hybrid: both an encoder and a language model."""
        return self.attention_mask == "hybrid"

    @property
    def is_t5_encoder(self) -> bool:
        """Whether it is the encoder of a T5 alone, which gives hidden states."""
        return self.num_decoder_layers == 0

    @property
    def is_t5_decoder(self) -> bool:
        """Whether it is T5X's decoder-only network, which computes as a T5's decoder does.

        Its scores are not divided by sqrt(C), its tied logits are divided by sqrt(D), and its output has dropout.
        """
        return self.is_decoder_only and self.positions == "relative"

    @property
    def tied_logits_scale(self) -> float:
        """The factor of tied logits: T5's embeddings start at variance 1, others at 1 / D."""
        return 1.0 if self.is_decoder_only and not self.is_t5_decoder else self.emb_dim**-0.5

    @property
    def kv_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads
