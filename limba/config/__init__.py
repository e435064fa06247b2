"""Every choice of a run, as frozen dataclasses that check themselves. Gin files and `config.json` fill these.

Floor 0: imports the standard library only.
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
from limba.config.loss import LossConfig
from limba.config.model import ModelConfig
from limba.config.optimizer import OptimizerConfig, optimizer_config
from limba.config.run import CardConfig, CheckpointConfig, EvaluationConfig, GuardConfig, MeshConfig, RunConfig
from limba.config.schedule import ScheduleConfig

__all__ = [
    "OBJECTIVES", "CardConfig", "CheckpointConfig", "ConfigError", "DataConfig", "EvaluationConfig", "Fix",
    "GenerationConfig", "GuardConfig", "InputError", "LossConfig", "MeshConfig", "ModelConfig", "NoModelError",
    "NonFiniteError", "Open", "OptimizerConfig", "RestartError", "RunConfig", "ScheduleConfig", "SentenceError",
    "StorageError", "UntrustedModuleError", "did_you_mean", "named", "nearest", "optimizer_config", "reason_of",
    "require", "without_credentials",
]  # fmt: skip
