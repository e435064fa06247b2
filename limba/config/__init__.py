"""Every choice of a run, as frozen dataclasses that check themselves. Gin files and `config.json` fill these.

Floor 0: imports the standard library only; `build` of an optimizer imports jax and optax.
"""

from limba.config.data import OBJECTIVES, DataConfig
from limba.config.errors import (
    ConfigError,
    Fix,
    InputError,
    NoModelError,
    NonFiniteError,
    Open,
    RestartError,
    SentenceError,
    StorageError,
    UntrustedModuleError,
    did_you_mean,
    named,
    nearest,
    reason_of,
    require,
    without_credentials,
)
from limba.config.generation import GenerationConfig
from limba.config.model import ModelConfig
from limba.config.optimizer import LossConfig, OptimizerConfig, ScheduleConfig
from limba.config.run import CardConfig, CheckpointConfig, EvaluationConfig, GuardConfig, MeshConfig, RunConfig

__all__ = [
    "OBJECTIVES", "CardConfig", "CheckpointConfig", "ConfigError", "DataConfig", "EvaluationConfig", "Fix",
    "GenerationConfig", "GuardConfig", "InputError", "LossConfig", "MeshConfig", "ModelConfig", "NoModelError",
    "NonFiniteError", "Open", "OptimizerConfig", "RestartError", "RunConfig", "ScheduleConfig", "SentenceError",
    "StorageError", "UntrustedModuleError", "did_you_mean", "named", "nearest", "reason_of", "require",
    "without_credentials",
]  # fmt: skip
