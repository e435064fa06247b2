"""`.ci/package` builds a release and tries its wheel; the workflows that publish it and the docs site."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import limba

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


def package(*arguments: str, folder: Path = ROOT, **variables: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHON": sys.executable, **variables}
    command = ["bash", str(folder / ".ci" / "package"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_tag_of_another_version_and_a_changelog_without_the_section_are_refused(tmp_path: Path) -> None:
    for name in (".ci/package", "limba/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    code, said = package("v9.9.9", folder=tmp_path)
    assert code == 2 and said.count("\n") == 1
    assert f"the tag is v9.9.9, and limba/__init__.py has the version {limba.__version__}" in said
    code, said = package(f"v{limba.__version__}", folder=tmp_path)
    assert code == 2 and f"CHANGELOG.md has no section ## [{limba.__version__}]" in said


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_what_a_workflow_runs_exists(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    for action in (step["uses"] for step in steps if "uses" in step):
        assert PINNED.fullmatch(action), f"{path.name}: {action} is not pinned by its commit"
    for command in (step["run"] for step in steps if "run" in step):
        for name in re.findall(r"(?<!\S)(?:bash |--requirement )([\w./-]+)", command):
            assert (ROOT / name).is_file(), f"{path.name}: {name} does not exist"


def test_only_the_job_that_publishes_may_speak_for_the_repository() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert "permissions" not in jobs["package"] and jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["needs"] == "package" and "run" not in str(jobs["publish"]["steps"])


@pytest.mark.night
def test_a_release_is_built_and_its_wheel_trains(tmp_path: Path) -> None:
    clone = tmp_path / "limba"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=120)
    code, said = package(folder=clone, SITE=sysconfig.get_path("purelib"))
    assert code == 0, said
    version = limba.__version__
    with tarfile.open(clone / "dist" / f"limba-{version}.tar.gz") as sdist:
        names = sdist.getnames()
    assert {f"limba-{version}/{name}" for name in ("README.md", "LICENSE", "gin/demo.gin", "tasks/demo.py")} <= {*names}
    with zipfile.ZipFile(clone / "dist" / f"limba-{version}-py3-none-any.whl") as wheel:
        names = wheel.namelist()
    assert {"limba/run.py", "limba/shipped/gin/demo.gin"} <= {*names} and not any("tests/" in name for name in names)
