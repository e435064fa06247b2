"""Only TensorFlow's start-up notes are kept off stderr, whatever else happens."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from limba.config import environment

pytestmark = pytest.mark.fast

NOTE = b"I0000 00:00:1795220775.415077    8474 port.cc:153] oneDNN custom operations are on.\n"
FIRST = b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"


def test_chatter_is_dropped_and_the_rest_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with environment.quiet_imports():
        os.write(2, FIRST + NOTE + b"E0000 00:00:1.5 1 a.cc:1] broken\nIt matters.\n")
    os.write(2, NOTE)
    assert capfd.readouterr().err == "E0000 00:00:1.5 1 a.cc:1] broken\nIt matters.\n" + NOTE.decode()


def test_what_was_written_before_an_error_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError), environment.quiet_imports():
        os.write(2, NOTE + b"It matters.\n")
        raise ImportError
    assert capfd.readouterr().err == "It matters.\n"


def test_the_user_s_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.VARIABLES:
        monkeypatch.setenv(name, "mine")
    environment.set_variables()
    assert {os.environ[name] for name in environment.VARIABLES} == {"mine"}


def test_the_script_says_whether_this_is_a_cloud_tpu() -> None:
    done = subprocess.run([sys.executable, environment.__file__], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0 if environment.is_tpu_vm() else 1, "", "")


def test_native_output_goes_to_a_file_and_the_log_stays(tmp_path: Path) -> None:
    program = (
        "import logging, os, sys; from limba.config import environment\n"
        "environment.set_logging()\n"
        "for name in ('one', 'two'):\n"
        "    environment.divert_native_output(f'{sys.argv[1]}/{name}'); os.write(2, b'native\\n')\n"
        "logging.warning('logged'); print('printed', file=sys.stderr); environment.end_now('The\\n end.', 75)"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (75, "logged\nprinted\nThe end.\n")
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["native\n"] * 2


def test_a_last_sentence_is_seen_while_imports_are_quiet() -> None:
    program = (
        "from limba.config import environment\n"
        "with environment.quiet_imports(): print('kept'); environment.end_now('The end.', 130)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "kept\n", "The end.\n")
