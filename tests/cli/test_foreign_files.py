"""Each file that somebody else may have written, damaged: one sentence, or the right result."""

import contextlib
import gzip
import json
import os
import shutil
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import limba
from limba.cli.gin import statements
from limba.config import InputError, SentenceError, untrusted_files
from limba.data.sources import listing, readers
from limba.evaluation.status import Status
from limba.formats import sentence_modules
from limba.inference import line_files
from limba.inference.source import described
from limba.inference.texts import whole_letters
from limba.storage import manifest
from limba.tools.migrate.huggingface.values import read_values
from limba.tools.migrate.t5x import read as t5x_gin
from limba.tools.pages.page.results import results_of
from limba.tools.results import card, outcome_cache
from limba.tools.results.kinds.bits import BitsPerByte
from limba.tools.results.kinds.fine_tuned import Classification, NamedEntities, PartOfSpeech, Similarity
from limba.tools.results.kinds.pairs import MinimalPairs
from tests import tiny
from tests.evaluation.report_runs import append, opened, recorded
from tests.export.runs import folder_of, write_run
from tests.inference.test_load import config_of

DEEP = b"[" * 100_000 + b"]" * 100_000


def zipped(folder: Path, method: int = zipfile.ZIP_STORED) -> bytes:
    path = folder / "made.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.tsv", "good\tbad\nOne.\tTwo.\n")
    return path.read_bytes()


def with_password(archive: bytes) -> bytes:
    """Returns a zip archive whose flags say that it is encrypted."""
    data = bytearray(archive)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    return bytes(data)


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "zeros": bytes(64),
    "random": bytes((n * 137 + 91) % 256 for n in range(4_096)),
    "brace": b"{",
    "list": b"[]",
    "null": b"null",
    "number": b"5",
    "text": b'"text"',
    "deep": DEEP,
    "deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "deep line": b'{"text": ' + DEEP + b', "kind": "train", "step": 1}\n',
    "nan": b'{"text": NaN, "label": NaN, "kind": "train", "step": NaN, "loss": NaN}\n',
    "infinite": b'{"text": 1e999, "label": 1e999, "kind": "train", "step": 1e999}\n',
    "many digits": b'{"text": ' + b"9" * 10_000 + b', "kind": "train", "step": 1}\n',
    "half a letter": b'{"text": "\\ud800", "label": "\\udfff", "good": "a \\ud800", "bad": "b"}\n',
    "latin-1": "déjà vu\n".encode("latin-1"),
    "utf-16": '{"text": "a"}\n'.encode("utf-16"),
    "gzip": gzip.compress(b'{"text": "a"}\n' * 9),
    "cut gzip": gzip.compress(b'{"text": "a"}\n' * 99)[:-9],
    "page": b"<!DOCTYPE html>\n<html><body>404: Not Found</body></html>\n",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "deep yaml": b"---\n" + b"a: " + b"{a: " * 5_000 + b"1" + b"}" * 5_000 + b"\n---\n",
    "wide cell": b"good\tbad\ttext\tlabel\n" + b"x" * 200_000 + b"\ty\tz\tw\n",
    "quote": b'good\tbad\ttext\tlabel\n"a\tb\tc\td\n',
}
PIPE = "pipe"


def training(path: Path) -> None:
    for unit in listing.list_units(listing.list_files([str(path)])):
        for _ in readers.read_chunks(unit, "text"):
            pass


def generation(path: Path) -> None:
    for record in line_files.records(str(path), ["text"]):
        whole_letters(json.dumps(record, ensure_ascii=False, default=str)).encode()


def task(kind: Callable[..., object], **fields: object) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        made = kind(
            name="task", **fields, **{part: path.name for part in ("train", "test") if kind is not MinimalPairs}
        )
        made.read(str(path.parent))

    return read


def pairs(path: Path) -> None:
    for pair in MinimalPairs("task", path.name).read(str(path.parent)):
        "".join(pair).encode()


def bits(path: Path) -> None:
    BitsPerByte("task", (path.name,)).read(str(path.parent))


def status(path: Path) -> None:
    "\n".join(Status(str(path.parent)).lines()).encode()


def page(path: Path) -> None:
    folder = path.parent if path.parent.name.startswith("seed") else path.parent.parent
    (run,) = opened(folder)
    shown = [run.evaluations(), run.skipped(), run.skipped_documents(), run.problems, list(results_of(run))]
    json.dumps(shown, ensure_ascii=False, default=str)


def script(path: Path) -> None:
    read_values(str(path), {})


def weights(path: Path) -> None:
    limba.load(str(path.parent))


FORMATS = (".txt", ".jsonl", ".json", ".csv", ".tsv", ".parquet", ".jsonl.gz")
MORE_FORMATS = (".txt.zst", ".csv.bz2", ".json.xz")
OF_PAIRS = (".tsv", ".csv", ".jsonl", ".parquet", ".tsv.gz", ".zip", ".tsv.zip")
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    **{f"training {form}": (f"a{form}", training) for form in (*FORMATS, *MORE_FORMATS)},
    **{f"generation {form}": (f"a{form}", generation) for form in FORMATS},
    **{f"pairs {form}": (f"a{form}", pairs) for form in OF_PAIRS},
    "bits .txt": ("a.txt", bits),
    "bits .conllu": ("a.conllu", bits),
    "classes": ("a.jsonl", task(Classification)),
    "similarity": ("a.tsv", task(Similarity, first="good", second="bad", score="label")),
    "entities": ("a.json", task(NamedEntities)),
    "parts of speech": ("a.conllu", task(PartOfSpeech)),
    "kept outcome": ("outcome.json", outcome_cache._read),
    "card": ("README.md", card.read),
    "card's languages": ("README.md", card.languages),
    "gin": ("a.gin", lambda path: statements.read([str(path)])),
    "script of transformers": ("a.json", script),
    "run's config": ("run/config.json", lambda path: described(str(path.parent))),
    "run's manifest": ("run/checkpoints/9/manifest.json", lambda path: manifest.check(path.parent)),
    "run's weights": ("run/checkpoints/9/state/manifest.ocdbt", lambda path: limba.load(str(path.parents[3]))),
    "recorded config": ("seed0/config.json", status),
    "figures": ("seed0/metrics.jsonl", status),
    "lease": ("seed0/lease", status),
    "hosts": ("seed0/hosts.json", status),
    "figures on a page": ("seed0/metrics.jsonl", page),
    "texts on a page": ("seed0/evaluations/t-10.jsonl", page),
    "skipped on a page": ("seed0/skipped_batches.jsonl", page),
    "units on a page": ("seed0/skipped_units_process_0.json", page),
    "a table on a page": ("seed0/results/x.txt", page),
    "config of transformers": ("hf/config.json", lambda path: described(str(path.parent))),
    "weights of transformers": ("hf/model.safetensors", weights),
    "index of transformers": ("index/model.safetensors.index.json", weights),
    "flax of transformers": ("flax/flax_model.msgpack", weights),
    "SentencePiece": ("hf/spiece.model", weights),
    "roles of a tokenizer": ("hf/tokenizer_config.json", weights),
    "its special tokens": ("hf/special_tokens_map.json", weights),
    "its added tokens": ("hf/added_tokens.json", weights),
    "ids of generation": ("hf/generation_config.json", weights),
    "rules of a tokenizer": ("hf/tokenizer.json", weights),
    "modules of sentences": ("hf/modules.json", lambda path: sentence_modules.read_modules(path.parent, dict)),
    "T5X's gin": ("a.gin", lambda path: t5x_gin.is_t5x([str(path)])),
}  # fmt: skip


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, vocabulary: Path) -> Path:
    folder = tmp_path_factory.mktemp("shelf")
    write_run(folder / "run", config_of(), steps=(9,))
    recorded(folder)
    (folder / "seed0" / "results").mkdir()
    (folder / "seed0" / "results" / "x.svg").write_text("<svg/>")
    (folder / "seed0" / "evaluations").mkdir(exist_ok=True)
    append(folder / "seed0", {"kind": "text", "step": 10, "chrf": 1.0})
    folder_of(tiny.model(vocab_size=1_024, num_encoder_layers=1, num_decoder_layers=1), vocabulary, folder / "hf")
    for name in ("index", "flax"):
        shutil.copytree(folder / "hf", folder / name)
        (folder / name / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.slow
def test_a_damaged_file_is_a_sentence_or_is_passed_over(reader: str, shelf: Path, tmp_path: Path) -> None:
    name, read = READERS[reader]
    made = zipped(tmp_path)
    damaged = {**DAMAGED, "password": with_password(made), "archive": made[:-20], "no file": b""}
    folder = tmp_path / "work"
    top = name.partition("/")[0]
    failures = []
    for kind, content in damaged.items():
        shutil.rmtree(folder, ignore_errors=True)
        if "/" in name:
            shutil.copytree(shelf / top, folder / top)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if kind != "no file":
            path.write_bytes(content)
        try:
            read(path)
        except SentenceError as error:
            if "\n" in str(error):
                failures.append(f"{kind}: {error}")
        except FileNotFoundError:
            if kind != "no file":
                raise
        except Exception as error:  # noqa: BLE001  each is told
            failures.append(f"{kind}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, "\n".join(failures)


# Who names a file himself may name a pipe, as the shell's <(…) does: an input of `generate`, a JSON of flags.
PIPES = [name for name in READERS if not name.startswith(("generation", "script"))]


class WaitedError(BaseException):
    """A pipe is waited for; nothing that reads files catches it."""


@pytest.mark.parametrize("reader", PIPES)
def test_a_pipe_in_a_folder_is_not_waited_for(reader: str, shelf: Path, tmp_path: Path) -> None:
    name, read = READERS[reader]
    top = name.partition("/")[0]
    if "/" in name:
        shutil.copytree(shelf / top, tmp_path / top)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)

    def end(*_: object) -> None:
        raise WaitedError(f"{reader} waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(10)
    try:
        with contextlib.suppress(SentenceError):
            read(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_link_of_a_foreign_run_is_not_on_its_page(tmp_path: Path) -> None:
    run = recorded(tmp_path, name="theirs")
    (tmp_path / "secret").write_text("a key")
    (tmp_path / "secret.jsonl").write_text('{"input": "a key", "target": "", "prediction": ""}\n')
    (run / "results").mkdir()
    (run / "results" / "a.svg").write_text("<svg/>")
    (run / "results" / "a.txt").symlink_to(tmp_path / "secret")
    (run / "results" / "b.svg").symlink_to(tmp_path / "secret")
    (run / "evaluations").mkdir(exist_ok=True)
    (run / "evaluations" / "t-10.jsonl").symlink_to(tmp_path / "secret.jsonl")
    append(run, {"kind": "text", "step": 10, "chrf": 1.0})
    (opened_run,) = opened(run)
    assert [(name, text) for name, _, text in results_of(opened_run)] == [("a", "")]
    assert "a key" not in json.dumps(opened_run.evaluations())
    (run / "results" / "a.txt").unlink()
    (run / "results" / "a.txt").write_bytes(b"a table" + b"\xff")
    assert [(name, text) for name, _, text in results_of(opened_run)] == [("a", "a table\ufffd")]


def test_a_guard_says_what_a_parser_raises(tmp_path: Path) -> None:
    for error, words in (
        (RecursionError("maximum recursion depth exceeded"), "it is nested too deeply"),
        (KeyError("weights"), "it lacks 'weights'"),
        (MemoryError(), "it needs more memory than there is"),
        (NotImplementedError("That compression method is not supported"), "That compression method is not supported"),
    ):
        says = f"{tmp_path} cannot be read .{words}.; copy it again"
        with pytest.raises(InputError, match=says), untrusted_files.reading(tmp_path, "copy it again"):
            raise error
