"""Eight CPU devices, strict flags, one compile cache for the whole session: set before anything imports jax."""

import atexit
import gc
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "LIMBA_TEST_CACHE" not in os.environ:  # the first process makes it, and its workers take it
    os.environ["LIMBA_TEST_CACHE"] = tempfile.mkdtemp(prefix="limba-compiled-")
    atexit.register(shutil.rmtree, os.environ["LIMBA_TEST_CACHE"], ignore_errors=True)
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["LIMBA_TEST_CACHE"]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import pytest
from jaxtyping import install_import_hook

# Shapes and dtypes in signatures are checked at every call, traced ones included.
CHECKED = [
    "limba.model",
    "limba.training.losses",
    "limba.training.chunked_loss",
    "limba.training.step",
    "limba.inference.generate",
    "limba.inference.search",
]
install_import_hook(CHECKED, "beartype.beartype")

jax.config.update("jax_numpy_rank_promotion", "raise")
gc.disable()  # until all tests are imported


LONG = ("test_hosts.py", "test_train_step.py", "test_train.py", "test_kill.py", "test_finetune.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, so that no process is left alone with one at the end."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def pytest_collection_finish() -> None:
    """Lets garbage be collected from here on, without searching what the imports made each time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real English prose, as the demo writes it."""
    from limba.data.preparation.demo_corpus import pydoc_corpus

    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    assert pydoc_corpus(path) > 300
    return path


@pytest.fixture(scope="session")
def vocabulary(corpus: Path) -> Path:
    """A SentencePiece model of 800 pieces, trained on the corpus."""
    from limba.data.vocabulary.load import train_vocabulary

    path = corpus.parent / "vocabulary.model"
    texts = (json.loads(line)["text"] for line in corpus.read_text().splitlines())
    assert train_vocabulary(texts, 800, str(path)) == 800
    return path
