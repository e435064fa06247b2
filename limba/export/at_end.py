"""The exports at the end of a run: its last step as a folder for transformers, proved, at each destination; uploads.

A process of its own writes and proves the folder, on the CPU: it needs no device, and nothing that goes wrong in it,
memory included, ends the run. A failed export is repeated, then said; the run's checkpoints are untouched by it.
"""

import contextlib
import functools
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from limba.config import ConfigError, InputError, ModelConfig, RunConfig, reason_of
from limba.data.stream.processes import LARGE_PAGES, NO_DEVICES
from limba.data.vocabulary.vocabularies import Vocabulary
from limba.formats import limba_checkpoint
from limba.formats.huggingface import RECORD
from limba.formats.names import Json
from limba.sharding.agreement import is_first, of_first
from limba.storage import manifest, servers
from limba.training.checks import check_writable

logger = logging.getLogger(__name__)

ATTEMPTS = 3
PAUSES = (10.0, 60.0)  # seconds between them
HOURS_WAITED = 12  # by the other processes of the run
HOURS_TO_WRITE = 3  # and prove a folder, once
PROGRAM = """
from limba.config import environment
environment.set_variables()
environment.set_logging()
with environment.quiet_imports():
    from limba.export import at_end, huggingface
at_end.write_asked()
"""
REPEAT = "the same command tries it again, and trains nothing"


T = TypeVar("T")
Outcome = dict[str, list[str]]  # the places that got the model, and sentences about the others


@dataclass(frozen=True)
class FolderDestination:
    """A local folder or an address such as gs://…, which gets the folder step_<N>."""

    name: str

    @property
    def is_local(self) -> bool:
        return "://" not in self.name

    def check(self) -> None:
        if self.is_local:
            from limba.export.huggingface import check_out

            check_out(Path(self.name))
        check_writable(self.name, "RunConfig.export_to", self.name)

    def deliver(self, folder: Path, step: int) -> str:
        if folder.parent == Path(self.name):  # it was written there
            return str(folder)
        place = f"{self.name.rstrip('/')}/{folder.name}"
        # A folder that is there is replaced only by the same run's.
        manifest.upload(folder, place, replace=_source_of(manifest.read_file(place, RECORD)) == _source_of(folder))
        return place


def _source_of(folder: Path | bytes | None) -> str | None:
    """Returns the run that an exported folder was made from, by its record; None if there is no such folder."""
    try:
        return json.loads((folder / RECORD).read_bytes() if isinstance(folder, Path) else folder or b"")["source"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


REFUSALS = (400, 401, 403, 404)  # statuses that another attempt does not change


def _check_access(otherwise: str) -> None:
    """Raises InputError without a token, and for one that the hub refuses; OSError if the hub does not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    if not servers.token():
        sentence = f"An upload needs a token: set HF_TOKEN to a token with write access{otherwise}."
        raise InputError(sentence, fix="export HF_TOKEN=…")
    try:
        HfApi(token=servers.token()).whoami()
    except (HTTPError, OSError) as error:
        if _status(error) in REFUSALS:
            raise InputError(
                f"The hub does not accept this upload (asked {servers.asked_as()}: HTTP {_status(error)}); set"
                " HF_TOKEN to a token with write access."
            ) from error
        raise OSError(reason_of(error)) from error


def check_target(target: str, dry_run: bool) -> None:
    """Raises InputError for an invalid hub id, and without a token that the hub accepts, before any work."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", target):
        raise InputError(f"{target} is not a hub id; give user/name.")
    try:
        if not dry_run:
            _check_access(", or only show what would be uploaded")
    except OSError as error:
        raise InputError(f"The hub cannot be reached ({error}); check the network.") from error


@dataclass(frozen=True)
class HubDestination:
    """A model of the hub, which gets the files of a run's model on its branch `main`.

    `model_id` is user/name, or a name alone for the user of the token. It is made if it does not exist, `private` or
    not.
    """

    model_id: str
    private: bool | None = False  # of a new model; None: as its owner has chosen

    @property
    def name(self) -> str:
        return f"the hub's {self.model_id}"

    def check(self) -> None:
        """Raises InputError for an invalid id, and without a token that the hub accepts.

        A hub that does not answer is only a warning: it may answer when the run ends.
        """
        if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", self.model_id):
            raise ConfigError("RunConfig.hub_model_id", f"is {self.model_id!r}; give user/name.")
        try:
            _check_access(", or leave RunConfig.hub_model_id out")
        except OSError as error:
            logger.warning(
                "The hub cannot be reached now (%s); the model is uploaded to %s later.", error, self.model_id
            )

    def deliver(self, folder: Path, step: int, revision: str = "main") -> str:
        """Uploads the folder as one commit of a branch, which is made if needed; returns the address.

        Files that the hub has already, from an interrupted upload, are not sent again. InputError if the hub refuses
        it, OSError otherwise.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

        hub = HfApi(token=servers.token())
        try:
            owner = "" if "/" in self.model_id else f"{hub.whoami()['name']}/"
            target = owner + self.model_id
            hub.create_repo(target, exist_ok=True, private=self.private)
            if revision != "main":
                hub.create_branch(target, branch=revision, exist_ok=True)
            said = f"Step {step}"
            hub.upload_folder(repo_id=target, folder_path=folder, revision=revision, commit_message=said)
        except (HTTPError, OSError) as error:
            if _status(error) in REFUSALS:
                raise InputError(
                    f"the hub refuses the upload to {self.model_id} with HTTP {_status(error)}, asked"
                    f" {servers.asked_as()}: check that its owner is right and that the token may write"
                ) from error
            raise OSError(f"the upload to {self.model_id} failed: {reason_of(error)}") from error
        return f"{hub.endpoint}/{target}"


Destination = FolderDestination | HubDestination


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def destinations(config: RunConfig) -> list[Destination]:
    """Returns the places that the run's final model goes to, in order."""
    places = (config.export_to,) if isinstance(config.export_to, str) else config.export_to or ()
    hub = [HubDestination(config.hub_model_id, config.hub_private)] if config.hub_model_id else []
    return [*(FolderDestination(place) for place in places), *hub]


def check(config: RunConfig) -> None:
    """Raises InputError for a network that transformers lacks, and for a destination that cannot be written."""
    places = destinations(config)
    if places:
        from limba.formats.architectures import config_json

        try:
            config_json(config.model.exported)
        except InputError as error:
            field = "RunConfig.export_to" if config.export_to else "RunConfig.hub_model_id"
            raise ConfigError(field, f"is set, and the network cannot be exported: {error}") from error
    for place in places:
        place.check()


def check_vocabulary(config: RunConfig, vocabulary: Vocabulary) -> None:
    """Raises ConfigError for a vocabulary that cannot be exported, where the run exports; else it is a warning."""
    reason = unexportable(config.model, vocabulary)
    if reason is None:
        return
    if destinations(config):
        field = "RunConfig.export_to" if config.export_to else "RunConfig.hub_model_id"
        raise ConfigError(field, f"is set, and the vocabulary cannot be exported: {reason}")
    logger.warning("The run's model can be exported without its tokenizer only: %s", reason)


def unexportable(model: ModelConfig, vocabulary: Vocabulary) -> str | None:
    """Returns why no tokenizer.json gives the ids of this vocabulary; None if one does."""
    from limba.data.vocabulary.load import address_of, content_name
    from limba.data.vocabulary.vocabularies import plain
    from limba.formats.huggingface_files import reason_against

    vocabulary = plain(vocabulary)
    path = address_of(vocabulary)
    if path is None:
        return None
    encodes = model.is_encoder and not model.predicts_next
    starts = model.is_decoder_only and not encodes
    name = content_name(vocabulary)
    return reason_against(path, vocabulary.extra_ids, vocabulary, starts, encodes, name)


def deliver_all(config: RunConfig, result: Mapping[str, Any]) -> Json:
    """Returns the result of a run with `exports`, the places that got its model, and `failed_exports`, sentences.

    A run that was interrupted exports nothing. All processes must call it; process 0 exports, and the others wait.
    """
    places = [] if result["interrupted"] else destinations(config)
    outcome: Outcome = {"exports": [], "failed_exports": []}
    if places and is_first():
        outcome = _delivered(config, result["step"], places)
    if places:
        outcome = json.loads(of_first(json.dumps(outcome), HOURS_WAITED * 3600))
    return {**result, **outcome}


def _delivered(config: RunConfig, step: int, places: Sequence[Destination]) -> Outcome:
    done, failed = [], []
    with ExitStack() as stack:
        print(f"step {step:,}: exporting the model to {', '.join(place.name for place in places)}")
        out, reason = _staging(config, places, stack), ""
        folder, reason = _repeated(lambda: written(config, step, out))
        for place in places:
            found, why = None, reason
            if folder is not None:
                found, why = _repeated(functools.partial(place.deliver, folder, step))
            if found is not None:
                print(f"step {step:,}: the model is in {found}")
                done.append(str(found))
            else:
                failed.append(
                    f"The model of step {step:,} is trained and saved in {config.model_dir}, and not exported to"
                    f" {place.name} ({why.rstrip('.')}): {REPEAT}."
                )
                print(failed[-1])
    return {"exports": done, "failed_exports": failed}


def _staging(config: RunConfig, places: Sequence[Destination], stack: ExitStack) -> Path:
    """Returns the local folder that the export is written to; a temporary one if no destination or run is local."""
    local = [place.name for place in places if isinstance(place, FolderDestination) and place.is_local]
    if local:
        return Path(local[0])
    if "://" not in config.model_dir:
        return Path(config.model_dir) / "huggingface"
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="limba_export_")))


def _repeated(once: Callable[[], T]) -> tuple[T | None, str]:
    """Returns (what it returns, ""), or (None, the reason) after the last attempt; a wrong input is not repeated."""
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
    last = (ended.stderr.strip().splitlines() or [f"its process ended with status {ended.returncode}"])[-1]
    raise InputError(last) if ended.returncode == InputError.exit_status else OSError(last)


def write_asked() -> None:
    """Writes and proves the folder that the first argument asks for, in the process that `written` has started."""
    from limba.export.huggingface import Choices, export
    from limba.inference.source import find

    asked = json.loads(sys.argv[1])
    try:
        # The modules are those that this run itself has imported for its task.
        source = find(asked["run"], allowed=asked["modules"])
        export(source, Path(asked["out"]), [asked["step"]], Choices())
    except InputError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(InputError.exit_status)


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
    over, before = threading.Event(), None  # before: what an earlier start has saved
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
                "The upload to %s has not ended after %.0f s, and is left.", config.hub_model_id, LAST_SECONDS
            )
    finally:
        over.set()


def _upload(config: RunConfig, over: threading.Event, done: int | None) -> None:
    assert config.hub_model_id is not None
    place = HubDestination(config.hub_model_id, config.hub_private)
    while not over.wait(SECONDS):
        try:
            step = _newest(config)
            if step is None or step == done or step == config.train_steps:  # the last one is the end's own
                continue
            done = step
            with tempfile.TemporaryDirectory(prefix="limba_upload_") as folder:
                found = place.deliver(written(config, step, Path(folder) / "export"), step)
            print(f"step {step:,}: the model is in {found}", flush=True)
        except Exception as error:  # noqa: BLE001  the run goes on whatever fails
            logger.warning("Step %s is saved, and not uploaded to %s (%s).", done, place.name, reason_of(error))


def _newest(config: RunConfig) -> int | None:
    return max(limba_checkpoint.steps_in(epath.Path(config.model_dir) / "checkpoints"), default=None)


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
    try:
        for step, revision in plan:
            HubDestination(target, None).deliver(folders[step], step, revision)
            print(f"step {step:,}: uploaded to {target}, revision {revision}", flush=True)
    except (InputError, OSError) as error:
        raise InputError(
            f"The upload to {target} failed ({reason_of(error)}); run the command again: uploaded files are not"
            " sent again."
        ) from error
