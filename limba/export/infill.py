"""Fills the gaps of texts with a converted folder, using only transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from limba.data.vocabulary.load import NUM_SENTINELS
from limba.export.proof import load_in_transformers
from limba.inference.infill import join_infill


def fill(folder: Path, texts: Sequence[str], num_tokens: int) -> list[str]:
    """Returns the texts, whose gaps are <extra_id_0> and so on, with the gaps [as the model fills them], greedily."""
    import torch
    import transformers

    model, _ = load_in_transformers(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentinels = np.array(tokenizer.convert_tokens_to_ids([f"<extra_id_{i}>" for i in range(NUM_SENTINELS)]))
    filled = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            tokens = model.generate(**inputs, max_new_tokens=num_tokens, do_sample=False, num_beams=1)
        ids, written = inputs.input_ids[0].numpy(), tokens[0, 1:].numpy()
        filled.append(join_infill(ids, written, sentinels, tokenizer, tokenizer.eos_token_id))
    return filled
