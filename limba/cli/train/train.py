"""`limba train gin/ro_t5x_base.gin --gin.MODEL_DIR=DIR`: trains the run that gin files describe."""

from __future__ import annotations

from collections.abc import Sequence

from limba.cli.flags import parse_args
from limba.cli.program import names_said
from limba.config import RestartError, environment
from limba.sharding import preemption


def run(argv: Sequence[str]) -> None:
    """Trains the run that the flags describe; raises the errors of `limba.cli.program.CODES`."""
    with preemption.listening():
        with environment.quiet_imports():
            given = parse_args(argv)
            from limba.run import train  # imports JAX and TensorFlow
        from limba.sharding import liveness, multihost

        with liveness.ending_together(), names_said(given.names):
            multihost.join_hosts(given.config)
            result = train(given.config, given.text)
    if result["interrupted"]:
        raise RestartError(f"The run was asked to stop after step {result['step']:,}; the same command resumes it.")
