"""Pipelines over messages: the fitted steps and the rounds are those of the simulation."""

import numpy as np
import pandas as pd
import pytest
from asked import bytes_of_rows, note_exchanges
from flwr.app import Message, RecordDict
from local_grid import LocalGrid, Node, is_kind, late, requests
from mishaps import PowerCut, node_of
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    Normalizer,
    PolynomialFeatures,
    StandardScaler,
)

import skfed
from skfed import FedAlignSelector, FederatedClassifier, make_pipeline
from skfed.checkpoint._fitted import restore, state_of
from skfed.exchanges import STATISTICS, Outcome
from skfed.flower import FederatedStrategy, client_app
from skfed.flower._messages import from_records, to_records
from skfed.flower._pipeline import fitted_one_by_one
from skfed.preprocessing import (
    FederatedMinMaxScaler,
    FederatedOneHotEncoder,
    FederatedOrdinalEncoder,
    FederatedPCA,
    FederatedRobustScaler,
    FederatedSimpleImputer,
    FederatedStandardScaler,
    pooled,
)
from skfed.privacy import GaussianMechanism
from skfed.utils import _files
from skfed.utils._describe import describe

NOISE = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
MODEL = FederatedClassifier(
    selector=FedAlignSelector(eps=0.3, warmup=1),
    priority=["a", "b"],
    n_rounds=2,
    engine="loop",
    random_state=0,
)


@pytest.fixture(scope="module")
def table():
    """Numbers and text with missing values, targets, clients; b has no pay, a alone a judge."""
    rng = np.random.default_rng(0)
    clients = np.repeat(list("abcd"), [30, 12, 20, 1])
    n = len(clients)
    X = pd.DataFrame({"age": rng.integers(18, 80, n), "pay": rng.lognormal(8, 1, n)})
    X["job"] = np.where(rng.random(n) < 0.5, "cook", "nurse")
    X["city"] = rng.choice(["Graz", "Lyon", "Rome"], n).astype(object)
    X["since"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(X["age"] % 3, unit="D")
    X.loc[3, "job"] = "judge"
    X.loc[clients == "b", "pay"] = np.nan
    X.loc[::5, "city"] = np.nan
    X.loc[::7, "pay"] = np.nan
    return X, rng.integers(0, 2, n), clients


def columns(**params):
    numbers = skfed.make_pipeline(
        FederatedSimpleImputer(strategy="median", add_indicator=True), FederatedRobustScaler()
    )
    text = skfed.make_pipeline(
        FederatedSimpleImputer(strategy="most_frequent"), FederatedOneHotEncoder(max_categories=3)
    )
    parts = [
        ("numbers", numbers, make_column_selector(dtype_include="number")),
        ("city", text, ["city"]),
        ("job", FederatedOrdinalEncoder(), ["job"]),
    ]
    return ColumnTransformer(parts, **params)


def only(*names):
    return ColumnTransformer([("kept", "passthrough", list(names))])


GIVEN = [np.array(["Rome", "Graz", "Lyon", "Oslo", np.nan], dtype=object)]
PIPELINES = {
    "scaler": [only("age"), FederatedStandardScaler()],
    "imputer": [only("age", "pay"), FederatedSimpleImputer(), FederatedStandardScaler()],
    "columns": [columns()],
    "PCA": [
        ColumnTransformer(
            [
                ("age", FederatedStandardScaler(), ["age"]),
                ("city", FederatedOneHotEncoder(), ["city"]),
            ]
        ),
        FederatedPCA(2),
    ],
    "union": [
        only("age", "pay"),
        FunctionTransformer(np.log1p),
        FederatedSimpleImputer(strategy="constant", fill_value=1.0),
        FeatureUnion(
            [("a", FederatedMinMaxScaler()), ("b", FederatedPCA(1)), ("c", "passthrough")]
        ),
        Normalizer(),
    ],
    "of priority clients": [only("age"), FederatedMinMaxScaler(priority=["b", "c"])],
    "given categories": [
        ColumnTransformer(
            [
                ("city", FederatedOneHotEncoder(categories=GIVEN, max_categories=3), ["city"]),
                ("job", FederatedOrdinalEncoder(categories=[["nurse", "judge", "cook"]]), ["job"]),
                ("age", FederatedOrdinalEncoder(categories=[np.arange(18, 80)]), ["age"]),
            ]
        )
    ],
    "times": [
        ColumnTransformer([("since", FederatedOrdinalEncoder(), ["since"])], remainder="drop")
    ],
    "suppressing": [
        only("job"),
        FederatedOneHotEncoder(min_count=2, handle_unknown="ignore", sparse_output=False),
    ],
}


@pytest.fixture
def grid_of(table, grid_time):
    """Return a function that makes a grid whose nodes have the table's clients."""
    X, y, clients = table

    def make(pipeline, change=lambda name, X: X, names="dcba"):
        def load(context):
            name = context.node_config["client-name"]
            rows = clients == name
            return change(name, X[rows].reset_index(drop=True)), y[rows]

        app = client_app(pipeline, load)
        return LocalGrid(grid_time, *(Node(app, {"client-name": name}) for name in names))

    return make


def run(pipeline, grid, clients=4, **params):
    strategy = FederatedStrategy(pipeline, clients=clients, **({"timeout": 1} | params))
    strategy.start(grid)
    return strategy.model_


def simulate(pipeline, table):
    X, y, clients = table
    with config_context(enable_metadata_routing=True):
        return clone(pipeline).fit(X, y, clients=clients)


def content(steps):
    """Return what is equal only for the same fitted steps, bit for bit."""
    tensors = {}
    text = repr(_files.to_json(state_of(steps), tensors))
    return text, {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", PIPELINES)
def test_the_fitted_pipeline_is_that_of_the_simulation(name, table, grid_of, same_model, tmp_path):
    kind = Pipeline if name == "scaler" else skfed.pipeline.FederatedPipeline
    steps = [(f"step{i}", step) for i, step in enumerate(PIPELINES[name])]
    pipeline = kind([*steps, ("model", MODEL)])
    simulated = simulate(skfed.pipeline.FederatedPipeline(pipeline.steps), table)
    model = run(pipeline, grid_of(pipeline))
    assert type(model) is kind
    assert content(model[:-1]) == content(kind(simulated.steps[:-1]))
    assert same_model(model[-1], simulated[-1])
    timeless = [c for c in simulated[-1].history_ if not c.endswith("_seconds")]
    pd.testing.assert_frame_equal(model[-1].history_[timeless], simulated[-1].history_[timeless])
    X = table[0]
    np.testing.assert_array_equal(model.predict_proba(X), simulated.predict_proba(X))
    skfed.save(model, tmp_path / "model")
    loaded = skfed.load(pipeline, tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), simulated.predict_proba(X))
    assert not hasattr(pipeline[-1], "net_")


def test_the_bytes_of_the_fitted_steps_are_logged(table, grid_of, caplog):
    """They are in each request of a round, in neither the history nor ``exchange_``."""
    pipeline = skfed.make_pipeline(*PIPELINES["imputer"], MODEL)
    grid = grid_of(pipeline)
    with caplog.at_level("INFO", "flwr"):
        model = run(pipeline, grid)
    names = "steps", "steps-arrays"
    in_rounds = [m for m in grid.sent if is_kind(m, "train") or is_kind(m, "poll")]
    (n_bytes,) = {sum(m.content[name].count_bytes() for name in names) for m in in_rounds}
    assert f"each request has the fitted steps, {n_bytes} bytes that no" in caplog.text
    simulated = simulate(pipeline, table)
    for one, other in zip(model[1:3], simulated[1:3], strict=True):
        pd.testing.assert_frame_equal(one.exchange_, other.exchange_)
        assert not one.exchange_["bytes_down"].any()


SCALED = skfed.make_pipeline(
    only("age", "pay"), FederatedSimpleImputer(strategy="median"), FederatedMinMaxScaler(), MODEL
)


def fails_in(grid, name, kind, n, answer):
    """Let a client answer otherwise from its n-th message of a kind on; return all of them."""
    node, seen = node_of(grid, name), []

    def reply(message):
        if not is_kind(message, kind):
            return node.app(message, node.context)
        seen.append(message)
        return node.app(message, node.context) if len(seen) <= n else answer(message)

    node.answer = reply
    return seen


def simulate_without(name, pipeline, table):
    X, y, clients = table
    rest = clients != name
    return simulate(pipeline, (X[rest], y[rest], clients[rest]))


@pytest.mark.parametrize("n", [0, 5], ids=["at once", "within a median"])
def test_a_killed_site_costs_its_statistics(n, table, grid_of, caplog):
    """A median of counts that it took part in begins again; training asks it again."""
    grid = grid_of(SCALED)
    fails_in(grid, "c", "steps", n, late)
    model = run(SCALED, grid)
    simulated = simulate_without("c", SCALED, table)
    assert model[1].statistics_.tolist() == simulated[1].statistics_.tolist()
    assert model[2].data_max_.tolist() == simulated[2].data_max_.tolist()
    asked = model[1].exchange_.query("client == 'c'")
    assert asked["result"].tolist() == ["exact"] * n + ["failed"]
    assert asked["bytes_up"].tolist()[-1] == 0
    assert "client 'c' sends no statistics of FederatedSimpleImputer: no answer" in caplog.text
    assert model[-1].clients_.tolist() == list("abcd")
    assert model[-1].history_["n_failed"].tolist() == [0, 0]
    n_exchanges = len(simulated[1].exchange_["exchange"].unique())
    assert len(model[1].exchange_["exchange"].unique()) < 2 * n_exchanges  # replies are kept


def test_bytes_are_those_of_the_settled_exchanges(grid_of, monkeypatch):
    """Those too that are asked for before a median begins again."""
    grid, settled = grid_of(SCALED), note_exchanges(monkeypatch)
    fails_in(grid, "c", "steps", 5, late)
    tables = [step.exchange_ for step in run(SCALED, grid)[1:3]]
    rows = [row for t in tables for row in zip(t["bytes_down"], t["bytes_up"], strict=True)]
    asked = settled[: sum(t["exchange"].nunique() for t in tables)]
    assert rows == bytes_of_rows(asked)
    assert {exchange.kind for exchange in asked} == {STATISTICS}
    assert sum((exchange.outcomes == Outcome.FAILED).sum() for exchange in asked) == 1


@pytest.mark.parametrize(("deadline", "wait"), [(2, 2), (None, 9)])
def test_a_late_site_costs_one_wait(deadline, wait, table, grid_of, grid_time, caplog):
    """By the deadline, or else by the timeout; later steps ask it, but wait only for the others."""
    pipeline = skfed.make_pipeline(*columns_in_order(), clone(MODEL).set_params(deadline=deadline))
    grid, began = grid_of(pipeline), grid_time.now
    node_of(grid, "c").delays["steps"] = 1e9
    steps = []
    original = grid.push_messages

    def push_messages(messages):
        steps.append((messages[0].metadata.message_type.rpartition("_")[2], grid_time.now))
        return original(messages)

    grid.push_messages = push_messages
    model = run(pipeline, grid, timeout=9)
    before_rounds = next(now for kind, now in steps if kind not in ("hello", "steps"))
    assert before_rounds - began == pytest.approx(wait, abs=0.5)
    pipeline[-1].set_params(deadline=None)  # which needs devices in a simulation
    simulated = simulate_without("c", pipeline, table)
    assert model[2].mean_.tolist() == simulated[2].mean_.tolist()
    assert len([m for m in caplog.messages if "client 'c' sends no statistics" in m]) == 3
    assert not model[-1].history_["n_failed"].any()


@pytest.mark.parametrize("strategy", ["mean", "median"])
def test_a_site_that_comes_back_is_waited_for(strategy, table, grid_of):
    """It loses the statistics of the one exchange in which it was away."""
    name = f"{SCALED.steps[1][0]}__"
    pipeline = clone(SCALED).set_params(**{f"{name}strategy": strategy})
    grid = grid_of(pipeline)
    node = node_of(grid, "c")
    back = Node(node.app, node.config)
    back.delays["steps"] = 2.0  # the others reply at once

    def stop(message):
        node.online = False
        grid.add(back)

    fails_in(grid, "c", "steps", 0, stop)
    model = run(pipeline, grid, timeout=9)
    assert "failed" in model[1].exchange_["result"].tolist()
    assert "failed" not in model[2].exchange_["result"].tolist()
    simulated = simulate(pipeline.set_params(**{f"{name}priority": ["a", "b", "d"]}), table)
    assert model[2].data_max_.tolist() == simulated[2].data_max_.tolist()


def columns_in_order():
    return only("age", "pay"), FederatedSimpleImputer(), FederatedStandardScaler(), FederatedPCA(1)


def test_a_deadline_that_no_site_meets_is_named(grid_of):
    pipeline = skfed.make_pipeline(*columns_in_order(), clone(MODEL).set_params(deadline=0.5))
    grid = grid_of(pipeline)
    for name in "abcd":
        node_of(grid, name).delays["steps"] = 1e9
    with pytest.raises(TimeoutError, match="late") as raised:
        run(pipeline, grid)
    assert "by deadline=0.5: raise it" in raised.value.__notes__[1]


def test_a_late_site_is_no_error_of_the_run(grid_of):
    model = clone(MODEL).set_params(deadline=0.5, on_client_error="raise")
    pipeline = skfed.make_pipeline(*columns_in_order(), model)
    grid = grid_of(pipeline)
    node_of(grid, "c").delays["steps"] = 1e9
    assert "failed" in run(pipeline, grid)[1].exchange_["result"].tolist()


REPLIES = {
    "nothing": {},
    "no statistics": {"statistics": 7},
    "another name": {"statistics": {"n": np.ones(1), "mean": np.ones(1)}},
    "another shape": {"n": np.ones(2, dtype=np.int64)},
    "another dtype": {"n": np.ones(1)},
    "infinite": {"min": np.array([-np.inf])},
    "negative": {"n": np.array([-1])},
    "text": {"min": np.array(["x"])},
    "a flag of other columns": {"suppressed": np.ones(5, dtype=bool)},
}


@pytest.mark.parametrize("name", REPLIES)
def test_an_invalid_reply_is_left_out(name, table, grid_of, caplog):
    pipeline = skfed.make_pipeline(only("age"), FederatedMinMaxScaler(), MODEL)
    grid = grid_of(pipeline)
    node = node_of(grid, "c")

    def answer(message):
        right = from_records(node.app(message, node.context).content, "statistics")
        changed = REPLIES[name].get("statistics", right | REPLIES[name])
        records = to_records("statistics", changed) if REPLIES[name] else {}
        return Message(RecordDict(records), reply_to=message)

    fails_in(grid, "c", "steps", 0, answer)
    model = run(pipeline, grid)
    assert model[1].exchange_["result"].tolist() == ["exact", "exact", "failed", "exact"]
    assert "client 'c' sends no statistics of FederatedMinMaxScaler" in caplog.text


def test_categories_that_cannot_be_keys_are_left_out(table, grid_of):
    pipeline = skfed.make_pipeline(only("job"), FederatedOrdinalEncoder(), MODEL)
    grid = grid_of(pipeline)
    values = np.fromiter([["cook"]], dtype=object, count=1)
    records = to_records("statistics", {"values": [values]})
    answer = lambda message: Message(RecordDict(records), reply_to=message)  # noqa: E731
    fails_in(grid, "c", "steps", 0, answer)
    assert run(pipeline, grid)[1].exchange_["result"].tolist()[2] == "failed"


@pytest.mark.parametrize(
    ("params", "lost"),
    [({"on_client_error": "raise"}, "c"), ({}, "abcd"), ({"min_clients": 4}, "c")],
)
def test_failures_end_the_run_as_in_training(params, lost, grid_of):
    pipeline = clone(SCALED)
    pipeline[-1].set_params(**params)
    grid = grid_of(pipeline)
    for name in lost:
        fails_in(grid, name, "steps", 0, late)
    error, text = (
        (RuntimeError, "3 clients sent .* min_clients=4")
        if "min_clients" in params
        else (
            TimeoutError,
            "no answer",
        )
    )
    with pytest.raises(error, match=text) as raised:
        run(pipeline, grid)
    if error is TimeoutError:
        assert "asked for statistics of FederatedSimpleImputer" in raised.value.__notes__[0]


def without_pay(name, X):
    return X.drop(columns="pay") if name == "b" else X


def text_for_age(name, X):
    return X.assign(age=X["age"].astype(str)) if name == "b" else X


def one_word_for_age(name, X):
    return X.assign(age=["old", *X["age"][1:]]) if name == "b" else X


def infinite_age(name, X):
    return X.assign(age=np.inf) if name == "b" else X


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_pay, r"'b' lacks columns \['pay'\], unlike 'd'"),
        (text_for_age, "column 'age' has text at 'b' and numbers at 'd'"),
        (one_word_for_age, "column 'age' has mixed values at 'b' and numbers at 'd'"),
    ],
)
def test_other_columns_are_named_with_their_client(change, message, grid_of):
    """The run does not begin; where the others are enough, it begins without the client."""
    with pytest.raises(ValueError, match=message):
        run(SCALED, grid_of(SCALED, change, names="dcb"), clients=3)
    others = clone(SCALED).set_params(federatedclassifier__priority=["a"])
    model = run(others, grid_of(others, change, names="acdb"), clients=None)
    assert model[-1].clients_.tolist() == list("acd")


def test_a_value_that_a_transformer_refuses_is_named_by_column_and_client(grid_of, caplog):
    imputed = ColumnTransformer([("ages", FederatedSimpleImputer(), ["age"])])
    pipeline = skfed.make_pipeline(imputed, MODEL)
    model = run(pipeline, grid_of(pipeline, infinite_age))
    told = "client 'b' sends no statistics of FederatedSimpleImputer: the client refuses: "
    where = repr("FederatedSimpleImputer raises ValueError. It is in column 'age'.")
    assert told + where in caplog.text
    assert model[-1].history_["failed"].tolist() == [("b",)] * 2
    sent = [m for m in caplog.messages if "sends no statistics" in m]
    assert not any("infinity" in message for message in sent)


def test_clients_differ_in_dtypes_but_not_in_the_result(table, grid_of):
    def change(name, X):
        if name == "c":
            return X.astype({"age": "float32", "city": "category"})
        return X.convert_dtypes() if name == "a" else X

    pipeline = skfed.make_pipeline(*PIPELINES["PCA"], MODEL)
    model, simulated = run(pipeline, grid_of(pipeline, change)), simulate(pipeline, table)
    assert content(model[:-1]) == content(simulated[:-1])


def test_a_restarted_server_goes_on_after_what_is_fitted(grid_of, tmp_path, same_model):
    pipeline = clone(SCALED)
    pipeline[-1].set_params(checkpoint=tmp_path)
    whole = run(SCALED, grid_of(SCALED))
    for kind, n in (("steps", len(whole[1].exchange_) // 4), ("train", 1)):
        grid = grid_of(pipeline)
        fails_in(grid, "a", kind, n, cut)
        with pytest.raises(PowerCut):
            run(pipeline, grid)
    grid = grid_of(pipeline)
    again = run(pipeline, grid)
    assert not [m for m in grid.sent if is_kind(m, "steps")]
    assert min(r["round"] for r in requests(grid.sent, "train")) == 1
    assert content(again[:-1]) == content(whole[:-1])
    assert same_model(again[-1], whole[-1])


def cut(message):
    raise PowerCut


def test_a_pipeline_with_other_parameters_is_fitted_anew(grid_of, tmp_path):
    pipeline = clone(SCALED)
    pipeline[-1].set_params(checkpoint=tmp_path)
    run(pipeline, grid_of(pipeline))
    pipeline.set_params(federatedminmaxscaler__feature_range=(0, 2))
    grid = grid_of(pipeline)
    assert run(pipeline, grid)[2].feature_range == (0, 2)
    assert [m for m in grid.sent if is_kind(m, "steps")]
    assert min(r["round"] for r in requests(grid.sent, "train")) == 0


def test_a_checkpoint_that_names_no_directory_is_refused_before_the_exchanges(grid_of):
    pipeline = clone(SCALED).set_params(federatedclassifier__checkpoint="")
    grid = grid_of(pipeline)
    with pytest.raises(ValueError, match="checkpoint='' names no directory"):
        run(pipeline, grid)
    assert not [m for m in grid.sent if is_kind(m, "steps")]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (SCALED[:1], "the server and this client has a Pipeline, the other has none"),
        ([only("age", "pay"), FederatedMinMaxScaler()], "has a FederatedMinMaxScaler where the"),
        (
            [only("age", "pay"), FederatedSimpleImputer(strategy="median")],
            "has only 1 federated transformers",
        ),
    ],
)
def test_clients_with_another_pipeline_are_told(own, message, grid_of):
    own = MODEL if isinstance(own, Pipeline) else skfed.make_pipeline(*own, MODEL)
    with pytest.raises((RuntimeError, ValueError), match=message):
        run(SCALED, grid_of(own))


def test_a_client_s_own_min_count_holds(grid_of):
    """Also where the server has another."""
    own = skfed.make_pipeline(only("job"), FederatedOrdinalEncoder(min_count=2), MODEL)
    server = skfed.make_pipeline(
        only("job"),
        FederatedOrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        MODEL,
    )
    grid = grid_of(own)
    fitted = run(server, grid)[1]
    assert fitted.categories_[0].tolist() == ["cook", "nurse"]
    assert fitted.exchange_["result"].tolist() == ["suppressed", "exact", "exact", "suppressed"]
    assert not any("judge" in str(m.content) for m in grid.received)


def test_a_category_beside_given_ones_is_named_by_column_and_client(grid_of, caplog):
    encoder = FederatedOrdinalEncoder(categories=[["cook", "nurse"]])
    pipeline = skfed.make_pipeline(ColumnTransformer([("job", encoder, ["job"])]), MODEL)
    fitted = run(pipeline, grid_of(pipeline))[0].named_transformers_["job"]
    assert fitted.exchange_["result"].tolist() == ["failed", "exact", "exact", "exact"]
    where = "FederatedOrdinalEncoder raises ValueError. It is in column 'job'."
    assert f"the client refuses: {where!r}" in caplog.text
    assert not any("judge" in m for m in caplog.messages if "sends no statistics" in m)


def test_categories_that_the_server_refuses_are_named_by_column(grid_of):
    def change(name, X):
        return X.assign(city=[1, "Graz"] * (len(X) // 2))

    encoders = [("city", FederatedOrdinalEncoder(), ["city"])]
    pipeline = skfed.make_pipeline(ColumnTransformer(encoders), MODEL)
    with pytest.raises(ValueError, match="its categories of column 'city' are of another kind"):
        run(pipeline, grid_of(pipeline, change, names="cba"), clients=3)
    given = FederatedOrdinalEncoder(categories=[["nurse", np.nan, "cook", "judge"]])
    pipeline = skfed.make_pipeline(ColumnTransformer([("job", given, ["job"])]), MODEL)
    with pytest.raises(ValueError, match="It is in column 'job'"):
        run(pipeline, grid_of(pipeline))


@pytest.mark.parametrize("make", [FederatedStrategy, lambda one: client_app(one, print)])
@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [
        ([StandardScaler()], TypeError, "step 'standardscaler', .* use FederatedStandardScaler of"),
        ([ColumnTransformer([("x", KBinsDiscretizer(), [0])])], TypeError, "step .*__x', a KBins"),
        (
            [pooled(PCA())],
            TypeError,
            "step .*, a PooledTransformer of a PCA, is fitted on rows, .*: use FederatedPCA of skf",
        ),
        (
            [pooled(KBinsDiscretizer())],
            TypeError,
            "a PooledTransformer of a KBinsDiscretizer, .*: use a transformer of skfed.preproc",
        ),
        (
            [ColumnTransformer([("x", FederatedPCA(privacy=NOISE, bounds=(0, 1)), [0])])],
            ValueError,
            "step 'columntransformer__x', a FederatedPCA, has privacy, .* Leave privacy and bounds",
        ),
        (
            [FeatureUnion([("a", PCA())])],
            TypeError,
            "step 'featureunion__a', a PCA, .*FederatedPCA",
        ),
    ],
)
def test_steps_that_need_all_rows_are_refused(make, steps, error, message):
    with pytest.raises(error, match=message):
        make(skfed.make_pipeline(*steps, MODEL))


def test_a_pipeline_must_end_in_a_federated_estimator():
    with pytest.raises(TypeError, match="or a Pipeline that ends in one; got LogisticRegression"):
        FederatedStrategy(skfed.make_pipeline(FederatedStandardScaler(), LogisticRegression()))


def test_steps_are_fitted_in_this_thread_and_come_back_as_they_were(tmp_path):
    steps = skfed.make_pipeline(columns(n_jobs=2), memory=tmp_path)
    before = steps.get_params()
    with fitted_one_by_one(steps):
        assert steps.memory is None
        assert steps[0].n_jobs is None
        assert steps[0].sparse_threshold == 0
    assert steps.get_params() == before


def test_arrays_have_pipelines_too(blobs, federate, same_model):
    """A step that was fitted elsewhere is applied as it is."""
    X, y, clients = blobs
    frozen = FrozenEstimator(PCA(3).fit(X))
    products = PolynomialFeatures(interaction_only=True, include_bias=False)
    pipeline = skfed.make_pipeline(frozen, FederatedStandardScaler(), products, clone(MODEL))
    simulated = clone(pipeline).fit(X, y, clients=clients)
    strategy, grid = federate(pipeline)
    result = strategy.start(grid)
    assert content(strategy.model_[1:3]) == content(simulated[1:3])
    assert same_model(strategy.model_[-1], simulated[-1])
    assert len(result.arrays) == len(simulated[-1].net_.module_.state_dict())


def test_steps_that_were_read_from_a_file_tell_the_same_run(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 3))
    X[::3, 0] = np.nan
    steps = make_pipeline(FederatedSimpleImputer(), FederatedStandardScaler())
    steps.fit(X, clients=np.repeat([0, 1], 10))
    _files.write(tmp_path / "steps", state_of(steps))
    again = restore(clone(steps), _files.read(tmp_path / "steps"))
    texts = [
        describe(from_records(RecordDict(to_records("steps", state_of(one))), "steps"))
        for one in (steps, again)
    ]
    assert texts[0] == texts[1]
