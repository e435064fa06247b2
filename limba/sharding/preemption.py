"""Stopping a run by SIGTERM, SIGINT (Ctrl-C) or SIGHUP (a closed terminal), after the same step in all processes.

What a signal does, by stage:

* before the first step has ended: nothing is lost, the process ends with a sentence: at once, or when it has joined the
  other processes and told them;
* during training: all processes save after the same step and end, with the exit status of RestartError (75), by which
  scripts know to start the run again. A second SIGINT ends this process at once;
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
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # of stdout and stderr

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
        """Does what a signal asks for, by the stage of the run."""
        if number == signal.SIGHUP:
            self._leave_terminal()
        if self.stage == "starting" and self._ends:
            status = INTERRUPTED if number == signal.SIGINT else RestartError.exit_status
            _end(f"{number.name} ended the run before a step was done; the same command starts it again.", status)
        if number == signal.SIGINT:
            self._interrupt()
        if self.stage != "ending":
            if number != signal.SIGTERM:
                stop_all()
            self.asked = True

    def _interrupt(self) -> None:
        """Says what a first SIGINT does; a second one ends the process, where that is the run's."""
        now = time.monotonic()
        if self._first_interrupt is None:
            self._first_interrupt = now
            what = "now" if self.stage == "ending" else "after this step"
            with contextlib.suppress(OSError, ValueError):
                print(
                    f"SIGINT: the run saves {what} and ends; a second one ends it at once.", file=sys.stderr, flush=True
                )
        elif self._ends and now > self._first_interrupt + APART_SECONDS:
            _end(
                "A second SIGINT ended the run at once; the same command resumes it from its newest checkpoint.",
                INTERRUPTED,
            )

    def _leave_terminal(self) -> None:
        """Lets output go nowhere if it went to a terminal: that is gone, and writing to it is an error."""
        if not self._terminals:
            return
        descriptors = set(self._terminals)
        if 2 in self._terminals:
            descriptors.add(sys.stderr.fileno())  # another one, while libraries are imported quietly
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in descriptors:
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
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if isinstance(handler, Listener):
            yield handler
            return
    listener = Listener(ends)
    if threading.current_thread() is not threading.main_thread():
        yield listener
        return
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    if _several_processes() and signal.SIGTERM in heard:
        heard.remove(signal.SIGTERM)  # jax hears it in a run that has joined others
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(target=listener.listen, args=[reading], daemon=True, name="signals")
    thread.start()
    wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handlers_before = {number: signal.signal(number, listener) for number in heard}
    _LISTENERS.append(listener)
    try:
        yield listener
    finally:
        _LISTENERS.remove(listener)
        for number, handler in handlers_before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(writing)
        thread.join(1.0)


@contextlib.contextmanager
def stop_requests(start: int = 0) -> Iterator[Callable[[int], bool]]:
    """Yields a function that returns, after each step, whether all processes should save and stop there.

    `start` is the step that the run begins after. With several processes jax's preemption service carries one process's
    signal to all of them, and names the step at which all stop: the one after the last that any process has asked for,
    and 1 where none has asked yet. So a resumed run counts its own steps from 1: it would never reach the named one if
    it were told to stop before its first step.

    Nobody else may call `reached_preemption_sync_point`, nor a library that does, such as Orbax's CheckpointManager:
    the service has one counter. Asked with the run's step, 1,000, it names 1,001, and a resumed run never stops.
    """
    with listening(ends=False) as listener:
        if _several_processes():
            from jax.experimental.multihost_utils import reached_preemption_sync_point

            def is_reached(step_of_start: int) -> bool:
                return reached_preemption_sync_point(step_of_start)

        else:

            def is_reached(step_of_start: int) -> bool:
                return listener.asked

        def requested(step: int) -> bool:
            listener.stage = "training"
            return is_reached(step - start)

        try:
            yield requested
        finally:
            listener.stage = "ending"


def stop_all() -> bool:
    """Asks all processes to stop; returns whether this one is alone, and has to stop by itself."""
    if not _several_processes():
        return True
    os.kill(os.getpid(), signal.SIGTERM)  # jax carries it to all processes
    return False


def _several_processes() -> bool:
    """Returns whether this process has joined others; it imports no jax, since signals are heard before that."""
    jax = sys.modules.get("jax")
    distributed = getattr(jax, "distributed", None)  # None while jax is being imported
    if jax is None or distributed is None:
        return False
    return distributed.is_initialized() and jax.process_count() > 1


def _end(sentence: str, status: int) -> None:
    """Tells the other processes, if there are any, and ends this one, whatever becomes of the telling."""
    _HAS_JOINED.wait(JOINING_SECONDS)
    telling = threading.Thread(target=_tell_others, args=(sentence, status), daemon=True)
    telling.start()
    telling.join(TELLING_SECONDS)
    end_now(sentence, status)


def _tell_others(sentence: str, status: int) -> None:
    others = sys.modules.get("limba.sharding.others")
    if others is None:  # nothing has been joined yet
        return
    # Whatever fails here, where modules are still being imported or jax's service is gone: the signal is not lost.
    with contextlib.suppress(Exception):
        others.OTHERS.tell(sentence, status)
        others.OTHERS.wait(ALIKE_SECONDS)
