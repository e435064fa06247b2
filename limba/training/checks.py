"""Checks of a run before anything is compiled: its directory, its batch on the mesh, its reductions."""

from __future__ import annotations

import jax
from etils import epath
from jax.sharding import Mesh

from limba.config import ConfigError, RunConfig
from limba.config.errors import reason_of


def check_run(config: RunConfig, mesh: Mesh) -> None:
    """Raises ConfigError for a model_dir that cannot be written, and for choices that do not fit the mesh."""
    _check_writable(config.model_dir)
    _check_microbatches(config, mesh.shape["data"] * mesh.shape["fsdp"])
    if config.gradient_reduce_dtype != "auto" and mesh.shape["data"] != mesh.size:
        raise ConfigError(
            "RunConfig.gradient_reduce_dtype",
            f"is {config.gradient_reduce_dtype!r}, which needs all parameters on every device, and MeshConfig.fsdp is"
            f" {mesh.shape['fsdp']} and MeshConfig.model {mesh.shape['model']}; set it to 'auto', or both of these"
            " to 1.",
        )


def _check_microbatches(config: RunConfig, num_groups: int) -> None:
    rows, parts = config.data.batch_size, config.num_microbatches
    if rows % (num_groups * parts):
        raise ConfigError(
            "DataConfig.batch_size",
            f"is {rows}, which does not divide into RunConfig.num_microbatches {parts} parts over {num_groups} groups"
            " of devices (the mesh's data x fsdp); give a multiple of their product.",
        )


def _check_writable(model_dir: str) -> None:
    probe = epath.Path(model_dir) / f".writable-{jax.process_index()}"
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except Exception as error:  # a bucket's client has errors of its own
        raise ConfigError(
            "RunConfig.model_dir",
            f"is {model_dir}, which cannot be written ({reason_of(error)}); give a directory that can.",
        ) from error
