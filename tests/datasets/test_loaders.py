"""Loaders, on the real files if present, and on small files of their formats."""

import gzip

import numpy as np
import pandas as pd
import pytest
from sklearn.utils import Bunch

from skfed.datasets import _fetch, load_adult, load_fashion_mnist, load_mnist, load_wisdm


def test_wisdm(data_home):
    data = load_wisdm()
    assert data.X.shape == (5418, 43)
    assert data.X.isna().sum().sum() == 615
    assert len(np.unique(data.clients)) == 36
    assert np.unique(data.y).tolist() == [
        "Downstairs", "Jogging", "Sitting", "Standing", "Upstairs", "Walking",
    ]  # fmt: skip


@pytest.mark.parametrize("load", [load_mnist, load_fashion_mnist])
def test_mnist_and_fashion_mnist(data_home, load):
    train, test, both = (load(subset=subset) for subset in ("train", "test", "all"))
    assert (train.X.shape, test.X.shape) == ((60_000, 28, 28), (10_000, 28, 28))
    assert train.X.dtype == np.uint8
    assert (both.X == np.concatenate([train.X, test.X])).all()
    assert (both.y == np.concatenate([train.y, test.y])).all()
    assert np.unique(both.y).tolist() == list(range(10))


def test_adult(data_home):
    data = load_adult()
    assert data.X.shape == (48_842, 14)
    assert dict(zip(*np.unique(data.y, return_counts=True), strict=True)) == {
        "<=50K": 37_155,
        ">50K": 11_687,
    }
    assert data.X["native-country"].isna().sum() == 857
    assert data.X["age"].between(17, 90).all()


ARFF = """@relation activity
@attribute "UNIQUE_ID" numeric
@attribute "user"
@attribute "X0" numeric
@attribute "XPEAK" numeric
@attribute class
@data
1,33,0.5,?,Jogging
2,7,0.25,100,Walking
"""


@pytest.mark.parametrize("compressed", [True, False])
def test_wisdm_is_found_in_data_home_or_the_environment(tmp_path, monkeypatch, compressed):
    folder = tmp_path / "wisdm-ar-v1.1"
    folder.mkdir()
    name = "WISDM_ar_v1.1_transformed.arff"
    if compressed:
        (folder / f"{name}.gz").write_bytes(gzip.compress(ARFF.encode()))
    else:
        (folder / name).write_text(ARFF)
    monkeypatch.setenv("SKFED_DATA", str(tmp_path))
    for data in (load_wisdm(), load_wisdm(data_home=tmp_path)):
        assert data.X.columns.tolist() == ["X0", "XPEAK"]
        np.testing.assert_array_equal(data.X, [[0.5, np.nan], [0.25, 100]])
        assert data.y.tolist() == ["Jogging", "Walking"]
        assert data.clients.tolist() == [33, 7]


def test_the_error_for_a_missing_wisdm_says_where_to_put_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"transformed.arff is not in .*wisdm-ar-v1.1.*data_home="
    ):
        load_wisdm(data_home=tmp_path)


def test_the_default_is_scikit_learns_data_home(tmp_path, monkeypatch):
    monkeypatch.delenv("SKFED_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    assert _fetch.find_home(None) == tmp_path


def test_idx_files_by_hand(tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    pixels = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8)
    images = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28]) + pixels.tobytes()
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 9])
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    data = load_mnist(subset="test", data_home=tmp_path)
    assert (data.X == pixels.reshape(2, 28, 28)).all()
    assert data.y.tolist() == [5, 9]


@pytest.fixture
def openml(monkeypatch):
    """Replace OpenML; return the list of requests."""
    requests = []

    def fetch_openml(**kwargs):
        requests.append(kwargs)
        if kwargs["name"] == "adult":
            columns = pd.read_csv(pd.io.common.StringIO(ADULT))
            return Bunch(data=columns.drop(columns="class"), target=columns["class"])
        n = 60_003
        images = pd.DataFrame(np.zeros((n, 784), np.uint8))
        images.iloc[-1, 0] = 7
        return Bunch(data=images, target=pd.Series(["3"] * (n - 1) + ["8"], dtype="category"))

    monkeypatch.setattr(_fetch, "fetch_openml", fetch_openml)
    return requests


ADULT = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
    "capital-gain,capital-loss,hours-per-week,native-country,class\n"
    "25,Private,1,HS-grad,9,Never-married,,Own-child,White,Male,0,0,40,Peru,<=50K\n"
)


@pytest.mark.parametrize(
    ("load", "name"), [(load_mnist, "mnist_784"), (load_fashion_mnist, "Fashion-MNIST")]
)
def test_missing_images_come_from_openml(tmp_path, openml, load, name):
    data = load(subset="test", data_home=tmp_path)
    assert (openml[0]["name"], openml[0]["data_home"]) == (name, str(tmp_path))
    assert data.X.shape == (3, 28, 28)
    assert (data.X[2, 0, 0], data.y[2], data.y.dtype) == (7, 8, np.uint8)
    assert len(load(subset="train", data_home=tmp_path).y) == 60_000


def test_a_missing_adult_comes_from_openml(tmp_path, openml):
    data = load_adult(data_home=tmp_path)
    assert data.y.tolist() == ["<=50K"]
    assert data.X["occupation"].isna().tolist() == [True]


def test_without_a_network_the_error_says_where_to_put_the_files(tmp_path, monkeypatch):
    def fetch_openml(**kwargs):
        raise OSError("no network")

    monkeypatch.setattr(_fetch, "fetch_openml", fetch_openml)
    with pytest.raises(OSError, match=r"no network.*Put train-images.*t10k-labels.*into .*mnist"):
        load_mnist(data_home=tmp_path)
    with pytest.raises(OSError, match=r"Put adult.data.gz, adult.test.gz into .*adult"):
        load_adult(data_home=tmp_path)


def test_an_unknown_subset(tmp_path):
    with pytest.raises(ValueError, match=r"subset must be .*'all'.*got 'validation'"):
        load_mnist(subset="validation", data_home=tmp_path)
