"""Statistics that no client of the rows it has announced can send: it has failed, and is named."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import Message, RecordDict
from local_grid import LocalGrid, Node
from mishaps import node_of
from sklearn.base import clone

import skfed
from skfed import FederatedClassifier
from skfed.flower import FederatedStrategy, client_app
from skfed.flower._messages import from_records, to_records
from skfed.flower._statistics import read_statistics
from skfed.preprocessing import (
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedOrdinalEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
)
from skfed.preprocessing._base import fitting_elsewhere

N = 12  # rows of the client
NAN = np.nan


def floats(*values):
    return np.array(values, dtype=float)


def ints(*values):
    return np.array(values, dtype=np.int64)


def objects(*values):
    return np.fromiter(values, dtype=object, count=len(values))


def numbers():
    """Two columns; the second lacks three values."""
    X = np.random.default_rng(0).normal(size=(N, 2)) + 5
    X[:3, 1] = NAN
    return X


def words():
    return pd.DataFrame({"job": ["cook", "nurse", "judge"] * 4}, dtype=object)


EDGES = {"edges": np.sort(np.random.default_rng(1).normal(5, 1, (2, 1, 17)), axis=-1)}
SUMS = [
    {"n": ints(N, N + 1)},
    {"n": ints(N, -1)},
    {"n": ints(N, 2**62)},
    {"n": floats(N, 9)},
    {"n": [N, 9]},
    {"n": (N, 9)},
    {"n": None},
    {"n": ints(N, 0)},  # with a mean
    {"mean": floats(5, NAN)},
    {"mean": floats(5, np.inf)},
    {"mean": floats(5)},
    {"mean": floats(5, 1e308)},
    {"rest": floats(0, NAN)},
    {"rest": floats(0, -1e308)},
    {"suppressed": floats(0, 1)},
    {"suppressed": "yes"},
]
VALUES = [
    {"counts": [ints(4, 4, N)]},
    {"counts": [ints(4, 4, 5)]},  # more than rows together
    {"counts": [ints(4, 4, 3)]},
    {"counts": [ints(4, 4, 0)]},
    {"counts": [ints(4, 4, -4)]},
    {"counts": [ints(4, 4)]},
    {"counts": [floats(4, 4, 4)]},
    {"counts": ints(4, 4, 4)},
    {"values": [objects("cook", "nurse", "cook")]},  # counts as two holders
    {"values": [objects("cook", "nurse", ["judge"])]},
    {"values": [np.array(["cook", "nurse", "judge"])]},
    {"values": [floats(1, 2, 3)]},
    {"values": []},
]
ENCODED = [one for one in VALUES if "values" in one] + [
    {"values": [objects("cook", "nurse", 7)]},
    {"values": [objects(1, 2, 3)]},
    {"values": [objects(*map(str, range(N + 1)))]},
]
COUNTS = [
    {"counts": np.full((2, 1, 17), N + 1)},
    {"counts": np.full((2, 1, 17), -1)},
    {"counts": np.tile(np.arange(17)[::-1] // 4, (2, 1, 1))},
    {"counts": np.zeros((2, 1, 16), dtype=np.int64)},
]
IMPUTED = [{"rows": ints(N + 1)}, {"missing": ints(0, N + 1)}, {"missing": ints(0, -1)}]
GIVEN = [["cook", "nurse", "judge"]]
ENCODER = FederatedOneHotEncoder
CASES = [
    (
        FederatedStandardScaler(),
        {},
        [*SUMS, {"squares": floats(1, -1)}, {"squares": floats(1, NAN)}],
    ),
    (
        FederatedPCA(),
        {},
        [
            *SUMS[7:],
            {"n": ints(N - 1)},
            {"products": np.full((2, 2), NAN)},
            {"products": -np.eye(2)},
            {"rest": floats(99, 99)},
            {"products": np.full((2, 2), 1e307)},
            {"products": floats(1, 2)},
        ],
    ),
    (
        FederatedMinMaxScaler(),
        {},
        [
            {"n": ints(N - 1)},
            {"n": ints(2**62)},
            {"n": ints(-1)},
            {"min": floats(4, NAN)},
            {"min": floats(9, 9)},
            {"max": floats(9, 1.7e308)},
            {"max": "9"},
        ],
    ),
    (FederatedRobustScaler(), {}, [{"n": ints(N, N + 1)}, {"n": ints(N, -1)}, {"n": floats(N, 9)}]),
    (FederatedRobustScaler(), EDGES, COUNTS),
    (FederatedSimpleImputer(), {}, [*SUMS, *IMPUTED]),
    (
        FederatedSimpleImputer(strategy="median"),
        {},
        [*IMPUTED, {"n": ints(N, N)}, {"n": ints(N, -9)}],
    ),
    (FederatedSimpleImputer(strategy="median"), EDGES, COUNTS),
    (FederatedSimpleImputer(strategy="constant"), {}, IMPUTED),
    (FederatedSimpleImputer(strategy="most_frequent"), {}, [*VALUES, {"rows": ints(N + 1)}]),
    (ENCODER(), {}, ENCODED),
    (ENCODER(max_categories=2), {}, [*VALUES, *ENCODED, {"suppressed": True}]),
    (FederatedOrdinalEncoder(min_count=2), {}, ENCODED),
    (ENCODER(categories=GIVEN), {}, [{"values": [objects("cook")]}]),
    (
        ENCODER(categories=GIVEN, max_categories=2),
        {},
        [*VALUES, {"values": [objects("a", "cook", "b")]}],
    ),
]


def sent_and_example(transformer, X, request):
    """Return what a client sends, and what one of a made-up row would."""

    def statistics(rows):
        rows = transformer.prepare(transformer.validate_rows(rows))
        return transformer.client_statistics(rows, request)

    made_up = X.assign(job="")[:1] if isinstance(X, pd.DataFrame) else np.ones((1, 2))
    sent = statistics(X)
    with fitting_elsewhere(lambda transformer, rows: None, made_up=True):
        return sent, statistics(made_up)


def read(transformer, statistics, example, request, exchanges=()):
    reply = RecordDict(to_records("statistics", statistics))
    return read_statistics(reply, transformer, example, N, exchanges, request)


@pytest.mark.parametrize("i", range(len(CASES)), ids=[str(one[0]) for one in CASES])
def test_what_no_client_sends_is_refused(i):
    transformer, request, crafted = CASES[i]
    X = words() if "values" in str(crafted) else numbers()
    if isinstance(transformer, FederatedPCA):
        X = np.nan_to_num(X)
    right, example = sent_and_example(transformer, X, request)
    earlier = [({}, sent_and_example(transformer, X, {})[0])] if request else []
    assert not isinstance(read(transformer, right, example, request, earlier), Exception)
    for change in crafted:
        found = read(transformer, right | change, example, request, earlier)
        assert isinstance(found, ValueError | TypeError), change


def test_a_column_without_values_is_valid():
    X = np.array([[1.0, NAN]] * N)
    for transformer in (
        *(FederatedStandardScaler(), FederatedMinMaxScaler(), FederatedRobustScaler()),
        *(FederatedSimpleImputer(), FederatedSimpleImputer(strategy="median")),
        *(FederatedSimpleImputer(strategy=s) for s in ("most_frequent", "constant")),
    ):
        sent, example = sent_and_example(transformer, X, {})
        assert not isinstance(read(transformer, sent, example, {}), Exception), transformer


NUMBERS = [NAN, np.inf, 1e308, -1e308, 1e150, -1.0, 0.0, 1.0, float(N), N + 1.0, 2.0**62]
THINGS = ["cook", "new", None, NAN, 7, True, b"x", "", ("t",), ["t"]]


def spoiled(statistics, rng):
    """Return statistics of which one array has another value, or another length."""
    name = list(statistics)[rng.integers(len(statistics))]
    given = statistics[name]
    array = np.array(given[0] if isinstance(given, list) else given)
    if array.dtype == object:
        thing = THINGS[rng.integers(len(THINGS))]
        array = objects(*array[: rng.integers(len(array) + 1)], thing)
    elif array.size:
        number = NUMBERS[rng.integers(len(NUMBERS))]
        if array.dtype.kind == "i":
            number = int(np.nan_to_num(number, posinf=-1.0).clip(-(2**62), 2**62))
        array.flat[rng.integers(array.size)] = number
    changed = [array, *given[1:]] if isinstance(given, list) else array
    return statistics | {name: changed}


@pytest.mark.parametrize("i", range(len(CASES)), ids=[str(one[0]) for one in CASES])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_not_refused_neither_ends_the_fit_nor_makes_it_infinite(i, seed):
    transformer, request, crafted = CASES[i]
    rng = np.random.default_rng([seed, i])
    X = words() if "values" in str(crafted) else np.nan_to_num(numbers(), nan=4.0)
    left, earlier = int(rng.integers(6 if request else 1)), []

    def fit(transformer, rows):
        def ask(request):
            right, example = sent_and_example(clone(transformer), X, request)
            reply = spoiled(right, rng) if len(earlier) == left else right
            sent = read(transformer, reply, example, request, earlier)
            if isinstance(sent, Exception):
                raise _RefusedError
            earlier.append((request, sent))
            return [right, sent, right]

        transformer.run_exchanges(ask)

    fitted = clone(transformer)
    try:
        with fitting_elsewhere(fit, made_up=True):
            fitted.fit(X)
    except _RefusedError:
        return
    for name, value in vars(fitted).items():
        if name.endswith("_") and isinstance(value, np.ndarray) and value.dtype.kind == "f":
            assert np.isfinite(value).all(), name


class _RefusedError(Exception):
    """A reply was refused."""


def test_counts_that_contradict_earlier_ones_are_refused():
    scaler, X, earlier = FederatedRobustScaler(), numbers(), []
    coarse, fine = (
        {"edges": np.array([[[low, 3.0, 5.0, high]]] * 2)} for low, high in ((0.0, 9.0), (1.0, 8.0))
    )
    for request in ({}, coarse):
        right, example = sent_and_example(scaler, X, request)
        earlier.append((request, read(scaler, right, example, request, earlier)))
    right, example = sent_and_example(scaler, X, fine)
    assert not isinstance(read(scaler, right, example, fine, earlier), Exception)
    other, _ = sent_and_example(scaler, X * 1.2, fine)
    found = read(scaler, other, example, fine, earlier)
    assert "not those of the same values" in str(found)
    all_values = {"edges": np.full((2, 1, 4), np.finfo(float).max)}
    right, example = sent_and_example(scaler, X, all_values)
    found = read(scaler, {"counts": right["counts"] - 1}, example, all_values, earlier[:1])
    assert "up to the largest number" in str(found)


ROUGH = {
    "scaler": (FederatedStandardScaler(), {"squares": floats(NAN)}),
    "extremes": (FederatedMinMaxScaler(), {"suppressed": floats(1)}),
    "quantiles": (FederatedRobustScaler(), {"n": ints(2**62)}),
    "imputer": (FederatedSimpleImputer(), {"missing": ints(2**40)}),
    "components": (FederatedPCA(), {"products": np.full((1, 1), 1e308)}),
    "categories": (FederatedOneHotEncoder(sparse_output=False), {"values": [objects("cook", 7)]}),
    "counts": (FederatedOrdinalEncoder(max_categories=2), {"counts": [ints(2**40)]}),
}


@pytest.mark.parametrize("name", ROUGH)
def test_one_site_s_invalid_statistics_cost_only_its_own(name, grid_time, caplog):
    """The others fit the transformer; it trains with them."""
    transformer, change = ROUGH[name]
    column = ["cook"] * 4 if "c" in name[:1] and name != "components" else [1.0, 2.0, 4.0, 7.0]
    X = pd.DataFrame({"column": pd.Series(column, dtype=object if "cook" in column else float)})
    pipeline = skfed.make_pipeline(transformer, FederatedClassifier(n_rounds=1, random_state=0))
    app = client_app(pipeline, lambda context: (X, np.array([0, 1, 0, 1])))
    grid = LocalGrid(grid_time, *(Node(app, {"client-name": name}) for name in "abc"))
    node = node_of(grid, "b")

    def answer(message):
        reply = node.app(message, node.context)
        if "statistics" not in reply.content:
            return reply
        crafted = from_records(reply.content, "statistics") | change
        return Message(RecordDict(to_records("statistics", crafted)), reply_to=message)

    node.answer = answer
    strategy = FederatedStrategy(pipeline, clients=3, timeout=1)
    strategy.start(grid)
    fitted = strategy.model_[0]
    assert set(fitted.exchange_.query("client == 'b'")["result"]) == {"failed"}
    assert set(fitted.exchange_.query("client != 'b'")["result"]) == {"exact"}
    assert f"client 'b' sends no statistics of {type(transformer).__name__}: it" in caplog.text
    assert strategy.model_[-1].clients_.tolist() == list("abc")
