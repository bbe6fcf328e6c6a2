"""Counting one leg of the data: what is to be counted, and the profile of a part of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from rowtier.files import fingerprint_of
from rowtier.profile.count import TableCounter
from rowtier.profile.count_ids import Vocabularies
from rowtier.profile.legs import Leg
from rowtier.profile.profile import Profile
from rowtier.profile.readers import Sampled, Source
from rowtier.profile.slices import bits_for
from rowtier.tables import Tables


@dataclass(frozen=True)
class CountingJob:
    """What is to be counted; picklable, so that workers can be sent it."""

    source: Source
    tables: Tables
    vocabularies: Vocabularies = field(default_factory=dict)

    @property
    def bits(self) -> int:
        """How long time slices are, as far as that is known before counting."""
        whole = self.source.source if isinstance(self.source, Sampled) else self.source
        if whole.samples is None or not whole.parts:
            return 0
        first = whole.parts[0].first_sample
        return bits_for(first, first + whole.samples)

    @property
    def features(self) -> list[str]:
        """The columns that are needed."""
        return list(dict.fromkeys(name for table in self.tables for name in table.features))

    def fingerprint(self, legs: list[Leg]) -> str:
        """Changes whenever the result of a leg would."""
        words = {name: found.fingerprint for name, found in self.vocabularies.items()}
        asked: list[Any] = [self.tables.fingerprint, words, self.source.kind]
        if isinstance(self.source, Sampled):
            asked.append(asdict(self.source.sample))
        parts = [asdict(part) for part in self.source.parts]
        return fingerprint_of([asked, parts, [leg.name for leg in legs]])


def count_leg(
    job: CountingJob, leg: Leg, done: Callable[[int, float], None] | None = None
) -> Profile:
    """Count the parts of a leg, for the rows of its shard; `done` is told part and share."""
    first = leg.rows.index == 0  # lengths and distinct ids are those of the first pass
    bits = job.bits
    counters = [TableCounter(t, leg.rows, bits, job.vocabularies.get(t.name)) for t in job.tables]
    samples = 0
    for index in range(leg.start, leg.stop):
        part = job.source.parts[index]
        for chunk in job.source.read(part, job.features):
            for counter in counters:
                counter.add(chunk, part.path)
            samples += chunk.samples
            if done is not None and chunk.done < 1:
                done(index, chunk.done)
        if done is not None:
            done(index, 1.0)
    stats = [counter.finish(samples, with_features=first) for counter in counters]
    return Profile(job.tables.batch_size, tuple(stats))
