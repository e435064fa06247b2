"""Metrics judge a model by what it was shown: a text longer than the model's lengths counts as far as it is read."""

import json
from pathlib import Path

import pytest

import tasks.ro_diacritics
import tasks.text_to_text
from limba.config import DataConfig
from limba.data import metrics
from limba.data.run_data import validation_examples
from limba.data.tasks import resolve_task

LENGTHS = {"inputs": 20, "targets": 24}
TEXT = "Știința și înțelepciunea țării noastre, așa cum știți, sînt făcute din învățături."


# With 2.5 bytes a token most segments are longer than the lengths, in bytes.
tasks.ro_diacritics.register("ro_long_segments", "ro", tasks.ro_diacritics.CORPUS, bytes_per_token=2.5)


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "texts.jsonl"
    pairs = [{"text": text, "inputs": text, "targets": text} for text in (TEXT, "Așa.")]
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return str(path)


def shown(task: str, corpus: str) -> list[dict]:
    config = DataConfig(task, LENGTHS, 8, "byte", data_files={"train": corpus, "validation": corpus}, num_data_shards=1)
    return validation_examples(resolve_task(config), LENGTHS, config, 10)


def test_one_text_is_judged_as_far_as_the_model_reads_it(corpus: str) -> None:
    examples = shown("ro_long_segments", corpus)
    cut = [example for example in examples if len(example["targets"]) == LENGTHS["targets"]]
    assert cut and len(cut) < len(examples)
    for row in examples:
        for name in LENGTHS:
            text = row[f"{name}_pretokenized"]
            read = bytes(number - 3 for number in row[name][:-1] if 3 <= number < 259)
            assert text.decode().encode() == read.decode(errors="ignore").encode()
            assert len(text) < LENGTHS[name]
    # So a model that restores all that it is shown has all of the words right.
    targets = [example["targets_pretokenized"].decode() for example in examples]
    assert metrics.diacritics("ro")(targets, targets)["word_accuracy"] == 100
    assert TEXT not in targets and "".join(targets).count("Știința") == 1


def test_a_reference_of_its_own_stays_whole(corpus: str) -> None:
    """A translation that is longer than the targets' length is the task, not a part of the input."""
    (whole, short) = shown("text_to_text", corpus)
    assert whole["targets_pretokenized"].decode() == TEXT and len(whole["targets"]) == LENGTHS["targets"]
    assert short["targets_pretokenized"].decode() == "Așa."
