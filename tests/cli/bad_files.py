"""Bad files and flags for the commands that read text, vocabularies and models: what is typed, and the sentence.

The folder of a case holds corpus.jsonl, in.txt, pairs.jsonl, run (a run of a T5), hf and lm (folders for transformers,
of a T5 and of a language model), and the folder empty.
"""

from __future__ import annotations

import gzip
import io
import json
import shlex
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.cli.bad_inputs import TRAIN, Case

DOCUMENT = json.dumps({"text": "A document of a few words, which is long enough. " * 3}).encode() + b"\n"
LINES = DOCUMENT * 40
PRETRAIN = (
    "train gin/models/t5_1_1/tiny.gin gin/runs/pretrain.gin mine.gin --gin.MIXTURE_OR_TASK_NAME=any --gin.MODEL_DIR=out"
    " --gin.TASK_FEATURE_LENGTHS=\"{'inputs': 64}\" --gin.DROPOUT_RATE=0.0 --gin.TRAIN_STEPS=2"
)
# From Python 3.12 on its tokenizer says so.
TOO_DEEP = "too many nested parentheses" if sys.version_info >= (3, 12) else "brackets are nested too deeply"
GIN_FILES = {
    b"TRAIN_STEP = 5\n": "mine.gin line 1 sets TRAIN_STEP",
    b"BATCH_SIZE = (1,\n": "not gin",
    b"BATCH_SIZE = \n": "not gin",
    b"BATCH_SIZE == 5\n": "not gin",
    b"hello world\n": "not gin",
    b"include 'gin/models/t5_1_1/huge.gin'\n": "huge.gin, which does not exist",
    b"include 'mine.gin'\n": "which includes itself",
    b"CORPUS = " + b"[" * 50_000 + b"]" * 50_000: f"mine.gin is not gin: {TOO_DEEP}",
    b"include 'bomb0.gin'\n": "are 101 with",
    b"include 'chain0.gin'\n": "are 101 with",
    b"".join(b"A%d = 1\n" % n for n in range(1_000_000)): "at most 100 with 2,000,000 are read: remove includes.",
    b"include '.'\n": "does not exist",
    b"from tasks import nothing_like_it\n": "tasks.nothing_like_it, which does not exist",
    b"import no_such_module_anywhere\n": "no_such_module_anywhere, which does not exist",
    b"config.LossConfig:\n  z_los = 0.0\n": "mine.gin line 2 sets z_los",
    b"config.LossConfg.z_loss = 0.0\n": "did you mean config.LossConfig?",
    b"BATCH_SIZE = '\xff\xfe'\n": "cannot be read",
    b"\x00\x01\x02": "mine.gin",
    b"MODEL_DIR = 'a' 'b\n": "mine.gin",
    b"FOO = 5\n": "sets FOO, which nothing uses",
    b"BATCH_SIZE = %FOO\n": "uses %FOO, which nothing sets",
    b"BATCH_SIZE = %FOO\nFOO = %BATCH_SIZE\n": "by itself",
    b"BATCH_SIZE = @config.ModelConfig\n": "a class; write @config.ModelConfig()",
    b"BATCH_SIZE = 1e999\n": "a whole number",
    b"LEARNING_RATE = -1e999\n": "LEARNING_RATE is -inf",
    b"from tasks import broken\n": "The module tasks.broken fails when it is imported: NameError",
}


def gin_cases() -> list[Case]:
    files = {"tasks/broken.py": b"import limba\n\nnot_a_name\n"}
    files |= {f"bomb{n}.gin": b"include 'bomb%d.gin'\n" % (n + 1) * 2 for n in range(30)}  # 2^30 in all
    files |= {f"chain{n}.gin": b"include 'chain%d.gin'\n" % (n + 1) for n in range(120)}
    files |= {"bomb30.gin": b"", "chain120.gin": b""}
    cases = []
    for text, says in GIN_FILES.items():
        needed = {name: data for name, data in files.items() if name[:4].encode() in text}
        needed |= {"tasks/broken.py": files["tasks/broken.py"]}
        cases.append(Case(tuple(shlex.split(PRETRAIN)), says, {"mine.gin": text, **needed}))
    return cases


def parquet(values: list, name: str = "text", kind: pa.DataType | None = None) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(values, kind or pa.string())}), buffer)
    return buffer.getvalue()


def flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :]


PACKED = gzip.compress(LINES)
CORPORA = {
    "empty.jsonl": (b"", "empty.jsonl"),
    "empty.txt": (b"", "empty.txt"),
    "blank.txt": (b"\n\n  \n", "blank.txt"),
    "utf16.txt": ("Un text lung. ".encode("utf-16") * 50, "UTF-8"),
    "utf16.jsonl": (LINES.decode().encode("utf-16"), "utf16.jsonl"),
    "latin1.txt": ("Ceva ales ș".encode("iso8859-16") * 20, "UTF-8"),
    "latin1.jsonl": (b'{"text": "\xaa\xba"}\n' * 40, "latin1.jsonl"),
    "nul.jsonl": (b"\0" * 5000, "nul.jsonl"),
    "array.jsonl": (b"[" + b",".join([DOCUMENT.strip()] * 40) + b"]", "array.jsonl"),
    "lists.jsonl": (b"[1, 2]\n" * 40, "lists.jsonl"),
    "numbers.jsonl": (b"5\n" * 40, "numbers.jsonl"),
    "cut.jsonl": (LINES[:-20], "cut.jsonl"),
    "single_quotes.jsonl": (b"{'text': 'abc'}\n" * 40, "single_quotes.jsonl"),
    "no_column.jsonl": (b'{"content": "abc"}\n' * 40, "text"),
    "number_column.jsonl": (b'{"text": 5}\n' * 40, "number_column.jsonl"),
    "null_column.jsonl": (b'{"text": null}\n' * 40, "null_column.jsonl"),
    "list_column.jsonl": (b'{"text": ["a", 1]}\n' * 40, "list_column.jsonl"),
    "deep.jsonl": (b"[" * 200_000 + b"\n", "deep.jsonl"),
    "cut.jsonl.gz": (PACKED[: len(PACKED) // 2], "cut.jsonl.gz"),
    "no_end.jsonl.gz": (PACKED[:-9], "no_end.jsonl.gz"),
    "crc.jsonl.gz": (flipped(PACKED, len(PACKED) - 6), "crc.jsonl.gz"),
    "middle.jsonl.gz": (flipped(PACKED, 40), "middle.jsonl.gz"),
    "plain.jsonl.gz": (LINES, "plain.jsonl.gz"),
    "empty.jsonl.gz": (gzip.compress(b""), "empty.jsonl.gz"),
    "nothing.jsonl.gz": (b"", "nothing.jsonl.gz"),
    "cut.jsonl.zst": (zstandard.compress(LINES)[:-5], "cut.jsonl.zst"),
    "plain.jsonl.zst": (LINES, "plain.jsonl.zst"),
    "gzip.jsonl.zst": (PACKED, "gzip.jsonl.zst"),
    "ragged.csv": (b"a,text\n" + b"b\n" * 40, "has 1 fields and the header 2"),
    "header.csv": (b"text\n", "header.csv"),
    "empty.csv": (b"", "empty.csv"),
    "quote.csv": (b'text\n"never closed\n' + b"abc\n" * 40, "quote.csv"),
    "latin1.csv": (b"text\n" + b"\xaa\xba\n" * 40, "latin1.csv"),
    "junk.parquet": (b"PAR1 no parquet at all PAR1", "junk.parquet"),
    "empty.parquet": (b"", "empty.parquet"),
    "cut.parquet": (parquet(["abc"] * 40)[:-20], "cut.parquet"),
    "no_rows.parquet": (parquet([]), "no_rows.parquet"),
    "null.parquet": (parquet([None] * 40), "null.parquet"),
    "numbers.parquet": (parquet([1, 2, 3], kind=pa.int64()), "numbers.parquet"),
    "no_column.parquet": (parquet(["abc"] * 40, name="content"), "text"),
    "junk.array_record": (b"no record", "junk.array_record"),
    "empty.array_record": (b"", "empty.array_record"),
    "page.html": (b"<html>404</html>", "page.html"),
    "corpus.tar": (b"\0" * 10240, "corpus.tar"),
    "corpus.zip": (b"PK\x03\x04" + b"\0" * 100, "corpus.zip"),
    "corpus.pdf": (b"%PDF-1.7", "corpus.pdf"),
    "without_ending": (LINES, "without_ending"),
}
VOCABULARIES = {
    "empty.model": (b"", "is not a SentencePiece model"),
    "junk.model": (b"\x00\x01 no model" * 9, "is not a SentencePiece model"),
    "text.model": (b"a\nb\nc\n", "is not a SentencePiece model"),
    "empty.json": (b"", "empty.json"),
    "junk.json": (b"{", "junk.json"),
    "object.json": (b"{}", "object.json"),
    "latin1.json": (b'{"a": "\xaa"}', "latin1.json"),
    "vocabulary.txt": (b"a\nb\n", "vocabulary.txt"),
}


def text_cases() -> list[Case]:
    train = shlex.split(TRAIN)
    inspect = ["inspect", "--vocabulary=byte"]
    cases = []
    for name, (data, says) in CORPORA.items():
        cases.append(Case((*train, f"--gin.CORPUS={name}"), says, {name: data}))
        cases.append(Case((*inspect, name), says, {name: data}))
    for name, (data, says) in VOCABULARIES.items():
        cases.append(Case((*train, f"--gin.VOCABULARY={name}"), says, {name: data}))
        cases.append(Case(("inspect", "corpus.jsonl", f"--vocabulary={name}"), says, {name: data}))
    return cases


# Commands that read text -> the expected sentence.
DATA_COMMANDS = {
    "inspect": "Nothing to read is named",
    "inspect none.txt --vocabulary=byte": "none.txt",
    "inspect empty --vocabulary=byte": "empty",
    "inspect corpus.jsonl": "no vocabulary; give --vocabulary=PATH or byte",
    "inspect corpus.jsonl --vocabulary=": "vocabulary",
    "inspect corpus.jsonl --vocabulary=none.model": "set --vocabulary",
    "inspect corpus.jsonl --vocabulary=byte --num=-1": "--num is -1",
    "inspect corpus.jsonl --vocabulary=byte --num=x": "invalid int value: 'x'",
    "inspect corpus.jsonl --vocabulary=byte --sample_bytes=0": "--sample_bytes 0; give numbers above 0",
    "inspect corpus.jsonl --vocabulary=byte --inputs=0": "gives 0 for 'inputs'",
    "inspect corpus.jsonl --vocabulary=byte --inputs=-1": "gives -1 for 'inputs'",
    "inspect corpus.jsonl --vocabulary=byte --inputs=1": "--inputs",
    "inspect corpus.jsonl --vocabulary=byte --sequence=-5": "gives -5 for 'targets'",
    "inspect corpus.jsonl --vocabulary=byte --sequence=0": "gives 0 for 'targets'",
    "inspect corpus.jsonl --vocabulary=byte --objective=mlm": "--objective is 'mlm'; choose one of",
    "inspect corpus.jsonl --vocabulary=byte --split=dev": "dev",
    "inspect corpus.jsonl --vocabulary=byte --column=txt": "txt",
    "inspect corpus.jsonl --vocabulary=byte --column={'inputs'": "is not a dictionary",
    "inspect corpus.jsonl --vocabulary=byte --validation_percent=100": "--validation_percent is 100.0",
    "inspect corpus.jsonl --vocabulary=byte --validation_percent=nan": "--validation_percent is nan",
    "inspect corpus.jsonl --vocabulary=byte --extra_ids=-1": "--extra_ids is -1",
    "inspect corpus.jsonl --extra_ids=5": "--extra_ids=5 come above the pieces of --vocabulary",
    "inspect --task=no_such_task": "no_such_task",
    "inspect --task=demo_span_corruption --module=tasks.nowhere": "tasks.nowhere, which does not exist",
    "inspect --task=demo_span_corruption --module=a..b": "a..b, which does not exist",
    "inspect corpus.jsonl in.txt --vocabulary=byte": "put quotation marks around a pattern",
    "inspect --vocabulry=byte": "did you mean --vocabulary",
    "inspect corpus.jsonl --gin.BATCH_SIZE=8": "is a flag of limba train",
    "vocabulary": "--output",
    "vocabulary corpus.jsonl": "--output",
    "vocabulary corpus.jsonl --output=in.txt": "in.txt",
    "vocabulary corpus.jsonl --output=a.model --size=x": "invalid int value: 'x'",
    "vocabulary corpus.jsonl --output=a.model --size=100": "--size",
    "vocabulary corpus.jsonl --output=a.model --size=-1": "--size",
    "vocabulary corpus.jsonl --output=a.model --sample_bytes=0": "--sample_bytes is 0",
    "vocabulary corpus.jsonl --output=a.model --coverage=1.5": "--coverage is 1.5",
    "vocabulary corpus.jsonl --output=a.model --coverage=nan": "--coverage is nan",
    "vocabulary corpus.jsonl --output=a.model --normalization=nfc": "invalid choice: 'nfc'",
    "vocabulary corpus.jsonl --output=a.model --byte_fallback=maybe": "invalid choice: 'maybe'",
    "vocabulary corpus.jsonl --output=a.model --compare_vocabulary=none.model": "none.model",
    "vocabulary corpus.jsonl --output=a.model --compare_files=none.txt": "none.txt",
    "vocabulary none.txt --output=a.model": "none.txt",
    "vocabulary corpus.jsonl --output=in.txt/a.model": "in.txt",
    "results": "No model is given",
    "results hf --suite=none": "suites/none.gin does not exist",
    "results hf --suite=ro --data=empty": "empty/ron/data.tsv does not exist; name the folder",
    "results hf --suite=ro --seeds=0": "--seeds is 0; give 1 or more",
    "report": "No run is given; write limba report MODEL_DIR",
    "report nowhere": "nowhere is not a folder",
    "report in.txt": "in.txt is not a folder",
    "report empty": "empty has no config.json",
    "report hf": "hf",
    "report gss://bucket/run": "begins with gss://",
    "report run --gin.A=1": "goes with --gin_file",
    "report run --step=5": "--step",
    "report --gin_file=none.gin": "none.gin does not exist",
}


# Variables of the environment -> the expected sentence.
VARIABLES = [
    ("vocabulary corpus.jsonl --output=a.model", {"PROCESS_ID": "first"}, "PROCESS_ID is first"),
    ("vocabulary corpus.jsonl --output=a.model", {"PROCESS_ID": "-1"}, "PROCESS_ID is -1"),
]


def data_cases() -> list[Case]:
    cases = [Case(tuple(shlex.split(line)), says) for line, says in DATA_COMMANDS.items()]
    return cases + [Case(tuple(shlex.split(line)), says, environment=values) for line, values, says in VARIABLES]
