"""The lines and sections of a preflight: each line is fine, a warning or an error, and says what makes it right.

Here too: the verdict that they make together, and how they are printed, as text and as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from limba.config import Fix, environment, errors

GO = "go"
FAILS = "will fail"
WASTEFUL = "works, but wasteful"
FORMAT = 1  # of the JSON document
MARKS = {"ok": "ok", "warning": "warning", "error": "ERROR"}
COLOURS = {"ok": "32", "warning": "33", "error": "31"}
INDENT = " " * 11  # under the sentence, which follows the mark
Data = dict[str, Any]  # the figures of a section, as JSON has them


@dataclasses.dataclass(frozen=True)
class Line:
    """One finding, as a sentence."""

    level: str  # 'ok', 'warning' or 'error'
    text: str
    fix: Fix | list[Fix] | None = None  # a field's value or a command; several of them as a list
    code: str = ""  # its stable name in --json, as "rate-too-high"; "" has none yet

    def fixes(self, names: Mapping[str, str]) -> str:
        """Returns the fix as lines of a gin file, or as a command; "" if there is none.

        >>> Line("error", "x", [("DataConfig.batch_size", 8), ("ModelConfig.remat", "full")]).fixes({})
        "config.DataConfig.batch_size = 8\\nconfig.ModelConfig.remat = 'full'"
        """
        several = self.fix if isinstance(self.fix, list) else [self.fix or ""]
        lines = []
        for fix in several:
            if isinstance(fix, str):  # a command
                lines.append(fix)
            else:
                field, value = fix
                name = names.get(field, f"config.{field}")
                lines.append(f"{name} = {value!r}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Section:
    """The findings about one part of a run."""

    title: str
    lines: Sequence[Line]
    data: Data = dataclasses.field(default_factory=dict)  # the same as figures, as JSON has them

    def worded(self, names: Mapping[str, str]) -> Section:
        """Returns the section with the names that its user typed for fields, as `GinRun` has them.

        >>> line = Line("warning", "ModelConfig.vocab_size is 9, DataConfig.seed is 1.", ("DataConfig.seed", 0))
        >>> Section("Data", [line]).worded({"ModelConfig.vocab_size": "VOCAB_SIZE"}).lines[0]
        Line(level='warning', text='VOCAB_SIZE is 9, DataConfig.seed is 1.', fix='config.DataConfig.seed = 0', code='')
        """
        lines = [
            dataclasses.replace(line, text=errors.worded(line.text, names), fix=line.fixes(names))
            for line in self.lines
        ]
        return dataclasses.replace(self, lines=lines)


def judged(made: Sequence[Section]) -> str:
    """Returns GO, FAILS or WASTEFUL.

    >>> judged([Section("a", [Line("ok", "x"), Line("warning", "y")])]), judged([])
    ('works, but wasteful', 'go')
    """
    levels = {line.level for section in made for line in section.lines}
    if "error" in levels:
        return FAILS
    return WASTEFUL if "warning" in levels else GO


def exit_status(made: Sequence[Section]) -> int:
    """Returns 1 for a run that will fail, else 0: a warning keeps no script from starting a run that works.

    >>> [exit_status([Section("a", [Line(level, "x")])]) for level in ("ok", "warning", "error")]
    [0, 0, 1]
    """
    return 1 if judged(made) == FAILS else 0


def text_of(section: Section) -> str:
    """Returns a section as lines of text; words are coloured on a console.

    >>> print(text_of(Section("Data", [Line("error", "It is empty.", "CORPUS = 'x'")])))
    <BLANKLINE>
    Data
      ERROR    It is empty.
               Fix: CORPUS = 'x'
    """
    return "\n".join(["", section.title, *(text for line in section.lines for text in lines_of(line))])


def lines_of(line: Line) -> Iterator[str]:
    """Yields a finding as lines of text: its level and sentence, then its fix."""
    first, *others = line.text.split("\n")
    yield f"  {_coloured(f'{MARKS[line.level]:<8}', line.level)} {first}"
    for other in others:
        yield f"{INDENT}{other}".rstrip()
    for number, fix in enumerate(line.fixes({}).splitlines()):
        before = "Fix: " if number == 0 else "     "
        yield f"{INDENT}{before}{fix}"


def _coloured(text: str, level: str) -> str:
    if not environment.in_colour(sys.stdout):
        return text
    return f"\x1b[{COLOURS[level]}m{text}\x1b[0m"


def verdict(sections: Sequence[Section]) -> str:
    """Returns the last sentence.

    >>> verdict([Section("a", [Line("warning", "x")])]), verdict([])
    ('Verdict: works, but wasteful (1 warning).', 'Verdict: go.')
    """
    counts = counted(sections)
    in_brackets = f" ({counts})" if counts else ""
    return f"Verdict: {judged(sections)}{in_brackets}."


def distinct(sections: Sequence[Section]) -> list[Line]:
    """Returns the findings of all sections; what several of them find comes once, at its first place, with its fix."""
    kept: dict[tuple[str, str], Line] = {}
    for section in sections:
        for line in section.lines:
            place = (line.level, line.text)
            if place not in kept or (line.fix and not kept[place].fix):
                kept[place] = line
    return list(kept.values())


def counted(sections: Sequence[Section]) -> str:
    """Returns how many errors and warnings there are; "" for none.

    >>> counted([Section("a", [Line("warning", "x"), Line("error", "y")]), Section("b", [Line("error", "y")])])
    '1 error, 1 warning'
    """
    levels = [line.level for line in distinct(sections)]
    counts = {level: levels.count(level) for level in ("error", "warning")}
    return ", ".join(f"{count} {level}{'s' * (count > 1)}" for level, count in counts.items() if count)


def as_json(sections: Sequence[Section], header: Mapping[str, object]) -> str:
    """Returns the whole as JSON: what was looked at, the verdict, and each section with its lines and figures."""
    document = {
        "format": FORMAT,
        **header,
        "verdict": judged(sections),
        "exit_status": exit_status(sections),
        "sections": [_plain(section) for section in sections],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, default=_plain_value)


def _plain(section: Section) -> Data:
    lines = []
    for line in section.lines:
        lines.append({"level": line.level, "code": line.code, "text": line.text, "fix": line.fixes({})})
    return {"title": section.title, "lines": lines, "data": section.data}


def _plain_value(value: object) -> object:
    """Returns a number of numpy as Python's own, and anything else that JSON does not have as its text."""
    return getattr(value, "item", lambda: str(value))()
