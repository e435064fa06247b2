"""What a corpus holds: columns, documents, bytes, letters, scripts, in every format."""

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from limba.config import InputError
from limba.tools.corpus import survey as module
from limba.tools.corpus.survey import survey, text_columns

TEXTS = [f"Dokument {i} handler om fjorden og sauene på øya." for i in range(40)]
ROWS = [{"id": i, "innhold": text} for i, text in enumerate(TEXTS)]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def write(folder: Path, form: str) -> Path:
    path = folder / f"a.{form}"
    content = {
        "jsonl": LINES,
        "jsonl.gz": gzip.compress(LINES),
        "jsonl.zst": zstandard.compress(LINES),
        "json": json.dumps(ROWS).encode(),
        "csv": ("innhold\n" + "\n".join(TEXTS)).encode("utf-8-sig"),
        "txt": "\n".join(TEXTS).encode(),
    }.get(form)
    if content is None:
        pyarrow.parquet.write_table(pyarrow.table({"innhold": TEXTS, "id": range(40)}), path)
    else:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "jsonl.zst", "json", "csv", "txt", "parquet"])
def test_every_format_is_counted_whole(form: str, tmp_path: Path) -> None:
    path = write(tmp_path, form)
    seen = list[int]()
    counts = survey(str(path), progress=seen.append)
    size = sum(len(text.encode()) for text in TEXTS)
    assert (counts.documents, counts.bytes, counts.files, counts.is_whole) == (40, size, 1, True)
    assert counts.column == ("text" if form == "txt" else "innhold") and seen[-1] == size
    assert counts.columns == (() if form == "txt" else ("innhold",)) == text_columns(str(path))
    assert counts.letters == sum(map(len, TEXTS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "\ufeffid;innhold\n1;En, to\n2;Tre\n"),
        ("a.tsv", "id\tinnhold\n1\tEn, to\n2\tTre\n"),
        ("a.ndjson", '{"id": "1", "innhold": "En, to"}\n{"id": "2", "innhold": "Tre"}\n'),
    ],
)
def test_columns_are_those_that_training_reads(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert text_columns(str(path)) == ("id", "innhold")
    assert survey(str(path), "innhold").documents == 2


@pytest.mark.parametrize("column", ["body.nb", "avsnitt"])
def test_the_column_that_is_read_is_among_the_columns(column: str, tmp_path: Path) -> None:
    """Its text is in another value, so that it is not one of the columns that hold text themselves."""
    path = tmp_path / "a.jsonl"
    row = {"text": "En", "body": {"nb": "To"}, "avsnitt": ["Tre", "Fire"]}
    path.write_text(json.dumps(row) + "\n")
    counts = survey(str(path), column)
    assert (counts.column, counts.columns) == (column, ("text", column))
    assert survey(str(path)).columns == ("text",)


def test_a_dictionary_of_parquet_is_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"innhold": pyarrow.array(TEXTS).dictionary_encode()}), path)
    assert text_columns(str(path)) == ("innhold",)


def test_a_large_corpus_is_estimated_from_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in range(8):
        lines = [json.dumps({"text": f"記事{i}番の文章は短いです。" * 20}, ensure_ascii=False) for i in range(1_000)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    whole = survey(f"{tmp_path}/*.jsonl")
    monkeypatch.setattr(module, "BYTES_READ", whole.bytes // 5)
    part = survey(f"{tmp_path}/*.jsonl")
    assert whole.is_whole and not part.is_whole
    assert part.documents == pytest.approx(whole.documents, rel=0.1)
    assert part.bytes == pytest.approx(whole.bytes, rel=0.1)
    assert part.letters == pytest.approx(whole.letters, rel=0.1)


def test_bad_corpora_are_one_sentence(tmp_path: Path) -> None:
    def refused(said: str, corpus: str, column: str | None = None) -> None:
        with pytest.raises(InputError, match=said):
            survey(corpus, column)

    refused("matches no file", str(tmp_path / "none*.jsonl"))
    (tmp_path / "empty.jsonl").write_text("\n")
    refused("holds no document", str(tmp_path / "empty.jsonl"))
    (tmp_path / "nothing.txt").write_text("")
    refused("holds no document", str(tmp_path / "nothing.txt"))
    (tmp_path / "two.jsonl").write_text('{"en": "a", "nb": "b"}\n')
    refused("several with text; set DataConfig.column to one of 'en', 'nb'", str(tmp_path / "two.jsonl"))
    refused("has no column 'sv'; it has 'en', 'nb'", str(tmp_path / "two.jsonl"), "sv")
    assert survey(str(tmp_path / "two.jsonl"), "nb").documents == 1
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(LINES)[:60])
    refused("cut.jsonl.gz.* cannot be read", str(tmp_path / "cut.jsonl.gz"))
    (tmp_path / "bad.jsonl").write_text("{not json}\n")
    refused("bad.jsonl.* is not JSON", str(tmp_path / "bad.jsonl"))
    (tmp_path / "pages.pdf").write_bytes(b"%PDF")
    refused("unknown suffix", str(tmp_path / "pages.pdf"))
