"""Examples of docstrings as blocks of code on the reference's pages: an extension of griffe, which mkdocstrings uses.

Markdown takes `>>>` for a quotation of a quotation of a quotation.
"""

from __future__ import annotations

import re

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


def fenced(docstring: str) -> str:
    """Returns a docstring whose examples, each from `>>>` to the next empty line, are blocks of code.

    >>> fenced("Returns one.\\n\\n>>> one()\\n1\\n\\nMore.").splitlines()
    ['Returns one.', '', '```python', '>>> one()', '1', '```', '', 'More.']
    """
    return EXAMPLE.sub(lambda match: f"```python\n{match[0]}\n```", docstring)


class Examples(griffe.Extension):
    """Changes each docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
