"""No training step gets slower or larger unseen: what compilers say of it is compared with tests/golden/compiled.json.

A change that is meant is recorded by `python -m benchmarks.compiled_figures --write`, and its cost stands in the diff.
"""

import importlib.metadata
import importlib.util
import platform
import re
from pathlib import Path

import pytest

from benchmarks import compiled_figures
from benchmarks.compiled_figures import LANDING, NIGHT, WRITE

ROOT = Path(__file__).parents[2]
# The compilers that the record was made with.
VERSIONS = {"jax": "0.10.2", "libtpu": "0.0.42.1"}
EXCHANGES = ("all-reduce", "reduce-scatter", "all-gather")
# The steps of the table of the whole base step on a v4-8, and the first cell of each.
BASE_STEPS = {
    "t5-whole": "--remat=minimal",
    "t5-whole-full": "--remat=full",
    "t5-whole-muon": "--remat=full --optimizer=muon",
    "t5-whole-unrolled": "--remat=minimal --no-scan",
}
# libtpu has wheels for this machine alone, and the pins of Python 3.12 and later are other versions.
HAS_LIBTPU = platform.machine() == "x86_64" and importlib.metadata.version("jax") == VERSIONS["jax"]
of_tpu = pytest.mark.skipif(not HAS_LIBTPU, reason="recorded with jax 0.10.2 and its libtpu, of Python 3.11 on x86-64")
of_nvidia = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None, reason="needs bash launch/setup.sh cuda12"
)


def assert_as_recorded(step: str) -> None:
    """Compiles a step; fails with its figures that differ from the recorded ones."""
    lines = list(compiled_figures.differences(compiled_figures.recorded()[step], compiled_figures.compiled(step)))
    assert not lines, f"The compiled step {step} has changed; if that is meant, record it: {WRITE}\n" + "\n".join(lines)


@of_tpu
@pytest.mark.slow
@pytest.mark.aot
@pytest.mark.parametrize("step", LANDING)
def test_no_step_gets_slower_unseen(step: str) -> None:
    recorded = compiled_figures.recorded()[step]
    assert recorded["flags"] == LANDING[step], f"Record it anew: {WRITE}"
    if compiled_figures.traced_program(step) == recorded["traced_program"]:
        return  # the same program and the same compiler, and so the same figures: the night compiles it all the same
    figures = compiled_figures.compiled(step)
    # Another program may compile to the same figures.
    figures["traced_program"] = recorded["traced_program"]
    lines = list(compiled_figures.differences(recorded, figures))
    assert not lines, f"The compiled step {step} has changed; if that is meant, record it: {WRITE}\n" + "\n".join(lines)


@of_tpu
@pytest.mark.night
@pytest.mark.aot
@pytest.mark.parametrize("step", [*LANDING, *(step for step in NIGHT if step != "t5-h100")])
def test_steps_compile_to_their_recorded_figures(step: str) -> None:
    assert_as_recorded(step)


@of_nvidia
@pytest.mark.night
@pytest.mark.aot
def test_a_card_s_step_compiles_to_its_recorded_figures() -> None:
    assert_as_recorded("t5-h100")


@pytest.mark.slow
def test_the_record_has_every_step_by_the_pinned_compilers() -> None:
    recorded = compiled_figures.recorded()
    assert list(recorded) == list(compiled_figures.STEPS)
    for step, kept in recorded.items():
        assert kept["flags"] == compiled_figures.STEPS[step] and kept["figures"]["live_bytes"] > 2**30
        assert kept["figures"]["fusions"] > 100 and len(kept["figures"]["kernels"]) >= 2
        assert ("traced_program" in kept) == (step in LANDING)
    locks = "".join((ROOT / "requirements" / f"lock-{name}.txt").read_text() for name in ("cpu", "tpu"))
    for name, version in VERSIONS.items():
        assert re.search(rf"^{name}=={re.escape(version)} ; python_full_version < '3\.12'", locks, re.MULTILINE)


def test_a_figure_that_differs_is_named_with_both_values() -> None:
    recorded = compiled_figures.recorded()["t5"]
    slower = {**recorded, "figures": {**recorded["figures"], "fusions": recorded["figures"]["fusions"] + 1}}
    (line,) = compiled_figures.differences(recorded, slower)
    assert re.fullmatch(r"figures\.fusions: [\d,]+, now [\d,]+ \(\+0\.\d\d %\)", line), line
    assert not list(compiled_figures.differences(recorded, recorded))


def row_of(first_cell: str) -> list[str]:
    """Returns the other cells of the first row of benchmarks/README.md that begins with this."""
    page = (ROOT / "benchmarks" / "README.md").read_text()
    row = re.search(rf"^\| {re.escape(first_cell)}[^|]*\|(.*)\|$", page, re.MULTILINE)
    assert row is not None, f"benchmarks/README.md has no row of {first_cell}"
    return [cell.strip(" *") for cell in row[1].split("|")]


def memory_and_exchanges(figures: dict) -> tuple[str, str]:
    """Returns GiB of live memory and MiB of collectives, as the tables have them."""
    sizes = [figures["collectives"].get(kind, {"bytes": 0})["bytes"] for kind in EXCHANGES]
    return f"{figures['live_bytes'] / 2**30:.2f}", " / ".join(f"{size / 2**20:,.0f}" for size in sizes)


@pytest.mark.parametrize("step", [step for step in compiled_figures.STEPS if step != "t5-h100"])
def test_the_table_of_recorded_steps_is_the_record(step: str) -> None:
    figures = compiled_figures.recorded()[step]["figures"]
    live, exchanged = memory_and_exchanges(figures)
    millions = [f"{figures[f'{name}_cycles'] / 1e6:.2f}" for name in ("total", "fusion", "kernel")]
    assert row_of(f"`{step}`") == [*millions, live, f"{figures['fusions']:,}", exchanged]


@pytest.mark.parametrize("step", BASE_STEPS)
def test_the_table_of_the_base_step_is_the_record(step: str) -> None:
    figures = compiled_figures.recorded()[step]["figures"]
    live, exchanged = memory_and_exchanges(figures)
    millions = [f"{figures[f'{name}_cycles'] / 1e6:.1f}" for name in ("fusion", "kernel", "total")]
    assert row_of(f"`{BASE_STEPS[step]}`")[:5] == [*millions, live, exchanged]
