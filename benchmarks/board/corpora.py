"""Makes a corpus of a language from the documentation packages of Debian: HTML, manual pages, catalogues, plain text.

    python -m benchmarks.speedrun corpus --language=de [--to=FOLDER]

Packages are downloaded by apt, as it is set up on the machine, and not installed. A paragraph is kept once, in the
first file that has it; one that is not of the language is left out. FOLDER/de.jsonl has a document a line (`text`,
`package`, `file`), in an order that depends on the packages alone; FOLDER/de.json has the packages with their versions
and checksums, the numbers of documents, paragraphs and bytes, and the sha256 of the result.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.board.paragraphs import reader_of, unpacked
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
    known = frozenset(WORDS[language].split())
    foreign = frozenset(WORDS["en"].split())

    def judge(text: str) -> bool:
        words = re.findall(r"\w+", text.lower())
        of_language = sum(word in known for word in words)
        of_english = sum(word in foreign for word in words)
        return of_language > of_english and of_language >= 0.08 * len(words)

    return judge


def download(language: str, folder: Path) -> list[Path]:
    """Returns the packages' files, downloaded by apt into the folder; InputError without apt, or without packages."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise InputError(
            "apt-get or dpkg-deb is missing on this machine; make the corpus on a Debian machine and copy it."
        )
    wanted = [*(name.format(language) for name in OF_ONE_LANGUAGE), *OF_ALL_LANGUAGES]
    shown = subprocess.run(["apt-cache", "show", *wanted], capture_output=True, text=True, check=False).stdout
    known = set(re.findall(r"^Package: (\S+)$", shown, re.MULTILINE))
    chosen = [name for name in wanted if name in known]
    if not chosen:
        raise InputError("apt knows none of the packages; run apt-get update first.")
    with open(folder / "apt.txt", "w+") as output:
        command = ["apt-get", "download", *chosen]
        if subprocess.run(command, cwd=folder, stdout=output, stderr=output, check=False).returncode:
            output.seek(0)
            raise InputError(f"apt-get download ended with an error: {output.read()[-300:].strip()}")
    return sorted(folder.glob("*.deb"), key=lambda path: chosen.index(path.name.partition("_")[0]))


def texts_in(package: Path, language: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the path and the paragraphs of each file of a package that is of the language, in the order of paths."""
    pattern = language_of_path(language)
    paragraphs = {}
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
                    paragraphs[path] = read(unpacked(path, content.read()))
    yield from sorted(paragraphs.items())


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
    """Writes to/LANGUAGE.jsonl and to/LANGUAGE.json, and returns the content of the latter.

    `packages` are files to read instead of those that apt downloads. Raises InputError for a language that is not
    known, for a corpus that is there, and where nothing is found.
    """
    if language not in LANGUAGES:
        raise InputError(f"--language is {language}; choose from {', '.join(LANGUAGES)}.")
    if (to / f"{language}.jsonl").exists():
        raise InputError(f"{to / language}.jsonl is there already; give another folder, or delete it.")
    with tempfile.TemporaryDirectory() as folder:
        files = download(language, Path(folder)) if packages is None else list(packages)
        facts, documents = _read(language, files)
    if not documents:
        raise InputError(f"The packages have no text in {language}.")
    return write_corpus(to, language, documents, {"language": language, "packages": facts})


def _read(language: str, packages: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Returns each package's version, checksum and letters, and the documents."""
    facts = []
    documents = list[dict[str, str]]()
    seen = set[bytes]()  # digests of all paragraphs so far
    judge = is_of(language)
    for package in packages:
        name, version, *_ = package.name.removesuffix(".deb").split("_")
        letters = 0
        for path, paragraphs in texts_in(package, language):
            text = "\n".join(deduplicated(sentences_in(paragraphs, judge), seen))
            if len(text) >= SMALLEST:
                documents.append({"text": text, "package": name, "file": path})
                letters += len(text)
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        facts.append({"package": name, "version": version.replace("%3a", ":"), "sha256": digest, "letters": letters})
    return facts, documents


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
