"""save and load: what fit has learned, in a file that executes nothing."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import Scaffold


def classifier(**params):
    return FederatedClassifier(
        **{"selector": RandomSelector(3), "n_rounds": 4, "random_state": 0, **params}
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


def test_another_net_or_kind_is_told_and_changes_nothing(saved, blobs):
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


def test_files_that_are_none(saved, tmp_path):
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
