"""Where documents come from: files, the hub, ArrayRecord, TensorFlow Datasets. All data positions can be saved.

Part of `data/`: imports `config/`, never jax.
"""

from limba.data.sources.array_record import ArrayRecordSource
from limba.data.sources.files import DataFiles, FileSource, patterns_of  # noqa: F401  the last: until version 0.3
from limba.data.sources.hub import HubSource
from limba.data.sources.tfds import TfdsSource
from limba.data.sources.units import *  # noqa: F403  what this module had before it was a folder, until version 0.3
from limba.data.sources.units import UnitSource

__all__ = ["ArrayRecordSource", "FileSource", "HubSource", "TfdsSource", "UnitSource"]
