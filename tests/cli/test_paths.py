"""All places that take a path, each with an address of a bucket: it serves, or it is refused by name.

Never is anything written to a local folder `gs:`.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from limba import config
from limba.cli.main import main
from tests.bucket_server import BucketServer, emulated

ROOT = Path(__file__).parents[2]
LOOKS_LIKE_A_PATH = re.compile(
    r"\b(DIR|FILE|FILES|PATH|OUT|MODEL|CHECKPOINT)\b|gs://|\.(gin|model|png|npz|gz)\b|folder"
)
BUCKET = "serves buckets"
# Flag, argument or field -> whether it takes gs://…; else the arguments with which it is refused.
FLAGS: dict[str, object] = {
    "tools/corpus/inspect.py FILES": BUCKET,
    "tools/corpus/task_flags.py --vocabulary": BUCKET,
    "tools/corpus/task_flags.py FILES": BUCKET,
    "tools/corpus/compare.py --corpus": BUCKET,
    "tools/corpus/trim.py --held_out": BUCKET,
    "tools/corpus/trim.py --keep": BUCKET,
    "tools/corpus/trim.py --output": ["vocabulary", "trim", "m", "--keep=text.txt", "--output=gs://bucket/out"],
    "tools/corpus/trim.py --vocabulary": BUCKET,
    "tools/corpus/trim.py MODEL": BUCKET,
    "tools/corpus/vocabulary.py --compare_files": BUCKET,
    "tools/corpus/vocabulary.py --compare_vocabulary": BUCKET,
    "tools/corpus/vocabulary.py --output": BUCKET,
    "cli/flags.py --gin_file": ["train", "--gin_file=gs://bucket/a.gin", "--gin.MODEL_DIR=out"],
    "cli/flags.py --gin_search_paths": ["train", "--gin_file=a.gin", "--gin_search_paths=gs://bucket/gin"],
    "cli/flags.py GIN_FILE as JSON": ["train", "gs://bucket/a.json"],
    "tools/pages/play/play.py --vocabulary": BUCKET,
    "tools/pages/play/play.py MODEL": BUCKET,
    "tools/pages/report.py --output": BUCKET,
    "tools/pages/report.py MODEL_DIR": BUCKET,
    "cli/status.py MODEL_DIR": BUCKET,
    "tools/corpus/new.py --corpus": BUCKET,
    "tools/corpus/new.py --from": BUCKET,
    "tools/migrate/t5x/translate.py --gin_search_paths": [
        "convert",
        "--gin",
        "a.gin",
        "--gin_search_paths=gs://bucket/gin",
    ],
    "tools/migrate/t5x/translate.py THEIRS.gin": ["convert", "--gin", "gs://bucket/a.gin"],
    "tools/results/results.py MODEL": BUCKET,
    "tools/results/results.py --suite": ["results", "run", "--suite=gs://bucket/a.gin"],
    "tools/results/results.py --data": ["results", "run", "--suite=ro", "--data=gs://bucket/data"],
    "tools/results/results.py --output": ["results", "run", "--suite=ro", "--output=gs://bucket/out"],
    "cli/branch.py --output": BUCKET,
    "cli/branch.py MODEL_DIR": BUCKET,
    "cli/convert.py --model": BUCKET,
    "cli/convert.py --npz": ["convert", "gs://bucket/none", "--to=list", "--npz=gs://bucket/a.npz"],
    "cli/convert.py --output": BUCKET,
    "cli/convert.py MODEL [OUT]": BUCKET,
    "cli/convert.py --config": ["convert", "gs://bucket/none", "out", "--config=gs://bucket/a.gin"],
    "cli/convert.py MODEL [OUT] to limba": ["convert", "gs://bucket/none", "gs://bucket/out", "--to=limba"],
    "cli/line_flags.py --input": BUCKET,
    "cli/line_flags.py --output": BUCKET,
    "cli/model.py --checkpoint": BUCKET,
    "cli/model.py --gin_file": ["generate", "--gin_file=gs://bucket/a.gin", "--prompt=a"],
    "cli/model.py --gin_search_paths": ["generate", "--gin_file=a.gin", "--gin_search_paths=gs://b/c"],
    "cli/model.py --vocabulary": BUCKET,
    "cli/model.py MODEL": BUCKET,
}
# Config field -> whether it takes gs://….
FIELDS = {
    "DataConfig.vocabulary", "DataConfig.data_files", "DataConfig.skip", "DataConfig.cache_dir",
    "RunConfig.model_dir", "RunConfig.initial_checkpoint_path",
    "DataConfig.replay_files",
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with pytest.MonkeyPatch.context() as patch, emulated(patch) as bucket_server:
        yield bucket_server


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # else some commands start the program again
    (tmp_path / "text.txt").write_text("\n".join(f"One line of text, number {i}." for i in range(200)))
    return tmp_path


def found_flags() -> set[str]:
    """Returns the flags and arguments whose metavar or help speaks of a path, by file."""
    flags = set()
    for path in sorted([*(ROOT / "limba" / "cli").rglob("*.py"), *(ROOT / "limba" / "tools").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or node.func.attr not in ("add_argument", "add_object"):
                continue
            values = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            texts = [value for value in values if isinstance(value, str)]
            if "store_true" not in texts and any(map(LOOKS_LIKE_A_PATH.search, texts)):
                name = texts[1] if node.func.attr == "add_object" else texts[0].replace("objects", "MODEL [OUT]")
                flags.add(f"{path.relative_to(ROOT / 'limba')} {name}")
    return flags


def test_the_list_has_all_flags_that_take_a_path() -> None:
    others = {
        "cli/arguments.py MODEL_DIR", "cli/convert.py --vocabulary", "cli/convert.py --push",
        "tools/corpus/task_flags.py --column", "tools/corpus/task_flags.py --validation_percent",
        "tools/corpus/compare.py --column", "tools/corpus/trim.py --column",
        "cli/convert.py --transformers",
        "cli/line_flags.py --prompt", "cli/flags.py GIN_FILE",
    }  # fmt: skip
    assert found_flags() - others - set(FLAGS) == set(), "say in FLAGS what each does with gs://"


def test_the_list_has_all_fields_that_take_a_path() -> None:
    named = re.compile(r"(^|_)(dir|path|files|file|folder|vocabulary|skip|directory)$")
    classes = [var for var in vars(config).values() if dataclasses.is_dataclass(var)]
    fields = [(kind.__name__, field.name) for kind in classes for field in dataclasses.fields(kind)]
    assert {f"{kind}.{name}" for kind, name in fields if named.search(name)} == FIELDS


def one_sentence(argv: list[str], capfd: pytest.CaptureFixture[str], workdir: Path) -> str:
    status = main(argv)
    out, error = capfd.readouterr()
    assert status == 2, (argv, out, error)
    lines = [line for line in error.splitlines() if "google_auth_provider" not in line]
    assert len(lines) == 1 and "gs://b" in lines[0], error
    assert not (workdir / "gs:").exists() and not (ROOT / "gs:").exists()
    return lines[0]


@pytest.mark.parametrize("name", [name for name, how in FLAGS.items() if how is not BUCKET])
def test_what_cannot_serve_a_bucket_says_so(name: str, workdir: Path, capfd, server: BucketServer) -> None:
    before = len(server.objects)
    one_sentence(list(FLAGS[name]), capfd, workdir)  # pyright: ignore[reportArgumentType]
    assert len(server.objects) == before


@pytest.mark.parametrize("address", ["s3://bucket/run", "az://bucket/run", "hf://me/run", "http://host/run"])
def test_a_run_is_written_to_google_or_a_disk_only(address: str, workdir: Path, capfd) -> None:
    assert main(["train", "--gin_file=gin/demo.gin", f"--gin.MODEL_DIR={address}", "--gin.VOCABULARY=byte"]) == 2
    error = capfd.readouterr().err
    assert f"{address} begins with {address.partition(':')[0]}://, not with gs://" in error and error.count("\n") == 1
