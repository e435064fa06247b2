"""Where an exported folder goes: a folder or bucket, and a model of the hub."""

import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from limba.config import ConfigError, InputError, RunConfig, reason_of
from limba.data.vocabulary.files import OF_FOLDER, OF_TOKENIZER
from limba.export.record import has_same_source
from limba.formats.huggingface import RECORD
from limba.formats.huggingface_files import ENCODER, SENTENCE_MODULES
from limba.formats.names import SAFETENSORS, SAFETENSORS_INDEX
from limba.formats.weights import FLAX_FILE
from limba.storage import lease, manifest, servers
from limba.training.checks import check_writable

logger = logging.getLogger(__name__)

REFUSALS = (400, 401, 403, 404)  # statuses that another attempt does not change
CHAT_TEMPLATE = "chat_template.jinja"  # users add it to a model on the hub by hand
WEIGHTS = (SAFETENSORS, "model-?????-of-?????.safetensors", SAFETENSORS_INDEX, FLAX_FILE)
# The files that an export may write, as patterns: a branch of the hub has those of its newest upload alone. An older
# model.safetensors would be read before the index of a newer model in several files. A tokenizer is replaced only by
# another one: users add theirs by hand to a model that has none.
EXPORTED = (*WEIGHTS, *(name for name in OF_FOLDER if name != CHAT_TEMPLATE))
OF_EXPORTS = (
    *EXPORTED,
    RECORD,
    "README.md",
    "loss.png",
    *(f"{ENCODER}/{name}" for name in EXPORTED + SENTENCE_MODULES),
)


@dataclass(frozen=True)
class FolderDestination:
    """A local folder or an address such as gs://…, which gets the folder step_<N>."""

    name: str

    @property
    def is_local(self) -> bool:
        return "://" not in self.name

    def check(self) -> None:
        """Raises InputError for a folder that cannot be written, or that has something else in it."""
        if self.is_local:
            from limba.export.huggingface import check_out

            check_out(Path(self.name))
        check_writable(self.name, "RunConfig.export_to", self.name)

    def deliver(self, folder: Path, step: int) -> str:
        """Copies the folder; returns its address. A folder there is replaced only by one of the same checkpoint."""
        if folder.parent == Path(self.name):  # it was written there
            return str(folder)
        address = self.address_of(step)
        record = folder / RECORD
        new = record.read_bytes() if record.exists() else None
        if self.is_local:
            _copy(folder, Path(address), lambda: has_same_source(self.record_at(address), new))
        else:
            manifest.upload(folder, address, replace=has_same_source(self.record_at(address), new))
        return address

    def address_of(self, step: int) -> str:
        return f"{self.name.rstrip('/')}/step_{step}"

    def record_at(self, address: str) -> bytes | None:
        """Returns the record of a folder that is there; None without one."""
        if not self.is_local:
            return manifest.read_file(address, RECORD)
        record = Path(address) / RECORD
        return record.read_bytes() if record.is_file() else None


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

        The commit also removes what earlier exports have left there and this one does not have, a tokenizer only if
        this one has another; files of other names stay. Files that the hub has already, from an interrupted upload, are
        not sent again. InputError if the hub refuses it, OSError for any other failure.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

        hub = HfApi(token=servers.token())
        try:
            target = self.model_id
            if "/" not in target:
                target = f"{hub.whoami()['name']}/{target}"
            hub.create_repo(target, exist_ok=True, private=self.private)
            if revision != "main":
                hub.create_branch(target, branch=revision, exist_ok=True)
            hub.upload_folder(
                repo_id=target,
                folder_path=folder,
                revision=revision,
                commit_message=f"Step {step}",
                delete_patterns=_replaced_by(folder),
            )
        except (HTTPError, OSError) as error:
            if _status(error) in REFUSALS:
                raise InputError(
                    f"the hub refuses the upload to {self.model_id} with HTTP {_status(error)}, asked"
                    f" {servers.asked_as()}: check that its owner is right and that the token may write"
                ) from error
            raise OSError(f"the upload to {self.model_id} failed: {reason_of(error)}") from error
        return f"{hub.endpoint}/{target}"


Destination = FolderDestination | HubDestination


def destinations(config: RunConfig) -> list[Destination]:
    """Returns where the run's final model goes, in order."""
    folders = config.export_to or ()
    if isinstance(folders, str):
        folders = (folders,)
    chosen: list[Destination] = [FolderDestination(folder) for folder in folders]
    if config.hub_model_id:
        chosen.append(HubDestination(config.hub_model_id, config.hub_private))
    return chosen


def push(target: str, folders: Mapping[int, Path], dry_run: bool) -> None:
    """Uploads each step: the newest to `main`; if there are several, each also to a branch step_<N>.

    A step is one commit; files that the hub has already, from an interrupted upload, are not sent again.
    """
    plan = []
    if len(folders) > 1:
        plan = [(step, f"step_{step}") for step in sorted(folders)]
    plan.append((max(folders), "main"))
    if dry_run:
        for step, revision in plan:
            folder = folders[step]
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                name = file.relative_to(folder)
                print(f"would upload {name} ({file.stat().st_size:,} bytes) to {target}, revision {revision}")
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


def check_target(target: str, dry_run: bool) -> None:
    """Raises InputError for an invalid hub id, and without a token that the hub accepts, before any work."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", target):
        raise InputError(f"{target} is not a hub id; give user/name.")
    try:
        if not dry_run:
            _check_access(", or only show what would be uploaded")
    except OSError as error:
        raise InputError(f"The hub cannot be reached ({error}); check the network.") from error


def _replaced_by(folder: Path) -> list[str]:
    """Returns the patterns of the files on a branch of the hub that go when a folder is uploaded without them."""
    if any((folder / name).exists() for name in OF_TOKENIZER):
        return [*OF_EXPORTS]
    kept = {*OF_TOKENIZER, *(f"{ENCODER}/{name}" for name in OF_TOKENIZER)}
    return [name for name in OF_EXPORTS if name not in kept]


def _copy(folder: Path, final: Path, may_replace: Callable[[], bool]) -> None:
    """Copies a folder to another local one, which has its name when it is whole."""
    final.parent.mkdir(parents=True, exist_ok=True)
    with lease.held(str(final.parent)) as mine:
        if final.exists() and not may_replace():  # now, as no other process writes there
            raise InputError(
                f"{final} is there already, and was made from another run or checkpoint; remove it, or give another"
                " directory."
            )
        writing = final.with_name(f"{final.name}.writing")
        shutil.rmtree(writing, ignore_errors=True)
        shutil.copytree(folder, writing)
        mine.check()
        if final.exists():
            shutil.rmtree(final)
        writing.rename(final)


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


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)
