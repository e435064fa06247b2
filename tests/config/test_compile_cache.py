"""The folder of compiled programs: this user's alone, or none."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from limba.config import compile_cache
from tests.bucket_server import serving_buckets

PROGRAM = """import os
from limba.config import compile_cache, environment

environment.set_variables()
print(os.environ[compile_cache.OF_JAX])"""
COMPILING = """from limba.config import environment

environment.set_variables()
import jax
import limba.storage.files  # settles the clients of buckets

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
print(jax.jit(lambda x: (2 * x + 1).sum())(jax.numpy.arange(8.0)), events.count("/jax/compilation_cache/cache_hits"))"""


def place(home: Path, **variables: str) -> tuple[str, str]:
    """Returns the place that a new process sets for jax, and what it prints on stderr."""
    kept = {name: value for name, value in os.environ.items() if name != compile_cache.OF_JAX}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=kept | {"HOME": str(home)} | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_the_folder_is_the_user_s_alone(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "limba" / "compiled"
    assert place(tmp_path) == (str(folder), "") and mode(folder) == 0o700
    folder.chmod(0o755)  # others may enter it
    assert place(tmp_path) == (str(folder), "") and mode(folder) == 0o700


def test_a_bucket_or_another_folder_is_used_only_where_it_is_named(tmp_path: Path) -> None:
    assert place(tmp_path, COMPILE_CACHE="gs://mine/compiled") == ("gs://mine/compiled", "")
    assert place(tmp_path, COMPILE_CACHE=f"{tmp_path}/mine") == (f"{tmp_path}/mine", "")
    assert mode(tmp_path / "mine") == 0o700
    assert place(tmp_path, COMPILE_CACHE="off") == ("", "")
    assert place(tmp_path, COMPILE_CACHE="off", JAX_COMPILATION_CACHE_DIR="/own") == ("/own", "")
    folder, said = place(tmp_path, COMPILE_CACHE="s3://mine")
    assert folder == "" and "give a folder, gs://BUCKET/FOLDER or off" in said and said.count("\n") == 1


def test_what_others_could_have_written_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "compiled"
    folder.mkdir()
    folder.chmod(0o777)
    assert compile_cache.problem_of(folder) is None and mode(folder) == 0o700  # it was empty
    (folder / "jit_step-cache").write_bytes(b"")
    folder.chmod(0o770)
    assert "others could write" in str(compile_cache.problem_of(folder))
    folder.chmod(0o700)
    monkeypatch.setattr(compile_cache.os, "getuid", lambda: os.geteuid() + 1)
    assert "belongs to another user" in str(compile_cache.problem_of(folder))


@pytest.mark.night
def test_a_named_bucket_keeps_programs_for_another_process() -> None:
    with serving_buckets() as server:
        kept = {name: value for name, value in os.environ.items() if name != compile_cache.OF_JAX}
        kept |= server.environment() | {"COMPILE_CACHE": "gs://bucket/compiled", "JAX_PLATFORMS": "cpu"}
        told = []
        for _ in range(2):
            done = subprocess.run([sys.executable, "-c", COMPILING], env=kept, capture_output=True, text=True)
            assert done.returncode == 0 and done.stderr == "", done.stderr
            told.append((done.stdout.split(), len(server.names("compiled/"))))
    (first, entries), (second, after) = told
    assert first == ["64.0", "0"] and entries > 0
    assert second == ["64.0", str(entries)] and after == entries  # each program is read, and none is written


def test_a_home_that_cannot_be_written_needs_no_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    assert place(tmp_path / "home") == ("", "")
    folder, said = place(tmp_path, COMPILE_CACHE=f"{tmp_path}/home/x")
    assert folder == "" and "cannot be used" in said
