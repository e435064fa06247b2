"""Runs a command, and returns its exit code: errors end it with one sentence on stderr."""

import contextlib
import errno
import functools
import io
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence

from limba.config import (
    InputError,
    NonFiniteError,
    RestartError,
    StorageError,
    UntrustedModuleError,
    environment,
    extras,
)
from limba.config.errors import NOT_WRITABLE, is_out_of_memory, reason_of, without_credentials
from limba.storage import failures, servers

NOT_A_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST)

# The exit status after one sentence on stderr, by the error's class; docs/reliability.md has the table.
CODES = {kind: kind.exit_status for kind in (InputError, NonFiniteError, StorageError, RestartError)}
GIVEN = re.compile(r"^--gin\.(?!MODEL_DIR=|config\.RunConfig\.model_dir=)[\w.]+=")  # before a value that is read
INTERRUPTED = 130  # after Ctrl-C, as shells have it: 128 and the number of SIGINT
EXIT_SECONDS = 60.0  # for threads to end when the program is done; where processes have joined, for those too:
EXIT_SECONDS_OF_SEVERAL = 280.0  # less than jax's own limit, which ends in a traceback


def exit_code(program: Callable[[Sequence[str]], object], argv: Sequence[str]) -> int:
    """Runs a program; returns 0, the program's own whole number, or after one sentence on stderr a status of CODES."""
    status = _status(program, argv)
    _exits()[:] = [status]
    return status


def _status(program: Callable[[Sequence[str]], object], argv: Sequence[str]) -> int:
    try:
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):  # a test's stdout
            sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
        for argument in argv if argv[:1] != ["preflight"] else ():  # its page says it, beside all else
            servers.check(argument)
            servers.check_name(GIVEN.sub("", argument).strip("'\""))
        result = program(argv)
        sys.stdout.flush()
    except UntrustedModuleError as error:
        command = shlex.join(["limba", *argv, *(f"--import={module}" for module in error.modules)])
        return _ended(f"{error.fact}; if you trust who wrote it: {command}", CODES[InputError])
    except tuple(CODES) as error:
        code = next(code for kind, code in CODES.items() if isinstance(error, kind))
        has_failed = error.after_step is not None and not isinstance(error, RestartError)
        return _ended(f"FAILED after step {error.after_step:,}: {error}" if has_failed else str(error), code)
    except KeyboardInterrupt:
        return _ended("Ctrl-C ended the program.", INTERRUPTED)
    except BrokenPipeError:  # as in `limba … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is flushed at the end goes there
        return 1
    except Exception as error:
        told = extras.sentence("This", error) if isinstance(error, ModuleNotFoundError) else None
        if is_out_of_memory(error):
            told = f"Out of memory ({reason_of(error)}); give a smaller batch or model."
        elif isinstance(error, OSError) and error.errno in NOT_WRITABLE:
            place = f"{error.filename or 'A file'} cannot be written ({error.strerror})"
            return _ended(f"{place}; make room, or name a place that can.", CODES[StorageError])
        elif isinstance(error, OSError) and error.errno in NOT_A_PATH and error.filename:
            told = f"{error.filename} cannot be used ({error.strerror}); check the path."
        if told is not None:
            return _ended(told, CODES[InputError])
        if not failures.is_of_client(error):
            raise
        advice = "check the address, the network, and your rights there (GOOGLE_APPLICATION_CREDENTIALS)."
        return _ended(f"A bucket or server cannot be used ({reason_of(error)}); {advice}", CODES[StorageError])
    return result if isinstance(result, int) else 0


def _ended(sentence: str, code: int) -> int:
    line = without_credentials(" ".join(sentence.split()))
    print(f"\x1b[31m{line}\x1b[0m" if environment.in_colour(sys.stderr) else line, file=sys.stderr)
    return code


@functools.cache
def _exits() -> list[int]:
    """Returns the place for the exit status of this process, and limits the time that its exit may take."""
    status: list[int] = []

    def end() -> None:
        threading.main_thread().join()  # Python now waits for other threads
        jax = sys.modules.get("jax")
        several = jax and jax.distributed.is_initialized()
        seconds = EXIT_SECONDS_OF_SEVERAL if several else EXIT_SECONDS
        time.sleep(seconds)
        what = "a thread, or another process of the run," if several else "one of its threads"
        environment.end_now(f"The program is done; {what} did not end within {seconds:.0f} s.", status[0])

    threading.Thread(target=end, daemon=True, name="exit").start()
    return status
