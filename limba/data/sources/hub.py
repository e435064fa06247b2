"""Documents of data sets on the Hugging Face hub, read where they are stored."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence

from limba.config import InputError
from limba.config.errors import reason_of
from limba.data.sources.units import Column, Rewrite, UnitSource


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
    ):
        self.path, self.config_name, self.revision = path, name, revision
        self._validation_split = validation_split
        super().__init__(f"The data set {path}", self._hub_files, splits, column, validation_percent, rewrite)

    @property
    def resolved_revision(self) -> str | None:
        """The commit that its files are read from; None for a local directory. Queries the hub."""
        addresses = itertools.chain.from_iterable(self._patterns.values())
        found = (re.match(r"hf://datasets/[^@]+@([0-9a-f]{40})/", address) for address in addresses)
        return next((match[1] for match in found if match), None)

    def pinned(self, revision: str) -> HubSource:
        """Returns this data set at this commit."""
        source = HubSource(
            self.path,
            self.config_name,
            revision,
            self.column,
            tuple(self.splits),
            self._validation_percent,
            self._validation_split,
            self._rewrite,
        )
        source.read_by(self._policy)
        return source

    def _hub_files(self) -> Mapping[str, Sequence[str]]:
        import datasets

        try:
            builder = datasets.load_dataset_builder(
                self.path, self.config_name, revision=self.revision, token=os.environ.get("HF_TOKEN") or None
            )
        except (OSError, ValueError, RuntimeError) as error:  # the hub's own errors are among these
            raise InputError(
                f"{self.name} cannot be opened ({reason_of(error)}); check the name, the network, and HF_TOKEN if it is"
                " private."
            ) from error
        files = builder.config.data_files
        if not files:
            raise InputError(f"{self.name} has no data files of its own; set DataConfig.data_files to its files.")
        found = {str(split): [str(address) for address in addresses] for split, addresses in files.items()}
        if self._validation_split in found:
            found["validation"] = found.pop(self._validation_split)
        return found
