"""tests/changed.py: a changed module brings its own tests, or its users' tests where none imports it."""

import re
import subprocess

import pytest

from tests.changed import MOST, chosen_files, files_for
from tests.shipped import MODULES, ROOT, place_of

pytestmark = pytest.mark.lint


def places(*changed: str) -> set[str]:
    return {place_of(path) for path in files_for({ROOT / path for path in changed})}


def test_a_module_brings_its_own_tests_first_and_few() -> None:
    files = places("limba/training/losses.py")
    assert "tests/training/test_losses.py" in files and len(files) <= MOST
    assert len(places("limba/config/model.py")) == MOST  # which nearly all import
    assert places("tests/training/test_muon.py", "docs/index.md", "README.md") == {"tests/training/test_muon.py"}
    assert "tests/launch/test_pod_ssh.py" in places("tests/launch/laptop.py")
    assert places() == set()


def test_nearly_every_module_of_the_product_brings_some() -> None:
    """Not commands that a table enters by their names."""
    ours = [path for module, path in MODULES.items() if module.startswith("limba.") and path.name != "__init__.py"]
    without = [place_of(path) for path in ours if not files_for({path})]
    assert len(without) < 0.1 * len(ours), without


def test_the_core_is_always_there() -> None:
    always, _ = chosen_files()
    assert {"tests/training/test_optimizer.py", "tests/test_floors.py"} <= {place_of(path) for path in always}


@pytest.mark.parametrize("script", ["other_python.sh", "run.sh"])
def test_the_files_that_a_script_names_are_there(script: str) -> None:
    named = re.findall(r"(?<![\w./])tests/[\w{},./]+", (ROOT / "tests" / script).read_text())
    told = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(named)}"], capture_output=True, text=True, check=True
    )
    assert named and not [path for path in told.stdout.split() if not (ROOT / path.rstrip(".,")).exists()]
