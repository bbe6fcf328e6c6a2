"""Limits of links: a link with one is taken to be slower than it is, which prices its bytes."""

from __future__ import annotations

from collections.abc import Mapping

from rowtier.cluster import Cluster


def fines_s(cluster: Cluster, limits: Mapping[str, float], factor: float) -> float:
    """The most that so much slower links can add to the step of a placement within the limits."""
    if cluster.servers:
        return float("inf")
    return sum(
        (factor - 1) * limits[level.name] / level.bandwidth_bytes_per_s
        for level in cluster.levels
        if level.name in limits
    )


def slowed(cluster: Cluster, slower: Mapping[str, float]) -> Cluster:
    """The same cluster with some links so many times slower."""
    if not slower:
        return cluster
    levels = tuple(
        level.model_copy(
            update={
                "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s / slower.get(level.name, 1.0)
            }
        )
        for level in cluster.levels
    )
    return cluster.model_copy(update={"levels": levels})
