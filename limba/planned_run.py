"""What can be known of a run before it starts: its sizes, what would refuse it, and its step on any devices."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from limba.config import ModelConfig, OptimizerConfig, RunConfig
from limba.data.objectives.spans import raw_and_targets
from limba.data.vocabulary.files import is_folder
from limba.export import end_of_run
from limba.formats import limba_checkpoint
from limba.formats.open import is_on_hub
from limba.model import Network
from limba.sharding.mesh import make_mesh
from limba.training import step_memory, step_timing
from limba.training.checkpoints import arrays
from limba.training.checkpoints.directory import RESUME_ADVICE, check_arrays
from limba.training.checkpoints.initial import check_initial
from limba.training.checks import check_prefix_of_new_run, check_steps, check_writable
from limba.training.metrics.advice import job_advice
from limba.training.optimizer import make_optimizer
from limba.training.schedule import make_schedule
from limba.training.state import TrainState, count_parameters, init_state


@functools.lru_cache(8)  # several parts of a verdict ask for it, and tracing takes half a second
def _state(config: ModelConfig, rule: OptimizerConfig, train_steps: int | None, average: float | None) -> TrainState:
    """Returns the shapes of a run's state."""
    model = Network(config)
    optimizer = make_optimizer(rule, train_steps, config.dtype, average=average)
    return jax.eval_shape(lambda key: init_state(model, optimizer, key), jax.random.key(0))


class PlannedRun:
    """A run that is looked at before it starts. Each `check` raises the InputError with which its start would end.

    >>> from limba.config import DataConfig
    >>> t5 = ModelConfig(384, emb_dim=64, num_heads=2, head_dim=32, mlp_dim=96, num_encoder_layers=1,
    ...                  num_decoder_layers=1)
    >>> data = DataConfig("demo_span_corruption", {"inputs": 512}, batch_size=128, vocabulary="byte")
    >>> planned = PlannedRun(RunConfig(t5, data, "runs/a", train_steps=100))
    >>> planned.num_parameters, planned.row_lengths
    (135744, (512, 114))
    """

    def __init__(self, config: RunConfig):
        self.config = config

    @property
    def state(self) -> TrainState:
        """The shapes of the run's state; nothing is computed."""
        run = self.config
        return _state(run.model, run.optimizer, run.train_steps, run.evaluation.average)

    @property
    def num_bytes(self) -> int:
        """The bytes of a checkpoint's arrays."""
        return arrays.num_bytes(self.state)

    @property
    def num_parameters(self) -> int:
        """The parameters of the network."""
        return count_parameters(self.state.params)

    @property
    def row_lengths(self) -> tuple[int, int]:
        """The lengths of the encoder's and the decoder's rows as the configuration alone gives them.

        Targets that are not given are as long as T5's span corruption makes them.
        """
        data = self.config.data
        lengths = data.task_feature_lengths
        if data.sequence_length is not None:
            return 0, data.sequence_length
        if "targets" in lengths:
            return lengths["inputs"], lengths["targets"]
        choices = {"noise_density": data.noise_density, "mean_noise_span_length": data.mean_noise_span_length}
        chosen = {name: value for name, value in choices.items() if value is not None}  # None: the objective's default
        _, targets = raw_and_targets(lengths["inputs"], **chosen)
        return lengths["inputs"], targets

    def check_writable(self, directory: str, field: str) -> None:
        """Writes a file into a directory and removes it; ConfigError for the field if that fails."""
        check_writable(directory, field, directory)

    def check_checkpoint(self, path: epath.Path) -> str:
        """Returns how a checkpoint in the run's directory is damaged, "" if it is whole and this run's.

        InputError for one of another network or optimizer or after the last step, ValueError for one without arrays.
        """
        check_steps(self.config, int(path.name))
        damage = limba_checkpoint.damage(path, "sizes")
        if damage:
            return damage[0]
        check_arrays(path, self.state, RESUME_ADVICE)
        return ""

    def check_initial(self, path: str) -> bool:
        """Returns whether the checkpoint that a new run begins from is here, not on the hub; InputError for neither."""
        if is_on_hub(path):
            return False
        vocabulary = self.config.data.vocabulary
        check_initial(path, reads_folder=vocabulary is not None and is_folder(vocabulary))
        return True

    def check_prefix(self) -> None:
        """Raises ConfigError for one prefix in place of the tasks' own in a mixture, if the run has not begun."""
        check_prefix_of_new_run(self.config)

    def check_destinations(self) -> list[str]:
        """Returns the names of the folders and repositories that the model goes to at the end, after trying each."""
        end_of_run.check(self.config)
        return [destination.name for destination in end_of_run.destinations(self.config)]

    def learning_rates(self, steps: Sequence[int]) -> list[float]:
        """Returns the learning rate of these steps, 0 being the first."""
        schedule = make_schedule(self.config.optimizer.schedule, self.config.train_steps)
        return np.asarray(jax.vmap(schedule)(jnp.asarray(steps, jnp.int32)), float).tolist()

    def job_advice(self, step: int, seconds_per_step: float) -> str:
        """Returns advice if a job of Slurm ends before the checkpoint that is due after a step; else ""."""
        return job_advice(self.config, step + 10, step, seconds_per_step)

    def seconds_of_step(self, limit: float) -> float:
        """Returns the seconds of the run's step on this machine's devices, timed for about `limit` of them."""
        mesh = make_mesh(self.config.mesh)
        return step_timing.seconds_of_step(self.config, mesh, self.row_lengths, limit)

    def step_on(self, devices: np.ndarray, feature_shapes: Mapping[str, tuple[int, int]]) -> PlannedStep:
        """Returns the training step on these devices, which need not be on this machine."""
        return PlannedStep(self.config, devices, feature_shapes)


class PlannedStep:
    """A run's training step on devices; `mesh_sizes` are the sizes of data, fsdp and model. Nothing is compiled yet."""

    def __init__(self, config: RunConfig, devices: np.ndarray, feature_shapes: Mapping[str, tuple[int, int]]):
        mesh = make_mesh(config.mesh, devices)
        self.mesh_sizes = list(mesh.shape.values())
        self._step, self._arguments = step_memory.abstract_step(config, mesh, feature_shapes)

    @property
    def state_bytes(self) -> int:
        """The bytes of the state on one device."""
        return step_memory.bytes_of(self._arguments[0])

    def traced(self) -> jax.stages.Traced:
        """Returns the traced step, as `jax.stages.Traced`."""
        return self._step.trace(*self._arguments)

    def live_bytes(self, compiled: jax.stages.Compiled) -> int:
        """Returns the bytes of a device while the compiled step runs, by jax's analysis."""
        return step_memory.live_bytes(compiled)
