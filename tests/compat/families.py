"""Tiny models of each family as transformers makes, saves and tunes them: the same code in 4.57 and in 5, no Limba."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

T5 = {"vocab_size": 1024, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
GATED = {**T5, "feed_forward_proj": "gated-gelu"}
FAMILIES = {
    "t5_1_0": ("T5", {**T5, "feed_forward_proj": "relu"}),
    "t5_1_1": ("T5", GATED),
    "byt5": ("T5", {**GATED, "vocab_size": 384, "num_layers": 3, "num_decoder_layers": 1}),
    "mt5": ("MT5", GATED),
    "umt5": ("UMT5", GATED),
    "llama": (
        "Llama",
        {
            **{"vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
            **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
        },
    ),
    "gpt2": (
        "GPT2",
        {
            **{"vocab_size": 1024, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
            **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
        },
    ),
    "modernbert": (  # EuroBert came after 4.57
        "ModernBert",
        {
            **{"vocab_size": 1024, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4},
            **{"num_attention_heads": 4, "max_position_embeddings": 64, "local_attention": 2},
            **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 1},
        },
    ),
}
# Others: …ForConditionalGeneration.
CLASSES = {"Llama": "LlamaForCausalLM", "GPT2": "GPT2LMHeadModel", "ModernBert": "ModernBertForMaskedLM"}
HEADS = ("tied", "own")
INPUTS = np.random.default_rng(0).integers(2, 380, (2, 9))
TARGETS = np.random.default_rng(1).integers(2, 380, (2, 6))  # what the decoder reads
LABELS = np.random.default_rng(2).integers(2, 380, (2, 6))


def is_decoder_only(family: str) -> bool:
    return FAMILIES[family][0] in CLASSES


def made(family: str, head: str) -> transformers.PreTrainedModel:
    """Returns a model with random weights; `head` is tied, own, or `unscaled`: as tie_word_embeddings=False makes it.

    In version 5 that alone leaves a T5's output layer tied, so an own one is put there by hand.
    """
    prefix, fields = FAMILIES[family]
    torch.manual_seed(len(family) + len(head))
    config = getattr(transformers, f"{prefix}Config")(**fields, tie_word_embeddings=head == "tied")
    model = getattr(transformers, CLASSES.get(prefix, f"{prefix}ForConditionalGeneration"))(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            if "relative_attention_bias" in name:
                parameter.copy_(torch.randn_like(parameter))
    if head == "own":
        layer = model.get_output_embeddings()
        layer.weight = torch.nn.Parameter(0.3 * torch.randn_like(layer.weight))
    return model.eval()


def opened(folder: Path) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    if config.model_type == "modernbert":
        kind = transformers.AutoModelForMaskedLM
    model, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], (folder, report)
    return model.eval()


def given(model: transformers.PreTrainedModel) -> dict[str, torch.Tensor]:
    if model.config.is_encoder_decoder:
        return {"input_ids": torch.tensor(INPUTS), "decoder_input_ids": torch.tensor(TARGETS)}
    return {"input_ids": torch.tensor(TARGETS)}


def logits(model: transformers.PreTrainedModel) -> np.ndarray:
    with torch.no_grad():
        return model(**given(model)).logits.float().numpy()


def keep(model: transformers.PreTrainedModel, folder: Path) -> None:
    """Saves a model as users do, and what it computes beside it."""
    model.save_pretrained(folder)
    np.save(folder / "logits.npy", logits(model))


def tuned(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Returns the model after three steps of SGD, the embedding and the output layer included."""
    before = logits(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        out = model(**given(model)).logits
        torch.nn.functional.cross_entropy(out.flatten(0, 1), torch.tensor(LABELS).flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert np.abs(logits(model) - before).max() > 1e-2
    return model


def write(directory: Path, heads: tuple[str, ...] = HEADS) -> None:
    for family in FAMILIES:
        for head in heads:
            if head != "unscaled" or family in ("t5_1_1", "mt5"):
                keep(made(family, head), directory / f"{family}-{head}")


def call_plainly(model: transformers.PreTrainedModel, folder: Path) -> None:
    """Generates and computes a loss as the pages of transformers do, with all that the tokenizer gives."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "A text with a gap."
    if model.can_generate():
        deep = model.config.is_encoder_decoder and model.config.num_decoder_layers > model.config.num_layers
        made = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=4, use_cache=not deep)
        assert made.shape[0] == 1
    labels = tokenizer(text, return_tensors="pt").input_ids
    assert torch.isfinite(model(**tokenizer(text, return_tensors="pt"), labels=labels).loss)


def code_of(card: Path) -> str:
    """Returns the program that a model card shows."""
    return card.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]


def go_through(
    ours: Path, again: Path, tuning: Path, lines: list[str]
) -> tuple[dict[str, float], dict[str, list[str]]]:
    """Opens each of our folders, calls it plainly, saves it, tunes it.

    Returns the largest difference of its logits, and the new `lines` of the log when it was opened.
    """
    gaps = {}
    said = {}
    for folder in sorted(ours.iterdir()):
        lines.clear()
        model = opened(folder)
        said[folder.name] = list(lines)
        gaps[folder.name] = float(np.abs(logits(model) - np.load(folder / "logits.npy")).max())
        if folder.name.endswith("-own"):  # the tokenizer of the other is the same
            call_plainly(model, folder)
        keep(model, again / folder.name)
        keep(tuned(model), tuning / folder.name)
    return gaps, said
