"""Where documents come from: files, the hub, ArrayRecord, TensorFlow Datasets. All data positions can be saved.

Part of `data/`: imports `config/`, never jax.
"""

from limba.data.sources.array_record import ArrayRecordSource
from limba.data.sources.hub_data import HubSource
from limba.data.sources.tfds import TfdsSource
from limba.data.sources.units import FileSource, UnitSource

__all__ = ["ArrayRecordSource", "FileSource", "HubSource", "TfdsSource", "UnitSource"]
