"""Heads of encoders in config.json: transformers' classes of EuroBERT for texts, words and vectors."""

from __future__ import annotations

from limba.config import InputError, ModelConfig
from limba.formats.names import Json

# An encoder's class by its head, and what transformers' class of a text says of the task.
CLASSES = {
    "classes": ("EuroBertForSequenceClassification", "single_label_classification"),
    "tags": ("EuroBertForTokenClassification", None),
    "score": ("EuroBertForSequenceClassification", "regression"),
    "vectors": ("EuroBertModel", None),
}
POOLING = "late"  # of EuroBERT's classes of a text; see limba/model/heads.py


def to_json(config: ModelConfig) -> Json:
    """Returns the keys of config.json that say an encoder's head and labels."""
    if config.head == "vectors":
        return {}
    labels = config.labels or ("score",)
    about: Json = {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}}
    return about | {"classifier_pooling": POOLING, "problem_type": CLASSES[config.head][1]}


def fields(about: Json) -> Json:
    """Returns an encoder's head and labels; InputError for one that is none of CLASSES."""
    (name, *_) = about.get("architectures") or ["EuroBertForMaskedLM"]
    found = [head for head, (theirs, _) in CLASSES.items() if theirs == name]
    if not found or found == ["vectors"]:
        return {"head": found[0]} if found else {}
    labels = about.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}  # transformers writes no default
    names = tuple(str(labels[number]) for number in sorted(labels, key=int))
    problem, pooling = about.get("problem_type"), about.get("classifier_pooling", POOLING)
    if found != ["tags"] and (problem == "multi_label_classification" or pooling != POOLING):
        raise InputError(
            f"The head is for {problem or 'classes'} with {pooling!r} pooling; only one label a text and {POOLING!r}"
            " are read."
        )
    if found == ["tags"]:
        return {"head": "tags", "labels": names}
    is_score = problem == "regression" or len(names) == 1
    return {"head": "score"} if is_score else {"head": "classes", "labels": names}
