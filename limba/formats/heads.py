"""Heads of encoders in config.json: transformers' classes for texts, words and vectors."""

from __future__ import annotations

from limba.config import InputError, ModelConfig
from limba.formats.names import Json

# What transformers' classes begin with. T5's has logits of each token, for texts too.
NAMES = {"eurobert": "EuroBert", "modernbert": "ModernBert", "t5": "T5", "umt5": "UMT5", "mt5": "MT5"}
_ENDS = {"classes": "ForSequenceClassification", "tags": "ForTokenClassification", "vectors": "Model"}
_ENDS["score"] = _ENDS["classes"]
_PROBLEMS = {"classes": "single_label_classification", "score": "regression"}
# `classifier_pooling` of a text, and ours; the first is transformers' default.
_POOLINGS = {"eurobert": {"late": "mean", "bos": "first"}, "modernbert": {"cls": "first", "mean": "mean"}}
_OF_T5 = {"mean": "mean", "first": "first"}


def class_of(config: ModelConfig, kind: str) -> str | None:
    """Returns transformers' class of an encoder with a head of its own, or of a T5's encoder; None for another one."""
    if not config.is_t5_encoder:
        return NAMES[kind] + _ENDS[config.head] if config.has_own_head else None
    return NAMES[kind] + (_ENDS["tags"] if outputs(config) else "EncoderModel")


def outputs(config: ModelConfig) -> dict[str, int]:
    """Returns the dense layers of an encoder's own head: name -> width."""
    has_dense = config.head in ("classes", "score") and config.is_decoder_only and not config.is_modernbert
    classifier = {} if config.head in ("vectors", "vocabulary") else {"classifier": max(len(config.labels), 1)}
    return ({"dense": config.emb_dim} if has_dense else {}) | classifier


def to_json(config: ModelConfig, kind: str) -> Json:
    """Returns the keys of config.json that say an encoder's head and labels."""
    if config.head == "vectors":
        return {}
    labels = config.labels or ("score",)
    about: Json = {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}}
    pooling = next(theirs for theirs, ours in _POOLINGS.get(kind, _OF_T5).items() if ours == config.pooling)
    return about | {"classifier_pooling": pooling, "problem_type": _PROBLEMS.get(config.head)}


def fields(about: Json, kind: str) -> Json:
    """Returns an encoder's head, its labels and its pooling; InputError for one that is none of ours."""
    (name, *_) = about.get("architectures") or [""]
    end = name.removeprefix(NAMES[kind])
    if kind not in _POOLINGS and end != _ENDS["tags"]:
        return {}
    if end == "Model" or end not in _ENDS.values():
        return {"head": "vectors"} if end == "Model" else {}
    labels = about.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}  # transformers writes no default
    names = tuple(str(labels[number]) for number in sorted(labels, key=int))
    problem, poolings = about.get("problem_type"), _POOLINGS.get(kind, _OF_T5)
    if end == _ENDS["tags"] and (kind in _POOLINGS or problem is None):
        return {"head": "tags", "labels": names}
    pooling = about.get("classifier_pooling", next(iter(poolings)))
    if problem == "multi_label_classification" or pooling not in poolings:
        raise InputError(
            f"The head is for {problem or 'classes'} with {pooling!r} pooling; only one label a text and"
            f" {' or '.join(map(repr, poolings))} are read."
        )
    head = "score" if problem == "regression" or len(names) == 1 else "classes"
    return {"head": head, "labels": names if head == "classes" else (), "pooling": poolings[pooling]}
