"""Fingerprints of parameters and data."""

import copy
import ctypes
import dataclasses
import functools
import logging
import math
import os
import re
import subprocess
import sys
import threading
import types
import typing
import weakref
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
from skfed.checkpoint._describe import describe
from skfed.checkpoint._fingerprint import describe_parameters, fingerprint
from skfed.devices import TraceDevices
from skfed.schedules import LinearDecay

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
def test_a_class_that_moves_between_private_modules_keeps_its_name(monkeypatch, module):
    public = module.partition("._")[0]
    kind = type("Rule", (BaseEstimator,), {"__module__": module})
    monkeypatch.setattr(sys.modules[public], "Rule", kind, raising=False)
    assert describe(kind) == f"{public}.Rule"


def test_names_of_libraries_are_public():
    given = [Scaffold, Dropout, torch.optim.Adafactor, StandardScaler, nn.functional.gelu, expit]
    assert list(map(describe, [*given, torch.exp])) == [
        "skfed.aggregation.Scaffold",
        "skfed.availability.Dropout",
        "torch.optim.Adafactor",
        "sklearn.preprocessing.StandardScaler",
        "torch.nn.functional.gelu",
        "scipy.special.expit",
        "torch.exp",
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


def predicted(net, t):
    return net.predict([[t]])


HELD = [Holder(k) for k in range(3)]


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
        lambda k: weakref.ref(HELD[k]),
        lambda k: Holder(weakref.WeakValueDictionary({"a": HELD[k]})).rate,
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


def helpers(monkeypatch, source, name="helpers_of_the_test"):
    """Make a module of the user's own."""
    module = types.ModuleType(name)
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


SCHEDULE = """
import helpers_of_the_test as itself
{}
def by_name(t): return step(t)
def by_module(t): return itself.step(t)
def nested(t): return [step(u) for u in (lambda v: [v])(t)][0]
def closed(module):
    return lambda t: module.step(t)
closing, tabled = closed(itself), {{"module": itself}}.get
def local(t):
    import helpers_of_the_test as here
    from helpers_of_the_test import step as there
    return here.step(t)
class Called:
    def __call__(self, t): return step(t)
called = Called()
def again(t): return again(t - 1) if t else step(t)
"""
CODE = "def step(t): return deeper(t)\ndef deeper(t): return {}"
VALUE = "RATE = {}\ndef step(t): return RATE"
TABLE = "import numpy as np\nRATES = np.array([{}])\ndef step(t): return RATES[0]"


@pytest.mark.parametrize(
    "used", ["by_name", "by_module", "nested", "local", "called", "again", "closing", "tabled"]
)
@pytest.mark.parametrize("source", [CODE, VALUE, TABLE])
def test_what_code_reaches_by_name_belongs_to_the_fingerprint(monkeypatch, source, used):
    def made(k):
        module = types.ModuleType("helpers_of_the_test")
        monkeypatch.setitem(sys.modules, "helpers_of_the_test", module)
        exec(SCHEDULE.format(source.format(k)), vars(module))
        return getattr(module, used)

    assert rate(made(0.1)) == rate(made(0.1))
    assert rate(made(0.1)) != rate(made(0.2))


NET = """
import torch
from torch import nn
UNUSED = {unused}
def scaled(x): return x * {scale}
class Block(nn.Linear):
    def forward(self, x): return scaled(super().forward(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block(5, {width})
        self.head = nn.Linear({width}, 3)
    def forward(self, x): return self.head(torch.relu(self.block(x)))
"""


@pytest.mark.parametrize(
    "way", [lambda net: net, lambda net: net(), lambda net: NeuralNetClassifier(net)]
)
def test_submodules_and_helpers_of_a_net_belong_to_the_fingerprint(monkeypatch, way):
    def made(scale=1, width=4, unused=0):
        torch.manual_seed(0)
        source = NET.format(scale=scale, width=width, unused=unused)
        return fingerprint_of(estimator=way(helpers(monkeypatch, source).Net))

    assert made() == made(unused=9)
    assert len({made(), made(scale=2), made(width=5)}) == 3


def test_attributes_are_not_the_globals_of_the_same_name(monkeypatch):
    """A notebook's ``model`` is not the ``self.model`` of its net, nor an open file of it."""
    source = """
class Net:
    def __call__(self, t): return self.model(t) + nested(t)
def nested(t):
    class Local:
        rate = scale
    return [lambda: Local.rate + offset for _ in [t]][0]()
scale, offset = {}, {}
"""

    def made(scale=1, offset=1, **more):
        module = helpers(monkeypatch, source.format(scale, offset))
        vars(module).update(more)
        return rate(module.Net())

    with open(os.devnull) as file:
        assert made() == made(model=file) == made(model=1)
    assert len({made(), made(scale=2), made(offset=2)}) == 3


LAZY = {
    "by its full name": "import lazy.steps; return lazy.steps.step(t)",
    "from its package": "from lazy import steps; return steps.step(t)",
    "beside its user": "from . import steps; return steps.step(t)",
    "a part of it": "from .steps import step; return step(t)",
    "far below": f"{'; '.join(f't -= {k}.5' for k in range(600))}; from .steps import a, step",
    "if it is there": "from .nowhere import step; from .steps import step",
}


@pytest.mark.parametrize("way", LAZY)
def test_modules_that_code_imports_when_called_belong_to_the_fingerprint(
    monkeypatch, tmp_path, way
):
    """Nobody has imported them before, as in a new process."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "lazy").mkdir()
    (tmp_path / "lazy" / "__init__.py").touch()
    scope = {"__package__": "lazy", "__name__": "lazy.schedules"}
    exec(f"def schedule(t): {LAZY[way]}", scope)

    def made(step):
        (tmp_path / "lazy" / "steps.py").write_text(f"def step(t): return {step}")
        for name in ("lazy", "lazy.steps"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        return rate(scope["schedule"])

    assert made(0.1) == made(0.1)
    assert made(0.1) != made(0.2)


def test_code_outside_a_package_cannot_import_beside_itself():
    scope = {"__package__": None, "__name__": "alone"}
    exec("def schedule(t): from . import steps", scope)
    assert rate(scope["schedule"]) == rate(scope["schedule"])


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
    with pytest.raises(TypeError, match="cannot describe lr_schedule=.*: neither the code"):
        model.fit(X, y, clients=clients)
    assert not list(tmp_path.iterdir())


FACTOR = np.frompyfunc(lambda t: 0.1, 1, 1)


def test_a_refusal_names_what_the_code_uses():
    match = r"cannot describe selector=.*parts of <ufunc '<lambda> \(vectorized\)'>"

    class Mine(RandomSelector):
        def _select(self, round):
            return FACTOR(round)

    with pytest.raises(TypeError, match=match):
        fingerprint_of(selector=Mine())


class Writer:
    """Holds an open file and when it was opened, as TensorBoard's does."""

    def __init__(self, number):
        self.number, self.file = number, open(os.devnull)  # noqa: SIM115


def test_writers_of_callbacks_and_locks_are_no_settings():
    def made(k):
        writer = Writer(k)
        net = NeuralNetClassifier(nn.ReLU, callbacks=[TensorBoard(writer), EpochScoring("r2")])
        text = fingerprint_of(estimator=net)
        writer.file.close()
        return text

    assert made(1) == made(2)
    assert rate(Holder(threading.Lock()).rate) == rate(Holder(threading.Lock()).rate)
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


@functools.singledispatch
def dispatched(t):
    return 0.1


LOADER = DataLoader(TensorDataset(torch.ones(2)), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "value",
    [
        *(usual, Settings(), dispatched, Holder(LOADER).rate, Holder(OrderedDict(a=1)).rate),
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


def test_fingerprints_are_the_same_in_every_process(capsys):
    given = {**os.environ, "PYTHONHASHSEED": "1"}
    run = [sys.executable, "-c", PROCESS]
    there = subprocess.run(run, env=given, capture_output=True, text=True, check=True).stdout
    exec(PROCESS, {"__name__": "__main__"})
    assert capsys.readouterr().out == there


def test_code_that_calls_itself_in_many_ways_is_described_once(monkeypatch):
    """Each of 40 functions and classes reaches each; a path at a time would not end."""
    every = ", ".join(f"f{k}, C{k}" for k in range(40))
    lines = [f"def f{k}(t): return {every}" for k in range(40)]
    lines += [f"class C{k}:\n    def g(self): return f{k}, TABLE" for k in range(40)]
    lines += [f"TABLE = [{every}]"]
    lines += ["def h0(t): return 1"]  # deeper than Python recurses
    lines += [f"def h{k}(t): return h{k - 1}(t)" for k in range(1, 2000)]
    module = helpers(monkeypatch, "\n".join(lines))
    assert rate(module.f0) != rate(module.f1)
    assert rate(module.h1999) != rate(module.h1998)


def test_installed_code_is_described_by_name_and_the_users_by_what_it_is():
    from skfed.checkpoint._describe_code import is_library

    assert all(map(is_library, ["numpy.linalg", "os", "builtins", "skfed.selection", "torch._C"]))
    assert not any(map(is_library, ["__main__", __name__, "module_of_nobody", "", None]))
