"""Makes a corpus of a language from the documentation packages of Debian: HTML, manual pages, catalogues, plain text.

    python -m benchmarks.speedrun corpus --language=de [--to=FOLDER]

Packages are downloaded by apt, as it is set up on the machine, and not installed. A paragraph is kept once, in the
first file that has it; one that is not of the language is left out. FOLDER/de.jsonl has a document a line (`text`,
`package`, `file`), in an order that depends on the packages alone; FOLDER/de.json has the packages with their versions
and checksums, the numbers of documents, paragraphs and bytes, and the sha256 of the result.
"""

from __future__ import annotations

import bz2
import gettext
import gzip
import hashlib
import html.parser
import io
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from benchmarks.board.text import write_corpus
from limba.config import InputError

SMALLEST = 200  # letters of a document
OF_ONE_LANGUAGE = (  # each for most languages
    "manpages-{}", "manpages-{}-dev", "libreoffice-help-{}", "libreoffice-l10n-{}", "lilypond-doc-html-{}",
    "debian-reference-{}", "developers-reference-{}", "debian-faq-{}", "maint-guide-{}", "aptitude-doc-{}",
    "fortunes-{}", "debian-policy-{}", "gimp-help-{}", "kicad-doc-{}", "debian-edu-doc-{}", "scilab-doc-{}",
)  # fmt: skip
OF_ALL_LANGUAGES = (
    "debian-handbook", "installation-guide-amd64", "gnucash-docs", "gnucash-common", "wesnoth-1.16-data",
    "blender-data", "freeciv-data", "kstars-data", "krita-l10n", "digikam-data", "kate5-data", "khelpcenter",
    "kmymoney-common", "inkscape", "darktable", "gcompris-qt-data", "okular", "marble-data",
)  # fmt: skip
# Frequent words, of which a paragraph has more than of English ones.
WORDS = {
    "de": "der die und den das ist nicht ein eine zu mit für auf werden wird von im dem sie oder wenn als auch an",
    "fr": "le la les de des et est une un du pour dans que qui par sur avec pas ce en au il sont vous ou plus",
    "es": "el la los las de del y es una un para en que por con no se su al lo como más son esta o si",
    "ro": "și de la în este un o pentru cu care nu sau din pe se sunt fi mai al ale ca dacă acest",
    "en": "the of and to is in that for it with as be on are this by or you not from an if can will which at a",
    "nb": "og i er det en et for som på ikke til av den med kan du om å fra eller har ved hvis",
}
JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
LANGUAGES = (*(language for language in WORDS if language != "en"), "ja")


def is_of(language: str) -> Callable[[str], bool]:
    """Returns the function that says whether a paragraph is written in the language.

    >>> is_of("de")("Der Befehl ist nicht da."), is_of("de")("The file is not there."), is_of("ja")("ファイル名です。")
    (True, False, True)
    """
    if language == "ja":
        return lambda text: len(JAPANESE.findall(text)) >= 0.25 * len(text)
    known, foreign = frozenset(WORDS[language].split()), frozenset(WORDS["en"].split())

    def judge(text: str) -> bool:
        words = re.findall(r"\w+", text.lower())
        own, english = sum(word in known for word in words), sum(word in foreign for word in words)
        return own > english and own >= 0.08 * len(words)

    return judge


def download(language: str, folder: Path) -> list[Path]:
    """Returns the packages' files, downloaded by apt into the folder; InputError without apt, or without packages."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise InputError("There is no apt-get or no dpkg-deb here; make the corpus on a Debian machine and copy it.")
    wanted = [*(name.format(language) for name in OF_ONE_LANGUAGE), *OF_ALL_LANGUAGES]
    shown = subprocess.run(["apt-cache", "show", *wanted], capture_output=True, text=True, check=False).stdout
    known = set(re.findall(r"^Package: (\S+)$", shown, re.MULTILINE))
    chosen = [name for name in wanted if name in known]
    if not chosen:
        raise InputError("apt knows none of the packages; run apt-get update first.")
    with open(folder / "apt.txt", "w+") as said:
        command = ["apt-get", "download", *chosen]
        if subprocess.run(command, cwd=folder, stdout=said, stderr=said, check=False).returncode:
            said.seek(0)
            raise InputError(f"apt-get download ended with an error: {said.read()[-300:].strip()}")
    return sorted(folder.glob("*.deb"), key=lambda path: chosen.index(path.name.partition("_")[0]))


def texts_in(package: Path, language: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the path and the paragraphs of each file of a package that is of the language, in the order of paths."""
    pattern, found = language_of_path(language), {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                path = member.name.removeprefix("./")
                read = reader_of(path)
                if not member.isfile() or read is None or not pattern.search(path):
                    continue
                content = archive.extractfile(member)
                if content is not None:
                    found[path] = read(unpacked(path, content.read()))
    yield from sorted(found.items())


def deduplicated(paragraphs: Iterator[str], seen: set[bytes]) -> Iterator[str]:
    """Yields the paragraphs that are not in `seen`, where numbers and case make no difference; adds them to it.

    >>> list(deduplicated(iter(["Seite 1", "seite 2", "Anders"]), set()))
    ['Seite 1', 'Anders']
    """
    for paragraph in paragraphs:
        form = re.sub(r"\d+", "0", " ".join(re.findall(r"\w+", paragraph.lower())))
        digest = hashlib.blake2b(form.encode(), digest_size=12).digest()
        if digest not in seen:
            seen.add(digest)
            yield paragraph


def make(language: str, to: Path, packages: Sequence[Path] | None = None) -> Mapping[str, Any]:
    """Writes to/LANGUAGE.jsonl and to/LANGUAGE.json, and returns what the latter says.

    `packages` are files to read instead of those that apt downloads. Raises InputError for a language that is not
    known, for a corpus that is there, and where nothing is found.
    """
    if language not in LANGUAGES:
        raise InputError(f"--language is {language}; choose from {', '.join(LANGUAGES)}.")
    if (to / f"{language}.jsonl").exists():
        raise InputError(f"{to / language}.jsonl is there already; give another folder, or delete it.")
    with tempfile.TemporaryDirectory() as folder:
        files = download(language, Path(folder)) if packages is None else list(packages)
        about, found = _read(language, files)
    if not found:
        raise InputError(f"The packages hold no text of {language}.")
    return write_corpus(to, language, found, {"language": language, "packages": about})


def _read(language: str, packages: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Returns what is said of each package, and the documents."""
    about, found, seen, judge = [], list[dict[str, str]](), set[bytes](), is_of(language)
    for package in packages:
        name, version, *_ = package.name.removesuffix(".deb").split("_")
        letters = 0
        for path, paragraphs in texts_in(package, language):
            text = "\n".join(deduplicated(sentences_in(paragraphs, judge), seen))
            if len(text) >= SMALLEST:
                found.append({"text": text, "package": name, "file": path})
                letters += len(text)
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        about.append({"package": name, "version": version.replace("%3a", ":"), "sha256": digest, "letters": letters})
    return about, found


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
    found, lines, is_listing = [], [], False

    def end() -> None:
        if joined := " ".join(" ".join(lines).split()):
            found.append(joined)
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
    return found


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
    return [joined for part in re.split(r"\n\s*\n|\n%\n", text) if (joined := " ".join(part.split()))]


def _in_unicode(content: bytes) -> str:
    for encoding in ("utf-8", "euc-jp", "iso-8859-15"):
        try:
            return content.decode(encoding)
        except UnicodeError:
            continue
    return ""


def reader_of(path: str) -> Callable[[bytes], list[str]] | None:
    """Returns the function from a file's content to its paragraphs; None for a file that is no text for people."""
    if LEFT_OUT.search(path):
        return None
    place = PurePosixPath(path)
    suffix = PurePosixPath(place.stem).suffix if place.suffix in (".gz", ".bz2") else place.suffix
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
    return bz2.decompress(content) if path.endswith(".bz2") else content


def language_of_path(language: str) -> re.Pattern[str]:
    """Returns the pattern of the paths that belong to a language.

    >>> [bool(language_of_path("de").search(path)) for path in ("man/de/man1/ls.1.gz", "a/index.de.html", "a/demo/b")]
    [True, True, False]
    """
    return re.compile(rf"(?:^|[/._-]){language}(?:[-_][A-Z]{{2}})?(?:@\w+)?(?:[/._-]|$)")


def sentences_in(paragraphs: list[str], is_of_language: Callable[[str], bool]) -> Iterator[str]:
    """Yields the paragraphs of some length that are written in the language."""
    for paragraph in paragraphs:
        if len(paragraph) >= 12 and is_of_language(paragraph):
            yield paragraph
