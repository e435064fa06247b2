"""Trains: `python -m launch.train --gin_file=gin/ro_t5x_base.gin --gin.MODEL_DIR=DIRECTORY`; --help says more."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launch import environment
from launch.flags import parse_args


def run(argv: Sequence[str]) -> None:
    """Trains the run that the flags describe; NonFiniteError and ConfigError end it with a sentence."""
    with environment.quiet_imports():
        config, operative_config = parse_args(argv)
        from limba import train  # imports JAX and TensorFlow, which the variables are for
    environment.join_hosts()
    train.run(config, operative_config)


if __name__ == "__main__":
    environment.set_variables()
    environment.use_large_pages()
    sys.exit(environment.exit_code(run, sys.argv[1:]))
