"""Uploads the steps of a run to the hub as they are saved, beside the training, if the run asks for it."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from limba.config import RunConfig
from limba.config.errors import reason_of
from limba.export import at_end
from limba.export.push import HubDestination
from limba.formats import limba_checkpoint
from limba.sharding.agreement import is_first

logger = logging.getLogger(__name__)

SECONDS = 10.0  # between two looks at the saved steps
LAST_SECONDS = 3600.0  # for the upload that is under way at the end


@contextlib.contextmanager
def uploading(config: RunConfig) -> Iterator[None]:
    """For the time of a with statement, uploads each newly saved step, the newest if several wait.

    A failed upload is said, and the next step's is tried; nothing that fails here ends the run. The upload that is
    under way at the end is waited for, unless the run ends with an error.
    """
    if not config.hub_model_id or config.hub_strategy != "every_save" or not is_first():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_upload, args=(config, over), daemon=True, name="upload")
    thread.start()
    try:
        yield
        over.set()
        thread.join(LAST_SECONDS)
        if thread.is_alive():
            logger.warning(
                "The upload to %s has not ended after %.0f s, and is left.", config.hub_model_id, LAST_SECONDS
            )
    finally:
        over.set()


def _upload(config: RunConfig, over: threading.Event) -> None:
    assert config.hub_model_id is not None
    place = HubDestination(config.hub_model_id, config.hub_private)
    done = _newest(config)  # what an earlier start has saved
    while not over.wait(SECONDS):
        try:
            step = _newest(config)
            if step is None or step == done or step == config.train_steps:  # the last one is the end's own
                continue
            done = step
            with tempfile.TemporaryDirectory(prefix="limba_upload_") as folder:
                found = place.deliver(at_end.written(config, step, Path(folder) / "export"), step)
            print(f"step {step:,}: the model is in {found}", flush=True)
        except Exception as error:  # noqa: BLE001  the run goes on whatever fails
            logger.warning("Step %s is saved, and not uploaded to %s (%s).", done, place.name, reason_of(error))


def _newest(config: RunConfig) -> int | None:
    return max(limba_checkpoint.steps_in(epath.Path(config.model_dir) / "checkpoints"), default=None)
