"""An exported encoder that transformers has fine-tuned to give labels, opened in Limba again: for vectors."""

import dataclasses
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert
from limba.config import ConfigError, InputError
from limba.inference.load import load
from limba.training.checkpoints.initial import check_initial
from tests import tiny
from tests.export.runs import folder_of, write_run

TEXTS = ["One text.", "Another text, a longer one."]
SIZES = {"vocab_size": 1024, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64}


def fine_tuned(folder: Path, out: Path, auto: str) -> Path:
    """The folder as one with three labels, whose training transformers has begun; its tokenizer is beside it."""
    torch.manual_seed(0)
    model = getattr(transformers, auto).from_pretrained(folder, num_labels=3)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS[1], return_tensors="pt").input_ids
    labels = torch.zeros(ids.shape if "Token" in auto else 1, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(ids, labels=labels).loss.backward()
    optimizer.step()
    model.save_pretrained(out)
    for file in folder.glob("*token*"):
        shutil.copyfile(file, out / file.name)
    return out


@pytest.mark.parametrize(
    "kind", ["EuroBERT, texts", pytest.param("ModernBERT, tokens", marks=pytest.mark.night), "T5, tokens"]
)
@pytest.mark.slow
def test_vectors_are_those_of_the_encoder_and_nothing_else_is_offered(
    kind: str, tmp_path: Path, vocabulary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    auto = f"AutoModelFor{'Sequence' if 'texts' in kind else 'Token'}Classification"
    if kind == "T5, tokens":
        write_run(tmp_path / "run", tiny.model(**SIZES))
        convert.run([str(tmp_path / "run"), f"--vocabulary={vocabulary}", "--encoder_only", "--no_check"])
        exported = tmp_path / "run/encoder/step_5"
    else:
        config = tiny.ENCODER if kind == "EuroBERT, texts" else tiny.MODERN
        exported = folder_of(dataclasses.replace(config, vocab_size=1024), vocabulary, tmp_path / "exported")
    folder = fine_tuned(exported, tmp_path / "tuned", auto)

    with caplog.at_level(logging.WARNING):
        model = load(folder)
    said = [record.getMessage() for record in caplog.records if "stands on top of it" in record.getMessage()]
    assert len(said) == 1 and "classifier" in said[0]
    network = getattr(transformers, auto).from_pretrained(folder).base_model.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    vectors = model.encode(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        with torch.no_grad():
            states = network(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=2e-5)
    assert np.abs(vectors - load(exported).encode(TEXTS)).max() > 1e-4  # it has learned

    for use in (lambda: model.fill("A <mask>"), lambda: model.generate(TEXTS), lambda: model.score([("", "A text")])):
        with pytest.raises(InputError, match="is an encoder, which .* no text; call `encode` for vectors"):
            use()
    with pytest.raises(ConfigError, match="an encoder without an output layer for the vocabulary"):
        check_initial(str(folder))
