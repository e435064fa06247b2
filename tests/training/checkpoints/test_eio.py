"""EIO from the system's own read: the file is read again before it is damage; a storage that is away costs no step.

A library between the program and libc gives it, to Python's reads and to tensorstore's C++ reads.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharding.processes import ROOT
from tests.training.checkpoints import states

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char part[256];
static long left;

/* The next reads, so many, of files with this in their path fail. */
void fail_reads(const char *in_path, long times) {
  snprintf(part, sizeof part, "%s", in_path);
  __atomic_store_n(&left, times, __ATOMIC_SEQ_CST);
}

static int fails(int fd) {
  char link[64], path[4096];
  if (__atomic_load_n(&left, __ATOMIC_SEQ_CST) <= 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (!strstr(path, part)) return 0;
  if (__atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST) <= 0) return 0;
  errno = EIO;
  return 1;
}

#define FAILING(name, arguments, ...)                                   \
  ssize_t name arguments {                                              \
    static ssize_t(*real) arguments;                                    \
    if (!real) real = (ssize_t(*) arguments)dlsym(RTLD_NEXT, #name);    \
    return fails(fd) ? -1 : real(__VA_ARGS__);                          \
  }
FAILING(read, (int fd, void *to, size_t size), fd, to, size)
FAILING(pread, (int fd, void *to, size_t size, off_t at), fd, to, size, at)
FAILING(pread64, (int fd, void *to, size_t size, off64_t at), fd, to, size, at)
FAILING(readv, (int fd, const struct iovec *to, int count), fd, to, count)
FAILING(preadv, (int fd, const struct iovec *to, int count, off_t at), fd, to, count, at)
FAILING(preadv64, (int fd, const struct iovec *to, int count, off64_t at), fd, to, count, at)
"""
PROGRAM = """
import ctypes, logging, sys
logging.basicConfig(format="LOG %(message)s", stream=sys.stdout, level=logging.WARNING)
logging.getLogger("absl").setLevel(logging.ERROR)
from limba.config import StorageError
from limba.storage import failures
from limba.training.checkpoints import directory
from tests.training.checkpoints import states
failures.AGAIN_SECONDS = (0.05, 0.05)
library, run, *cases = sys.argv[1:]
fail_reads = ctypes.CDLL(library).fail_reads
checked = directory.limba_checkpoint.damage
for case in cases:
    part, _, times = case.partition("=")
    if part.startswith("restored"):  # once the check is over
        part = part.removeprefix("restored")
        def damage(*given):
            found = checked(*given)
            fail_reads(part.encode(), int(times))
            return found
        directory.limba_checkpoint.damage = damage
    else:
        directory.limba_checkpoint.damage = checked
        fail_reads(part.encode(), int(times))
    try:
        with directory.Checkpoints(run, states.CONFIG, states.DATA) as checkpoints:
            print("STEP", int(checkpoints.restore_latest(states.abstract(1)).state.step), flush=True)
    except StorageError as error:
        print("SENTENCE", error, flush=True)
    fail_reads(b"", 0)
"""


@pytest.mark.night
def test_a_read_that_fails_is_repeated_before_a_step_is_given_up(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("this machine has no C compiler")
    library = tmp_path / "failing.so"
    source = tmp_path / "failing.c"
    run = tmp_path / "run"
    source.write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    states.save(run, 10, 20)
    file = next((run / "checkpoints" / "20" / "state").glob("ocdbt.process_0.*/d/*"))
    cases = (
        "/20/=1",
        "20/manifest.json=2",
        f"restored{file.name}=1",
        "/checkpoints/=100000",
        f"{file.relative_to(run / 'checkpoints')}=100000",
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", PROGRAM, str(library), str(run), *cases]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr
    *again, away, damaged, step = ended.stdout.splitlines()
    assert again == ["STEP 20"] * 3, ended.stdout  # a server that was away for a moment
    assert away.startswith("SENTENCE The checkpoint ") and "(manifest.json cannot be read (Input/output error)" in away
    assert away.endswith("nothing is changed. Fix that, and start the same command again.")
    assert damaged.startswith("LOG The checkpoint at step 20 cannot be read (state/ocdbt.process_0.")  # a bad disk
    assert " cannot be read (Input/output error)): " in damaged and damaged.endswith(
        "20.broken, and step 10 is resumed."
    )
    assert step == "STEP 10" and sorted(path.name for path in (run / "checkpoints").iterdir()) == ["10", "20.broken"]
