"""The names of `t5.data.postprocessors` that task modules use: from a text to what a metric compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def string_to_float(string: str, default: float = -1.0, **unused_kwargs: object) -> float:
    """Returns the number that a text is, else the default.

    >>> string_to_float("2.5"), string_to_float("many")
    (2.5, -1.0)
    """
    try:
        return float(string)
    except ValueError:
        return default


def lower_text(string: str, **unused_kwargs: object) -> str:
    """Returns the text in lower case."""
    return string.lower()


def string_label_to_class_id(
    string_label: str, label_classes: Sequence[str], default: int = -1, **unused_kwargs: object
) -> int:
    """Returns the place of a label among its classes, else the default.

    >>> string_label_to_class_id("no", ("yes", "no")), string_label_to_class_id("maybe", ("yes", "no"))
    (1, -1)
    """
    return list(label_classes).index(string_label) if string_label in label_classes else default


def qa(answer: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> str | list[str]:
    """Returns a prediction's text, or for a target all answers of its example."""
    if not is_target or example is None:
        return answer
    return [text.decode() if isinstance(text, bytes) else str(text) for text in example["answers"]]
