"""Makes a corpus of the Japanese works whose copyright has ended from a clone of Aozora Bunko's texts.

    git clone --depth 1 https://github.com/aozorahack/aozorabunko_text
    python -m benchmarks.speedrun corpus --aozora=aozorabunko_text --index=list_person_all_extended_utf8.csv

A work is left out if the index (https://www.aozora.gr.jp/index_pages/person_all.html) says that it is under copyright,
or its own closing notes name a licence or a holder of rights; without an index the notes alone decide. Readings
(ruby), the notes of those who typed it, title and closing notes are removed. A line of ja_aozora.jsonl has a work's
`text`, its `author` (the number of Aozora's person) and its `file`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.board.text import part_of, write_corpus
from limba.config import InputError

NAME = "ja_aozora"
SMALLEST = 200  # letters of a work
RULE = re.compile(r"^-{20,}\r?$", re.MULTILINE)
FREE = "ボランティアの皆さん"  # in the closing notes of a work without copyright
HELD = re.compile(r"クリエイティブ|creative ?commons|ライセンス|著作権(?!が?失効)", re.IGNORECASE)
LETTER = re.compile(r"※［＃[^］]*?(?:U\+([0-9A-F]{4,5})|(\d)-(\d{1,2})-(\d{1,2}))[^］]*］")
NOTE = re.compile(r"｜|《[^》]*》|［＃[^］]*］")


def _letter(match: re.Match[str]) -> str:
    """Returns the letter that Shift_JIS lacks: by Unicode, or by plane, row and cell of JIS X 0213."""
    if match[1]:
        return chr(int(match[1], 16))
    plane, row, cell = (int(group) for group in match.group(2, 3, 4))
    code = bytes((row + 0xA0, cell + 0xA0))
    return (code if plane == 1 else b"\x8f" + code).decode("euc_jis_2004", "replace")


def plain(content: str) -> str | None:
    """Returns the text of a work in Aozora's format; None if it is under copyright, or has no closing notes.

    >>> notes = "底本：「作品」\\r\\nボランティアの皆さんです。\\r\\n"
    >>> plain("題\\r\\n人\\r\\n\\r\\n　｜雨《あめ》と※［＃「雨／鬼」、U+9B57］［＃「鬼」に傍点］だ。\\r\\n" + notes)
    '雨と魗だ。'
    >>> plain("題\\r\\n\\r\\n雨だ。\\r\\n" + notes + "クリエイティブ・コモンズで公開する。") is None
    True
    """
    body, mark, notes = content.rpartition("\n底本：")
    if not mark or FREE not in notes or HELD.search(notes):
        return None
    legend = list(RULE.finditer(body))[:2]
    body = body[legend[1].end() :] if len(legend) == 2 else re.split(r"\r?\n\s*\r?\n", body, maxsplit=1)[-1]
    lines = (line.strip() for line in NOTE.sub("", LETTER.sub(_letter, body)).splitlines())
    return "\n".join(line for line in lines if line)


def held(index: Path) -> set[str]:
    """Returns the numbers of the works that the index calls copyrighted; InputError for another table."""
    with open(index, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if not {"作品ID", "作品著作権フラグ", "人物著作権フラグ"} <= set(rows.fieldnames or ()):
            raise InputError(
                f"--index is {index}, which lacks the columns 作品ID and 作品著作権フラグ; give Aozora's own."
            )
        flags = ("作品著作権フラグ", "人物著作権フラグ")
        return {row["作品ID"].lstrip("0") for row in rows if any(row[flag] == "あり" for flag in flags)}


def _works(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the number and the file of each work, once: with ruby, where there are both."""
    known = set()
    for path in sorted(folder.glob("cards/*/files/*/*.txt")):
        number = path.name.partition("_")[0].partition(".")[0]
        if number not in known:
            known.add(number)
            yield number, path


def make(folder: Path, index: Path | None, to: Path, percent: int = 100) -> Mapping[str, Any]:
    """Writes to/ja_aozora.jsonl and to/ja_aozora.json, and returns what the latter says.

    With less than 100 `percent` it has so many of the works, by their hashes.
    """
    if (to / f"{NAME}.jsonl").exists():
        raise InputError(f"{to / NAME}.jsonl is there already; give another folder, or delete it.")
    under = held(index) if index else set[str]()
    documents = []
    letters = 0
    left_out = 0
    for number, path in _works(folder):
        text = None if number in under else plain(path.read_bytes().decode("cp932", "replace"))
        if text is None or len(text) < SMALLEST or part_of(text)[0] // 1_000 % 100 >= percent:
            left_out += 1
            continue
        letters += len(text)
        documents.append({"text": text, "author": path.parts[-4], "file": str(path.relative_to(folder))})
    if not documents:
        raise InputError(f"--aozora is {folder}, without works in cards/*/files/*/*.txt; give a clone of the texts.")
    said = {"language": "ja", "left_out": left_out, "letters": letters, "index": str(index)}
    return write_corpus(to, NAME, documents, said)
