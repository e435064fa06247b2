"""Imports go down only (docs/architecture.md), and each heavy library stays behind its wall."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {
    "limba.config": 0,
    "limba.checks": 0,
    "limba.model_config": 0,
    "limba.data_config": 0,
    **dict.fromkeys(("model", "losses", "chunked_loss", "decoding", "text_metrics"), 1),
    **dict.fromkeys(("optimizer", "mesh", "profile", "formats"), 1),
    **dict.fromkeys(("data.remote", "data.compression", "data.parquet"), 1),
    **dict.fromkeys(("data.sources", "data.readers", "data.objectives", "data.vocabulary", "data.demo_corpus"), 1),
    **dict.fromkeys(("data.blocks", "data.span_corruption", "data.denoisers", "data.language_modeling"), 1),
    **dict.fromkeys(("data.whole_words", "data.packing", "data.philox", "data.ahead"), 1),
    **dict.fromkeys(("data.records", "data.cached_tasks", "data.providers"), 1),
    **dict.fromkeys(("data.prepare", "data.workers", "data.record_writers", "data.tfds_prepare"), 1),
    **dict.fromkeys(("data.normalization", "data.tokenizer_json", "data.vocabulary_training"), 1),
    "data.character_sets": 1,
    **dict.fromkeys(
        (
            "data.supervised",
            "data.diacritics",
            "data.tokenizers_vocabulary",
            "data.sampling",
            "data.vocabulary_report",
            "data.inspection",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "train_step",
            "auto_mesh",
            "state",
            "checkpoint",
            "best",
            "initial",
            "metrics",
            "data.streams",
            "data.reader_processes",
            "data.validation",
        ),
        2,
    ),
    **dict.fromkeys(("train", "evaluate", "infer", "continuations", "text_files", "preflight", "report"), 3),
}
WALLS = {  # library: where it may be imported
    "flax": ("limba/model/", "limba/state.py", "tests/"),
    "seqio": ("limba/data/", "limba/evaluate.py", "tasks/", "tests/", "benchmarks/"),
    "tensorflow": ("limba/data/", "limba/evaluate.py", "tasks/", "tests/", "benchmarks/"),
    "gin": ("launch/", "convert/", "tests/"),
    "torch": ("convert/", "tests/", "benchmarks/"),
    "transformers": ("convert/", "tests/", "benchmarks/"),
}
SOURCES = sorted(
    p
    for folder in ("limba", "tasks", "launch", "convert", "benchmarks", "tests")
    for p in (ROOT / folder).rglob("*.py")
)


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def floor(module: str) -> int | None:
    parts = module.split(".")
    if parts[0] in ("launch", "convert", "dialect", "tests", "benchmarks"):
        return 4
    if parts[0] == "tasks":
        return 1
    keys = (".".join(parts[:2]), ".".join(parts[1:3]), parts[1] if len(parts) > 1 else "")
    return next((FLOORS[key] for key in keys if key in FLOORS), None) if parts[0] == "limba" else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_go_down(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    module = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    own = floor(module)
    if module not in ("limba", "limba.data") and not place.startswith("tests/"):
        assert own is not None, f"{place} stands on no floor; name it in tests/test_floors.py"
    for name in imports(path):
        library = name.split(".")[0]
        assert library not in WALLS or place.startswith(WALLS[library]), f"{place} imports {name}"
        above = floor(name)
        assert own is None or above is None or above <= own, f"{place} (floor {own}) imports {name} (floor {above})"
    if place.startswith("limba/data/") and not place.endswith("streams.py"):
        assert "jax" not in {name.split(".")[0] for name in imports(path)}, f"{place} imports jax"


def test_no_file_or_function_is_too_long() -> None:
    for path in SOURCES:
        if "tests" in path.parts:
            continue
        text = path.read_text()
        assert text.count("\n") <= 500, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 80, f"{path}: {node.name}"
