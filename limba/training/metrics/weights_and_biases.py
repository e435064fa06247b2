"""A run's figures for Weights & Biases, whose library is imported only if a run asks for it.

The first process reports. The run's name there is kept in model_dir/wandb.json, so that a resumed run continues the
same one. The library's own variables hold: WANDB_MODE=offline, WANDB_PROJECT, WANDB_ENTITY, WANDB_NAME, WANDB_API_KEY.
An error after the start gives one warning and ends nothing.
"""

import importlib.util
import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from limba.config import ConfigError, InputError, RunConfig, reason_of, saved_config
from limba.storage.failures import limited
from limba.storage.files import write_whole

logger = logging.getLogger(__name__)

FIELD = "RunConfig.report_to"
PROJECT = "limba"
FILE = "wandb.json"
START_SECONDS = 60.0  # for the first answer of its server
FINISH_SECONDS = 300.0  # for the last figures; without a network it would try for days
WITHOUT_SERVER = ("offline", "disabled", "dryrun")


def check(reports: Sequence[str]) -> None:
    """Raises ConfigError if Weights & Biases is asked for and not installed, or nobody is logged in to it."""
    if "wandb" not in reports:
        return
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            FIELD,
            f"is {','.join(reports)!r}, and Weights & Biases is not installed; install it beside Limba (pip install"
            " wandb), or set RunConfig.report_to to 'tensorboard'.",
            (FIELD, "tensorboard"),
        )
    if os.environ.get("WANDB_MODE", "").lower() in WITHOUT_SERVER:
        return
    import wandb  # pyright: ignore[reportMissingImports]

    reason = ""
    try:
        is_known = wandb.login(prompt=False, verify=False)
    except Exception as error:  # noqa: BLE001  its own kinds, which need an import
        is_known = False
        reason = f" ({reason_of(error)})"
    if not is_known:
        raise ConfigError(
            FIELD,
            f"is {','.join(reports)!r}, and nobody is logged in to Weights & Biases{reason}; set WANDB_API_KEY to your"
            " key, or WANDB_MODE=offline to keep the figures here.",
        )


class WeightsAndBiases:
    """One run there, which is started or continued."""

    def __init__(self, config: RunConfig):
        """Raises InputError if its server does not answer, so that a run does not train unseen."""
        import wandb  # pyright: ignore[reportMissingImports]

        known = _known(config.model_dir)
        directory = None if "://" in config.model_dir else config.model_dir
        try:
            self._run: Any = wandb.init(
                id=known["id"],
                project=known.get("project") or os.environ.get("WANDB_PROJECT") or PROJECT,
                entity=known.get("entity"),
                name=os.environ.get("WANDB_NAME") or os.path.basename(config.model_dir.rstrip("/")),
                config=json.loads(saved_config.to_text(config))["run"],
                resume="allow",
                dir=os.environ.get("WANDB_DIR") or directory,
                settings=wandb.Settings(console="off", silent=True, disable_git=True, init_timeout=START_SECONDS),
            )
        except Exception as error:
            raise InputError(
                f"Weights & Biases does not take the run ({reason_of(error)}); check the network and WANDB_API_KEY, or"
                " set WANDB_MODE=offline."
            ) from error
        # Its own count of steps only grows; a resumed run repeats the steps after its checkpoint.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        known |= {"project": self._run.project, "entity": self._run.entity or None}
        write_whole(f"{config.model_dir.rstrip('/')}/{FILE}", json.dumps(known, indent=1) + "\n")

    @property
    def sentence(self) -> str:
        """Where the figures are."""
        address = self._run.url or f"{self._run.dir}, until wandb sync"
        return f"Weights & Biases: run {self._run.id} ({address})"

    def add(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Reports figures of a `kind`: "train", "validation" or "text"."""
        self._report({"step": step, **{f"{kind}/{name}": value for name, value in values.items()}})

    def add_texts(self, step: int, texts: Mapping[str, Sequence[str]]) -> None:
        """Reports the texts that the model generated for each prompt, as a table."""
        import wandb  # pyright: ignore[reportMissingImports]

        rows: list[Any] = [[step, prompt, text] for prompt, several in texts.items() for text in several]
        self._report({"step": step, "samples": wandb.Table(columns=["step", "prompt", "text"], data=rows)})

    def _report(self, values: Mapping[str, object]) -> None:
        if self._run is None:
            return
        try:
            self._run.log(dict(values))
        except Exception as error:  # noqa: BLE001  a report never ends a run
            logger.warning("Weights & Biases gets no more figures of this start (%s).", reason_of(error))
            self._run = None

    def close(self) -> None:
        """Sends the rest."""
        if self._run is None:
            return
        try:
            limited(self._run.finish, FINISH_SECONDS, "its upload")
        except Exception as error:  # noqa: BLE001
            logger.warning("Weights & Biases may lack the last figures (%s).", reason_of(error))


def _known(model_dir: str) -> dict[str, str]:
    """Returns the name, project and owner that a run has there, or a new name."""
    try:
        kept = json.loads((epath.Path(model_dir) / FILE).read_text())
        return {"id": str(kept["id"]), "project": kept.get("project"), "entity": kept.get("entity")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {"id": os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)}
