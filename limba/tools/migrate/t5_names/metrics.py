"""The names of `t5.evaluation.metrics` that task modules use: from targets and predictions to {name: figure}.

BLEU is sacrebleu's with its 'intl' tokenizer, ROUGE rouge-score's, correlations scipy's, as in t5. Figures are percent.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Figures = dict[str, float]
Metric = Callable[[ArrayLike, ArrayLike], Figures]


def bleu(targets: Sequence[Any], predictions: Sequence[str], tokenizer: str = "intl") -> Figures:
    """Corpus BLEU; `targets` are texts, or lists of references as sacrebleu takes them."""
    import sacrebleu

    references = [list(each) for each in targets] if isinstance(targets[0], list) else [list(targets)]
    return {"bleu": sacrebleu.corpus_bleu(list(predictions), references, tokenize=tokenizer).score}


def rouge_mean(
    targets: Sequence[str],
    predictions: Sequence[str],
    score_keys: Sequence[str] = ("rouge1", "rouge2", "rougeLsum"),
    **kwargs: bool,
) -> Figures:
    """Means of ROUGE's F1; a full stop between spaces ends a sentence. Raises ValueError without examples."""
    from rouge_score import rouge_scorer

    if not targets:
        raise ValueError("rouge has no examples; give targets and predictions.")
    scorer = rouge_scorer.RougeScorer(rouge_types=list(score_keys), **kwargs)
    lines = lambda text: text.replace(" . ", " .\n")
    scores = [scorer.score(lines(target), lines(text)) for target, text in zip(targets, predictions, strict=True)]
    return {key: 100 * float(np.mean([score[key].fmeasure for score in scores])) for key in score_keys}


def rouge(
    targets: Sequence[str],
    predictions: Sequence[str],
    score_keys: Sequence[str] = ("rouge1", "rouge2", "rougeLsum"),
    verbose: bool = True,
    **kwargs: bool,
) -> Figures:
    """As `rouge_mean`; t5 takes the middle of a bootstrap, which is near the mean and other at each call."""
    return rouge_mean(targets, predictions, score_keys, **kwargs)


def accuracy(targets: Sequence[object], predictions: Sequence[object]) -> Figures:
    """Share of predictions that equal their target.

    >>> accuracy([1, 2], [1, 3])
    {'accuracy': 50.0}
    """
    return {"accuracy": _share_of_equals(targets, predictions)}


def sequence_accuracy(targets: Sequence[str], predictions: Sequence[str]) -> Figures:
    """Share of texts that equal their target exactly."""
    return {"sequence_accuracy": _share_of_equals(targets, predictions)}


def _share_of_equals(targets: Sequence[object], predictions: Sequence[object]) -> float:
    return 100 * float(np.mean([target == text for target, text in zip(targets, predictions, strict=True)]))


def pearson_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> Figures:
    """Pearson's correlation."""
    import scipy.stats

    return {"pearson_corrcoef": 100 * float(np.asarray(scipy.stats.pearsonr(targets, predictions))[0])}


def spearman_corrcoef(targets: Sequence[float], predictions: Sequence[float]) -> Figures:
    """Spearman's correlation of ranks."""
    import scipy.stats

    return {"spearman_corrcoef": 100 * float(np.asarray(scipy.stats.spearmanr(targets, predictions))[0])}


def f1_score_with_invalid(targets: ArrayLike, predictions: ArrayLike) -> Figures:
    """F1 of class 1; a prediction that is neither 0 nor 1 counts as the wrong one.

    >>> f1_score_with_invalid([1, 1, 0], [1, 5, 0])["f1"].__round__(1)
    66.7
    """
    targets, predictions = np.asarray(targets), np.array(predictions)
    is_invalid = (predictions != 0) & (predictions != 1)
    return {"f1": 100 * _f1(targets, np.where(is_invalid, 1 - targets, predictions), 1)}


def _f1(targets: np.ndarray, predictions: np.ndarray, label: int) -> float:
    right = int(np.sum((targets == label) & (predictions == label)))
    both = int(np.sum(targets == label)) + int(np.sum(predictions == label))
    return 2 * right / both if both else 0.0


def mean_multiclass_f1(num_classes: int, **metric_fn_kwargs: object) -> Metric:
    """Returns the metric of the unweighted mean of the classes' F1. Raises ValueError for choices of scikit-learn."""
    if metric_fn_kwargs:
        raise ValueError(f"mean_multiclass_f1 takes no {', '.join(metric_fn_kwargs)} here; install the package t5.")

    def metric(targets: ArrayLike, predictions: ArrayLike) -> Figures:
        several = [_f1(np.asarray(targets), np.asarray(predictions), label) for label in range(num_classes)]
        return {f"mean_{num_classes}class_f1": 100 * float(np.mean(several))}

    return metric


def squad(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> Figures:
    """Exact match and word F1 of SQuAD's normalized answers, the best of each question's.

    >>> squad([["The cat", "a dog"]], ["cat!"])
    {'em': 100.0, 'f1': 100.0}
    """
    return _question_answering(targets, predictions, string.punctuation, "")


def trivia_qa(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> Figures:
    """As `squad`, with TriviaQA's normalization."""
    return _question_answering(targets, predictions, string.punctuation + "‘’´`_", " ")


def _question_answering(
    targets: Sequence[Sequence[str]], predictions: Sequence[str], punctuation: str, replaced_by: str
) -> Figures:
    table = {ord(sign): replaced_by for sign in punctuation}
    normal = lambda text: " ".join(re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(table)).split())
    exact, f1 = [], []
    for answers, prediction in zip(targets, predictions, strict=True):
        answers, prediction = [normal(answer) for answer in answers], normal(prediction)
        exact.append(max(answer == prediction for answer in answers))
        f1.append(max(_word_f1(answer.split(), prediction.split()) for answer in answers))
    return {"em": 100 * float(np.mean(exact)), "f1": 100 * float(np.mean(f1))}


def _word_f1(target: Sequence[str], prediction: Sequence[str]) -> float:
    same = sum((collections.Counter(target) & collections.Counter(prediction)).values())
    return 2 * same / (len(target) + len(prediction)) if same else 0.0
