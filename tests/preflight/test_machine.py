"""`limba preflight --environment`: what it finds, what it says to do, and that it shows no token."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from limba.cli.main import main
from limba.tools.preflight.checks import machine
from limba.tools.preflight.checks.verdict import Line, Section

QUICK = "import json; print('a note'); print(json.dumps(['tpu', 'TPU v4', 4, 34359738368, {}]))"


def test_findings_and_what_to_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_mine")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(machine, "ASK", QUICK.format("True"))
    status = main(["preflight", "--environment"])
    told = capsys.readouterr().out
    assert re.findall(r"^\w+$", told, re.MULTILINE) == ["Environment", "Devices", "Machine"]
    assert "  ok       jax computes on 4 x TPU v4 (tpu, 32.0 GiB each).\n" in told
    last = told.splitlines()[-1]
    warnings = len(re.findall("^  warning ", told, re.MULTILINE))
    said = f"{warnings} warning{'s' * (warnings > 1)}" if warnings else "nothing is wrong"
    assert (status, last) == (0, f"This machine: {said}.")
    assert "HF_TOKEN: present" in told and "secret" not in told and "\x1b" not in told
    assert main(["preflight", "--environment", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert document["exit_status"] == status
    assert [section["title"] for section in document["sections"]] == ["Environment", "Devices", "Machine"]
    assert "secret" not in json.dumps(document)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("raise SystemExit('RuntimeError: no TPU here.')", "jax finds no device: RuntimeError: no TPU here."),
        (QUICK.format("False"), "A product of matrices has a wrong sum there."),
        ("import time; time.sleep(60)", "jax did not find its devices in 1 s; another process may hold them."),
    ],
)
def test_a_device_that_fails_is_an_error(asked: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ASK", asked)
    monkeypatch.setattr(machine, "DEVICE_SECONDS", 1.0 if "sleep" in asked else 60.0)
    (line,) = [line for line in machine.devices().lines if line.level == "error"]
    assert line.text == told and line.fix


def test_fixes_name_the_script_and_errors_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [Line("error", "This machine has a GPU, and jax has no packages for it.", f"{machine.SETUP} cuda")]
    monkeypatch.setattr(machine, "environment", lambda: Section("Environment", lines))
    monkeypatch.setattr(machine, "ASK", QUICK.format("True"))
    monkeypatch.setattr(machine, "LEAST_FILES", 1 << 40)
    assert main(["preflight", "--environment"]) == 1
    told = capsys.readouterr().out
    assert "Fix: bash launch/setup.sh cuda" in told and "Fix: ulimit -n 4096" in told
    assert re.search(r"^This machine: 1 error, \d warnings?\.$", told, re.MULTILINE)


@pytest.mark.parametrize(
    ("others", "named"),
    [
        (["gin/demo.gin"], "gin/demo.gin"),
        (["--gin.BATCH_SIZE=8"], "--gin.BATCH_SIZE=8"),
        (["--topology=v4-8"], "--topology"),
        (["--no_compile"], "--no_compile"),
    ],
)
def test_a_run_beside_it_is_refused(others: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", "--environment", *others]) == 1
    sentence = f"--environment looks at this machine alone, without a run; leave {named} out.\n"
    assert capsys.readouterr().err == sentence


def test_it_needs_no_package_that_may_be_missing() -> None:
    """Where jax is not installed, or broken, this is the command that says so."""
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['jax', 'jaxlib', 'flax', 'tensorflow', 'rich']));"
        "from limba.tools.preflight.checks import machine; machine.ASK = 'import absent';"
        "from limba.cli.main import main; sys.exit(main(['preflight', '--environment']))"
    )
    variables = {**os.environ, "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)
    assert ended.returncode == 1 and ended.stderr == ""
    assert "jax finds no device: ModuleNotFoundError: No module named 'absent'." in ended.stdout


def on_a_terminal(*words: str, **variables: str) -> tuple[int, bytes]:
    """Runs limba with a terminal as its stdout and stderr; returns the exit status and what it shows."""
    environment = {**os.environ, "TERM": "xterm", "HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", **variables}
    if "NO_COLOR" not in variables:
        environment.pop("NO_COLOR", None)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "limba", *words], stdout=theirs, stderr=theirs, env=environment
    ) as run:
        os.close(theirs)
        told = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            told += part
    os.close(ours)
    return run.returncode, told


@pytest.mark.night
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_colour_on_a_terminal_unless_it_is_refused(variables: dict[str, str]) -> None:
    status, told = on_a_terminal("preflight", "--environment", **variables)
    assert status in (0, 2) and b"jax computes on" in told
    assert (b"\x1b[32m" in told) is not bool(variables)


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=str)
def test_an_error_is_red_on_a_terminal_and_plain_elsewhere(
    variables: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = on_a_terminal("nothing", **variables)
    assert status == 2 and b"limba has no command nothing" in told
    assert (b"\x1b[31m" in told) is not bool(variables)
    assert main(["nothing"]) == 2 and "\x1b" not in capsys.readouterr().err
