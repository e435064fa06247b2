"""Runs, and folders for transformers, as they lie on disk, with random parameters."""

from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

from limba.config import ModelConfig, saved_config
from limba.data.vocabulary.load import load_vocabulary
from limba.data.vocabulary.sentinels import mask_id
from limba.export.huggingface import network_gin
from limba.formats import huggingface_files, huggingface_tokenizer
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


def write_run(directory, config, steps=(5,), seed=0):
    """A run directory as ours is on disk; returns the arrays of each step."""
    directory.mkdir(parents=True)
    (directory / "config.gin").write_text(network_gin(config))
    (directory / saved_config.FILE).write_text(saved_config.to_text(config))
    written = {}
    for step in steps:
        written[step] = arrays_of(config, step + seed)
        tree = {"step": np.int32(step), "params": unflatten(stack_layers(written[step]))}
        path = directory / "checkpoints" / str(step)
        with ocp.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(path / "state", tree)
        (path / manifest.FILE).write_text(manifest.text_of(path, step=step))
    return written


def folder_of(config: ModelConfig, vocabulary: Path, folder: Path) -> Path:
    """A folder for transformers with random parameters and a tokenizer."""
    folder.mkdir(exist_ok=True)
    mask = mask_id(load_vocabulary(str(vocabulary))) if config.is_encoder else None
    huggingface_files.write_configs(folder, config, "float32", mask_id=mask)
    arrays = arrays_of(config)
    if config.is_decoder_only:  # else logits of tied embeddings would be in the hundreds
        arrays = {name: array / 10 if name.endswith("embedding") else array for name, array in arrays.items()}
    huggingface_files.write_pytorch(folder, arrays, config, "float32")
    starts = config.is_decoder_only and not config.is_encoder
    huggingface_tokenizer.write_tokenizer(folder, str(vocabulary), 100, starts, mask_id=mask)
    return folder
