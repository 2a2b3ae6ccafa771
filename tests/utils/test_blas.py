"""Linear algebra in one thread."""

from threadpoolctl import threadpool_info, threadpool_limits

from skfed.utils._blas import one_blas_thread


def n_threads():
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_one_thread_inside_and_as_many_as_before_outside():
    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread():
            assert n_threads() == {1}
        assert n_threads() == {2}
