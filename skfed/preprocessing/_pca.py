"""PCA, fitted from each client's means and sums of products of deviations."""

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.decomposition import PCA
from sklearn.utils.extmath import svd_flip
from sklearn.utils.validation import validate_data

from skfed.preprocessing._base import Requests, Statistics
from skfed.preprocessing._blocks import ClientRows
from skfed.preprocessing._moments import check_sums, merge_products, products
from skfed.preprocessing._private import PrivateTransformer, average_rows, merge_averages
from skfed.utils._checks import naming
from skfed.utils._sklearn import Interval, StrOptions, infer_dimension


class FederatedPCA(PrivateTransformer, PCA):
    """Principal components of all clients' rows, which stay with them.

    Each client sends its number of rows, their mean and the matrix of sums of products of
    deviations from it, in one exchange. The server takes the eigenvectors of the covariance of all
    rows, as :class:`sklearn.decomposition.PCA` does with ``svd_solver="covariance_eigh"``. The
    fitted attributes are those of that class on the pooled rows, up to rounding and the signs of
    components.

    Parameters
    ----------
    n_components : int, float or "mle", default=None
        As in scikit-learn.
    copy : bool, default=True
        As in scikit-learn.
    whiten : bool, default=False
        As in scikit-learn.
    priority : collection or mapping of client ids, default=None
        Whose statistics count, as in :class:`FederatedStandardScaler`.
    privacy : GaussianMechanism, default=None
        Clips what each client sends and adds noise to it, which makes it private with respect to
        all of the client's data, except for the number of its rows
        (:func:`skfed.privacy.privacy_spent`); needs ``bounds``.
    bounds : (lowest, highest), each a number or array-like of shape (n_features,), default=None
        Bounds of the columns, to which values are clipped before they are summed; for ``privacy``.
    random_state : int, RandomState instance or None, default=None
        The seed of the noise. Steps of the same seed do not share noise: it depends also on what is
        sent.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, \
n_components_, n_samples_, noise_variance_, n_features_in_, feature_names_in_
        As in scikit-learn.
    exchange_ : DataFrame
        A row for each exchange and client; see :mod:`skfed.preprocessing`.

    See Also
    --------
    sklearn.decomposition.PCA : The same on rows that are in one place.
    skfed.preprocessing.FederatedStandardScaler : Scales columns before it.

    Examples
    --------
    >>> from skfed.preprocessing import FederatedPCA
    >>> X = [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
    >>> pca = FederatedPCA(n_components=1).fit(X, clients=["a", "b", "a", "b"])
    >>> float(pca.explained_variance_ratio_[0].round(6))
    1.0
    """

    svd_solver = "covariance_eigh"

    _parameter_constraints = {
        "n_components": [
            Interval(Integral, 0, None, closed="left"),
            Interval(Real, 0, 1, closed="neither"),
            StrOptions({"mle"}),
            None,
        ],
        "copy": ["boolean"],
        "whiten": ["boolean"],
        "priority": "no_validation",
        **PrivateTransformer._privacy_constraints,
    }

    def __init__(
        self,
        n_components=None,
        *,
        copy=True,
        whiten=False,
        priority=None,
        privacy=None,
        bounds=None,
        random_state=None,
    ):
        self.n_components = n_components
        self.copy = copy
        self.whiten = whiten
        self.priority = priority
        self.privacy = privacy
        self.bounds = bounds
        self.random_state = random_state

    def validate_rows(self, X):
        """Return the rows as floats, none of them missing."""
        with naming("X"):
            rows = validate_data(self, X, dtype=[np.float64, np.float32])
        self._dtype = rows.dtype
        return rows

    def take_rows(self, rows, indices):
        """Return some of the rows, copied only where they are read."""
        return ClientRows(rows, indices)

    def client_statistics(self, data, request):
        """Return the number of rows, their mean and the products of deviations."""
        if self.privacy is not None:
            return average_rows([_sums(block) for block in self.scaled_blocks(data)], len(data))
        return products(data)

    def check_statistics(self, statistics, example, n_samples):
        """Raise a ValueError if products are not those of so many rows."""
        check_sums(statistics, n_samples)
        if statistics["n"][0] != n_samples:
            raise ValueError("its n is not the number of its rows.")

    def merge(self, statistics):
        """Return number, mean and products of all clients' rows."""
        if self.privacy is not None:
            return self._products_of(merge_averages(statistics))
        return merge_products(statistics)

    def exchanges(self) -> Requests:
        """Ask for products once."""
        merged = yield {}
        n = int(merged["n"][0])
        if n < 2:
            raise ValueError(f"n_samples={n} over all clients: a covariance needs at least 2.")
        variances, vectors = np.linalg.eigh(merged["products"] / (n - 1))
        most = min(n, len(variances))  # further variances are 0
        variances = np.maximum(variances[::-1][:most], 0.0)
        _, components = svd_flip(None, vectors[:, ::-1].T[:most], u_based_decision=False)
        self.mean_ = merged["mean"].astype(self._dtype)
        self.n_samples_ = n
        self._keep(variances, components, self._count_components(n, variances))
        return False

    def _products_of(self, merged: Statistics) -> Statistics:
        """Return sums of products of deviations from noisy averages of values in [-1, 1]."""
        middle, half = self.scale_of_bounds()
        f = self.n_features_in_
        mean = np.clip(merged["averages"][:f], -1.0, 1.0)
        second = np.zeros((f, f))
        second[np.triu_indices(f)] = merged["averages"][f:]
        second += np.triu(second, 1).T
        covariance = (second - np.outer(mean, mean)) * np.outer(half, half)
        n = merged["n"]
        return {"n": np.array([n]), "mean": middle + half * mean, "products": n * covariance}

    def _count_components(self, n: int, variances: np.ndarray) -> int:
        """Return how many components to keep, by scikit-learn's rules."""
        most, wanted = len(variances), self.n_components
        if wanted is None:
            return most
        if wanted == "mle":
            if n < self.n_features_in_:
                raise ValueError("n_components='mle' is only supported if n_samples >= n_features")
            return infer_dimension(variances, n)
        if wanted > most:
            raise ValueError(
                f"n_components={wanted} must be between 0 and min(n_samples, n_features)={most}."
            )
        if isinstance(wanted, Integral):
            return int(wanted)
        shares = np.cumsum(variances / variances.sum())
        return min(int(np.searchsorted(shares, wanted, side="right")) + 1, most)

    def _keep(self, variances: np.ndarray, components: np.ndarray, n_components: int) -> None:
        kept: dict[str, Any] = {
            "components_": components,
            "explained_variance_": variances,
            "explained_variance_ratio_": variances / variances.sum(),
            "singular_values_": np.sqrt(variances * (self.n_samples_ - 1)),
        }
        for name, value in kept.items():
            setattr(self, name, value[:n_components].astype(self._dtype))
        self.n_components_ = n_components
        noise = variances[n_components:].mean() if n_components < len(variances) else 0.0
        self.noise_variance_ = self._dtype.type(noise)


def _sums(block: np.ndarray) -> np.ndarray:
    """Return the sums of each column, and of products of each pair of columns."""
    products = block.T @ block
    return np.concatenate([block.sum(axis=0), products[np.triu_indices(len(products))]])
