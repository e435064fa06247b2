"""Limba: pretrain a T5 or a language model for your own language in JAX/Flax. Read `limba/run.py` first.

The public names, each imported when it is first used, so that `import limba` takes no time and changes nothing in the
process:

`load`              opens a trained model: `limba.load("runs/demo").generate(["A text"])`
`TrainedModel`      what `load` returns: generate, samples, score, logits, encode, tokenize, save
`train`             trains a run: `limba.train(config)`
`pretrain`          trains a new model on texts in memory: `limba.pretrain(texts, minutes=5)`
`finetune`          trains a model on pairs in memory: `limba.finetune(model, pairs)`
`Callbacks`         functions that get the figures of a run, and may stop it
`read_gin`          reads a run from a gin file: `limba.read_gin("gin/demo.gin")`
`RunConfig`         a run: model, data, optimizer and more
`ModelConfig`, `DataConfig`, `OptimizerConfig`, `MeshConfig`, `GenerationConfig`
`optimizer_config`  the OptimizerConfig of a rule: `limba.optimizer_config("adamw", beta2=0.98)`
`InputError`        the error for invalid input, one sentence
`ConfigError`       the InputError for a field, which it names
`__version__`       the version of this package

>>> import limba
>>> limba.ModelConfig(vocab_size=32128, emb_dim=512, num_heads=6, head_dim=64, mlp_dim=1024,
...                   num_encoder_layers=8, num_decoder_layers=8).mlp_activations
('gelu', 'linear')
>>> limba.GenerationConfig(num_beams=4).sample
False
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.3.0"

if TYPE_CHECKING:
    from limba.cli.gin import read_gin as read_gin
    from limba.config import ConfigError as ConfigError
    from limba.config import DataConfig as DataConfig
    from limba.config import GenerationConfig as GenerationConfig
    from limba.config import InputError as InputError
    from limba.config import MeshConfig as MeshConfig
    from limba.config import ModelConfig as ModelConfig
    from limba.config import OptimizerConfig as OptimizerConfig
    from limba.config import RunConfig as RunConfig
    from limba.config import optimizer_config as optimizer_config
    from limba.fit import finetune as finetune
    from limba.fit import pretrain as pretrain
    from limba.inference.load import TrainedModel as TrainedModel
    from limba.inference.load import load as load
    from limba.run import train as train
    from limba.training.metrics.records import Callbacks as Callbacks

_MODULES = {  # public name: the module that has it
    "load": "limba.inference.load",
    "TrainedModel": "limba.inference.load",
    "train": "limba.run",
    "pretrain": "limba.fit",
    "finetune": "limba.fit",
    "Callbacks": "limba.training.metrics.records",
    "read_gin": "limba.cli.gin",  # front ends, like limba.fit: gin's macros do not belong to the engine
    "RunConfig": "limba.config",
    "ModelConfig": "limba.config",
    "DataConfig": "limba.config",
    "OptimizerConfig": "limba.config",
    "optimizer_config": "limba.config",
    "MeshConfig": "limba.config",
    "GenerationConfig": "limba.config",
    "InputError": "limba.config",
    "ConfigError": "limba.config",
}
__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'limba' has no attribute {name!r}; it has {', '.join(_MODULES)}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return list(_MODULES)
