"""What leaves a client: exchange_, and what min_count and min_holders suppress."""

import numpy as np
import pytest
from asked import bytes_of_rows, note_exchanges

from skfed.exchanges import STATISTICS
from skfed.preprocessing import (
    BaseFederatedTransformer,
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedOrdinalEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
)
from skfed.preprocessing._base import fitting_elsewhere
from skfed.preprocessing._quantiles import (
    client_counts,
    merge_counts,
    order_statistics,
    sorted_columns,
)
from skfed.utils._ids import digest

COLUMNS = ["exchange", "client", "bytes_down", "bytes_up", "held", "result"]


def column(*values, dtype=float):
    return np.array(values, dtype=dtype)[:, None]


@pytest.mark.parametrize(
    ("transformer", "n_bytes", "held"),
    [
        (FederatedStandardScaler(), 2 * 4 * 8, "n, mean, rest, squares"),
        (FederatedMinMaxScaler(), 8 + 2 * 2 * 8, "n, min, max"),
        (FederatedSimpleImputer(), 8 + 2 * 8 + 2 * 3 * 8, "rows, missing, n, mean, rest"),
        (FederatedSimpleImputer(strategy="constant"), 8 + 2 * 8, "rows, missing"),
        (FederatedPCA(), 8 + 2 * 2 * 8 + 4 * 8, "n, mean, rest, products"),
    ],
    ids=str,
)
def test_bytes_of_statistics_of_two_columns(transformer, n_bytes, held):
    X = np.arange(10.0).reshape(5, 2) ** 2
    table = transformer.fit(X, clients=["b", "a", "b", "a", "a"]).exchange_
    assert list(table) == COLUMNS
    assert table["client"].tolist() == ["a", "b"]
    assert table["exchange"].tolist() == table["bytes_down"].tolist() == [0, 0]
    assert table["bytes_up"].tolist() == [n_bytes, n_bytes]
    assert set(table["held"]) == {held} and set(table["result"]) == {"exact"}


@pytest.mark.parametrize(
    "transformer",
    [
        FederatedMinMaxScaler(min_count=2),
        FederatedRobustScaler(),
        FederatedSimpleImputer(strategy="most_frequent"),
        FederatedOrdinalEncoder(max_categories=2),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_settled_exchanges(transformer, monkeypatch):
    settled, X = note_exchanges(monkeypatch), np.array([[1, 2], [3, 2], [1, 5], [9, 7], [1, 2]])
    table = transformer.fit(np.tile(X, (2, 1)), clients=list("badab" * 2)).exchange_
    assert {exchange.kind for exchange in settled} == {STATISTICS}
    assert len(settled) == table["exchange"].nunique()
    assert [*zip(table["bytes_down"], table["bytes_up"], strict=True)] == bytes_of_rows(settled)


def test_categories_are_charged_as_text_and_counts_only_where_they_matter():
    X, ids = column("red", "blue", "red", "grün", dtype=object), ["a", "b", "b", "b"]
    table = FederatedOneHotEncoder().fit(X, clients=ids).exchange_
    assert table["bytes_up"].tolist() == [3, 4 + 3 + 5]
    assert table["held"].tolist() == ["values", "values"]
    table = FederatedOrdinalEncoder(max_categories=2).fit(X, clients=ids).exchange_
    assert table["bytes_up"].tolist() == [3 + 8, 12 + 3 * 8]
    imputer = FederatedSimpleImputer(strategy="most_frequent").fit(X, clients=ids)
    assert imputer.exchange_["held"].tolist() == ["rows, missing, values, counts"] * 2


@pytest.mark.parametrize(("dtype", "most"), [(np.float64, 18), (np.float32, 10)])
def test_quantiles_take_few_exchanges_of_known_size(dtype, most):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(300, 2)) * [1e-3, 1e9]).astype(dtype)
    table = FederatedRobustScaler().fit(X, clients=np.arange(300) % 3).exchange_
    assert table["exchange"].max() + 1 <= most
    first, later = table[table["exchange"] == 0], table[table["exchange"] == 1]
    assert set(first["bytes_down"]) == {0} and set(first["bytes_up"]) == {2 * 8}
    edges = 2 * 6 * 17  # of two columns, the neighbours of three quantiles
    assert set(later["bytes_down"]) == {edges * np.dtype(dtype).itemsize}
    assert set(later["bytes_up"]) == {edges * 8} and set(later["held"]) == {"counts"}
    imputer = FederatedSimpleImputer(strategy="median").fit(X, clients=np.arange(300) % 3)
    assert imputer.exchange_["exchange"].max() + 1 <= most


def test_a_client_sends_the_value_that_so_many_of_its_rows_are_at_or_beyond():
    X, ids = column(0, 1, 5, 2, 3, 100, 4, 8, 8, 9), list("aaabbbbccd")
    scaler = FederatedMinMaxScaler(min_count=2).fit(X, clients=ids)
    # a: 1 to 1, b: 3 to 4, c: 8 to 8 (exact), d: nothing
    assert (scaler.data_min_, scaler.data_max_) == (1, 8)
    assert scaler.exchange_["result"].tolist() == ["suppressed"] * 2 + ["exact", "suppressed"]
    with pytest.raises(
        ValueError, match="column 0: min_count=5 .* suppress its minimum or its maximum"
    ):
        FederatedMinMaxScaler(min_count=5).fit(X, clients=ids)


def test_a_client_that_suppresses_in_one_of_several_columns_is_told():
    rows = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    fitted = FederatedMinMaxScaler(min_count=2).fit(rows, clients=["a"] * 3)
    assert fitted.data_min_.tolist() == [2.0, 5.0]
    assert fitted.exchange_["result"].tolist() == ["suppressed"]


def test_the_server_takes_extremes_that_so_many_clients_are_at_or_beyond():
    X, ids = column(0, 5, 2, 100, 3, 7), list("aabbcc")
    scaler = FederatedMinMaxScaler(min_holders=2).fit(X, clients=ids)
    assert (scaler.data_min_, scaler.data_max_) == (2, 7)
    assert set(scaler.exchange_["result"]) == {"suppressed"}
    with pytest.raises(ValueError, match="column 0: .*min_holders=4"):
        FederatedMinMaxScaler(min_holders=4).fit(X, clients=ids)


@pytest.mark.parametrize(
    ("sites", "min_holders", "ends"),
    [
        ([(0, 10), (2, 8)], 2, (2, 8)),
        ([(0, 4), (3, 9)], 2, (3, 4)),
        ([(0, 3), (3, 9)], 2, (3, 3)),
        ([(0, 10), (2, 8), (np.nan, np.nan)], 2, (2, 8)),
        ([(0, 10), (2, 8), (1, 9)], 3, (2, 8)),
        ([(0, 10), (1, 3), (2, 8), (4, 9)], 3, (2, 8)),
        ([(0, 10), (1, 3), (2, 8), (-4, -3)], 3, (1, 3)),
    ],
)
def test_minima_are_ranked_among_minima_and_maxima_among_maxima(sites, min_holders, ends):
    X, ids = column(*np.ravel(sites)), np.repeat(np.arange(len(sites)), 2)
    scaler = FederatedMinMaxScaler(min_holders=min_holders).fit(X, clients=ids)
    assert (scaler.data_min_, scaler.data_max_) == ends


@pytest.mark.parametrize("sites", [[(0, 2), (3, 9)], [(0, 10), (np.nan, np.nan)]])
def test_a_minimum_above_the_maximum_or_of_too_few_clients_is_refused(sites):
    X, ids = column(*np.ravel(sites)), [0, 0, 1, 1]
    with pytest.raises(ValueError, match="column 0: .* suppress its minimum or its maximum"):
        FederatedMinMaxScaler(min_holders=2).fit(X, clients=ids)


@pytest.mark.parametrize("encoder", [FederatedOneHotEncoder, FederatedOrdinalEncoder])
def test_rare_categories_stay_with_their_client_or_the_server(encoder):
    X, ids = column("x", "x", "y", "z", "z", "y", "x", dtype=object), list("aaabbcc")
    unknown = {"handle_unknown": "ignore"}
    if encoder is FederatedOrdinalEncoder:
        unknown = {"handle_unknown": "use_encoded_value", "unknown_value": -1}
    fitted = encoder(min_count=2, **unknown).fit(X, clients=ids)
    assert fitted.categories_[0].tolist() == ["x", "z"]
    assert fitted.exchange_["result"].tolist() == ["suppressed", "exact", "suppressed"]
    assert fitted.exchange_["bytes_up"].tolist() == [1 + 1, 1, 0 + 1]  # 1 for the mark
    fitted = encoder(min_holders=2, **unknown).fit(X, clients=ids)
    assert fitted.categories_[0].tolist() == ["x", "y"]
    assert set(fitted.exchange_["result"]) == {"suppressed"}
    fitted = encoder(min_count=2).fit(X, clients=ids)
    with pytest.raises(ValueError, match="'y'.*column 0.*min_count=2 and min_holders=1 suppress"):
        fitted.transform(X)
    with pytest.raises(ValueError, match="'new'.*transform$"):
        encoder(min_count=2).fit(X[:2], clients=ids[:2]).transform([["new"]])
    with pytest.raises(ValueError, match="column 0: min_count=1 and min_holders=3 suppress all"):
        encoder(min_holders=3).fit(X, clients=ids)
    with pytest.raises(ValueError, match="min_count.*max_categories"):
        encoder(min_count=2, max_categories=2).fit(X, clients=ids)
    with pytest.raises(ValueError, match="min_holders.*min_frequency"):
        encoder(min_holders=2, min_frequency=2).fit(X, clients=ids)


@pytest.mark.parametrize("encoder", [FederatedOneHotEncoder, FederatedOrdinalEncoder])
def test_given_categories_are_neither_sent_nor_suppressed(encoder):
    X, ids = column("x", "x", "y", "z", "z", "y", "x", dtype=object), list("aaabbcc")
    given = [["z", "y", "x", "none has it"]]
    fitted = encoder(categories=given, min_count=2, min_holders=3).fit(X, clients=ids)
    assert fitted.categories_[0].tolist() == given[0]
    table = fitted.exchange_
    assert table["bytes_up"].tolist() == [0, 0, 0]
    assert set(table["held"]) == {""} and set(table["result"]) == {"exact"}
    fitted = encoder(categories=given, max_categories=3).fit(X, clients=ids)
    assert set(fitted.exchange_["held"]) == {"values, counts"}


def test_values_beside_given_categories_are_sent_as_one():
    X, ids = column("x", "x", "secret", "z", "z", "other", "x", dtype=object), list("aaabbcc")
    encoder = FederatedOneHotEncoder(
        categories=[["x", "z", "w"]], min_frequency=3, handle_unknown="infrequent_if_exist"
    )
    encoder.validate_rows(X)
    sent = encoder.client_statistics([X[2:, 0]], {})
    assert not {"secret", "other"} & set(sent["values"][0]) and max(sent["counts"][0]) == 2
    encoder.fit(X, clients=ids)
    assert encoder.infrequent_categories_[0].tolist() == ["z", "w"]


def test_the_most_frequent_of_the_values_that_may_be_sent():
    X, ids = column(1, 2, 2, 1, 1, 3, 3, 3), list("abbcdddd")
    X[4:6] = [[1], [3]]
    fit = FederatedSimpleImputer(strategy="most_frequent").fit
    assert fit(X, clients=ids).statistics_ == [1]  # 1 and 3 have three rows each
    imputer = FederatedSimpleImputer(strategy="most_frequent", min_count=2)
    assert imputer.fit(X, clients=ids).statistics_ == [3]  # a, c and d keep their 1
    imputer.set_params(min_count=1, min_holders=2)
    assert imputer.fit(X, clients=ids).statistics_ == [1]
    with pytest.raises(ValueError, match="column 0: .*suppress all of its values"):
        imputer.set_params(min_count=4).fit(X, clients=ids)


def test_a_median_that_enough_rows_hold_is_exact_another_is_a_middle():
    ids = list("abcabca")
    scaler = FederatedRobustScaler(with_scaling=False, min_count=3)
    exact = scaler.fit(column(1, 1, 4, 4, 4, 9, 9), clients=ids)
    assert exact.center_ == [4] and set(exact.exchange_["result"]) == {"exact"}
    coarse = scaler.fit(column(1, 2, 3, 4, 5, 6, 7), clients=ids)
    assert coarse.center_ != [4] and 1 < coarse.center_ < 8
    assert coarse.exchange_["result"].iloc[-1] == "suppressed"
    for params in ({"min_count": 8}, {"min_count": 1, "min_holders": 4}):
        with pytest.raises(ValueError, match="column 0 has 7 values of 3 clients: min_count="):
            scaler.set_params(**params).fit(column(1, 2, 3, 4, 5, 6, 7), clients=ids)


@pytest.mark.parametrize("least", [{"min_count": 7}, {"min_count": 1, "min_holders": 3}])
def test_no_interval_is_divided_that_holds_too_little(least):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).round(1)
    clients = [sorted_columns(part) for part in np.split(X, [100, 150])]
    n = np.full(3, 200)
    ranks = np.array([[20, 99, 180]] * 3)
    search = order_statistics(ranks, n, X.dtype, **({"min_holders": 1} | least))
    request = next(search)
    try:
        while True:
            sent = [client_counts(columns, request) for columns in clients]
            inside = np.array([s["counts"][..., -1] - s["counts"][..., 0] for s in sent])
            asked = np.ptp(request["edges"], axis=-1) > 0
            assert (inside.sum(axis=0)[asked] >= least["min_count"]).all()
            assert ((inside > 0).sum(axis=0)[asked] >= least.get("min_holders", 1)).all()
            request = search.send(merge_counts(sent, least.get("min_holders", 1)))
    except StopIteration as end:
        values, suppressed, _ = end.value
    exact = np.take_along_axis(np.sort(X, axis=0).T, ranks, axis=1)
    np.testing.assert_array_equal(values[~suppressed], exact[~suppressed])
    assert suppressed.any() and np.abs(values - exact).max() < 1


class FederatedShift(BaseFederatedTransformer):
    """Subtracts the largest of the clients' first values: a transformer in one class."""

    def __init__(self, priority=None):
        self.priority = priority

    _parameter_constraints = {"priority": "no_validation"}

    def client_statistics(self, data, request):
        return {"first": data[0] + request["plus"]}

    def merge(self, statistics):
        self.order_ = [s["first"][0] for s in statistics]
        return {"largest": max(self.order_)}

    def exchanges(self):
        first = yield {"plus": np.array([1.0])}
        second = yield {"plus": np.array([first["largest"]])}
        self.shift_ = second["largest"]
        return False

    def transform(self, X):
        return X - self.shift_


def test_a_transformer_is_one_class():
    X, ids = column(3, 1, 5, 9), ["a", "b", "a", "b"]
    own = FederatedShift()
    np.testing.assert_array_equal(own.fit_transform(X, clients=ids), X - 7)  # 3 + (3 + 1)
    assert own.exchange_["bytes_down"].tolist() == [8] * 4
    by_digest = sorted(["a", "b"], key=digest)
    assert own.order_ == [{"a": 7, "b": 5}[client] for client in by_digest]


@pytest.mark.parametrize("strategy", ["mean", "constant"])
def test_a_strategy_that_sends_no_values_has_none_to_suppress(strategy):
    imputer = FederatedSimpleImputer(strategy=strategy, min_count=2)
    with pytest.raises(ValueError, match=f"min_count=2 .* strategy='{strategy}' does not send"):
        imputer.fit([[7.0], [1.0]], clients=["a", "b"])


@pytest.mark.parametrize("params", [{"min_count": 3}, {"min_holders": 2}])
def test_too_few_values_have_neither_minimum_nor_maximum(params):
    """The third smallest of three values is their maximum, and must not leave the client."""
    X, clients = [[1.0], [2.0], [8.0], [9.0], [2.5], [8.5]], list("aabbab")
    scaler = FederatedMinMaxScaler(**params)
    with pytest.raises(ValueError, match="column 0: .* suppress its minimum or its maximum"):
        scaler.fit(X, clients=clients)


@pytest.mark.parametrize("made_up", [True, False])
def test_a_function_may_fit_a_transformer_instead_of_its_exchanges(made_up):
    """An encoder that is fitted to other rows encodes a row of its own categories."""
    elsewhere = FederatedOneHotEncoder(handle_unknown="ignore", sparse_output=False)
    elsewhere.fit([["red"], ["blue"]], clients=[0, 1])
    seen = []

    def fit(transformer, rows):
        seen.append(rows[0].tolist())
        vars(transformer).update(vars(elsewhere))

    with fitting_elsewhere(fit, made_up):
        row = FederatedOneHotEncoder().fit_transform([["green"]])
    assert seen == [["green"]]
    assert row.tolist() == ([[1.0, 0.0]] if made_up else [[0.0, 0.0]])
