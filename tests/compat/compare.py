"""Compares what `write.py` wrote in transformers 4.57.6, without Limba: logits, greedy text, token ids, keys."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch


def _clip(x, min=None, max=None, *, a_min=None, a_max=None):
    return clip(x, a_min if min is None else min, a_max if max is None else max)


clip = jnp.clip
jnp.clip = _clip  # 4.57's Flax classes give a_min and a_max, which jax has no longer
import transformers  # noqa: E402

LIMIT = 2e-5  # of the largest logit, where that is above 1

warnings.simplefilter("ignore")
transformers.logging.set_verbosity_error()


def difference(logits: np.ndarray, expected: dict[str, np.ndarray]) -> float:
    real = expected["decoder_target_tokens"] > 0
    ours = expected["logits"][real]
    return float(np.abs(np.asarray(logits)[real] - ours).max() / max(1.0, np.abs(ours).max()))


def in_pytorch(folder: Path, expected: dict[str, np.ndarray]) -> list[str]:
    """Returns what is wrong, after a line of figures."""
    model, loading = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    model.eval()
    inputs = torch.tensor(expected["encoder_input_tokens"], dtype=torch.long)
    mask = (inputs > 0).long()
    shifted = torch.tensor(expected["decoder_input_tokens"], dtype=torch.long)
    rows, length = expected["tokens"].shape
    with torch.no_grad():
        logits = model(input_ids=inputs, attention_mask=mask, decoder_input_ids=shifted).logits.numpy()
        use_cache = model.config.num_decoder_layers <= model.config.num_layers  # 4.57's cache has the encoder's length
        choices = {"max_new_tokens": length, "do_sample": False, "use_cache": use_cache}
        tokens = model.generate(inputs[:rows], attention_mask=mask[:rows], **choices)
    tokens = tokens[:, 1:].numpy()
    tokens = np.pad(tokens, ((0, 0), (0, length - tokens.shape[1])))
    figure = difference(logits, expected)
    print(f"  PyTorch: {type(model).__name__}, logits differ by {figure:.1e}")
    wrong = [f"{kind}: {loading[kind]}" for kind in ("missing_keys", "unexpected_keys") if loading[kind]]
    wrong += ["greedy text"] if (tokens != expected["tokens"]).any() else []
    return wrong + ([] if figure <= LIMIT else ["PyTorch's logits"])


def in_flax(folder: Path, expected: dict[str, np.ndarray]) -> list[str]:
    if transformers.AutoConfig.from_pretrained(folder).model_type == "umt5":
        print("  Flax: no class for umT5")
        return []
    model = transformers.FlaxAutoModelForSeq2SeqLM.from_pretrained(folder)
    inputs = expected["encoder_input_tokens"]
    logits = model(inputs, attention_mask=inputs > 0, decoder_input_ids=expected["decoder_input_tokens"]).logits
    figure = difference(logits, expected)
    print(f"  Flax: {type(model).__name__}, logits differ by {figure:.1e}")
    return [] if figure <= LIMIT else ["Flax's logits"]


def tokenizing(folder: Path, expected: dict[str, np.ndarray]) -> list[str]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = {name.removeprefix("ids/"): ids.tolist() for name, ids in expected.items() if name.startswith("ids/")}
    wrong = [f"token ids of {text!r}" for text, ids in texts.items() if tokenizer(text).input_ids != ids]
    print(f"  {type(tokenizer).__name__}: {len(texts) - len(wrong)} of {len(texts)} texts give our ids")
    return wrong


def main(directory: Path) -> int:
    failures = 0
    print(f"transformers {transformers.__version__}, limit {LIMIT:.0e}")
    for path in sorted(directory.glob("*/expected.npz")):
        print(path.parent.name)
        with np.load(path) as arrays:
            expected = {name: arrays[name] for name in arrays.files}
        folder = path.parent / "out" / "step_5"
        for check in (in_pytorch, in_flax, tokenizing):
            for wrong in check(folder, expected):
                print(f"  FAILED: {wrong}")
                failures += 1
    print("all equal" if not failures else f"{failures} FAILED")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
