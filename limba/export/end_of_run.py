"""The exports at the end of a run: its best step, or else its last one, for transformers, proved; uploads.

A process of its own writes and proves the folder, on the CPU: it needs no device, and no error in it, running out of
memory included, ends the run. A failed export is repeated, then reported; the run's checkpoints are untouched by it.
"""

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from limba.config import ConfigError, InputError, ModelConfig, RunConfig, reason_of
from limba.data.stream.processes import LARGE_PAGES, NO_DEVICES
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.export.destinations import Destination, FolderDestination, HubDestination, destinations
from limba.export.record import names_checkpoint_of
from limba.formats import limba_checkpoint
from limba.formats.names import Json
from limba.sharding.agreement import is_first, of_first
from limba.storage.files import resolved

logger = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSES = (10.0, 60.0)  # seconds between them
HOURS_WAITED = 12  # by the other processes of the run
HOURS_TO_WRITE = 3  # and prove a folder, once
LOOK_SECONDS = 10.0  # between two looks at the saved steps
LAST_SECONDS = 3600.0  # for the upload that is under way at the end
PROGRAM = """
from limba.config import environment
environment.set_variables()
environment.set_logging()
with environment.quiet_imports():
    from limba.export import end_of_run, huggingface
end_of_run.write_asked()
"""
REPEAT = "the same command tries it again, and trains nothing"

T = TypeVar("T")
Outcome = dict[str, list[str]]  # `exports`, the addresses of the model, and `failed_exports`, sentences


def check(config: RunConfig) -> None:
    """Raises InputError for a network that transformers lacks, and for a destination that cannot be written."""
    chosen = destinations(config)
    if not chosen:
        return
    from limba.formats.huggingface_config import config_json

    try:
        config_json(config.model.exported)
    except InputError as error:
        raise ConfigError(_field(config), f"is set, and the network cannot be exported: {error}") from error
    for destination in chosen:
        destination.check()
        if isinstance(destination, FolderDestination):
            _check_last_step(config, destination, _is_in_run(config, destination, chosen))


def _is_in_run(config: RunConfig, destination: FolderDestination, chosen: Sequence[Destination]) -> bool:
    """Returns whether the export is written there, in the run's own directory."""
    if _first_local(chosen) is not destination or "://" in config.model_dir:
        return False
    return Path(destination.name).resolve().is_relative_to(Path(config.model_dir).resolve())


def _check_last_step(config: RunConfig, destination: FolderDestination, is_in_run: bool) -> None:
    """Raises ConfigError if the run's last step is exported there before the run has it: nothing is overwritten.

    In the run's own directory a folder of an earlier checkpoint of this run is made again.
    """
    if config.train_steps is None:  # the data's end says it
        return
    address = destination.address_of(config.train_steps)
    record = destination.record_at(address)
    if record is None or (is_in_run and names_checkpoint_of(record, resolved(config.model_dir).name)):
        return
    if config.train_steps in limba_checkpoint.steps_in(epath.Path(config.model_dir) / "checkpoints"):
        return
    raise ConfigError(
        "RunConfig.export_to",
        f"is {destination.name}, and {address} is there already, though {config.model_dir} has no checkpoint"
        f" {config.train_steps}: it was made from another run, or from this one before it was trained again; remove"
        " it, or give another directory.",
    )


def check_vocabulary(config: RunConfig, vocabulary: Vocabulary) -> None:
    """Raises ConfigError for a vocabulary that cannot be exported, if the run exports; warns if it does not."""
    reason = unexportable(config.model, vocabulary)
    if reason is None:
        return
    if destinations(config):
        raise ConfigError(_field(config), f"is set, and the vocabulary cannot be exported: {reason}")
    logger.warning("The run's model can be exported without its tokenizer only: %s", reason)


def _field(config: RunConfig) -> str:
    """Returns the field by which a run exports."""
    return "RunConfig.export_to" if config.export_to else "RunConfig.hub_model_id"


def unexportable(model: ModelConfig, vocabulary: Vocabulary) -> str | None:
    """Returns why no tokenizer.json gives the ids of this vocabulary; None if one does.

    >>> from limba.data.vocabulary import ByteVocabulary
    >>> t5 = ModelConfig(384, emb_dim=64, num_heads=2, head_dim=32, mlp_dim=96, num_encoder_layers=1,
    ...                  num_decoder_layers=1)
    >>> unexportable(t5, ByteVocabulary(100)) is None  # ByT5's ids have a class of their own
    True
    """
    from limba.data.vocabulary.addresses import address_of, content_name
    from limba.data.vocabulary.published import PublishedVocabulary
    from limba.data.vocabulary.shifted import published_of
    from limba.data.vocabulary.vocabularies import plain
    from limba.formats.huggingface_tokenizer import reason_against

    vocabulary = published_of(plain(vocabulary))
    if isinstance(vocabulary, PublishedVocabulary):
        return None  # its files are copied
    path = address_of(vocabulary)
    if path is None:
        return None
    encodes = model.is_encoder and not model.predicts_next
    starts = model.is_decoder_only and not encodes
    name = content_name(vocabulary)
    return reason_against(path, vocabulary.extra_ids, vocabulary, starts, encodes, name)


def deliver_all(config: RunConfig, result: Mapping[str, Any]) -> Json:
    """Returns the result of a run with `exports`, the addresses of its model, and `failed_exports`, sentences.

    A run that was interrupted exports nothing. All processes must call it; process 0 exports, and the others wait.
    """
    outcome: Outcome = {"exports": [], "failed_exports": []}
    chosen = [] if result["interrupted"] else destinations(config)
    if chosen:
        if is_first():
            outcome = _delivered(config, _best_or(result["step"], config), chosen)
        outcome = json.loads(of_first(json.dumps(outcome), HOURS_WAITED * 3600))
    return {**result, **outcome}


def _best_or(step: int, config: RunConfig) -> int:
    """Returns the step of the checkpoint that opens where a model is asked for: the run's best one, else this one."""
    best = limba_checkpoint.steps_in(epath.Path(config.model_dir) / "best" / "checkpoints")
    return max(best, default=step)


def _delivered(config: RunConfig, step: int, chosen: Sequence[Destination]) -> Outcome:
    addresses = []
    failures = []
    with ExitStack() as stack:
        print(f"step {step:,}: exporting the model to {', '.join(destination.name for destination in chosen)}")
        out = _staging(config, chosen, stack)
        folder, reason = _repeated(lambda: written(config, step, out))
        for destination in chosen:
            address = None
            if folder is not None:
                address, reason = _repeated(functools.partial(destination.deliver, folder, step))
            if address is not None:
                print(f"step {step:,}: the model is in {address}")
                addresses.append(str(address))
            else:
                failures.append(
                    f"The model of step {step:,} is trained and saved in {config.model_dir}, and not exported to"
                    f" {destination.name} ({reason.rstrip('.')}): {REPEAT}."
                )
                print(failures[-1])
    return {"exports": addresses, "failed_exports": failures}


def _staging(config: RunConfig, chosen: Sequence[Destination], stack: ExitStack) -> Path:
    """Returns the local folder that the export is written to; a temporary one if no destination or run is local."""
    local = _first_local(chosen)
    if local is not None:
        return Path(local.name)
    if "://" not in config.model_dir:
        return Path(config.model_dir) / "huggingface"
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="limba_export_")))


def _first_local(chosen: Sequence[Destination]) -> FolderDestination | None:
    """Returns the destination that the export is written to; None if none is local."""
    for destination in chosen:
        if isinstance(destination, FolderDestination) and destination.is_local:
            return destination
    return None


def _repeated(once: Callable[[], T]) -> tuple[T | None, str]:
    """Returns (the function's result, ""), or (None, the reason) after the last attempt; InputError is not repeated."""
    for attempt in range(ATTEMPTS):
        try:
            return once(), ""
        except InputError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001  a bucket's client, or the hub's, has errors of its own
            reason = reason_of(error)
        if attempt < len(PAUSES):
            print(f"The export has failed ({reason}); it is tried again in {PAUSES[attempt]:.0f} s.")
            time.sleep(PAUSES[attempt])
    return None, reason


def written(config: RunConfig, step: int, out: Path) -> Path:
    """Returns the proved folder of a step, written by a process of its own."""
    environment = {**LARGE_PAGES, **os.environ, **NO_DEVICES, "PYTHONPATH": os.pathsep.join(sys.path)}
    asked = {"run": config.model_dir, "out": str(out), "step": step, "modules": list(config.data.task_modules)}
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    try:
        ended = subprocess.run(
            command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace", check=False,
            timeout=HOURS_TO_WRITE * 3600,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"it has not ended after {HOURS_TO_WRITE} hours") from None
    if ended.returncode == 0:
        return out / f"step_{step}"
    lines = ended.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"its process ended with status {ended.returncode}"
    if ended.returncode == InputError.exit_status:
        raise InputError(reason)
    raise OSError(reason)


def write_asked() -> None:
    """Writes and proves the folder that the first argument asks for, in the process that `written` has started."""
    from limba.export.huggingface import export
    from limba.export.record import Choices
    from limba.inference.source import find

    asked = json.loads(sys.argv[1])
    try:
        # The modules are those that this run itself has imported for its task.
        source = find(asked["run"], allowed=asked["modules"])
        export(source, Path(asked["out"]), [asked["step"]], Choices())
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(InputError.exit_status)


@contextlib.contextmanager
def uploading(config: RunConfig) -> Iterator[None]:
    """Uploads each newly saved step during a with statement, the newest if several wait.

    A failed upload is a warning, and the next step is tried; no failure here ends the run. The upload that is under way
    at the end is waited for, unless the run ends with an error.
    """
    if not config.hub_model_id or config.hub_strategy != "every_save" or not is_first():
        yield
        return
    over = threading.Event()
    before = None  # the newest step that an earlier start has saved
    with contextlib.suppress(Exception):  # the run goes on whatever fails
        before = _newest(config)
    thread = threading.Thread(target=_upload, args=(config, over, before), daemon=True, name="upload")
    thread.start()
    try:
        yield
        over.set()
        thread.join(LAST_SECONDS)
        if thread.is_alive():
            logger.warning(
                "The upload to %s has not ended after %.0f s, and is abandoned.", config.hub_model_id, LAST_SECONDS
            )
    finally:
        over.set()


def _upload(config: RunConfig, over: threading.Event, done: int | None) -> None:
    assert config.hub_model_id is not None
    hub = HubDestination(config.hub_model_id, config.hub_private)
    while not over.wait(LOOK_SECONDS):
        try:
            step = _newest(config)
            is_last = step == config.train_steps  # which is delivered when the run has ended
            if step is None or step == done or is_last:
                continue
            done = step
            with tempfile.TemporaryDirectory(prefix="limba_upload_") as folder:
                address = hub.deliver(written(config, step, Path(folder) / "export"), step)
            print(f"step {step:,}: the model is in {address}", flush=True)
        except Exception as error:  # noqa: BLE001  the run goes on whatever fails
            logger.warning("Step %s is saved, and not uploaded to %s (%s).", done, hub.name, reason_of(error))


def _newest(config: RunConfig) -> int | None:
    return max(limba_checkpoint.steps_in(epath.Path(config.model_dir) / "checkpoints"), default=None)
