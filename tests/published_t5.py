"""A folder as google-t5/t5-small is published: its config.json, its names and its copies, with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

# The keys of that config.json, some of which transformers has not known for years.
CONFIG = {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {
        "summarization": {"early_stopping": True, "max_length": 200, "num_beams": 4, "prefix": "summarize: "},
        "translation_en_to_de": {"early_stopping": True, "max_length": 300, "num_beams": 4, "prefix": "translate "},
    },
    "vocab_size": 32128,
}
# A weight of the published files that no network has (transformers#8933).
LEFT_OVER = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
SMALL = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_heads": 2, "num_layers": 1, "vocab_size": 1024}


def write(folder: Path, vocabulary: Path | None = None, **sizes: int) -> torch.nn.Module:
    """Writes the folder, with a SentencePiece model if one is given; returns transformers' model of it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **sizes}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    torch.manual_seed(0)
    made = transformers.T5ForConditionalGeneration(transformers.T5Config.from_dict(dict(config))).eval()
    state = {name: value.clone().contiguous() for name, value in made.state_dict().items()}
    copies = {f"{side}.embed_tokens.weight" for side in ("encoder", "decoder")} | {"lm_head.weight"}
    assert copies < set(state)  # the embedding is there four times
    state[LEFT_OVER] = torch.randn(CONFIG["relative_attention_num_buckets"], config["num_heads"])
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    if vocabulary is not None:
        (folder / "spiece.model").write_bytes(vocabulary.read_bytes())
    return made
