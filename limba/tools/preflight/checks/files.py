"""The local files of a corpus: patterns that match nothing, and files that are copies of others."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from limba.api import UnitSource
from limba.config import Fix, InputError, Open, nearest
from limba.tools.preflight.checks.verdict import Line

SUFFIXES = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".zst", ".bz2", ".xz", ".array_record")
LARGEST_COMPARED = 1 << 28  # bytes of a file; reading larger ones to compare them would take too long
MOST_MOVED = 8  # copies that a fix names one by one
CODE = "equal-files"


class Copy(NamedTuple):
    """A file whose bytes another file of the split has too."""

    path: str
    first: str  # the first file with these bytes


def check_patterns(source: UnitSource, split: str) -> None:
    """Raises InputError for a pattern of local files that matches none, with the files beside it as its fix."""
    for pattern in source.patterns_of_split(split):
        # A file of that very name is read, as in `limba/data/sources/listing.py`.
        if "://" in pattern or os.path.exists(pattern) or glob.glob(pattern, recursive=True):
            continue
        folder = next(parent for parent in Path(pattern).parents if parent.is_dir())
        beside = sorted([*folder.glob("*"), *folder.glob("*/*")])
        files = [str(path) for path in beside if path.name.endswith(SUFFIXES)]
        near = nearest(pattern, files)
        if not near and files:
            near = files[0]
        fix = ("DataConfig.data_files", near or Open("files that exist"))
        raise InputError(f"The corpus path {pattern} matches no file; nearest is {near or 'none'}.", fix=fix)


def equal_files(source: UnitSource, split: str) -> Iterator[Line]:
    """Yields one warning if local files of a split have the same bytes, however many they are."""
    copies = _copies(source, split)
    if not copies:
        return
    path, first = copies[0]
    if len(copies) == 1:
        text = f"Two files are equal, {first} and {path}: their text is read twice in each epoch."
    else:
        text = f"{len(copies):,} files are copies of others, such as {path} of {first}: their text is read again in"
        text += " each epoch."
    patterns = list(source.patterns_of_split(split))
    yield Line("warning", text, _fix_of_copies(copies, patterns), CODE)


def _copies(source: UnitSource, split: str) -> list[Copy]:
    seen: dict[tuple[int, str], str] = {}
    copies = []
    for file in source.listed(split):
        if "://" in file.path or not file.size or file.size > LARGEST_COMPARED:
            continue
        with open(file.path, "rb") as content:
            key = (file.size, hashlib.file_digest(content, "blake2b").hexdigest())
        first = seen.setdefault(key, file.path)
        if first != file.path:
            copies.append(Copy(file.path, first))
    return copies


def _fix_of_copies(copies: Sequence[Copy], patterns: Sequence[str]) -> Fix | list[Fix]:
    """Returns how the copies leave the corpus: out of its list of files, or moved to where no pattern matches them."""
    named = [copy.path for copy in copies if copy.path in patterns]
    if named:  # a moved file's own name would match nothing any more
        return ("DataConfig.data_files", Open(f"the files without {named[0]}"))
    folder = shlex.quote(_folder_beside(patterns))
    # A copy is renamed, unless the corpus reads its new name too: then it goes to a folder of its own.
    is_read_again = any(fnmatch.fnmatch(f"{copy.path}.copy", pattern) for copy in copies for pattern in patterns)
    if len(copies) <= MOST_MOVED:
        quoted = [shlex.quote(copy.path) for copy in copies]
        if is_read_again:
            return [f"mkdir -p {folder}", *(f"mv --backup=numbered {path} {folder}" for path in quoted)]
        return [f"mv {path} {path}.copy" for path in quoted]
    files = " ".join(pattern.replace(" ", "\\ ") for pattern in patterns)  # the shell reads patterns as they are
    later = "awk 'seen[$1]++ { print substr($0, 35) }'"  # md5sum's line: 32 digits, two spaces, the path
    if is_read_again:
        move = f"xargs -d '\\n' -I @ mv --backup=numbered @ {folder}"
        return f"mkdir -p {folder} && md5sum {files} | {later} | {move}"
    return f"md5sum {files} | {later} | xargs -d '\\n' -I @ mv @ @.copy"


def _folder_beside(patterns: Sequence[str]) -> str:
    """Returns a folder beside the first pattern's, from which no pattern reads."""
    parts = list(itertools.takewhile(lambda part: not glob.has_magic(part), Path(patterns[0]).parts))
    return f"{Path(*parts)}.copies" if parts else "copies"
