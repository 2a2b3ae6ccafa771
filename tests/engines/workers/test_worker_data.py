"""The rows of clients in worker processes."""

import os
import pickle
from collections import Counter
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FederatedClassifier, PowerOfChoice
from skfed._federation import make_federation
from skfed.engines._data import Dataset
from skfed.engines.workers import _remote
from skfed.engines.workers._remote import serve
from skfed.engines.workers._worker_data import CacheMiss, ClientData, FileData, WorkerCache
from skfed.engines.workers._workers import Workers
from skfed.nets import DictRows


@pytest.fixture
def data():
    """Five clients of 4 rows of 24 bytes each, target included, that numbers tell apart."""
    y = np.arange(20)
    X = np.stack([y, y + 0.5]).T
    return ClientData(Dataset(X, y), make_federation(y % 5, len(y)), budget=3 * 4 * 24)


def sums(load, clients):
    dataset, rows = load(clients)
    return [dataset.X[own].sum() + dataset.y[own].sum() for own in rows]


def sent(cache, payload):
    return cache.load(pickle.loads(pickle.dumps(payload)))


def test_rows_that_a_worker_lacks_are_sent_once(data):
    clients, cache = [3, 0, 3], WorkerCache()
    missed = sent(cache, data.payload(clients))
    assert missed == CacheMiss({data.digest(0), data.digest(3)})
    data.note_miss(missed)
    again = data.payload(clients, complete=True)
    assert again.arrays.keys() == missed.digests
    assert sums(sent(cache, again), clients) == sums(data.local, clients)
    assert not data.payload(clients).arrays  # there is one worker
    assert sums(sent(cache, data.payload(clients)), clients) == sums(data.local, clients)


def test_rows_for_a_worker_with_an_address_are_included_in_no_other_payload(data):
    data.note_miss(CacheMiss({data.digest(0)}, worker="tcp://10.0.0.1:8786"))
    assert not data.payload([0]).arrays
    data.note_miss(CacheMiss({data.digest(0)}))
    assert data.payload([0]).arrays.keys() == {data.digest(0)}


def test_the_least_recently_used_go_beyond_the_budget(data):
    cache = WorkerCache()
    for k in (0, 1, 2, 0, 3):
        assert not isinstance(sent(cache, data.payload([k], complete=True)), CacheMiss)
    missed = [isinstance(sent(cache, data.payload([k])), CacheMiss) for k in range(4)]
    assert missed == [False, True, False, False]


def test_the_digest_depends_on_the_rows_alone(data):
    X, y = data.dataset.X, data.dataset.y
    other = ClientData(Dataset(X[::-1], y[::-1]), make_federation(y[::-1] % 5, len(y)), budget=0)
    assert data.digest(0) != other.digest(0)  # in another order
    copy = ClientData(Dataset(X.copy(), y), make_federation(y % 5, len(y)), budget=9)
    assert data.digest(0) == copy.digest(0) != copy.digest(1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_rows_are_written_to_files_once_and_read_from_them(data, order):
    X, y = data.dataset.X.copy(order=order), data.dataset.y
    weighted = Dataset(X, y, weights=y / 20)
    files = FileData(weighted, data.federation)
    for clients in ([3, 0, 3], [0], [4]):
        payload = pickle.loads(pickle.dumps(files.payload(clients)))
        load = payload.load()
        assert sums(load, clients) == sums(files.local, clients)
        dataset, rows = load(clients)
        assert not dataset.X.flags.owndata and not dataset.X.flags.writeable  # mapped
        assert [dataset.weights[own].sum() for own in rows] == [
            weighted.weights[data.federation.rows(k)].sum() for k in clients
        ]
    written = np.isin(y % 5, [0, 3, 4])
    for file, array in zip(payload.arrays, (X, y, weighted.weights), strict=True):
        assert file.path.stat().st_size == array[written].nbytes
    files.close()
    assert not files.folder.exists()


def test_a_dict_reaches_workers_with_its_keys(data):
    X, y = data.dataset.X, data.dataset.y
    named = Dataset(DictRows(even=X[:, 0].astype(int), all=X), y, weights=y / 20)
    clients, cache = [3, 0, 3], WorkerCache()
    sending = ClientData(named, data.federation, budget=10**6)
    files = FileData(named, data.federation)
    for load in (
        sent(cache, sending.payload(clients, complete=True)),
        pickle.loads(pickle.dumps(files.payload(clients))).load(),
    ):
        dataset, rows = load(clients)
        for k, own in zip(clients, rows, strict=True):
            whole = data.federation.rows(k)
            assert dataset.X["even"].dtype == int
            np.testing.assert_array_equal(dataset.X["even"][own], X[whole, 0])
            np.testing.assert_array_equal(dataset.X["all"][own], X[whole])
            np.testing.assert_array_equal(dataset.weights[own], y[whole] / 20)


def test_rows_for_another_device_are_without_those_of_other_clients(data):
    files = FileData(Dataset(data.dataset.X, data.dataset.y, "meta"), data.federation)
    files.payload([1, 4])
    dataset, rows = files.payload([3, 0, 3]).load()([3, 0, 3])
    assert len(dataset.X) == 8  # all rows of a dataset may be moved to a GPU
    own = [data.federation.rows(k) for k in (3, 0, 3)]
    assert [dataset.y[r].tolist() for r in rows] == [data.dataset.y[r].tolist() for r in own]


def test_the_files_of_a_fit_are_removed_though_its_exception_is_kept(blobs, tmp_path, monkeypatch):
    X, y, clients = blobs
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(tmp_path))
    found = []

    class Failing(PowerOfChoice):
        def _select(self, round):
            found.append(list(tmp_path.glob("skfed-*/X")))
            if round.index == 1:
                raise ValueError("this round is not wanted")
            return super()._select(round)

    model = FederatedClassifier(engine="loop", n_rounds=2, selector=Failing(), random_state=0)
    with parallel_config(backend="loky", n_jobs=2), pytest.raises(ValueError) as kept:
        model.fit(X, y, clients=clients)
    assert "not wanted" in str(kept.value)
    assert len(found[1]) == 1
    assert not list(tmp_path.glob("skfed-*"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_a_full_folder_for_temporary_files_is_named(data):
    files = FileData(data.dataset, data.federation)
    (files.folder / "X").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        files.payload([0])
    assert "TMPDIR" in error.value.__notes__[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_rows_that_were_written_in_part_are_written_again(data):
    files = FileData(data.dataset, data.federation)
    (files.folder / "y").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        files.payload([0])
    (files.folder / "y").unlink()
    clients = [1, 0]
    assert sums(files.payload(clients).load(), clients) == sums(data.local, clients)


def test_rows_without_values_need_no_file(data):
    files = FileData(Dataset(data.dataset.X[:, :0], data.dataset.y), data.federation)
    dataset, rows = files.payload([0, 2]).load()([2, 0])
    assert dataset.X[rows[0]].shape == (4, 0)
    assert dataset.y[rows[0]].tolist() == [2, 7, 12, 17]


class Logged(nn.Linear):
    """A linear layer that writes a file when it is made, named by its process."""

    def __init__(self, folder):
        super().__init__(5, 3)
        Path(folder, f"{os.getpid()}-{uuid4().hex}").touch()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_worker_makes_one_net_a_fit(blobs, tmp_path, engine):
    X, y, clients = blobs
    net = NeuralNetClassifier(
        Logged, module__folder=str(tmp_path), criterion=nn.CrossEntropyLoss, train_split=None
    )
    model = FederatedClassifier(net, engine=engine, n_rounds=3, memory_budget=2000, random_state=0)
    with parallel_config(backend="loky", n_jobs=2):
        model.fit(X.astype("float32"), y, clients=clients)
    made = Counter(path.name.split("-")[0] for path in tmp_path.iterdir())
    del made[str(os.getpid())]
    assert 1 <= len(made) <= 2
    assert set(made.values()) == {1}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_processes_of_this_machine_read_files(blobs, same_model, monkeypatch, engine):
    X, y, clients = blobs
    payloads, payload = [], FileData.payload

    def kept(*arguments, **options):
        payloads.append(payload(*arguments, **options))
        return payloads[-1]

    monkeypatch.setattr(FileData, "payload", kept)
    model = FederatedClassifier(engine=engine, n_rounds=2, memory_budget=2000, random_state=0)
    one = clone(model).fit(X, y, clients=clients)
    with parallel_config(backend="loky", n_jobs=2):
        model.fit(X, y, clients=clients)
    assert same_model(one, model)
    places = {(k, own.start) for one in payloads for k, own in one.slices.items()}
    assert len(places) == len(set(clients))  # each client's rows are written once in two rounds


@pytest.fixture
def processes(monkeypatch):
    """Give work in turn to so many mock processes; count the clients whose rows are sent."""
    n_sent, n_workers = [], 1

    def start(n, have_addresses):
        nonlocal n_workers
        n_workers = n
        caches = {str(i): WorkerCache() for i in range(n)}
        turns = cycle(caches)

        def results(self, calls):
            for call in calls:
                run, payload, worker = pickle.loads(pickle.dumps(call))
                n_sent.append(len(payload.arrays))
                address = worker or next(turns)
                monkeypatch.setattr(_remote, "_worker_cache", caches[address])
                result = serve(run, payload)
                if have_addresses and isinstance(result, CacheMiss):
                    result = result._replace(worker=address)
                yield result

        monkeypatch.setattr(Workers, "_results", results)
        return n_sent

    real = Workers.__init__

    def elsewhere(self, *arguments, **settings):
        real(self, *arguments, **settings)
        self.has_processes, self.n_workers = True, n_workers

    def of_cluster(self, dataset, federation, budget):
        return ClientData(dataset, federation, budget, self.n_workers)

    monkeypatch.setattr(Workers, "__init__", elsewhere)
    monkeypatch.setattr(Workers, "client_data", of_cluster)
    return start


@pytest.mark.parametrize("budget", [1, 2**30])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("have_addresses", [False, True])
def test_rows_reach_processes_that_get_work_in_turn(
    blobs, same_model, request, have_addresses, engine, n, budget
):
    X, y, clients = blobs
    params = {"selector": PowerOfChoice(d=6, clients_per_round=6), "engine": engine}
    # Where no worker keeps any rows, each round is like the first.
    params |= {"n_rounds": 24 if budget > 1 else 4, "memory_budget": budget, "random_state": 0}
    one = FederatedClassifier(**params).fit(X, y, clients=clients)
    n_sent = request.getfixturevalue("processes")(n, have_addresses)
    many = FederatedClassifier(**params).fit(X, y, clients=clients)
    assert same_model(one, many)
    if budget > 1:
        assert 6 * n <= sum(n_sent) <= 6 * (2 if have_addresses else 3) * n
        assert sum(n_sent[-2:]) == 0
    else:
        assert sum(n_sent) >= 6 * params["n_rounds"]
