"""The same counting on a Dask cluster: one task per part, merged in a tree on the workers."""

from __future__ import annotations

from collections.abc import Callable

from rowtier.errors import UserError
from rowtier.profile.count_legs import CountingJob, count_leg
from rowtier.profile.legs import Leg, by_parts
from rowtier.profile.merge import join_passes, merge_profiles
from rowtier.profile.profile import Profile

FAN_IN = 8  # profiles that one task merges
TIMEOUT_S = 10


def profile_on_dask(
    job: CountingJob, legs: list[Leg], address: str, leg_done: Callable[[Leg], None]
) -> Profile:
    """Count legs on the workers of a scheduler; only the merged profile comes back."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise UserError("Dask is not installed: pip install 'rowtier[dask]'") from None
    try:
        client = Client(address, timeout=TIMEOUT_S)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{address}: no Dask scheduler answers there ({error}); give the address that "
            "`dask scheduler` printed, such as tcp://host:8786"
        ) from None
    with client:
        sent = client.scatter(job, broadcast=True)
        counted = [client.submit(count_leg, sent, leg, pure=False) for leg in legs]
        leg_of = dict(zip((future.key for future in counted), legs, strict=True))
        future_of = dict(zip(legs, counted, strict=True))
        layer = [
            client.submit(join_passes, [future_of[leg] for leg in passes], pure=False)
            for passes in by_parts(legs)
        ]
        while len(layer) > 1:
            groups = [layer[i : i + FAN_IN] for i in range(0, len(layer), FAN_IN)]
            layer = [client.submit(merge_profiles, group, pure=False) for group in groups]
        for future in as_completed(counted):
            leg_done(leg_of[future.key])
        merged: Profile = layer[0].result()
        return merged
