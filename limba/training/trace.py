"""The trace of some steps, which TensorBoard's profiler shows."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import jax

from limba.config import InputError, RestartError, RunConfig, StorageError, reason_of
from limba.storage import manifest
from limba.training.state import TrainState

FIRST_TRACED = 3  # of a start's steps: the first compiles, the second may still wait for data


class Trace:
    """Traces `RunConfig.profile_steps` steps of a start into model_dir/profile; `say` prints the result."""

    def __init__(self, config: RunConfig, start: int, say: Callable[[str], None]):
        self._directory = f"{config.model_dir.rstrip('/')}/profile"
        self._local = self._directory
        if config.profile_steps and "://" in self._directory:  # jax writes only to local folders
            self._local = tempfile.mkdtemp(prefix="limba-profile-")
        self._num_steps = config.profile_steps
        self._say = say
        self._first = start + FIRST_TRACED
        self._is_running = False

    def before(self, step: int) -> None:
        """Starts the trace before its first step."""
        if self._num_steps and step == self._first:
            self._is_running = self._succeeds(lambda: jax.profiler.start_trace(self._local))

    def after(self, step: int, state: TrainState, is_last: bool) -> None:
        """Ends the trace after its last step, or the run's; waits for the devices first."""
        if self._is_running and (is_last or step == self._first + self._num_steps - 1):
            jax.block_until_ready(state)
            self._is_running = False
            if self._succeeds(jax.profiler.stop_trace) and self._upload():
                self._say(f"Traced {step - self._first + 1} step(s) into {self._directory}")

    def close(self, step: int, state: TrainState) -> None:
        """Ends the trace if the run ends before it; reports if nothing was traced."""
        self.after(step, state, is_last=True)
        if self._num_steps and step < self._first:
            self._say(f"Nothing was traced: tracing starts at step {self._first}, and the run ended at step {step}.")

    def _succeeds(self, call: Callable[[], object]) -> bool:
        """Calls a function of the profiler; prints what fails, as on a full disk: a trace is not worth a run."""
        try:
            call()
        except Exception as error:  # noqa: BLE001
            self._say(f"The steps are not traced: {self._local} cannot be written ({reason_of(error)}).")
            return False
        return True

    def _upload(self) -> bool:
        """Copies the trace of a run in a bucket there; returns whether it has arrived."""
        if self._local == self._directory:
            return True
        try:
            for files in sorted(Path(self._local).glob("plugins/profile/*")):
                manifest.upload(files, f"{self._directory}/{files.relative_to(self._local)}")
        except (InputError, StorageError, RestartError) as error:
            self._say(f"The trace stays in {self._local}: {error}")
            return False
        return True
