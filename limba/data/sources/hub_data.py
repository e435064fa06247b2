"""Documents of data sets on the Hugging Face hub, read where they are stored."""

from __future__ import annotations

import codecs
import dataclasses
import functools
import itertools
import os
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from limba.config import ConfigError, InputError, Open, StorageError, reason_of
from limba.data.sources.listing import file_format
from limba.data.sources.splits import Column, Rewrite
from limba.data.sources.units import DataFiles, UnitSource, patterns_of
from limba.storage import failures, servers

COMMIT = re.compile(r"[0-9a-f]{40}")
ANSWER_SECONDS = 4.0  # for the hub's first answer, twice: without a network its library alone repeats for half a minute
# What a card may say of how `datasets` reads the files, and which values change no text beside the default.
READINGS: dict[str, tuple[object, ...]] = {
    "header": (0,),
    "names": (),
    "column_names": (),
    "skiprows": (0,),
    "skipfooter": (),
    "nrows": (),
    "comment": (),
    "lineterminator": ("\n",),
    "encoding": (None,),  # and any name of those below
    "quotechar": (),
    "quoting": (1,),
    "doublequote": (),
    "escapechar": (),
    "dialect": (),
    "field": (),
    "sample_by": (),
    "filters": (),
}
ENCODINGS = ("utf-8", "utf-8-sig", "ascii")  # by Python's own names, of text that is read alike as UTF-8
_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(
    rf"(?P<path>({_PART}/)?{_PART})(:(?P<configuration>[^@#:]+))?(@(?P<revision>[^#@]+))?(#(?P<split>[^#]+))?"
)


class HubName(NamedTuple):
    """A data set's name in a run's configuration: user/name:configuration@revision#split; the last three may lack."""

    path: str
    configuration: str | None = None
    revision: str | None = None
    split: str | None = None


def hub_name(text: str) -> HubName | None:
    """Returns the parts of a data set's name; None for the path, pattern or address of files.

    A local file or folder has priority, and the suffix of a file makes a path.

    >>> hub_name("wikimedia/wikipedia:20231101.ro@main#train")
    HubName(path='wikimedia/wikipedia', configuration='20231101.ro', revision='main', split='train')
    >>> hub_name("corpus/ro.jsonl"), hub_name("corpus/*.txt"), hub_name("hf://datasets/user/name/a.parquet")
    (None, None, None)
    """
    match = _NAME.fullmatch(text)
    if match is None or os.path.exists(match["path"]) or os.path.exists(text):
        return None
    if "/" not in match["path"] and not servers.is_known(match["path"], "dataset"):
        return None  # a word may be a mistyped path
    try:
        file_format(match["path"])
    except InputError:  # no suffix of a file
        return HubName(**match.groupdict())
    return None


def hub_corpus(data_files: DataFiles, column: Column = "text", validation_percent: float = 1.0) -> HubSource | None:
    """Returns the source of a hub data set that is named instead of files; None if files are named.

    Raises ConfigError for several data sets, and for a data set beside files.
    """
    named = {split: [hub_name(text) for text in texts] for split, texts in patterns_of(data_files).items()}
    data_names = [*itertools.chain.from_iterable(named.values())]
    if not any(data_names):
        return None
    has_files_too = None in data_names
    has_several_in_a_split = any(len(names) > 1 for names in named.values())
    data_sets = {(*name[:3],) for name in data_names if name}  # path, configuration and revision
    if has_files_too or has_several_in_a_split or len(data_sets) > 1:
        raise ConfigError(
            "DataConfig.data_files",
            f"is {data_files!r}, and a data set of the hub must be the only corpus; name one, with its splits as"
            " {'train': 'user/name#train', 'validation': 'user/name#test'}, or register a mixture of tasks.",
        )
    name = next(filter(None, data_names))
    splits = {split: data_name.split or split for split, (data_name,) in named.items() if data_name is not None}
    for split_name in splits.values():
        if not re.fullmatch(r"[\w.-]+", split_name):
            raise ConfigError(
                "DataConfig.data_files",
                f"names the split {split_name!r}; give a split's whole name, such as {name.path}#train: slices are"
                " of TensorFlow Datasets.",
            )
    return HubSource(
        name.path, name.configuration, name.revision, column, tuple(dict.fromkeys((*splits, "validation"))),
        validation_percent, splits.get("validation", "validation"), train_split=splits.get("train", "train"),
        is_named=True,
    )  # fmt: skip


class HubSource(UnitSource):
    """Documents of a Hugging Face data set, by hub id or local directory, read where they are stored.

    Nothing is downloaded whole and no script of the data set runs. Its files are listed when they are first needed,
    with the token in HF_TOKEN if there is one.
    """

    def __init__(
        self,
        path: str,
        name: str | None = None,
        revision: str | None = None,
        column: Column = "text",
        splits: Sequence[str] = ("train", "validation"),
        validation_percent: float = 1.0,
        validation_split: str = "validation",  # the data set's name for the split
        rewrite: Rewrite | None = None,
        train_split: str = "train",
        is_named: bool = False,  # by the run's configuration; then splits with other names must exist
    ):
        self._at = functools.partial(
            HubSource, path, name, column=column, splits=tuple(splits), validation_percent=validation_percent,
            validation_split=validation_split, rewrite=rewrite, train_split=train_split, is_named=is_named,
        )  # fmt: skip
        self.path = path
        self.config_name = name
        self.revision = revision
        self.is_named = is_named
        self._own_names = {"train": train_split, "validation": validation_split}
        super().__init__(f"The data set {path}", self._hub_files, splits, column, validation_percent, rewrite)

    @property
    def hub_name(self) -> HubName:
        """The data set's name on the hub, without splits."""
        return HubName(self.path, self.config_name, self.revision)

    @property
    def is_pinned(self) -> bool:
        """True if the revision is a commit: a branch moves, and saved data positions would be wrong then."""
        return COMMIT.fullmatch(self.revision or "") is not None

    @property
    def resolved_revision(self) -> str | None:
        """The commit that its files are read from; None for a local directory. Queries the hub."""
        addresses = itertools.chain.from_iterable(self.patterns.values())
        revisions = (re.match(r"hf://datasets/[^@]+@([0-9a-f]{40})/", address) for address in addresses)
        return next((match[1] for match in revisions if match), None)

    def pinned(self, revision: str) -> HubSource:
        """Returns this data set at this commit."""
        return self._at(revision=revision).read_by(self._policy)

    def _hub_files(self) -> Mapping[str, Sequence[str]]:
        path = self.path
        if not os.path.exists(self.path):
            path = servers.full_name(self.path, "dataset")
            self._ask_hub(path)
        import datasets  # a second of imports

        try:
            builder = datasets.load_dataset_builder(
                path, self.config_name, revision=self.revision, token=servers.token()
            )
        except (OSError, ValueError, RuntimeError, zipfile.BadZipFile) as error:  # the hub's own errors are among these
            raise self._not_opened(reason_of(error)) from error
        self._check_reading(builder.config)
        files = builder.config.data_files
        if not files:
            raise InputError(f"{self.name} has no data files of its own; set DataConfig.data_files to its files.")
        there = {str(split): [str(address) for address in addresses] for split, addresses in files.items()}
        splits = dict(there)
        for ours, theirs in self._own_names.items():
            if theirs in there:
                splits[ours] = there[theirs]
            elif theirs != ours and self.is_named:
                raise InputError(f"{self.name} has no split {theirs!r}; it has {', '.join(there)}: name one of these.")
        if splits.get("validation") == splits.get("train"):
            splits.pop("validation", None)  # a part of it is used for validation
        return splits

    def _check_reading(self, settings: Any) -> None:
        """Raises InputError if the data set's card says that its files are read in another way than ours."""
        addresses = itertools.chain.from_iterable((settings.data_files or {}).values())
        # Which has no quotes here either.
        is_tsv = all(".tsv" in str(address).rpartition("/")[2] for address in addresses)
        for field in dataclasses.fields(settings):
            if field.name not in READINGS or (field.name == "quoting" and is_tsv):
                continue
            value = getattr(settings, field.name)
            if field.name == "encoding" and _is_utf8(value):
                continue
            if value not in (field.default, *READINGS[field.name]):
                raise InputError(
                    f"{self.name} is read with {field.name}={value!r}, as its card says, which cannot be done here;"
                    " download it and give its rows as .jsonl."
                )

    def _ask_hub(self, path: str) -> None:
        """Raises InputError if the hub does not have the data set, or does not answer within some seconds."""
        import huggingface_hub
        from huggingface_hub import errors

        hub = huggingface_hub.HfApi(token=servers.token())
        ask = functools.partial(hub.dataset_info, path, revision=self.revision, timeout=ANSWER_SECONDS)
        try:
            servers.check_hub()
            try:
                ask()
            except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
                raise
            except (errors.HTTPError, OSError):  # pyright: ignore[reportPrivateImportUsage]
                ask()
        except (errors.HTTPError, errors.HFValidationError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
            failure = self._not_opened(*servers.refusal(error, "data set", self.path, self.revision))
            if failures.is_outage(error):
                failure.exit_status = StorageError.exit_status  # the same command works later
            raise failure from error

    def _not_opened(
        self, reason: str, advice: str = "check the name, the network, and HF_TOKEN if it is private"
    ) -> InputError:
        asked = "" if os.path.exists(self.path) else f"; asked {servers.asked_as()}"
        files = ("DataConfig.data_files", Open("files, in place of the hub's"))
        return InputError(f"{self.name} cannot be opened ({reason}{asked}); {advice}.", fix=files)


def _is_utf8(encoding: object) -> bool:
    try:
        return codecs.lookup(str(encoding)).name in ENCODINGS
    except LookupError:
        return False
