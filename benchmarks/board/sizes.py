"""The sizes of the board's models: all of them follow from one number, the depth."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from limba.config import InputError

if TYPE_CHECKING:
    from limba.config import ModelConfig

HEAD_DIM = 64  # T5's own
WIDTH_OF_A_LAYER = 64  # model width for each layer of a stack
MLP_TIMES = 2  # MLP width / model width, as in T5 1.1 small
ROWS = 32  # of a batch at REFERENCE_DEPTH
ROWS_MULTIPLE = 8
INPUTS = 128  # tokens of a row's inputs; span corruption reads 145 tokens of text for them and gives 31 targets
VOCABULARY = 4_096  # ids, with 100 sentinels
REFERENCE_DEPTH = 2  # at which recipes name their learning rates


@dataclass(frozen=True)
class Size:
    """A T5 1.1 of `depth` layers in each of its two stacks.

    >>> size_of(2).width, size_of(2).rows, size_of(4).width, size_of(4).rows
    (128, 32, 256, 48)
    """

    depth: int

    @property
    def width(self) -> int:
        """The width of the model."""
        return WIDTH_OF_A_LAYER * self.depth

    @property
    def rows(self) -> int:
        """The rows of a batch, which grow as the root of the depth."""
        return ROWS_MULTIPLE * round(ROWS / ROWS_MULTIPLE * math.sqrt(self.depth / REFERENCE_DEPTH))

    def rate(self, reference: float, exponent: float) -> float:
        """Returns the learning rate of this size for a recipe's rate at REFERENCE_DEPTH: x (REFERENCE_DEPTH / depth)^e.

        The exponent is 1 for rules whose updates have one size whatever the parameter's (Adam: Yang et al. 2022,
        arXiv:2203.03466, table 8), and 0 for updates relative to the parameter.

        >>> size_of(4).rate(0.01, 1.0), size_of(4).rate(0.01, 0.0)
        (0.005, 0.01)
        """
        return reference * (REFERENCE_DEPTH / self.depth) ** exponent

    def model(self) -> ModelConfig:
        """Returns the network's configuration."""
        from limba.config import ModelConfig

        return ModelConfig(
            vocab_size=VOCABULARY,
            emb_dim=self.width,
            num_heads=self.width // HEAD_DIM,
            head_dim=HEAD_DIM,
            mlp_dim=MLP_TIMES * self.width,
            num_encoder_layers=self.depth,
            num_decoder_layers=self.depth,
            dropout_rate=0.0,
            dtype="float32",
            scan_layers=False,
        )

    def encoder(self, attention_mask: str) -> ModelConfig:
        """Returns the configuration of an encoder with the layers of both stacks, in EuroBERT's layout."""
        return dataclasses.replace(
            self.model(), num_encoder_layers=0, num_decoder_layers=2 * self.depth, attention_mask=attention_mask,
            mlp_activations=("silu", "linear"), positions="rotary", layer_norm_epsilon=1e-5,
        )  # fmt: skip


def size_of(depth: float) -> Size:
    """Returns the size; InputError for a depth that gives no whole layers and heads.

    >>> size_of(4.0).depth
    4
    """
    heads = WIDTH_OF_A_LAYER * depth / HEAD_DIM
    if not (math.isfinite(depth) and depth >= 1 and heads == int(heads) and depth == int(depth)):
        raise InputError(
            f"--depth is {depth:g}, which gives {heads:g} heads of {HEAD_DIM} and as many layers; give a whole number"
            " from 1 on."
        )
    return Size(int(depth))
