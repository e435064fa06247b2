"""Uploads converted folders to the Hugging Face hub: by request, at the end of a run, and at each save of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from limba.config import ConfigError, InputError
from limba.config.errors import reason_of
from limba.storage import hub_names

logger = logging.getLogger(__name__)

REFUSALS = (400, 401, 403, 404)  # statuses that another attempt does not change


def check_target(target: str, dry_run: bool) -> None:
    """Raises InputError for an invalid hub id, and without a token that the hub accepts, before any work."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", target):
        raise InputError(f"{target} is not a hub id; give user/name.")
    if dry_run:
        return
    _check_token(", or only show what would be uploaded")
    try:
        _hub().whoami()
    except (HTTPError, OSError) as error:
        raise InputError(
            f"The hub does not accept HF_TOKEN ({reason_of(error)}); set it to a token with write access, or check the"
            " network."
        ) from error


def _check_token(otherwise: str) -> None:
    if not hub_names.token():
        raise InputError(f"An upload needs a token: set HF_TOKEN to a token with write access{otherwise}.")


@dataclass(frozen=True)
class HubDestination:
    """A model of the hub, which gets the files of a run's model on its branch `main`.

    `model_id` is user/name, or a name alone for the user of the token. It is made if it does not exist, `private` or
    not.
    """

    model_id: str
    private: bool = False

    @property
    def name(self) -> str:
        return f"the hub's {self.model_id}"

    def check(self) -> None:
        """Raises InputError for an invalid id, and without a token that the hub accepts.

        A hub that does not answer is only a warning: it may answer when the run ends.
        """
        if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", self.model_id):
            raise ConfigError("RunConfig.hub_model_id", f"is {self.model_id!r}; give user/name.")
        _check_token(", or leave RunConfig.hub_model_id out")
        try:
            _hub().whoami()
        except (HTTPError, OSError) as error:
            if _status(error) in REFUSALS:
                raise InputError(
                    f"The hub does not accept this upload (asked {hub_names.asked_as()}: HTTP {_status(error)}); set"
                    " HF_TOKEN to a token with write access."
                ) from error
            logger.warning(
                "The hub cannot be reached now (%s); the model is uploaded to %s later.",
                reason_of(error),
                self.model_id,
            )

    def deliver(self, folder: Path, step: int) -> str:
        """Uploads the folder as one commit; returns the address. InputError if the hub refuses it, OSError otherwise.

        Files that the hub has already, from an interrupted upload, are not sent again.
        """
        hub = _hub()
        try:
            owner = "" if "/" in self.model_id else f"{hub.whoami()['name']}/"
            target = owner + self.model_id
            hub.create_repo(target, exist_ok=True, private=self.private)
            hub.upload_folder(repo_id=target, folder_path=folder, commit_message=f"Step {step}")
        except (HTTPError, OSError) as error:
            if _status(error) in REFUSALS:
                raise InputError(
                    f"the hub refuses the upload to {self.model_id} with HTTP {_status(error)}, asked"
                    f" {hub_names.asked_as()}: check that its owner is right and that the token may write"
                ) from error
            raise OSError(f"the upload to {self.model_id} failed: {reason_of(error)}") from error
        return f"{hub.endpoint}/{target}"


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def push(target: str, folders: Mapping[int, Path], dry_run: bool) -> None:
    """Uploads each step: the newest to `main`; if there are several, each also to a branch step_<N>.

    A step is one commit; files that the hub has already, from an interrupted upload, are not sent again.
    """
    newest = max(folders)
    plan = [(step, f"step_{step}") for step in sorted(folders) if len(folders) > 1] + [(newest, "main")]
    if dry_run:
        for step, revision in plan:
            for file in sorted(folders[step].iterdir()):
                print(f"would upload {file.name} ({file.stat().st_size:,} bytes) to {target}, revision {revision}")
        return
    hub = _hub()
    try:
        hub.create_repo(target, exist_ok=True)
        for step, revision in plan:
            if revision != "main":
                hub.create_branch(target, branch=revision, exist_ok=True)
            hub.upload_folder(
                repo_id=target, folder_path=folders[step], revision=revision, commit_message=f"Step {step}"
            )
            print(f"step {step:,}: uploaded to {target}, revision {revision}", flush=True)
    except (HTTPError, OSError) as error:
        raise InputError(
            f"The upload to {target} failed ({reason_of(error)}); run the command again: uploaded files are not"
            " sent again."
        ) from error


def _hub() -> huggingface_hub.HfApi:
    return huggingface_hub.HfApi(token=hub_names.token())
