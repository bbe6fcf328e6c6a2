"""Reading id data of any kind as one stream of chunks: `open_source` chooses the reader."""

from rowtier.profile.readers.base import Chunk, Columns, Ids, Part, Source
from rowtier.profile.readers.open import open_source
from rowtier.profile.readers.sample import Sample, Sampled

__all__ = ["Chunk", "Columns", "Ids", "Part", "Sample", "Sampled", "Source", "open_source"]
