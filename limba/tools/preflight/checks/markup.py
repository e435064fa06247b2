"""HTML in text: how to tell a document of raw HTML, and the document without its tags."""

from __future__ import annotations

import html
import re

TAGS = "a|b|body|br|button|div|em|footer|form|h[1-6]|head|header|html|i|img|input|li|link|meta|nav|ol|p|script|section"
TAG = re.compile(rf"</?(?:{TAGS}|span|strong|style|table|td|th|title|tr|ul)\b[^<>]*>", re.IGNORECASE)
SCRIPT = re.compile(r"<(script|style)\b.*?</\1>", re.IGNORECASE | re.DOTALL)
LETTERS_A_TAG = 200  # a document with a tag in so many letters is HTML; manuals show a tag here and there
LEAST_TAGS = 3


def without_tags(text: str) -> str:
    """Returns a document that is raw HTML without its tags, scripts and styles, and any other one as it is.

    >>> without_tags("<p>The ferry&nbsp;waited.</p>"), without_tags("Write <br> where a line ends.")
    ('The ferry\\xa0waited.', 'Write <br> where a line ends.')
    """
    if not _is_html(text):
        return text
    visible = TAG.sub(" ", SCRIPT.sub(" ", text))
    return html.unescape(re.sub(r"\s{2,}", "\n", visible)).strip()


def _is_html(text: str) -> bool:
    """Returns whether a document is between two tags, or has many of them."""
    stripped = text.strip()
    if TAG.match(stripped) and stripped.endswith(">"):
        return True
    tags = len(TAG.findall(text))
    return tags >= LEAST_TAGS and tags * LETTERS_A_TAG >= len(text)
