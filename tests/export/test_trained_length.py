"""The longest text that a model was trained with goes with its export, and what reads the export cuts by it."""

import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from etils import epath

import tasks.demo  # noqa: F401  registers the task
from limba.cli import convert
from limba.config import DataConfig, ModelConfig, RunConfig, saved_config
from limba.formats.open import LIMBA, VocabularyName
from limba.inference.load import load
from limba.inference.source import Source, trained_length
from tests import published, tiny
from tests.export.runs import write_run

LONG = "a long text of many words, " * 60
SMALL = {"vocab_size": 1024, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_decoder_layers": 1}


def run_of(folder: Path, model: ModelConfig, lengths: dict[str, int], corpus: Path, vocabulary: Path, **data) -> Path:
    """A run with random parameters, and its export in huggingface/step_5."""
    write_run(folder, model)
    data_config = DataConfig(
        "demo_span_corruption",
        lengths,
        8,
        str(vocabulary),
        data_files=str(corpus),
        task_modules=("tasks.demo",),
        **data,
    )
    config = RunConfig(model, data_config, str(folder), train_steps=10)
    (folder / saved_config.FILE).write_text(saved_config.to_text(config))
    convert.run(["export", str(folder)])
    return folder / "huggingface" / "step_5"


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


@pytest.mark.slow
def test_an_encoders_vectors_of_a_long_text_are_those_of_its_run(tmp_path, corpus, vocabulary, caplog) -> None:
    model = tiny.language_model(**SMALL, attention_mask="bidirectional", max_length=8192)
    folder = run_of(tmp_path / "run", model, {"targets": 48}, corpus, vocabulary, objective="masked_lm")
    assert read(folder, "config.json")["max_position_embeddings"] == 48
    assert transformers.AutoTokenizer.from_pretrained(folder).model_max_length == 48
    of_run = load(tmp_path / "run")
    of_folder = load(folder)
    assert len(of_folder.tokenize(LONG)) == len(of_run.tokenize(LONG)) == 48
    vectors = of_run.encode([LONG, "a word"])
    np.testing.assert_allclose(of_folder.encode([LONG, "a word"]), vectors, atol=1e-5)
    of_folder.encode([LONG])
    said = [record.getMessage() for record in caplog.records if "is not read" in record.getMessage()]
    assert len(said) == 2, "once by each model"
    assert "1 of 2 texts are longer than the 48 tokens that the model was trained with" in said[0]
    again = tmp_path / "again"
    of_folder.save(again)
    assert read(again, "config.json")["max_position_embeddings"] == 48
    assert read(again, "tokenizer_config.json")["model_max_length"] == 48


@pytest.mark.slow
def test_a_t5s_inputs_are_cut_as_in_its_run(tmp_path, corpus, vocabulary) -> None:
    folder = run_of(
        tmp_path / "run",
        tiny.model(**SMALL, num_encoder_layers=1),
        {"inputs": 40},
        corpus,
        vocabulary,
    )
    assert read(folder, "tokenizer_config.json")["model_max_length"] == 40
    of_run = load(tmp_path / "run")
    of_folder = load(folder)
    assert of_folder.tokenize(LONG).tolist() == of_run.tokenize(LONG).tolist()
    np.testing.assert_allclose(of_folder.encode([LONG]), of_run.encode([LONG]), atol=1e-5)


def test_a_model_that_continues_on_shorter_rows_still_reads_what_it_has_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    published.generic("roberta").save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "eurobert", "vocab_size": 512}')
    model = tiny.language_model(**SMALL, attention_mask="bidirectional", max_length=128)

    def length_of(rows: int, initial: Path | None) -> int | None:
        data = DataConfig("t5_mlm", {"targets": rows}, 8, str(folder), objective="masked_lm")
        run = RunConfig(model, data, str(tmp_path / "run"), 10, initial_checkpoint_path=initial and str(initial))
        return trained_length(
            Source(
                "run",
                epath.Path(tmp_path / "run"),
                {},
                LIMBA,
                model=model,
                run=run,
                vocabulary=VocabularyName(str(folder)),
            )
        )

    assert length_of(48, folder) == 128
    assert length_of(256, folder) == 256
    assert length_of(48, None) == 48, "only the tokenizer is another model's"


@pytest.mark.slow
def test_a_score_of_a_cut_target_is_of_the_bytes_that_were_read(tmp_path, vocabulary, caplog) -> None:
    write_run(tmp_path / "run", tiny.model(**SMALL, num_encoder_layers=1))
    model = load(tmp_path / "run", vocabulary=str(vocabulary))
    short = LONG[: len(LONG) // 6]
    one, many = (model.score([("a", text)])[0] for text in (short, LONG * 4))
    assert many.tokens == 512 and abs(many.bits_per_byte / one.bits_per_byte - 1) < 0.2
    assert "1 of 1 targets are longer than the 512 tokens that the model reads" in caplog.text


@pytest.mark.parametrize("attention_mask", ["bidirectional", "causal"])
def test_a_folder_without_a_tokenizer_opens_when_it_is_saved_again(attention_mask, tmp_path) -> None:
    write_run(tmp_path / "run", tiny.language_model(attention_mask=attention_mask, vocab_size=512))
    load(tmp_path / "run").save(tmp_path / "first")
    load(tmp_path / "first").save(tmp_path / "second")
    assert "mask_token_id" not in read(tmp_path / "second", "config.json")
    kind = transformers.AutoModelForCausalLM if attention_mask == "causal" else transformers.AutoModelForMaskedLM
    assert kind.from_pretrained(tmp_path / "second").config.vocab_size == 512
