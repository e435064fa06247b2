"""Metric functions for seqio tasks: from (targets, predictions), both lists of texts, to {name: value}.

Percentages run from 0 to 100. BLEU, chrF and chrF2++ are sacrebleu's (Post 2018, arXiv:1804.08771; Popović 2017,
W17-4770), ROUGE is rouge-score's, word and character error rates are jiwer's. What a word is, in any script, says
`limba/data/words.py`.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence

from limba.config import ConfigError, extras
from limba.data import words

Figures = dict[str, float]
Texts = Sequence[str]
Metric = Callable[[Texts, Texts], Figures]


def bleu(targets: Texts, predictions: Texts, tokenizer: str | None = None, languages: Sequence[str] = ()) -> Figures:
    """Corpus BLEU by one of sacrebleu's tokenizers, which the figure's name has: `bleu` by 13a, else `bleu-char`.

    Without `tokenizer` it is the one for the script and the `languages` of the targets (`words.bleu_tokenizer`), so it
    never depends on what is installed. Raises ConfigError for a tokenizer whose packages are missing.

    >>> round(bleu(["the cat sat on the mat"], ["the cat sat on a mat"])["bleu"], 1)
    53.7
    """
    import sacrebleu

    name = tokenizer or words.bleu_tokenizer(targets, languages)
    try:
        figure = sacrebleu.corpus_bleu(list(predictions), [list(targets)], tokenize=name)
    except (RuntimeError, ImportError):
        extra = name.partition("-")[0]
        raise ConfigError(
            "EvaluationConfig.bleu_tokenizer",
            f"is {name!r}, whose packages are not installed; run pip install 'sacrebleu[{extra}]', or choose another"
            " one.",
        ) from None
    return {"bleu" if name == words.USUAL_TOKENIZER else f"bleu-{name}": figure.score}


def chosen(metric: Metric, tokenizer: str | None, languages: Sequence[str]) -> Metric:
    """Returns a task's metric with a run's choices for BLEU, unless the task has made its own."""
    if metric is bleu:
        return functools.partial(bleu, tokenizer=tokenizer, languages=languages)
    return metric


def chrf(targets: Texts, predictions: Texts) -> Figures:
    """chrF2 (characters up to 6-grams) and chrF2++ (words up to 2-grams too), the metrics of FLORES.

    >>> {name: round(figure, 1) for name, figure in chrf(["the cat sat"], ["the cat sits"]).items()}
    {'chrf': 66.6, 'chrf++': 64.6}
    """
    import sacrebleu

    predictions = list(predictions)
    references = [list(targets)]
    return {
        "chrf": sacrebleu.corpus_chrf(predictions, references).score,
        "chrf++": sacrebleu.corpus_chrf(predictions, references, word_order=2).score,
    }


def rouge(targets: Texts, predictions: Texts) -> Figures:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-Lsum, which needs a newline between sentences. No stemming.

    Words come from `words.words_of`, in any script; rouge-score's own tokenizer only knows a-z.
    """
    with extras.needed_by("The metric ROUGE"):
        from rouge_score import rouge_scorer

    kinds = ["rouge1", "rouge2", "rougeLsum"]
    scorer = rouge_scorer.RougeScorer(kinds, tokenizer=_Words())
    scores = [scorer.score(target, prediction) for target, prediction in zip(targets, predictions, strict=True)]
    return {kind: 100 * _mean([score[kind].fmeasure for score in scores]) for kind in kinds}


class _Words:
    def tokenize(self, text: str) -> list[str]:
        return words.words_of(text.lower())


def exact_match(targets: Texts, predictions: Texts) -> Figures:
    """Share of predictions that equal the target, without the spaces around both.

    >>> exact_match(["da", "nu"], ["da ", "poate"])
    {'exact_match': 50.0}
    """
    return {"exact_match": 100 * _mean([t.strip() == p.strip() for t, p in zip(targets, predictions, strict=True)])}


def accuracy(targets: Texts, predictions: Texts) -> Figures:
    """Share of right classes, and F1 averaged over the targets' classes (macro).

    >>> accuracy(["da", "nu"], ["da", "da"])
    {'accuracy': 50.0, 'macro_f1': 33.33333333333333}
    """
    targets = [t.strip() for t in targets]
    predictions = [p.strip() for p in predictions]
    scores = []
    for label in sorted(set(targets)):
        is_target = [t == label for t in targets]
        is_predicted = [p == label for p in predictions]
        hits = sum(t and p for t, p in zip(is_target, is_predicted, strict=True))
        scores.append(2 * hits / (sum(is_target) + sum(is_predicted)))
    equal = [t == p for t, p in zip(targets, predictions, strict=True)]
    return {"accuracy": 100 * _mean(equal), "macro_f1": 100 * _mean(scores)}


def word_f1(targets: Texts, predictions: Texts) -> Figures:
    """F1 of words without regard to order, case and punctuation, as in SQuAD; of other scripts as in MLQA.

    >>> round(word_f1(["a b c d"], ["D, c!"])["word_f1"], 1)
    66.7
    """
    scores = []
    for target, prediction in zip(targets, predictions, strict=True):
        wanted = collections.Counter(words.bare_words_of(target.lower()))
        written = collections.Counter(words.bare_words_of(prediction.lower()))
        num_equal = (wanted & written).total()
        total = wanted.total() + written.total()
        scores.append(2 * num_equal / total if total else 1.0)
    return {"word_f1": 100 * _mean(scores)}


def error_rates(targets: Texts, predictions: Texts) -> Figures:
    """Words and characters to change, delete or insert, as a share of the targets'; it may be above 100.

    Words are what stands between spaces; in scripts that write none, each character is one.

    >>> rates = error_rates(["the cat sat on the mat"], ["the cat sat on a mat"])
    >>> {name: round(rate, 1) for name, rate in rates.items()}
    {'word_error_rate': 16.7, 'character_error_rate': 13.6}
    """
    import jiwer

    targets, predictions = _with_targets(targets, predictions)
    if not targets:
        return {"word_error_rate": 0.0, "character_error_rate": 0.0}
    spaced_targets = [words.with_spaces(text) for text in targets]
    spaced_predictions = [words.with_spaces(text) for text in predictions]
    return {
        "word_error_rate": 100 * jiwer.process_words(spaced_targets, spaced_predictions).wer,
        "character_error_rate": 100 * jiwer.process_characters(targets, predictions).cer,
    }


def diacritics(language: str) -> Metric:
    """Returns the metric function of a task that restores a language's diacritics.

    `word_accuracy` is the share of the targets' words that the prediction has, in order. `other_changes` is the share
    of characters that differ after both texts are stripped of diacritics. `letter/ș` and so on is how often the
    prediction has a letter of the target, for letters with diacritics and those that could have one.

    >>> figures = diacritics("ro")(["știu că"], ["știu ca"])
    >>> figures["word_accuracy"], figures["letter/ș"], figures["letter/ă"]
    (50.0, 100.0, 0.0)
    """
    return functools.partial(_diacritics, language)


def _diacritics(language: str, targets: Texts, predictions: Texts) -> Figures:
    import jiwer

    from limba.data.objectives import diacritics as letters

    plain = letters.table(language)
    targets, predictions = _with_targets(targets, predictions)
    if not targets:
        return {"word_accuracy": 0.0, "sentence_accuracy": 0.0, "other_changes": 0.0}
    aligned = jiwer.process_words(targets, predictions)
    num_words = aligned.hits + aligned.substitutions + aligned.deletions
    changes = jiwer.process_characters([t.translate(plain) for t in targets], [p.translate(plain) for p in predictions])
    num_changes = changes.substitutions + changes.deletions + changes.insertions
    return {
        "word_accuracy": 100 * aligned.hits / num_words,
        "sentence_accuracy": exact_match(targets, predictions)["exact_match"],
        "other_changes": 100 * num_changes / sum(map(len, targets)),
        **_letters(language, targets, predictions),
    }


def _letters(language: str, targets: Texts, predictions: Texts) -> Figures:
    import jiwer

    from limba.data.objectives import diacritics as letters

    marked = letters.letters_of(language)
    shown = sorted({*marked, *marked.translate(letters.table(language))})
    totals = collections.Counter()
    hits = collections.Counter()
    aligned = jiwer.process_characters(list(targets), list(predictions))
    for target, chunks in zip(aligned.references, aligned.alignments, strict=True):
        totals.update(letter.lower() for letter in target)
        for chunk in chunks:
            if chunk.type == "equal":
                hits.update(letter.lower() for letter in target[chunk.ref_start_idx : chunk.ref_end_idx])
    return {f"letter/{letter}": 100 * hits[letter] / totals[letter] for letter in shown if totals[letter]}


def _with_targets(targets: Texts, predictions: Texts) -> tuple[list[str], list[str]]:
    """Returns the pairs whose target is not blank."""
    pairs = [(t, p) for t, p in zip(targets, predictions, strict=True) if t.strip()]
    return [t for t, _ in pairs], [p for _, p in pairs]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
