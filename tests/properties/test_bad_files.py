"""Files that were cut, changed or not written by skfed: errors name them, nothing is executed."""

import os
import pickle
import shutil
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from generated import generated
from hypothesis import strategies as st
from safetensors.torch import save
from sklearn.exceptions import NotFittedError
from strategies import CLIENTS, REFUSED, X, Y, is_usable, junk, make, outcome, weights

import skfed
from skfed.preprocessing import FederatedOneHotEncoder, FederatedPCA, FederatedSimpleImputer
from skfed.utils import _files


class Executed(Exception):
    """A pickle was loaded."""


class Bomb:
    def __reduce__(self):
        return Executed, ()


FOREIGN = [
    *(b"", b"\0", b"{}", b"null", b"[" * 10**5, b"PK\3\4" + bytes(99)),
    *(pickle.dumps(value) for value in (Bomb(), {"state": Bomb()}, [1, 2])),
    *(save({}), save({}, {"skfed": "[1, {}]", "sha256": ""}), b"\xff" * 8 + b"{}"),
]
KINDS = (ValueError, TypeError, OSError)


@st.composite
def spoiled(draw, data):
    """Draw what may have become of a file: cut, changed, grown, or never skfed's."""
    place = draw(st.integers(0, len(data) - 1))
    way = draw(st.sampled_from(["cut", "changed", "grown", "foreign"]))
    if way == "cut":
        return data[:place]
    if way == "changed":
        return data[:place] + bytes([data[place] ^ draw(st.integers(1, 255))]) + data[place + 1 :]
    if way == "grown":
        return data[:place] + draw(st.binary(min_size=1, max_size=9)) + data[place:]
    return draw(st.one_of(st.sampled_from(FOREIGN), st.binary(max_size=99)))


def leaves(value, path=()):
    """Yield the path of each part of nested dicts and lists."""
    yield path
    keys = value if isinstance(value, dict) else range(len(value)) if type(value) is list else ()
    for key in keys:
        yield from leaves(value[key], (*path, key))


def replaced(value, path, part):
    """Return a copy of nested dicts and lists with another part at a path."""
    if not path:
        return part
    copy = deepcopy(value)
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = part
    return copy


def kind_of_file(value):
    """Tell whether files can hold a value."""
    try:
        _files.to_json(value, {})
    except (TypeError, ValueError):
        return False
    return True


drawn_once = st.data()
writable = junk.filter(kind_of_file)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "good"
    make().fit(X, Y, CLIENTS).save(path)
    return path


@generated(80, drawn_once, st.booleans())
def test_spoiled_files(draw, is_fitted, saved):
    with open("model.st", "wb") as file:
        file.write(draw.draw(spoiled(saved.read_bytes())))
    model = make()
    before = weights(model.fit(X, Y, CLIENTS)) if is_fitted else None
    if outcome(lambda: model.load("model.st"), "model.st", kinds=KINDS) is not REFUSED:
        before = weights(make().load(saved))  # what was changed does not matter
    if before is None:
        with pytest.raises(NotFittedError):
            model.predict(X)
    else:
        np.testing.assert_array_equal(weights(model), before)
    assert is_usable(model)
    assert os.listdir() == ["model.st"]


@generated(80, drawn_once)
def test_files_changed_by_who_knows_the_checksum(draw, saved):
    fitted = _files.read(saved)
    path = draw.draw(st.sampled_from(list(leaves(fitted))))
    _files.write(saved.with_name("changed"), replaced(fitted, path, draw.draw(writable)))
    model = make()
    loaded = outcome(lambda: model.load(saved.with_name("changed")), "changed", kinds=KINDS)
    if loaded is REFUSED:
        with pytest.raises(NotFittedError):
            model.predict(X)
    assert is_usable(model)


def steps():
    return skfed.make_pipeline(
        FederatedSimpleImputer(strategy="median", add_indicator=True),
        *(FederatedOneHotEncoder(sparse_output=False, handle_unknown="ignore"), FederatedPCA(2)),
    )


@pytest.fixture(scope="module")
def saved_steps(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "steps"
    skfed.save(steps().fit(np.where(X > 1, np.nan, X), clients=CLIENTS), path)
    return path


@generated(80, drawn_once)
def test_files_of_pipelines_changed_by_who_knows_the_checksum(draw, saved_steps):
    content = _files.read(saved_steps)
    where = draw.draw(st.sampled_from(list(leaves(content))))
    path = saved_steps.with_name("changed")
    _files.write(path, replaced(content, where, draw.draw(writable)))
    loaded = outcome(lambda: skfed.load(steps(), path), "changed", kinds=(ValueError,))
    assert loaded is REFUSED or isinstance(loaded, type(steps()))


@generated(30, junk)
def test_paths(path, saved):
    model = make().load(saved)
    before = weights(model)
    for call in (model.save, model.load):
        outcome(lambda call=call: call(path), "path", str(path), kinds=KINDS)
    np.testing.assert_array_equal(weights(model), before)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a checkpoint directory of two of three rounds, and what the third gives."""
    root = tmp_path_factory.mktemp("checkpoint")
    whole = make(n_rounds=3, warm_start=True).fit(X, Y, CLIENTS)
    part = make(n_rounds=2, warm_start=True, checkpoint=root).fit(X, Y, CLIENTS)
    assert part.n_rounds_ == 2
    return root, weights(whole)


def go_on(root):
    return make(n_rounds=3, warm_start=True, checkpoint=root).fit(X, Y, CLIENTS)


def copy_of(root):
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree(root, "run")
    (folder,) = (one for one in os.scandir("run") if one.is_dir())
    return folder.path


def contents(folder):
    return {one.name: one.read_bytes() for one in Path(folder).iterdir() if one.name != "lock"}


NAMES = ["state.safetensors", "history-0.jsonl", "about.json"]


@generated(70, drawn_once, st.sampled_from(NAMES))
def test_spoiled_checkpoints(draw, name, run):
    root, expected = run
    folder = copy_of(root)
    path = os.path.join(folder, name)
    with open(path, "rb") as file:
        data = file.read()
    with open(path, "wb") as file:
        file.write(draw.draw(spoiled(data)))
    before = contents(folder)
    model = outcome(lambda: go_on("run"), os.path.basename(folder), kinds=KINDS)
    if model is REFUSED:
        assert contents(folder) == before
    else:
        np.testing.assert_array_equal(weights(model), expected)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("state", "told"), [0.0, None]),
        (("state",), np.array(3)),
        ((), np.array(3)),
        (("log", 1), None),
        (("log", 2), np.array([1.0, 2.0])),
    ],
)
def test_checkpoints_that_are_none(where, value, run):
    path = Path(copy_of(run[0]), "state.safetensors")
    _files.write(path, replaced(_files.read(path), where, value))
    assert outcome(lambda: go_on("run"), path.parent.name, kinds=KINDS) is REFUSED


elsewhere = st.sampled_from(["../bystander", "bystander", "../../x", "history-.jsonl", "lock"])


@generated(20, elsewhere, st.sampled_from(["", "./"]), st.integers(0, 1))
def test_a_history_elsewhere_is_not_written_to(name, before, n_bytes, run):
    folder = copy_of(run[0])
    bystander = Path(folder, before + name)
    if bystander.parent.is_dir():
        bystander.write_text("x")
    state_path = Path(folder, "state.safetensors")
    log = [before + name, n_bytes, sha256(b"x"[:n_bytes]).hexdigest()]
    _files.write(state_path, _files.read(state_path) | {"log": log})
    refused = outcome(lambda: go_on("run"), os.path.basename(folder), kinds=KINDS)
    assert refused is REFUSED
    assert not bystander.exists() or bystander.read_text() == "x"


@generated(40, drawn_once)
def test_checkpoints_changed_by_who_knows_the_checksum(draw, run):
    root, _ = run
    folder = copy_of(root)
    with open("run/bystander", "w") as file:
        file.write("not the run's")
    path = os.path.join(folder, "state.safetensors")
    saved = _files.read(Path(path))
    where = draw.draw(st.sampled_from(list(leaves(saved))))
    value = draw.draw(st.one_of(writable, st.sampled_from(["../bystander", "/dev/null", 0])))
    _files.write(Path(path), replaced(saved, where, value))
    before = contents(folder)
    model = outcome(lambda: go_on("run"), os.path.basename(folder), kinds=KINDS)
    if model is REFUSED:
        assert contents(folder) == before
    assert Path("run/bystander").read_text() == "not the run's"
    shutil.rmtree("run")
    assert go_on("run").n_rounds_ == 3
