"""Runs as they lie on disk, with random parameters."""

import numpy as np
import orbax.checkpoint as ocp

from limba.config import plain
from limba.export.huggingface import network_gin
from limba.formats.architectures import shapes
from limba.formats.names import unflatten
from limba.storage import manifest
from tests.tiny import stack_layers


def arrays_of(config, seed=0):
    """Random parameters whose logits are about 1."""
    random = np.random.default_rng(seed)
    arrays = {}
    for name, shape in shapes(config).items():
        array = random.standard_normal(shape)
        scale = 1.0 if name.endswith("embedding") else shape[0] ** -0.5
        scale /= 4 if name.endswith(("logits_dense/kernel", "query/kernel")) else 1
        arrays[name] = np.float32(1 + array / 10 if name.endswith("scale") else array * scale)
    return arrays


def write_run(directory, config, steps=(5,)):
    """A run directory as ours is on disk; returns the arrays of each step."""
    directory.mkdir(parents=True)
    (directory / "config.gin").write_text(network_gin(config))
    (directory / plain.FILE).write_text(plain.to_text(config))
    written = {}
    for step in steps:
        written[step] = arrays_of(config, step)
        tree = {"step": np.int32(step), "params": unflatten(stack_layers(written[step]))}
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(directory / "checkpoints" / str(step) / "state", tree)
        manifest.write(directory / "checkpoints" / str(step), step=step)
    return written
