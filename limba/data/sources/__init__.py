"""Where documents come from: files, the hub, ArrayRecord and TensorFlow Datasets; each position can be saved.

Part of `data/`: imports `config/`, never jax.
"""

from limba.data.sources.array_record import ArrayRecordSource, TfdsSource
from limba.data.sources.files import FileSource, HubSource, UnitSource

__all__ = ["ArrayRecordSource", "FileSource", "HubSource", "TfdsSource", "UnitSource"]
