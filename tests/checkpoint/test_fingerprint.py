"""Fingerprints of parameters and data."""

import copy
import ctypes
import dataclasses
import functools
import importlib
import linecache
import logging
import math
import os
import re
import subprocess
import sys
import threading
import typing
import warnings
from collections import OrderedDict, namedtuple
from enum import Enum
from os import environ

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.special import expit
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping, EpochScoring, TensorBoard
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from skfed import FederatedClassifier, PowerOfChoice, RandomSelector
from skfed.aggregation import Scaffold
from skfed.availability import Dropout, TraceAvailability
from skfed.checkpoint._fingerprint import describe_parameters, fingerprint
from skfed.devices import TraceDevices
from skfed.schedules import LinearDecay
from skfed.utils._describe import _is_library, describe

TRACE = {"a": [True, False], "b": [False, True]}


def description(model):
    return describe_parameters(type(model), model.get_params())


def fingerprint_of(**params):
    return fingerprint(description(FederatedClassifier(**params)))


def rate(value):
    """Describe a value as the lr_schedule."""
    return fingerprint_of(lr_schedule=value)


def net(**params):
    return NeuralNetClassifier(nn.ReLU, **params)


@pytest.mark.parametrize(
    ("plain", "explicit"),
    [
        ({}, {"local_epochs": 1, "proximal_mu": 0.0, "on_client_error": "drop"}),
        ({"lr_schedule": LinearDecay(0.1)}, {"lr_schedule": LinearDecay(0.1, 0.0)}),
        ({"selector": PowerOfChoice()}, {"selector": PowerOfChoice(d=None, loss="full")}),
        ({"estimator": net()}, {"estimator": net(lr=0.01, optimizer=SGD, batch_size=128)}),
        (
            {"estimator": net(callbacks=[EarlyStopping()])},
            {"estimator": net(callbacks=[EarlyStopping(patience=5)])},
        ),
        (
            {"lr_schedule": functools.partial(LinearDecay.at, LinearDecay(0.1))},
            {"lr_schedule": functools.partial(LinearDecay.at, LinearDecay(0.1, 0.0))},
        ),
    ],
    ids=["estimator", "schedule", "selector", "net", "callback", "inside a value"],
)
def test_a_default_that_is_given_makes_no_other_run(plain, explicit):
    assert fingerprint_of(**plain) == fingerprint_of(**explicit)


def test_parameters_at_their_defaults_are_left_out():
    model = FederatedClassifier(selector=PowerOfChoice(d=0.3), lr_schedule=LinearDecay(0.1))
    assert description(model) == {
        "type": "skfed.FederatedClassifier",
        "lr_schedule": "skfed.schedules.LinearDecay",
        "lr_schedule__start": "0.1",
        "n_rounds": "100",  # since a run with warm_start has none
        "selector": "skfed.selection.PowerOfChoice",
        "selector__d": "0.3",
    }
    assert "n_rounds" not in description(model.set_params(warm_start=True))


def test_options_of_a_default_optimizer_are_part_of_a_run():
    options = {}, {"optimizer__momentum": 0.9}, {"iterator_train__shuffle": True}
    assert len({fingerprint_of(estimator=net(**given)) for given in options}) == 3


def test_a_component_counts_by_its_parameters_not_by_what_a_fit_leaves():
    """A trained net has a history with times."""
    made = NeuralNetClassifier(nn.Linear, module__in_features=2, module__out_features=2)
    trained = copy.deepcopy(made).initialize()
    trained.history.new_epoch()
    trained.file_ = open(os.devnull)  # noqa: SIM115
    assert fingerprint_of(estimator=trained) == fingerprint_of(estimator=made)
    trained.file_.close()


def test_devices_are_part_of_a_run_and_none_are_not():
    frame = pd.DataFrame({"client": ["a"], "rows_per_second": [1.0]})
    given = {"devices": None, "deadline": None, "report_goal": None}
    assert fingerprint_of(**given) == fingerprint_of()
    one, same, other = (TraceDevices(frame * n) for n in (1, 1, 2))
    assert fingerprint_of(devices=one) == fingerprint_of(devices=same)
    runs = {fingerprint_of(devices=devices) for devices in (None, one, other)}
    runs |= {fingerprint_of(devices=one, deadline=t) for t in (1.0, 2.0)}
    assert len(runs) == 5


class Restricted(NeuralNetClassifier):
    """Has another default rate than its base class, to which it passes all else."""

    def __init__(self, module, *args, lr=0.5, **kwargs):
        super().__init__(module, *args, lr=lr, **kwargs)


def test_defaults_are_those_of_the_subclass():
    one, other = (description(FederatedClassifier(Restricted(nn.ReLU, lr=k))) for k in (0.5, 0.01))
    assert "estimator__lr" not in one
    assert other["estimator__lr"] == "0.01"
    assert "estimator__batch_size" not in one


@pytest.mark.parametrize("module", ["skfed.selection._rules", "skfed.selection._b.c", "sklearn._a"])
def test_a_class_that_moves_between_private_modules_keeps_its_name(module):
    public = module.partition("._")[0]
    kind = type("Rule", (BaseEstimator,), {"__module__": module})
    assert describe(kind) == f"{public}.Rule"


def test_names_of_libraries_are_public():
    assert list(map(describe, [Scaffold, Dropout, torch.optim.Adafactor, StandardScaler])) == [
        "skfed.aggregation.Scaffold",
        "skfed.availability.Dropout",
        "torch.optim.Adafactor",
        "sklearn.preprocessing.StandardScaler",
    ]


class Attributed(dict):
    """A mapping that has attributes too."""

    def __init__(self, scale, *given):
        super().__init__(*given)
        self.scale = scale

    def __call__(self, t):
        return self.scale * self[t]


class Row(list):
    def __init__(self, scale, values):
        super().__init__(values)
        self.scale = scale


class Bag(set):
    def __init__(self, scale, values):
        super().__init__(values)
        self.scale = scale


class Pair(namedtuple("Pair", "a b")):
    scale: float


def pair(scale):
    made = Pair(1, 2)
    made.scale = scale
    return made


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, t):
        return self.scale


class Holder:
    def __init__(self, held):
        self.held = held

    def rate(self, t):
        return self.held


class Scaled(nn.Linear):
    def __init__(self, scale):
        super().__init__(1, 2)
        nn.init.constant_(self.weight, scale)
        nn.init.zeros_(self.bias)


def made_with(rate):
    def schedule(t):
        return rate

    return schedule


def class_with(width):
    class Net(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(width, width)

    return Net


def wrapping(factor):
    def wrap(function):
        @functools.wraps(function)
        def scaled(t):
            return factor * function(t)

        return scaled

    return wrap


def predicted(net, t):
    return net.predict([[t]])


def mode(k):
    class Mode(Enum):
        A = "a"

        def rate(self, t):
            return k

    return Mode


def partial_with(scale):
    made = functools.partial(np.multiply, 0.1)
    made.scale = scale
    return made


@pytest.mark.parametrize(
    "made",
    [
        lambda k: ([0.1 * k] * 3).__getitem__,
        lambda k: {0: 0.1 * k}.get,
        lambda k: np.array([0.1, 0.1 * k]).item,
        lambda k: iter([0.1 * k]).__next__,
        lambda k: (0.1 * k).__mul__,
        lambda k: np.random.default_rng(k).random,
        lambda k: Holder(0.1 * k).rate,
        lambda k: Holder(pd.Series([0.1], index=[k])).rate,
        lambda k: Attributed(k, {0: 0.1}),
        lambda k: Attributed(1, {0: 0.1 * k}),
        lambda k: Holder(Row(k, [1])).rate,
        lambda k: Holder(Bag(k, [1])).rate,
        lambda k: Holder(pair(k)).rate,
        lambda k: Holder(np.ma.masked_array([1, 2], [False, k == 2])).rate,
        lambda k: Holder(torch.ones(2, dtype=[torch.uint8, torch.bool][k - 1])).rate,
        lambda k: Holder(torch.ones(2, dtype=torch.complex64).mul(1j * k).conj()).rate,
        lambda k: Holder([(1,), [1]][k - 1]).rate,
        lambda k: Slotted(k),
        lambda k: mode(k).A.rate,
        lambda k: Holder(torch.Generator().manual_seed(k)).rate,
        lambda k: Holder(np.random.RandomState(k)).rate,
        lambda k: Holder({("a", k): [k]}).rate,
        lambda k: made_with(0.1 * k),
        lambda k: lambda t, rate=0.1 * k: rate,
        lambda k: lambda t, *, rate=0.1 * k: rate,
        lambda k: class_with(k),
        lambda k: wrapping(k)(made_with(0.1)),
        lambda k: wrapping(2)(made_with(0.1 * k)),
        lambda k: Holder(StandardScaler().fit([[0.1 * k]])).rate,
        lambda k: Holder(NeuralNetClassifier(Scaled, module__scale=k).initialize()).rate,
        lambda k: functools.partial(predicted, NeuralNetClassifier(Scaled(k)).initialize()),
        lambda k: partial_with(k),
        lambda k: functools.lru_cache(lambda t: 0.1 * k),
        lambda k: np.vectorize([np.sin, np.cos][k - 1]),
        lambda k: [np.sin, np.cos][k - 1],
        lambda k: [expit, np.exp][k - 1],
        lambda k: [(lambda t, *u: 0.1), (lambda t, u=1: 0.1)][k - 1],
    ],
)
def test_values_differ_by_all_that_they_hold(made):
    assert rate(made(1)) == rate(made(1))
    assert rate(made(1)) != rate(made(2))


@pytest.fixture
def module_of(tmp_path, monkeypatch):
    """Return a function that imports a module of the user's own, with this source text."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def module_of(source):
        (tmp_path / "module_of_the_test.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, "module_of_the_test", raising=False)
        return importlib.import_module("module_of_the_test")

    return module_of


CODE = """
import functools
from torch import nn
UNUSED = {unused}
def schedule(t):
    return {rate}
class Schedule:
    factor = 2
    def __call__(self, t): return {rate}
class Static:
    @staticmethod
    def at(t): return {rate}
class Inherited(Schedule):
    pass
class Settings:
    rate = {rate}
class Net(nn.Linear):
    def forward(self, X): return {rate} * super().forward(X)
short, other = lambda t: {rate}, lambda t: UNUSED
long = functools.partial(
    lambda t, u=3: (
        t * {rate} + u
    ),
    u=0 * {unused},
)
@functools.cache
def cached(t): return {rate}
"""
USED = {
    "function": lambda module: module.schedule,
    "class": lambda module: module.Schedule,
    "object": lambda module: module.Schedule(),
    "method": lambda module: module.Schedule().__call__,
    "static method": lambda module: module.Static(),
    "base class": lambda module: module.Inherited(),
    "attribute": lambda module: module.Settings,
    "module": lambda module: module.Net,
    "net": lambda module: NeuralNetClassifier(module.Net),
    "lambda": lambda module: module.short,
    "lambda of two lines": lambda module: module.long,
    "in a partial": lambda module: functools.partial(module.schedule, 1),
    "cached": lambda module: module.cached,
    "in a list": lambda module: [{"a": (module.schedule, module.Net)}],
}


@pytest.mark.parametrize("used", USED)
def test_own_code_counts_by_its_source_text(module_of, used):
    """Wherever it is in its file, and whatever is beside it."""

    def made(rate, unused=0, above=""):
        module = module_of(above + CODE.format(rate=rate, unused=unused))
        return fingerprint_of(lr_schedule=USED[used](module))

    assert made(0.1) == made(0.1, unused=9) == made(0.1, above="# a line\n")
    assert made(0.1) != made(0.2)


def test_what_helpers_do_is_the_users_to_know(module_of):
    """Neither functions and globals that code uses by name, nor their modules, are compared."""
    source = "RATE = {0}\ndef helper(): return {0}\ndef schedule(t): return RATE * helper()"
    one, other = (rate(module_of(source.format(k)).schedule) for k in (0.1, 0.2))
    assert one == other


def test_lambdas_count_by_their_own_text_not_by_their_line():
    one, other, same = ("é", lambda t: 0.1), ("é", lambda t: 0.2), ("é", lambda t: 0.1)
    assert rate(one[1]) == rate(same[1])
    assert len({rate(one[1]), rate(other[1]), rate(lambda u: 0.1)}) == 3


CELL = """
class Net:
    width = {width}

    def forward(self, X):
        return X
"""


def test_classes_of_a_notebook_have_the_text_of_their_cell(monkeypatch):
    """As IPython does it: a cell is a file of linecache, its module has none."""

    def made(**given):
        source, name = CELL.format(**given), "<ipython-input-1>"
        monkeypatch.setitem(linecache.cache, name, (1, None, source.splitlines(True), name))
        scope = {"__name__": "notebook"}
        exec(compile(source, name, "exec"), scope)
        return rate(scope["Net"])

    assert made(width=1) == made(width=1)
    assert made(width=1) != made(width=2)


TYPED = """
class Rule:
    pass
def schedule(t):
    return {}
bare = lambda t: {}
"""


@pytest.mark.parametrize("name", ["Rule", "schedule"])
def test_code_without_source_text_is_known_by_its_name_with_a_warning(name):
    texts = []
    for k in (0.1, 0.2):
        scope = {"__name__": "typed"}
        exec(TYPED.format(k, k), scope)
        with pytest.warns(UserWarning, match=rf"typed\.{name} has no source text.* by its name"):
            texts.append(rate(scope[name]))
    assert texts[0] == texts[1]
    with pytest.warns(UserWarning):
        other = rate({"Rule": scope["schedule"], "schedule": scope["Rule"]}[name])
    assert other != texts[0]


def test_a_lambda_without_source_text_is_refused():
    scope = {"__name__": "typed"}
    exec(TYPED.format(1, 1), scope)
    with pytest.raises(
        TypeError, match=r"cannot tell lr_schedule=<function <lambda> .*fit without"
    ):
        rate(scope["bare"])


@pytest.mark.parametrize("edited", ["", "x = (", "\n" * 5 + "x = (", "x = lambda t: 9"])
def test_a_file_that_is_edited_after_its_import_makes_no_error(module_of, edited, tmp_path):
    module = module_of(CODE.format(rate=0.1, unused=0))
    (tmp_path / "module_of_the_test.py").write_text(edited, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in (module.schedule, module.Schedule(), module.Net):
            assert rate(value) == rate(value)


def test_tied_weights_differ_from_equal_ones():
    def made(*ties):
        layers = [nn.Linear(3, 3) for _ in range(3)]
        for layer in layers:
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
        for one, other in ties:
            layers[one].weight = layers[other].weight
        return fingerprint_of(estimator=nn.Sequential(*layers))

    assert len({made(), made((1, 0)), made((2, 0)), made((2, 1))}) == 4


def test_subclasses_of_the_estimator_differ_by_their_code():
    def made(k):
        class Mine(FederatedClassifier):
            def predict(self, X):
                return k

        return description(Mine())

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_layers_in_another_order_are_another_net():
    layers = {"a": nn.ReLU(), "b": nn.Tanh()}
    one, other = (
        nn.Sequential(OrderedDict(order))
        for order in ((*layers.items(),), (*reversed(layers.items()),))
    )
    assert fingerprint_of(estimator=one) != fingerprint_of(estimator=other)


def test_order_layout_and_identity_do_not_count(tmp_path):
    """Of entries, attributes, columns in memory; arrays may be in files."""
    text, numbers = "".join(["re", "lu"]), np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "numbers.npy", numbers)
    in_file = np.load(tmp_path / "numbers.npy", mmap_mode="r")
    wide = np.repeat(numbers, 2, axis=1)[:, ::2]
    frame = pd.DataFrame({"a": [1.0], "b": [2.0]})
    in_parts = pd.DataFrame({"a": [1.0]})
    in_parts["b"] = 2.0
    equal = [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ([text, {text}, [text]], ["relu", {"relu"}, ["relu"]]),
        (Attributed(1, {0: numbers}), Attributed(1, {0: in_file})),
        (numbers, np.asfortranarray(numbers)),
        (numbers, wide),
        (frame, in_parts),
        (frame, frame.copy()),
    ]
    for one, other in equal:
        assert describe([one]) == describe([other])
        assert describe(one) == describe(other)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_differ_by_columns_and_index(frame):
    def made(**columns):
        return fingerprint_of(availability=TraceAvailability(frame(columns)))

    permuted = made(a=TRACE["b"], b=TRACE["a"])
    renamed = made(a=TRACE["a"], c=TRACE["b"])
    assert made(**TRACE) == made(**TRACE)
    assert len({made(**TRACE), permuted, renamed}) == 3
    if frame is pd.DataFrame:
        indexed = TraceAvailability(pd.DataFrame(TRACE, index=[1, 2]))
        assert fingerprint_of(availability=indexed) != made(**TRACE)


def generator():
    yield 0.1


@pytest.mark.parametrize(
    "made",
    [
        lambda: np.frompyfunc(lambda t: 0.1, 1, 1),
        lambda: generator().__next__,
        lambda: ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int)(lambda t: 0.1),
        lambda: Holder(threading.Thread()).rate,
        lambda: functools.partial(np.frompyfunc(lambda t: 0.1, 1, 1)),
        lambda: Attributed(1, {0: [np.frompyfunc(lambda t: 0.1, 1, 1)]}),
    ],
)
def test_what_cannot_be_described_is_refused_by_name(blobs, tmp_path, made):
    X, y, clients = blobs
    model = FederatedClassifier(lr_schedule=made(), n_rounds=1, checkpoint=tmp_path)
    with pytest.raises(
        TypeError, match="cannot tell lr_schedule=.* from another: .*fit without checkpoint"
    ):
        model.fit(X, y, clients=clients)
    assert not list(tmp_path.iterdir())


class Writer:
    """Holds an open file and when it was opened, as TensorBoard's does."""

    def __init__(self, number):
        self.number, self.file = number, open(os.devnull)  # noqa: SIM115


def test_writers_of_callbacks_are_no_settings():
    def made(k):
        writer = Writer(k)
        net = NeuralNetClassifier(nn.ReLU, callbacks=[TensorBoard(writer), EpochScoring("r2")])
        text = fingerprint_of(estimator=net)
        writer.file.close()
        return text

    assert made(1) == made(2)
    net = NeuralNetClassifier(nn.ReLU, callbacks=[TensorBoard(None), EpochScoring("accuracy")])
    assert fingerprint_of(estimator=net) != made(1)


LOG = logging.getLogger("test")
T = typing.TypeVar("T")


def usual(t):
    LOG.debug("rate of %s", t)
    print(os.environ.get("HOME"), file=sys.stderr)
    return typing.cast(T, environ.get("RATE", 0.1))


@dataclasses.dataclass
class Settings:
    start: float = 0.1
    kinds: list = dataclasses.field(default_factory=list)

    def __call__(self, t):
        return self.start


LOADER = DataLoader(TensorDataset(torch.ones(2)), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "value",
    [
        *(usual, Settings(), Holder(LOADER).rate, Holder(OrderedDict(a=1)).rate),
        *(Holder({1, 2}).rate, Holder(torch.nn.functional.relu).rate, Holder(re.compile("a")).rate),
        *(torch.exp, np.sqrt, math.sqrt, torch.Tensor.exp, Holder(print).rate, min),
    ],
)
def test_what_is_usual_is_described(value, monkeypatch):
    before = rate(value)
    monkeypatch.setenv("SOMETHING", "else")
    assert rate(value) == before


@pytest.mark.parametrize(
    "module",
    [
        *(nn.LSTM(5, 3), nn.TransformerEncoderLayer(4, 2), nn.LazyLinear(3), nn.CrossEntropyLoss()),
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 3)),
    ],
    ids=lambda module: type(module).__name__,
)
def test_usual_modules_are_described(module):
    assert fingerprint_of(estimator=module) == fingerprint_of(estimator=copy.deepcopy(module))


PROCESS = """
import sys
import numpy as np, pandas as pd, torch
from torch import nn
from skfed import FederatedClassifier
from skfed.checkpoint._fingerprint import describe_parameters

NAMES = {"one", "two", "three", len, nn.Linear}
class Net(nn.Linear):
    kinds = NAMES
    def forward(self, X): return helper(X)
def helper(X): return X in {"four", "five", "six"} or Net or NAMES
torch.manual_seed(0)
net = nn.Sequential(Net(3, 3), nn.LSTM(3, 3), nn.Identity())
net[2].held = [object(), net, helper, {"a", ("b", helper)}, pd.Series(["x"], dtype="category")]
model = FederatedClassifier(net, lr_schedule=lambda t: helper(np.pi))
print(describe_parameters(type(model), model.get_params()))
"""


def test_fingerprints_are_the_same_in_every_process(tmp_path):
    (tmp_path / "script.py").write_text(PROCESS, encoding="utf-8")
    printed = set()
    for seed in "12":
        given = {**os.environ, "PYTHONHASHSEED": seed}
        run = [sys.executable, tmp_path / "script.py"]
        done = subprocess.run(run, env=given, capture_output=True, text=True, check=True)
        printed.add(done.stdout)
    assert len(printed) == 1


def test_installed_code_is_described_by_name_and_the_users_by_what_it_is():
    theirs = [np.linalg.norm, os.PathLike, len, RandomSelector, torch.Generator, OrderedDict]
    assert all(map(_is_library, theirs))
    assert not any(map(_is_library, [Holder, usual, type("Typed", (), {"__module__": "__main__"})]))
