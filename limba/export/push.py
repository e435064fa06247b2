"""Uploads converted folders to the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

from limba.config import InputError
from limba.config.errors import reason_of


def check_target(target: str, dry_run: bool) -> None:
    """Raises InputError for an invalid hub id, and without a token that the hub accepts, before any work."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", target):
        raise InputError(f"{target} is not a hub id; give user/name.")
    if dry_run:
        return
    if not os.environ.get("HF_TOKEN"):
        raise InputError(
            "An upload needs a token: set HF_TOKEN to a token with write access, or only show what would be uploaded."
        )
    try:
        _hub().whoami()
    except (HTTPError, OSError) as error:
        raise InputError(
            f"The hub does not accept HF_TOKEN ({reason_of(error)}); set it to a token with write access, or check the"
            " network."
        ) from error


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
    return huggingface_hub.HfApi(token=os.environ["HF_TOKEN"])
