"""Hidden words of validation text: hits of the model and of the commonest words, and the samples of a run."""

import dataclasses
import importlib
import json
from collections import Counter
from pathlib import Path

import pytest

from limba.cli import evaluate
from limba.cli.gin import read_gin
from limba.config import ConfigError, RunConfig
from limba.data.tasks import resolve_task
from limba.evaluation import hidden_words
from limba.inference.gap_pieces import Fill
from limba.inference.load import TrainedModel, load
from limba.inference.source import find
from tests import tiny
from tests.export.runs import write_run

SIZES = {"vocab_size": 4096, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 64, "num_encoder_layers": 1}


@pytest.fixture
def run(corpus: Path, vocabulary: Path, tmp_path: Path) -> RunConfig:
    model = dataclasses.replace(tiny.model(), **SIZES)
    write_run(tmp_path / "run", model)
    names = {"MODEL_DIR": str(tmp_path / "run"), "CORPUS": str(corpus), "VOCABULARY": str(vocabulary)}
    return dataclasses.replace(read_gin("gin/demo.gin", **names), model=model)


def test_hits_are_counted_beside_the_commonest_words(
    run: RunConfig, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = find(run.model_dir, run)
    trained = load(source, step=max(source.steps), config=run)
    asked: list[str] = []

    def fills(self: TrainedModel, texts: list[str], top: int) -> list[list[list[Fill]]]:
        """Every second gap is right, in the last of five places."""
        asked.extend(texts)
        hidden = hidden_words.Texts.of_task(resolve_task(run.data)).sentences("validation", 10, 10)
        assert [sentence.masked for sentence in hidden] == texts and top == 5
        wrong = [Fill(f"no{number}", 0.1, ()) for number in range(4)]
        return [[[*wrong, Fill(sentence.words[0], 0.1, ())], [*wrong, Fill("no4", 0.1, ())]] for sentence in hidden]

    monkeypatch.setattr(TrainedModel, "fill", fills)
    hits = hidden_words.of_split(trained, "validation", 20)
    assert hits is not None and hits.gaps == 20 and hits.of_model == 10 and len(asked) == 10
    texts = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    counts = Counter(match[0] for text in texts for match in hidden_words.WORD.finditer(text))
    assert set(hits.commonest) == {word for word, _ in counts.most_common(5)}
    hidden = hidden_words.Texts.of_task(resolve_task(run.data)).sentences("validation", 10, 10)
    assert hits.of_commonest == sum(word in hits.commonest for sentence in hidden for word in sentence.words) > 0


def test_a_pair_s_task_and_a_language_model_have_no_gaps(run: RunConfig) -> None:
    importlib.import_module("tasks.ro_diacritics")
    data = dataclasses.replace(
        run.data, mixture_or_task_name="fr_capitals_bytes", vocabulary="byte", task_modules=("tasks.ro_diacritics",)
    )
    pairs = dataclasses.replace(run, data=data)
    assert hidden_words.fills_gaps(run, resolve_task(run.data))
    assert not hidden_words.fills_gaps(pairs, resolve_task(data))
    assert not hidden_words.fills_gaps(
        dataclasses.replace(
            run, model=tiny.LANGUAGE_MODEL, data=dataclasses.replace(run.data, task_feature_lengths={"targets": 64})
        ),
        resolve_task(run.data),
    )
    asks = dataclasses.replace(pairs, evaluation=dataclasses.replace(run.evaluation, num_sentences=2))
    with pytest.raises(
        ConfigError, match=r"EvaluationConfig.num_sentences is 2, and a run of fr_capitals_bytes .* set it"
    ):
        hidden_words.sentences(asks, resolve_task(data))


def test_rows_of_an_evaluation_stand_beside_what_they_have_to_beat() -> None:
    hits = hidden_words.Hits(200, 76, 44, ("the", "a", "of", "is", "to"))
    figures = {
        "loss": 3.5,
        "accuracy": 0.4,
        "perplexity": 33.1,
        "bits_per_byte": 2.1,
        "right_words": 96.4,
        "seconds": 1.0,
    }
    assert list(evaluate._rows(figures, {"right_words": 92.2}, hits)) == [
        "loss 3.5000 | token accuracy 40.0% | perplexity 33.10 | 2.100 bits per byte",
        "right_words 96.40 (the input, copied: 92.20)",
        "the hidden word is among its five likeliest in 38.0% of 200 gaps",
        "  and among the five commonest words (the, a, of, is, to) in 22.0%",
    ]
