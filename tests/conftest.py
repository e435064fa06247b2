"""Eight CPU devices, strict flags, one compile cache for all processes: set before anything imports jax."""

import collections
import dataclasses
import gc
import importlib.metadata
import json
import math
import os
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation, of programs that run once: LLVM leaves out what makes them fast, and XLA its
# way by MLIR, which takes two thirds of that time (jax 0.11 ends at that flag, as it has no other way); in one piece, a
# program takes a twentieth less. The night's run compiles as users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true"
    + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    * importlib.metadata.version("jaxlib").startswith("0.10."),
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Two thirds of the suite's time are compilation: what one run has compiled serves the next ones for a week.
os.environ.setdefault("LIMBA_TEST_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))
os.environ["LIMBA_TEST_CACHE"] = os.path.abspath(os.environ["LIMBA_TEST_CACHE"])
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["LIMBA_TEST_CACHE"]
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # each program of a test would compile all that it imports: 5 s
    os.environ.setdefault("PYTHONPYCACHEPREFIX", f"{os.environ['LIMBA_TEST_CACHE']}-bytecode")
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"]

import hypothesis
import jax
import pytest
from jaxtyping import install_import_hook

from limba.config import environment
from tests import changed
from tests.waiting import Patience

# Shapes and dtypes in signatures are checked at every call, traced ones included, wherever arrays are computed with.
CHECKED = [
    "limba.model",
    "limba.training.losses",
    "limba.training.step",
    "limba.evaluation.validation",
    "limba.inference.generate",
    "limba.inference.scoring",
    "limba.inference.search",
]
install_import_hook(CHECKED, "beartype.beartype")

environment.use_large_pages = lambda pages=None: None  # a command that a test calls would start pytest anew
jax.config.update("jax_numpy_rank_promotion", "raise")
# An example may take as long as a busy machine needs for it.
hypothesis.settings.register_profile(
    "limba", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("limba")
gc.disable()  # until all tests are imported
# The programs of tests inherit which signals are ignored; nohup and a shell's background jobs ignore these.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    """Finds out what `-m fast` means now, by tests/changed.py, and how long a test may wait for what it starts."""
    most_seconds = float(config.getini("faulthandler_timeout"))  # until Python itself ends this process: pyproject.toml
    config.patience = Patience(most_seconds * 2 / 3 if most_seconds else math.inf)
    config.commit_tier = changed.chosen_files() if config.option.markexpr == "fast" else None
    if config.commit_tier:
        config.option.markexpr = "fast and not slow and not night and not long"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not open the files of which `-m fast` runs nothing: imports are most of its time."""
    if config.commit_tier and changed.NAMED.search(collection_path.name):
        always, now = config.commit_tier
        return True if collection_path not in always | now else None
    return None


# The longest first, by processor time (--cpu) or since they wait: no process is left alone with one of them at the end.
LONG = (
    "test_processes.py",
    "test_compiled_figures.py",  # where a step has changed, minutes
    *("test_hosts.py", "test_step.py", "test_encoder.py", "test_kill.py", "test_others.py", "test_pod_trials.py"),
    *("test_bridge.py", "test_trained.py", "test_t5x_rows.py", "test_train.py"),
    *("test_results.py", "test_public.py", "test_fit.py", "test_pod.py", "test_new.py", "test_recorded_run.py"),
    *("test_pallas_tpu.py", "test_completion.py", "test_bad_inputs.py", "test_undivided.py", "test_registry.py"),
    *("test_bucket.py", "test_dataset.py", "test_lean.py", "test_finetune.py", "test_play.py", "test_pairs.py"),
    *("test_broken_texts.py", "test_broken_runs.py", "test_export.py", "test_stages.py", "test_setup.py"),
    "test_readme.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest files first, and gives the tests of `-m fast` their marker."""
    for item in items if config.commit_tier else ():
        if item.path in config.commit_tier[1] or item.get_closest_marker("core") or item.get_closest_marker("lint"):
            item.add_marker("fast")
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


def keep_traced() -> None:
    """Has networks of one configuration share what jax has traced of their parameters' shapes: seconds each time."""
    network = sys.modules["limba.model"].Network
    kept = {}
    begin = network.__init__

    def begin_as_before(self: Any, config: Any, mesh: Any = None) -> None:
        begin(self, config, mesh)
        self._boxed = kept.setdefault((dataclasses.replace(config, dropout_rate=0.0), mesh), self._boxed)

    network.__init__ = begin_as_before


def pytest_collection_finish() -> None:
    """Lets garbage be collected from here on, without searching what the imports made each time."""
    if "limba.model" in sys.modules:
        keep_traced()
    gc.freeze()
    gc.get_freeze_count = lambda: 1  # each command asks whether any are frozen; counting millions takes a while
    gc.set_threshold(50_000, 20, 20)  # tracing makes millions of objects: 3 % of the time were collections
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --cpu, which ends the run with a table of processor time."""
    parser.addoption(
        "--cpu", action="store_true", help="print the processor time of each file and of the longest tests"
    )


def processor_seconds() -> float:
    """Returns what this process and the children that it has waited for have taken, user and system."""
    return sum(os.times()[:4])


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.cpu_seconds = processor_seconds()
    kept = session.config.rootpath / ".pytest_cache"
    for entry in [*(kept / "compiled").glob("*"), *(kept / "compiled-bytecode").rglob("*.pyc")]:
        if entry.stat().st_mtime < time.time() - 7 * 24 * 3600:
            entry.unlink(missing_ok=True)  # another process may be as fast


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    with item.config.patience.limited():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    with item.config.patience.limited():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    with item.config.patience.limited():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Gives each phase of a test its processor time; a fixture counts with the first test that needs it."""
    report = yield
    before = item.config.cpu_seconds
    item.config.cpu_seconds = processor_seconds()
    report.user_properties = [("cpu_seconds", item.config.cpu_seconds - before)]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the table of --cpu: load on a shared machine changes the seconds of the clock, and hardly these."""
    if not config.getoption("--cpu"):
        return
    tests: dict[str, float] = collections.defaultdict(float)
    for report in (entry for reports in terminalreporter.stats.values() for entry in reports):
        for _, seconds in getattr(report, "user_properties", ()):
            tests[report.nodeid] += seconds
    files: dict[str, float] = collections.defaultdict(float)
    for name, seconds in tests.items():
        files[name.split("::")[0]] += seconds
    terminalreporter.section(f"processor time: {sum(files.values()):.0f} s")
    for table in (files, tests):
        for name, seconds in sorted(table.items(), key=lambda pair: -pair[1]):
            if seconds >= 1:
                terminalreporter.write_line(f"{seconds:8.1f}  {name}")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real English prose, as the demo writes it."""
    from tasks.demo import pydoc_corpus

    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    assert pydoc_corpus(path) > 300
    return path


@pytest.fixture(scope="session")
def vocabulary(corpus: Path) -> Path:
    """A SentencePiece model of 800 pieces, trained on the corpus."""
    from limba.data.vocabulary.train import train_vocabulary

    path = corpus.parent / "vocabulary.model"
    texts = (json.loads(line)["text"] for line in corpus.read_text().splitlines())
    assert train_vocabulary(texts, 800, str(path)) == 800
    return path
