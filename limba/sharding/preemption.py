"""Stopping a run by SIGTERM, SIGINT (Ctrl-C) or SIGHUP (a closed terminal), after the same step in all processes.

What a signal does, by stage:

* before the first step has ended: nothing is lost, the process ends with a sentence: at once, or when it has joined the
  other processes and told them;
* during training: all processes save after the same step and end. A second SIGINT ends this process at once;
* after that: the run is ending anyway; only a second SIGINT ends it at once.

Where a program trains, such as a notebook, its process is not the run's to end: the run saves after its first step, and
a second SIGINT is a KeyboardInterrupt.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from limba.config import RestartError
from limba.config.environment import end_now

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
INTERRUPTED = 130  # the exit status after a SIGINT that ends at once, as shells have it
ALIKE_SECONDS = 2.0  # in which the same signal reaches all processes; jax ends the others when the first one is gone
TELLING_SECONDS = 5.0  # in which the others are told, or this process ends without
JOINING_SECONDS = 30.0  # in which processes that have all come join, on a busy machine
APART_SECONDS = 0.5  # a SIGINT sooner after the first is the same one, sent on by a launcher


class Listener:
    """Acts on the stop signals in a thread of its own, even while the main thread is inside a library."""

    def __init__(self, ends: bool = True) -> None:
        self.stage = "starting"  # training, ending
        self.asked = False
        self._ends = ends  # the process with the run
        self._first_interrupt: float | None = None
        self._handled: float | None = None  # when the main thread saw it
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def __call__(self, number: int, frame: object) -> None:
        """Python's handler in the main thread, which has nothing left to do in a process that is the run's."""
        if number == signal.SIGINT and not self._ends:
            now = time.monotonic()  # long after the signal, where the thread was inside a library
            if self._handled is not None and now > self._handled + APART_SECONDS:
                raise KeyboardInterrupt
            self._handled = self._handled or now

    def listen(self, reading: int) -> None:
        """Acts on each signal whose number comes through the pipe, until that is closed."""
        with open(reading, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                for number in numbers:
                    if number in SIGNALS:
                        self._act(signal.Signals(number))

    def _act(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self._leave_terminal()
        if self.stage == "starting" and self._ends:
            status = INTERRUPTED if number == signal.SIGINT else RestartError.exit_status
            _end(f"{number.name} ended the run before a step was done; the same command starts it again.", status)
        now = time.monotonic()
        if number == signal.SIGINT:
            if self._ends and self._first_interrupt is not None and now > self._first_interrupt + APART_SECONDS:
                _end(
                    "A second SIGINT ended the run at once; the same command resumes it from its newest checkpoint.",
                    INTERRUPTED,
                )
            if self._first_interrupt is None:
                self._first_interrupt = now
                what = "now" if self.stage == "ending" else "after this step"
                say = f"SIGINT: the run saves {what} and ends; a second one ends it at once."
                with contextlib.suppress(OSError, ValueError):
                    print(say, file=sys.stderr, flush=True)
        if self.stage != "ending":
            if number != signal.SIGTERM:
                stop_all()
            self.asked = True

    def _leave_terminal(self) -> None:
        """Lets output go nowhere if it went to a terminal: that is gone, and writing to it is an error."""
        if not self._terminals:
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in {*self._terminals, *([sys.stderr.fileno()] if 2 in self._terminals else [])}:
            os.dup2(nowhere, descriptor)


_LISTENERS: list[Listener] = []  # the one that listens now
_HAS_JOINED = threading.Event()  # not set while this process joins others
_HAS_JOINED.set()


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Has a signal inside end this process only when it has joined the others, or has failed to.

    All of them have come by then. One that ended here would leave the others waiting for it in jax's service, which
    ends them after a minute, by SIGABRT and with lines of C++.
    """
    _HAS_JOINED.clear()
    try:
        yield
    finally:
        _HAS_JOINED.set()


def is_asked() -> bool:
    """Returns whether a signal has asked this process to stop; of several ones SIGTERM is jax's, and not known here."""
    return any(listener.asked for listener in _LISTENERS)


@contextlib.contextmanager
def listening(ends: bool = True) -> Iterator[Listener]:
    """Listens to the stop signals inside, or lets the listener that does already go on.

    With `ends` a signal may end the process, which is then the run's own.

    Signals that this process was started to ignore, as by nohup, stay ignored. Only the main thread can listen; in
    another one this yields a listener that hears nothing.
    """
    present = [signal.getsignal(number) for number in SIGNALS]
    if outer := next((each for each in present if isinstance(each, Listener)), None):
        yield outer
        return
    listener = Listener(ends)
    if threading.current_thread() is not threading.main_thread():
        yield listener
        return
    # In a run that has joined others, jax hears SIGTERM.
    heard = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    heard = [n for n in heard if n != signal.SIGTERM or not _several_processes()]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(target=listener.listen, args=[reading], daemon=True, name="signals")
    thread.start()
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, listener) for number in heard}
    _LISTENERS.append(listener)
    try:
        yield listener
    finally:
        _LISTENERS.remove(listener)
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        signal.set_wakeup_fd(wakeup)
        os.close(writing)
        thread.join(1.0)


@contextlib.contextmanager
def stop_requests(start: int = 0) -> Iterator[Callable[[int], bool]]:
    """Yields a function that returns, after each step, whether all processes should save and stop there.

    `start` is the step that the run begins after. With several processes jax's preemption service carries one process's
    signal to all of them, and names the step at which all stop: the one after the last that any process has asked for,
    and 1 where none has asked yet. So a resumed run counts its own steps from 1: it would never reach the named one if
    it were told to stop before its first step.
    """
    with listening(ends=False) as listener:
        if _several_processes():
            from jax.experimental.multihost_utils import reached_preemption_sync_point as reached
        else:
            reached = lambda number: listener.asked

        def requested(step: int) -> bool:
            listener.stage = "training"
            return reached(step - start)

        try:
            yield requested
        finally:
            listener.stage = "ending"


def stop_all() -> bool:
    """Asks all processes to stop; returns whether this one is alone, and has to stop by itself."""
    if several := _several_processes():
        os.kill(os.getpid(), signal.SIGTERM)  # jax carries it to all processes
    return not several


def _several_processes() -> bool:
    """Returns whether this process has joined others; it imports no jax, since signals are heard before that."""
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)  # None while jax is being imported
    return jax is not None and distributed is not None and distributed.is_initialized() and jax.process_count() > 1


def _end(sentence: str, status: int) -> None:
    """Tells the other processes, if there are any, and ends this one, whatever becomes of the telling."""
    _HAS_JOINED.wait(JOINING_SECONDS)
    telling = threading.Thread(target=_tell_others, args=(sentence, status), daemon=True)
    telling.start()
    telling.join(TELLING_SECONDS)
    end_now(sentence, status)


def _tell_others(sentence: str, status: int) -> None:
    watchdog = sys.modules.get("limba.sharding.watchdog")
    if watchdog is None:  # nothing has been joined yet
        return
    # Whatever fails here, where modules are still being imported or jax's service is gone: the signal is not lost.
    with contextlib.suppress(Exception):
        watchdog.OTHERS.tell(sentence, status)
        watchdog.OTHERS.wait(ALIKE_SECONDS)
