"""Where bytes are: on their way (staging) and in their final place (local)."""

from dlpipe.store.links import Linking
from dlpipe.store.local import LocalBlobStore, Rehash
from dlpipe.store.staging import LocalStaging

__all__ = ["Linking", "LocalBlobStore", "LocalStaging", "Rehash"]
