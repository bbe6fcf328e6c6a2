"""What the data does to every table: counts per row, or a curve where rows are not known."""

from rowtier.profile.curve import Curve
from rowtier.profile.profile import FeatureStats, Profile, RowCounts, TableStats

__all__ = ["Curve", "FeatureStats", "Profile", "RowCounts", "TableStats"]
