"""save and load: what fit has learned, in a file that executes nothing."""

import copy
import pickle
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping, LRScheduler
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import Scaffold
from skfed.modules import MLP
from skfed.utils import _files


class Softmax(nn.Linear):
    def __init__(self):
        super().__init__(5, 3)


def classifier(**params):
    return FederatedClassifier(
        **{
            "selector": RandomSelector(3, ignore_priority=True),
            "n_rounds": 4,
            "random_state": 0,
            **params,
        }
    )


@pytest.fixture
def saved(blobs, tmp_path):
    """A classifier with string labels and named columns, and its file."""
    X, y, clients = blobs
    frame = pd.DataFrame(X, columns=list("vwxyz"))
    model = classifier(priority=["a", "b"]).fit(frame, np.array(["x", "yy", "z"])[y], clients)
    model.save(tmp_path / "model.safetensors")
    return model, tmp_path / "model.safetensors", frame


def test_a_loaded_model_is_the_saved_one(saved, blobs):
    model, path, frame = saved
    loaded = clone(model).load(path)
    np.testing.assert_array_equal(loaded.predict_proba(frame), model.predict_proba(frame))
    assert loaded.predict(frame).tolist() == model.predict(frame).tolist()
    pd.testing.assert_frame_equal(loaded.history_, model.history_)
    public = {name for name in vars(model) if name.endswith("_")}
    assert public == {name for name in vars(loaded) if name.endswith("_")}
    for name in public - {"net_", "history_"}:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    score = loaded.score(frame, model.predict(frame), clients=blobs[2])
    assert score == 1.0


@pytest.mark.parametrize("aggregator", [None, Scaffold()])
def test_training_goes_on_from_a_loaded_model(blobs, tmp_path, aggregator):
    X, y, clients = blobs
    model = classifier(warm_start=True, aggregator=aggregator).fit(X, y, clients)
    model.save(tmp_path / "m")
    loaded = clone(model).load(tmp_path / "m")
    for one in (model, loaded):
        one.partial_fit(X, y, clients=clients)
        one.set_params(n_rounds=8).fit(X, y, clients)
    assert model.n_rounds_ == loaded.n_rounds_ == 8
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_ids_of_bytes_are_saved(blobs, tmp_path):
    X, y, clients = blobs
    model = classifier().fit(X, y, np.char.encode(clients))
    model.save(tmp_path / "m")
    loaded = clone(model).load(tmp_path / "m")
    assert loaded.clients_.dtype == model.clients_.dtype == np.dtype("S1")
    assert loaded.clients_.tolist() == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_regressors(blobs, tmp_path):
    X, y, clients = blobs
    for target in (y, np.column_stack([y, -y])):
        model = FederatedRegressor(n_rounds=3, random_state=0).fit(X, target, clients)
        model.save(tmp_path / "m")
        np.testing.assert_array_equal(
            FederatedRegressor().load(tmp_path / "m").predict(X), model.predict(X)
        )


def test_images_keep_their_shape(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(40, 1, 4, 4)), np.arange(40) % 2
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.LazyLinear(2))
    model = classifier(estimator=net).fit(X, y, np.arange(40) % 4)
    model.save(tmp_path / "m")
    loaded = clone(model).load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="samples of shape"):
        loaded.predict(X[..., :3])


def test_another_net_or_kind_is_refused_and_changes_nothing(saved, blobs):
    _, path, _ = saved
    wide = NeuralNetClassifier(nn.Linear(5, 3, bias=False), criterion=nn.CrossEntropyLoss)
    other = classifier(estimator=wide)
    before = dict(vars(other))
    with pytest.raises(ValueError, match=r"model\.safetensors: estimator's net has module\."):
        other.load(path)
    assert vars(other) == before
    with pytest.raises(NotFittedError):
        other.predict(blobs[0])
    with pytest.raises(ValueError, match="holds a FederatedClassifier"):
        FederatedRegressor().load(path)


def test_invalid_files(saved, tmp_path):
    model, path, frame = saved
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="damaged"):
        model.load(path)
    assert model.predict(frame).shape == (140,)  # it is as it was
    with pytest.raises(FileNotFoundError):
        model.load(tmp_path / "none")
    with pytest.raises(NotFittedError):
        clone(model).save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(OSError, match="no such folder"):
        model.save(tmp_path / "no such folder" / "m")


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), "file"])
@pytest.mark.parametrize("policy", [{"policy": "StepLR", "step_size": 3}, {"policy": "CyclicLR"}])
def test_callbacks_go_on_from_a_copy(blobs, tmp_path, way, policy):
    X, y, clients = blobs
    given = {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 3} if len(policy) == 1 else {}
    net = NeuralNetClassifier(
        Softmax,
        criterion=nn.CrossEntropyLoss,
        lr=0.3,
        callbacks=[
            LRScheduler(**policy, **given),
            EarlyStopping(monitor="train_loss", patience=3, threshold=0.2, load_best=True),
        ],
    )
    model = classifier(estimator=net, warm_start=True)
    whole = clone(model).set_params(n_rounds=12).fit(X, y, clients)
    part = clone(model).fit(X, y, clients)
    if way == "file":
        part.save(tmp_path / "m")
        copied = clone(model).load(tmp_path / "m")
    else:
        copied = way(part)
    copied.set_params(n_rounds=12).fit(X, y, clients)
    assert copied.history_["lr"].tolist() == whole.history_["lr"].tolist()
    np.testing.assert_array_equal(copied.predict_proba(X), whole.predict_proba(X))


def test_load_removes_attributes_of_an_earlier_fit(saved, blobs, tmp_path):
    model, _, _ = saved
    X, y, clients = blobs
    classifier().fit(X, y, clients).save(tmp_path / "plain")
    model.load(tmp_path / "plain")
    assert not hasattr(model, "feature_names_in_")


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.pop("state"),
        lambda f: f["attributes"].update(_sample_shape=(10**13,)),
        lambda f: f["attributes"].update(_sample_shape="x"),
        lambda f: f.update(rows=[3]),
        lambda f: f.update(rows=None),
        lambda f: f["state"].update(model={}),
        lambda f: f["state"].update(net_rates=[]),
        lambda f: f["state"].update(variates=3),
        lambda f: f["attributes"].pop("classes_"),
        lambda f: f.clear(),
    ],
)
def test_tampered_files_are_refused(saved, change):
    model, path, _ = saved
    fitted = _files.read(path)
    change(fitted)
    _files.write(path, fitted)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        clone(model).load(path)


@pytest.mark.parametrize("name", ["clients_", "priority_", "sizes_", "fractions_"])
@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: np.tile(a, 2), lambda a: a[None]])
def test_attributes_of_other_clients_than_the_others_are_refused(saved, name, change):
    model, path, _ = saved
    fitted = _files.read(path)
    fitted["attributes"][name] = change(fitted["attributes"][name])
    _files.write(path, fitted)
    with pytest.raises(ValueError, match=r"model\.safetensors: its \w+_ has shape .* clients_ has"):
        clone(model).load(path)


@pytest.mark.parametrize("name", ["target_mean_", "target_scale_"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (1, 2)])
def test_units_of_other_targets_are_refused(blobs, tmp_path, name, shape):
    X, _, clients = blobs
    path = tmp_path / "model.safetensors"
    model = FederatedRegressor(n_rounds=1, standardize_targets=True, random_state=0)
    model.fit(X, X[:, :2], clients=clients).save(path)
    fitted = _files.read(path)
    fitted["attributes"][name] = np.ones(shape)
    _files.write(path, fitted)
    message = rf"model\.safetensors: {name} must have shape \(2,\), got {re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        clone(model).load(path)


def test_coefficients_are_those_of_the_net(saved):
    model, path, _ = saved
    fitted = _files.read(path)
    fitted["attributes"].update(coef_=np.zeros(7), intercept_=0.0)
    _files.write(path, fitted)
    loaded = clone(model).load(path)
    np.testing.assert_array_equal(loaded.coef_, model.coef_)
    np.testing.assert_array_equal(loaded.intercept_, model.intercept_)


def test_a_net_that_is_not_linear_has_no_coefficients_of_a_file(blobs, tmp_path):
    X, y, clients = blobs
    path = tmp_path / "model.safetensors"
    model = FederatedClassifier(MLP(5, (4,), 3), n_rounds=1, random_state=0)
    model.fit(X, y, clients=clients).save(path)
    fitted = _files.read(path)
    fitted["attributes"].update(coef_=np.zeros((3, 5)), intercept_=np.zeros(3))
    _files.write(path, fitted)
    loaded = clone(model).load(path)
    assert not hasattr(loaded, "coef_")
    assert not hasattr(loaded, "intercept_")
