"""joblib's backends for clusters, which need an extra: Dask and Ray.

joblib asks for a backend here when ``parallel_config`` is first given its name, so that nothing is
imported before.
"""

from collections.abc import Callable
from importlib.util import find_spec

from joblib.parallel import EXTERNAL_BACKENDS

from skfed.utils._extras import needs


def _with_extra(extra: str, package: str, register: Callable[[], None]) -> Callable[[], None]:
    """Return ``register``, with an error that names the extra where the package is missing."""

    def checked() -> None:
        if find_spec(package) is None:
            raise ImportError(needs(f"backend={extra!r}", extra))
        register()

    return checked


def _register_ray() -> None:
    from ray.util.joblib import register_ray

    register_ray()


EXTERNAL_BACKENDS.update(
    dask=_with_extra("dask", "distributed", EXTERNAL_BACKENDS["dask"]),
    ray=_with_extra("ray", "ray", _register_ray),
)
