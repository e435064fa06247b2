"""Encoders of sentences: trained on pairs, exported for sentence-transformers, whose vectors are Limba's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from limba.cli import convert, flags
from limba.inference.load import load
from limba.run import train
from tests.run.test_finetune_encoder import arguments, sentences
from tests.run.test_finetune_encoder import encoder as encoder


@pytest.mark.slow
def test_pairs_are_found_and_the_folder_gives_the_same_vectors(tmp_path: Path, encoder: Path, vocabulary: Path) -> None:
    config = flags.parse_args(arguments(tmp_path, encoder, vocabulary, "vectors", "--gin.TEMPERATURE=0.1")).config
    figures = train(config)["validation"]
    assert figures["accuracy"] > 0.6 and figures["target_tokens"] == 16
    convert.run([config.model_dir])
    (folder,) = Path(config.model_dir, "huggingface").glob("step_*")
    assert "SentenceTransformer" in (folder / "README.md").read_text()
    modules = json.loads((folder / "modules.json").read_text())
    assert [each["path"] for each in modules] == ["", "1_Pooling"]
    pooling = json.loads((folder / "1_Pooling/config.json").read_text())
    assert pooling == {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    said = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert said["similarity_fn_name"] == "cosine"
    texts = [" ".join(words) for words, _ in sentences(5, 7)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        states, mask = model(**inputs).last_hidden_state, inputs.attention_mask[..., None]
    expected = ((states * mask).sum(1) / mask.sum(1)).numpy()
    for place in (config.model_dir, folder):
        np.testing.assert_allclose(load(place).encode(texts), expected, atol=1e-5)
