"""Words that are hidden in validation text: what a model writes in their place, beside the commonest words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from limba.config import RunConfig, require
from limba.data.objectives.supervised import is_supervised
from limba.data.sources.units import UnitSource
from limba.data.tasks import Provider, parts_of
from limba.data.vocabulary.sentences import WORD, Hidden
from limba.data.vocabulary.sentinels import num_sentinels
from limba.data.vocabulary.text_sample import Texts
from limba.inference.gap_filling import with_sentinels
from limba.inference.load import TrainedModel

NUM_GUESSES = 5  # words that the model may name for a gap, and that the baseline, the commonest words, consists of
MOST_SENTENCES = 10  # of one document, so that few documents are enough and no document decides the figure
COUNTED_LETTERS = 2_000_000  # of the training text, in which the commonest words are counted


class Hits(NamedTuple):
    """The number of gaps whose hidden word is among NUM_GUESSES: the model's, or the training text's commonest words.

    The commonest words are the baseline: they hit about a fifth of the gaps of English without any model.
    """

    gaps: int
    of_model: int
    of_commonest: int
    commonest: tuple[str, ...]


def sentences(config: RunConfig, task: Provider) -> list[Hidden]:
    """Returns the sentences of the validation text that a run fills at each evaluation, two words of each hidden.

    ConfigError for a task or a network that fills no gaps.
    """
    num_sentences = config.evaluation.num_sentences
    if not num_sentences:
        return []
    require(
        fills_gaps(config, task),
        "EvaluationConfig.num_sentences",
        f"is {num_sentences}, and a run of {config.data.mixture_or_task_name} with this network fills no gaps of its"
        " text; set it to 0.",
        ("EvaluationConfig.num_sentences", 0),
    )
    return Texts.of_task(parts_of(task)[0]).sentences(config.data.validation_split, num_sentences)


def fills_gaps(config: RunConfig, task: Provider) -> bool:
    """Returns whether a model that learned the task fills gaps: an encoder, or a T5 with sentinels, of plain texts."""
    part = parts_of(task)[0]
    if is_supervised(part) or not isinstance(part.source, UnitSource):
        return False
    if config.model.is_encoder:
        return True
    return not config.model.is_decoder_only and num_sentinels(task.output_features["targets"].vocabulary) > 0


def commonest_words(texts: Iterable[str], num: int) -> tuple[str, ...]:
    """Returns the commonest words of the texts, up to COUNTED_LETTERS of them.

    >>> commonest_words(["the cat and the dog", "the cat"], 2)
    ('the', 'cat')
    """
    counts: Counter[str] = Counter()
    letters = 0
    for text in texts:
        counts.update(match[0] for match in WORD.finditer(text))
        letters += len(text)
        if letters > COUNTED_LETTERS:
            break
    return tuple(word for word, _ in counts.most_common(num))


def of_split(trained: TrainedModel, split: str, num_gaps: int) -> Hits | None:
    """Returns how often a run's model finds hidden words of a split; None without gaps, or fitting sentences.

    Two words are hidden in each of `num_gaps` / 2 sentences.
    """
    config = trained.source.run
    task = trained.task
    assert config is not None and task is not None, "only a run has a task"
    if not fills_gaps(config, task):
        return None
    texts = Texts.of_task(parts_of(task)[0])
    num_sentences = -(-num_gaps // 2)
    sentences_of_split = texts.sentences(split, num_sentences, MOST_SENTENCES)
    # A text that is longer than the model reads cannot be filled.
    hidden = [sentence for sentence in sentences_of_split if not trained.num_cut(with_sentinels(sentence.masked), "")]
    if not hidden:
        return None
    commonest = commonest_words(texts.source.texts(config.data.train_split), NUM_GUESSES)
    fills_of_sentences = trained.fill([sentence.masked for sentence in hidden], NUM_GUESSES)
    num_hidden = 0
    of_model = 0
    of_commonest = 0
    for sentence, fills_of_gaps in zip(hidden, fills_of_sentences, strict=True):
        for word, fills in zip(sentence.words, fills_of_gaps, strict=True):
            num_hidden += 1
            of_model += word in [fill.text for fill in fills]
            of_commonest += word in commonest
    return Hits(num_hidden, of_model, of_commonest, commonest)
