"""Sites that join a run after its start."""

from collections.abc import Collection

from skfed.availability import BackOff


class JoiningSites(BackOff):
    """The sites that have a size have joined; those that do not answer are left alone for a time.

    Parameters
    ----------
    availability : BaseAvailability, default=None
        That of the estimator.
    """

    def _joined(self, federation, round):
        joined, before = federation.sizes > 0, super()._joined(federation, round)
        return joined if before is None else joined & before


def checked_joining(
    join: bool, min_sites: int | None, clients: Collection[str] | int | None, min_clients: int
) -> int | None:
    """Return how many sites a run starts with, if others may join later; None if none may."""
    if not isinstance(join, bool):
        raise ValueError(f"join={join!r} must be True or False.")
    if not join:
        if min_sites is not None:
            raise ValueError(
                f"min_sites={min_sites!r} is the number of sites to start with where others may "
                "join later: pass join=True too, or leave it out."
            )
        return None
    if not isinstance(clients, list):
        raise ValueError(
            f"join=True needs the names of all sites, whether they are there or not: clients="
            f"{clients!r} must be a list of names."
        )
    n = min_clients if min_sites is None else min_sites
    if isinstance(n, bool) or not isinstance(n, int) or not 0 < n <= len(clients):
        raise ValueError(f"min_sites={n!r} must be an int from 1 to {len(clients)}, those named.")
    if n < min_clients:
        raise ValueError(
            f"min_sites={n} is below min_clients={min_clients} of the estimator, with fewer of "
            "which a round keeps the model: raise it."
        )
    return n
