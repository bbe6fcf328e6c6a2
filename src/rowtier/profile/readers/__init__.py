"""Reading id data of any kind as one stream of chunks: `open_source` chooses the reader."""

from rowtier.profile.readers.base import Chunk, Columns, DataPart, Ids, Source
from rowtier.profile.readers.between import Between, Shifted
from rowtier.profile.readers.open import open_source
from rowtier.profile.readers.sample import Sample, Sampled
from rowtier.profile.readers.times import Edge
from rowtier.profile.readers.window import TimeWindow

__all__ = [
    "Between",
    "Chunk",
    "Columns",
    "DataPart",
    "Edge",
    "Ids",
    "Sample",
    "Sampled",
    "Shifted",
    "Source",
    "TimeWindow",
    "open_source",
]
