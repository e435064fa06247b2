"""The shell scripts and container files are what their linters take; nothing is built or started."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path for folder in ("launch", "convert", "tests") for path in (ROOT / folder).rglob("*.sh"))
IMAGES = {"v2": "tpu-ubuntu2204-base", "v5e": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}


def linter(name: str) -> str:
    """Returns the path of a program of requirements-test.txt; a test that needs it fails without it."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.fail(f"{name} is not installed; run bash launch/setup.sh tests")
    return found


def lint(*command: str, text: str | None = None) -> None:
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shell_scripts_pass_shellcheck() -> None:
    assert {"pod.sh", "pod_worker.sh", "setup.sh", "convert.sh", "run.sh"} <= {path.name for path in SCRIPTS}
    lint(linter("shellcheck"), "--external-sources", *map(str, SCRIPTS))


def test_the_dockerfile_passes_hadolint() -> None:
    lint(linter("hadolint"), "Dockerfile")


def test_what_the_containers_copy_exists_and_their_arguments_are_known() -> None:
    docker, apptainer = (ROOT / "Dockerfile").read_text(), (ROOT / "launch" / "apptainer.def").read_text()
    copied = re.findall(r"^COPY --chown=1000 (.+) \S+$", docker, re.MULTILINE)
    copied = [word for words in copied for word in words.split()]
    copied += re.findall(r"^    (\S+) /limba/\S+$", apptainer, re.MULTILINE)
    assert len(copied) > 15 and all((ROOT / word).exists() for word in copied)
    known = (ROOT / "launch" / "setup.sh").read_text()
    for argument in (
        re.search(r"# cpu, tpu, cuda, cuda12 or rocm", docker)[0].replace("#", "").replace(" or", ",").split(",")
    ):
        assert re.search(rf"\b{argument.strip()}\b", known)
    for section in ("arguments", "files", "post", "environment", "runscript", "test"):
        assert f"\n%{section}\n" in apptainer
    body = apptainer.partition("%post\n")[2].partition("%environment")[0].replace("{{ accelerator }}", "cpu")
    lint(linter("shellcheck"), "--shell=sh", "-", text=body)


def test_sky_s_task_is_yaml_of_its_known_fields_and_its_shell_is_sound() -> None:
    """SkyPilot 0.14.1's own Task.from_yaml took this file; it is not among the tests' packages."""
    task = yaml.safe_load((ROOT / "launch" / "sky.yaml").read_text())
    assert set(task) == {"name", "workdir", "resources", "envs", "secrets", "setup", "run"}
    resources = task["resources"]
    assert resources["use_spot"] is True and resources["job_recovery"]["recover_on_exit_codes"] == [75, 134]
    assert resources["accelerator_args"] == {"runtime_version": IMAGES["v2"]}  # v4's, too
    assert (ROOT / task["envs"]["GIN_FILE"]).exists()
    variables = "".join(f"export {name}=x\n" for name in [*task["envs"], *task["secrets"]])
    script = "#!/usr/bin/env bash\n" + variables + task["setup"] + task["run"]
    lint(linter("shellcheck"), "--shell=bash", "--exclude=SC2154", "-", text=script)


def test_sky_s_task_needs_a_bucket(tmp_path: Path) -> None:
    task = yaml.safe_load((ROOT / "launch" / "sky.yaml").read_text())
    done = subprocess.run(
        ["bash", "-c", task["run"]], env={"PATH": os.environ["PATH"], "MODEL_DIR": ""}, capture_output=True, text=True,
        timeout=200, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2 and "give --env MODEL_DIR=gs://BUCKET/FOLDER" in done.stderr


def test_gke_s_jobset_starts_the_launch_script_on_every_worker_of_a_slice() -> None:
    (manifest,) = yaml.safe_load_all((ROOT / "launch" / "gke.yaml").read_text())
    assert manifest["kind"] == "JobSet" and manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    rows, columns = map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    chips = container["resources"]["limits"]["google.com/tpu"]
    assert spec["parallelism"] == spec["completions"] == rows * columns // chips and spec["backoffLimit"] == 0
    assert (ROOT / container["args"][0]).exists() and pod["terminationGracePeriodSeconds"] >= 300
    assert 8476 in [port["containerPort"] for port in container["ports"]]
