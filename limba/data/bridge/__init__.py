"""The one room that knows TensorFlow and seqio, which it imports when a task needs them.

Part of `data/`: imports its data sets, registry, vocabularies and sources; `seqio_objects` imports seqio at once.
"""

from limba.data.bridge.datasets import Numbered, OfTensorflow, applied, in_tensorflow, of_seqio
from limba.data.bridge.dealt import Opened

__all__ = ["Numbered", "OfTensorflow", "Opened", "applied", "in_tensorflow", "of_seqio"]
