"""Fills the gaps of texts with a converted folder, using only transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from limba.export.proof import load_in_transformers
from limba.inference import gaps


def fill(folder: Path, texts: Sequence[str], pieces: gaps.Pieces) -> list[list[list[gaps.Fill]]]:
    """Returns the fills of each text's gaps <extra_id_0> and so on, by transformers' network and tokenizer.

    `pieces` are those of the model's vocabulary; see `gaps.fills`.
    """
    import torch
    import transformers

    model, _ = load_in_transformers(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")

        def next_logits(
            beginnings: Sequence[Sequence[int]], inputs: transformers.BatchEncoding = inputs
        ) -> Float[np.ndarray, "R V"]:
            count = len(beginnings)
            with torch.no_grad():
                logits = model(
                    input_ids=inputs.input_ids.expand(count, -1),
                    attention_mask=inputs.attention_mask.expand(count, -1),
                    decoder_input_ids=torch.tensor([list(each) for each in beginnings]),
                ).logits
            return logits[:, -1].float().numpy()

        found.append(gaps.fills(text, next_logits, pieces))
    return found
