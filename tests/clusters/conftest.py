"""Clusters on this machine, of two workers each."""

import logging
import warnings

import joblib
import pytest

from skfed.utils._extras import needs


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "clusters":
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def dask():
    distributed = pytest.importorskip("distributed", reason=needs("it", "dask"))
    dask = pytest.importorskip("dask", reason=needs("it", "dask"))
    # Which worker gets a task that is sent to one would otherwise depend on time.
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        cluster = distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
        )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="session")
def ray():
    ray = pytest.importorskip("ray", reason=needs("it", "ray"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def on(request):
    """Return a context in which joblib has two workers of a backend; clusters start when needed."""

    def on(backend):
        if backend in ("dask", "ray"):
            request.getfixturevalue(backend)
        return joblib.parallel_config(backend=backend, n_jobs=2)

    return on
