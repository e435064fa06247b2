"""The benchmark of conversions: its table, a conversion that fails, and the whole command on a tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import convert
from benchmarks.convert import Figures
from limba.config import InputError


def test_the_table_has_medians_and_the_spread_of_the_ratios() -> None:
    rounds = [
        {"there": Figures(seconds, 2 * seconds, mib, 3 * 10**9, cp_seconds)}
        for seconds, mib, cp_seconds in ((10.0, 1_500.0, 5.0), (30.0, 2_000.0, 10.0), (12.0, 1_000.0, 12.0))
    ]
    *_, line = convert.table(rounds)
    assert line == "| there | 3.00 | 12.0 | 10.0 | 2.00 (1.00 to 3.00) | 24.0 | 2,000 |"
    *_, line = convert.table(rounds[:1])
    assert line == "| there | 3.00 | 10.0 | 5.0 | 2.00 | 20.0 | 1,500 |"


MEASURED = """
import sys
from benchmarks import convert

holding = "held = bytearray({} << 20); held[::4096] = bytes(len(held[::4096]))"
for size in (150, 450):
    print(convert.run([sys.executable, "-c", holding.format(size)])[1])
"""


@pytest.mark.night
def test_the_memory_of_a_process_is_measured() -> None:
    # In a process of its own, as by the command: one that is started counts what its parent held.
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    small, large = map(float, done.stdout.split())
    assert small >= 150
    assert 295 <= large - small <= 310


@pytest.mark.slow
def test_a_conversion_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"-m limba convert .*nothing .* failed: .*nothing"):
        convert.measure(tmp_path / "nothing", tmp_path / "out", ["--no_check"])


@pytest.mark.night
def test_a_tiny_model_is_converted_in_all_three_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert.main(["--size=tiny", f"--folder={tmp_path / 'measured'}", "--json"])
    (figures,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(figures) == ["Limba to safetensors", "Limba to Flax", "safetensors to Limba"]
    for one in figures.values():
        assert min(one.values()) > 0
        assert one["written_bytes"] > 10**6
    assert not (tmp_path / "measured").exists()
