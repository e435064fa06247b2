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

# The system's errors for a wrong path, as opposed to a failing disk or network.
NOT_A_PATH = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST)

# Errors that end a command with one sentence on stderr and their exit status; docs/resume.md has the table.
SENTENCES = (InputError, NonFiniteError, StorageError, RestartError)
# What precedes the value of a gin override. MODEL_DIR is left out, since nothing is read from its address.
OVERRIDE = re.compile(r"^--gin\.(?!MODEL_DIR=|config\.RunConfig\.model_dir=)[\w.]+=")
INTERRUPTED = 130  # after Ctrl-C, as shells have it: 128 and the number of SIGINT
EXIT_SECONDS = 60.0  # that threads have to end in when the program is done
EXIT_SECONDS_OF_SEVERAL = 280.0  # where processes have joined; less than jax's own limit, which ends in a traceback


def exit_code(program: Callable[[Sequence[str]], object], argv: Sequence[str]) -> int:
    """Runs a program; returns 0, the program's own whole number, or after one sentence on stderr the error's status."""
    status = _status(program, argv)
    _status_at_exit()[:] = [status]
    return status


def _status(program: Callable[[Sequence[str]], object], argv: Sequence[str]) -> int:
    try:
        with contextlib.suppress(AttributeError, io.UnsupportedOperation):  # a test's stdout
            sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
        if argv[:1] != ["preflight"]:  # which lists wrong addresses among its other findings
            _check_addresses(argv)
        result = program(argv)
        sys.stdout.flush()
    except UntrustedModuleError as error:
        command = shlex.join(["limba", *argv, *(f"--import={module}" for module in error.modules)])
        return _ended(f"{error.fact}; if you trust who wrote it: {command}", InputError.exit_status)
    except SENTENCES as error:
        sentence = str(error)
        if error.after_step is not None and not isinstance(error, RestartError):  # a restart is not a failure
            sentence = f"FAILED after step {error.after_step:,}: {sentence}"
        return _ended(sentence, error.exit_status)
    except KeyboardInterrupt:
        return _ended("Ctrl-C ended the program.", INTERRUPTED)
    except BrokenPipeError:  # as in `limba … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at its exit
        return 1
    except Exception as error:
        explained = _explained(error)
        if explained is None:
            raise  # a fault of Limba's own: its traceback says where
        return _ended(*explained)
    return result if isinstance(result, int) else 0


def _check_addresses(argv: Sequence[str]) -> None:
    """Raises InputError for an argument with an address that cannot work, before anything is imported."""
    for argument in argv:
        servers.check(argument)
        servers.check_name(OVERRIDE.sub("", argument).strip("'\""))


def _explained(error: Exception) -> tuple[str, int] | None:
    """Returns the sentence and the exit status for an error of a library or the system; None for any other one."""
    if is_out_of_memory(error):
        return f"Out of memory ({reason_of(error)}); give a smaller batch or model.", InputError.exit_status
    if isinstance(error, ModuleNotFoundError):
        sentence = extras.sentence("This", error)
        if sentence is not None:
            return sentence, InputError.exit_status
    if isinstance(error, OSError) and error.errno in NOT_WRITABLE:
        fact = f"{error.filename or 'A file'} cannot be written ({error.strerror})"
        return f"{fact}; make room, or name a directory that can be written.", StorageError.exit_status
    if isinstance(error, OSError) and error.errno in NOT_A_PATH and error.filename:
        return f"{error.filename} cannot be used ({error.strerror}); check the path.", InputError.exit_status
    if failures.is_of_client(error):
        advice = "check the address, the network, and your rights there (GOOGLE_APPLICATION_CREDENTIALS)."
        return f"A bucket or server cannot be used ({reason_of(error)}); {advice}", StorageError.exit_status
    return None


def _ended(sentence: str, code: int) -> int:
    """Prints why the program ended, as one line on stderr; returns the exit status."""
    line = without_credentials(" ".join(sentence.split()))
    if environment.in_colour(sys.stderr):
        line = f"\x1b[31m{line}\x1b[0m"
    print(line, file=sys.stderr)
    return code


@functools.cache
def _status_at_exit() -> list[int]:
    """Returns the list that holds this process's exit status, and limits the time that its exit may take.

    One thread serves all programs that a process runs, so the list is made once, and its status replaced.
    """
    status: list[int] = []

    def end() -> None:
        threading.main_thread().join()  # from here on Python waits for the other threads, without a limit
        jax = sys.modules.get("jax")
        several = jax and jax.distributed.is_initialized()
        if several:
            seconds = EXIT_SECONDS_OF_SEVERAL
            what = "a thread, or another process of the run,"
        else:
            seconds = EXIT_SECONDS
            what = "one of its threads"
        time.sleep(seconds)
        environment.end_now(f"The program is done; {what} did not end within {seconds:.0f} s.", status[0])

    threading.Thread(target=end, daemon=True, name="exit").start()
    return status
