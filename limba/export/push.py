"""Uploads converted folders to the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors

from limba.config import InputError


def check_target(target: str, dry_run: bool) -> None:
    """Raises ConfigError for a name the hub has not, and without a token that it takes, before any work is done."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", target):
        raise InputError(f"--push is {target}; give user/name.")
    if dry_run:
        return
    if not os.environ.get("HF_TOKEN"):
        raise InputError("--push needs a token: set HF_TOKEN to one of yours with write access, or add --dry-run.")
    try:
        _hub().whoami()
    except (errors.HTTPError, OSError) as error:
        raise InputError(
            f"The hub does not take HF_TOKEN ({_reason(error)}); set it to a token of yours with write access, or check"
            " the network."
        ) from error


def push(target: str, folders: Mapping[int, Path], dry_run: bool) -> None:
    """Uploads each step: the newest to `main`, and where there are several each to a branch step_<N>.

    A step is one commit; files that the hub has already, from an upload that was broken off, are not sent again.
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
    except (errors.HTTPError, OSError) as error:
        raise InputError(
            f"The upload to {target} failed ({_reason(error)}); run the command again, what is there is not sent twice."
        ) from error


def _hub() -> huggingface_hub.HfApi:
    return huggingface_hub.HfApi(token=os.environ["HF_TOKEN"])


def _reason(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:160]
