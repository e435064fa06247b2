"""The paragraphs of documentation files: HTML, manual pages, catalogues of messages, plain text."""

from __future__ import annotations

import bz2
import gettext
import gzip
import html.parser
import io
import re
from collections.abc import Callable
from pathlib import PurePosixPath

BLOCKS = frozenset((
    "p", "div", "li", "dt", "dd", "td", "th", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "table", "ul", "ol", "dl",
    "section", "article", "body", "title", "br", "hr", "blockquote", "para", "listitem", "term", "sect1", "sect2",
    "sect3", "chapter",
))  # fmt: skip
SILENT = frozenset(("script", "style", "pre", "head", "nav", "programlisting", "screen", "footer"))
ESCAPE = re.compile(r"\\(?:f(?:\[\w*\]|\(..|.)|s[-+]?\d+|[&|^%/,:]|\*\[\w+\]|[kmMn]\[[^\]]*\])")
CHARACTERS = {"\\-": "-", "\\(aq": "'", "\\(dq": '"', "\\(bu": "•", "\\(em": "—", "\\(en": "–", "\\~": " ", "\\ ": " ",
              "\\e": "\\", "\\(co": "©", "\\(lq": "“", "\\(rq": "”", "\\(oq": "‘", "\\(cq": "’"}  # fmt: skip
IN_LINE = frozenset(
    ("B", "I", "BR", "RB", "IR", "RI", "BI", "IB", "SM", "SB", "Nm", "Fl", "Ar", "Pa", "Xr", "Em", "Sy")
)
LEFT_OUT = re.compile(
    r"(?:^|/)(?:_sources|_static|css|js|images?|icons?)/|copyright$|changelog|LICEN[CS]E", re.IGNORECASE
)


class _Blocks(html.parser.HTMLParser):
    """Collects the text of each block of an HTML or DocBook page, without listings, scripts and menus."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._silent += tag in SILENT
        if tag in BLOCKS:
            self.flush()

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in SILENT and self._silent > 0
        if tag in BLOCKS:
            self.flush()

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._parts.append(data)

    def flush(self) -> None:
        """Ends the block that is being read."""
        if text := " ".join("".join(self._parts).split()):
            self.found.append(text)
        self._parts = []


def of_html(text: str) -> list[str]:
    """Returns the text of each block.

    >>> of_html("<h1>Ein Titel</h1><script>x</script><p>Ein <b>kurzer</b>\\n Satz.")
    ['Ein Titel', 'Ein kurzer Satz.']
    """
    parser = _Blocks()
    parser.feed(text)
    parser.close()
    parser.flush()
    return parser.found


def of_manual(text: str) -> list[str]:
    """Returns the paragraphs of a manual page, its requests of roff left out.

    >>> of_manual('.TH LS 1\\n.SH NAME\\nls \\\\- Dateien\\n.B \\\\-a\\nauflisten\\n.PP\\nMehr.')
    ['ls - Dateien -a auflisten', 'Mehr.']
    """
    paragraphs = []
    lines = []  # of the paragraph that is read
    is_listing = False

    def end() -> None:
        joined = " ".join(" ".join(lines).split())
        if joined:
            paragraphs.append(joined)
        lines.clear()

    for line in text.splitlines():
        name = line[1:].split(" ")[0] if line[:1] in (".", "'") else ""
        if name in ("nf", "EX", "fi", "EE"):
            is_listing = name in ("nf", "EX")
        elif name in IN_LINE and not is_listing:
            lines.append(_plain(line[1:].partition(" ")[2].replace('"', "")))
        elif line[:1] in (".", "'") or not line.strip():
            end()
        elif not is_listing:
            lines.append(_plain(line))
    end()
    return paragraphs


def _plain(line: str) -> str:
    for name, character in CHARACTERS.items():
        line = line.replace(name, character)
    return ESCAPE.sub("", line)


def of_catalogue(content: bytes) -> list[str]:
    """Returns the translated messages of a compiled catalogue of gettext; none if it is damaged."""
    try:
        known = gettext.GNUTranslations(io.BytesIO(content))
    except (OSError, UnicodeError, ValueError):
        return []
    messages = (text for key, text in getattr(known, "_catalog", {}).items() if key)
    return [part for text in messages for part in of_text(re.sub(r"[_&](?=\w)", "", text))]


def of_text(text: str) -> list[str]:
    """Returns paragraphs that empty lines, or a fortune's %, separate."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n%\n", text)]
    return [paragraph for paragraph in paragraphs if paragraph]


def _in_unicode(content: bytes) -> str:
    for encoding in ("utf-8", "euc-jp", "iso-8859-15"):
        try:
            return content.decode(encoding)
        except UnicodeError:
            continue
    return ""


def reader_of(path: str) -> Callable[[bytes], list[str]] | None:
    """Returns the function from a file's content to its paragraphs; None for a file that is not text for people."""
    if LEFT_OUT.search(path):
        return None
    name = PurePosixPath(path)
    if name.suffix in (".gz", ".bz2"):
        name = PurePosixPath(name.stem)
    suffix = name.suffix
    if "/man/" in path:
        return lambda content: of_manual(_in_unicode(content))
    if suffix in (".html", ".htm", ".xhtml", ".docbook", ".cache"):
        return lambda content: of_html(_in_unicode(content))
    if suffix == ".mo":
        return of_catalogue
    if suffix == ".txt" or ("/fortunes" in path and not suffix):
        return lambda content: of_text(_in_unicode(content))
    return None


def unpacked(path: str, content: bytes) -> bytes:
    """Returns a file's content, decompressed if its name says that it is compressed."""
    if path.endswith(".gz"):
        return gzip.decompress(content)
    if path.endswith(".bz2"):
        return bz2.decompress(content)
    return content
