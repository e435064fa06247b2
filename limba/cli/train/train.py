"""Trains: `python -m launch.train --gin_file=gin/ro_t5x_base.gin --gin.MODEL_DIR=DIRECTORY`; --help says more."""

from __future__ import annotations

from collections.abc import Sequence

from limba.cli.flags import parse_args
from limba.config import environment


def run(argv: Sequence[str]) -> None:
    """Trains the run that the flags describe; NonFiniteError and ConfigError end it with a sentence."""
    with environment.quiet_imports():
        config, operative_config = parse_args(argv)
        from limba.run import train  # imports JAX and TensorFlow, which the variables are for
    from limba.sharding import multihost

    multihost.join_hosts()
    train(config, operative_config)
