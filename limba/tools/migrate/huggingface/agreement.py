"""Keys that contradict each other: an error, since no order among them is what everybody means."""

from __future__ import annotations

from typing import Any

from limba.config import InputError


def check(translation: Any) -> None:
    """Raises InputError for two keys of which only one can be meant; those of one meaning are checked where read."""
    values = translation.values
    translation.one_of("eval_strategy", "evaluation_strategy")
    strategy, key = translation.get("eval_strategy", "evaluation_strategy")
    optimizer = values.get("optim")
    contradictions = (
        (values.get("adafactor") is True and optimizer not in (None, "adafactor"), "adafactor", "optim"),
        (bool(values.get("warmup_ratio")) and bool(values.get("warmup_steps")), "warmup_ratio", "warmup_steps"),
        (values.get("do_eval") is False and strategy not in (None, "no"), "do_eval", key),
    )
    for is_given, first, second in contradictions:
        if is_given:
            raise InputError(
                f"{translation.place} gives {first} {values[first]!r} and {second} {values[second]!r}, which contradict"
                " each other; leave one out."
            )
