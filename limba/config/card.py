"""What the card of an exported model says that a run does not know by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from limba.config import kinds
from limba.config.errors import require

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")
_NAME = re.compile(r"[\w.+-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class CardConfig:
    """The fields of a model card's header, by which the hub lists a model; several names with commas, or a tuple.

    >>> CardConfig(language="en,ms").language
    ('en', 'ms')
    """

    language: str | tuple[str, ...] | None = None  # by ISO 639's codes: 'ro'
    licence: str | None = None  # by the hub's name: 'apache-2.0'; None: 'other', and a sentence that none is chosen yet
    datasets: str | tuple[str, ...] | None = None  # on the hub; None: those that the task reads from it
    hardware: str | None = None  # that trained it: 'TPU v4-8'
    thank_trc: bool = False  # thank Google's TPU Research Cloud

    def __post_init__(self) -> None:
        kinds.check(self)
        for name in ("language", "datasets"):
            given = getattr(self, name)
            names = tuple(part.strip() for part in (given.split(",") if isinstance(given, str) else given or ()))
            object.__setattr__(self, name, names or None)
        for name, pattern, example in (
            ("language", _LANGUAGE, "codes such as 'ro' or 'en,ms'"),
            ("datasets", _NAME, "names on the hub such as 'user/name'"),
        ):
            wrong = [part for part in getattr(self, name) or () if not pattern.fullmatch(part)]
            require(not wrong, f"CardConfig.{name}", f"holds {(wrong or [''])[0]!r}; give {example}.")
        require(
            self.licence is None or bool(_NAME.fullmatch(self.licence)),
            "CardConfig.licence",
            f"is {self.licence!r}; give the hub's name of one, such as 'apache-2.0'.",
        )
