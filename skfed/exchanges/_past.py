"""What the server remembers of each client, from settled exchanges alone.

A new fact for rules is a field of ``_FACTS``, a line in ``_add_training``, and a property of
:class:`skfed.selection.Past`. The totals beside them are those of :class:`RoundTotals`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from skfed._federation import Federation
from skfed.exchanges._exchange import Exchange, Outcome
from skfed.exchanges._first_totals import FirstTotals
from skfed.exchanges._kinds import POLL, REPORT, TRAINING, UPLOAD
from skfed.exchanges._totals import TOTALS, RoundTotals
from skfed.selection._cohort import Cohort
from skfed.selection._past import SKETCH_SIZE, Past
from skfed.utils._arrays import read_only

#: The facts, and what they are of a client that is new.
_FACTS: dict[str, Any] = {
    "reported": np.inf,  # the last training loss; NaN after its training failed
    "waited": np.nan,  # seconds of the last training, or for which a late client was waited
    "n_polled": np.int32(0),
    "n_chosen": np.int32(0),
    "last_chosen": np.int32(-1),
    "loss_mean": np.nan,
    "loss_std": np.nan,
    "loss_rms": np.nan,
    "seconds": np.nan,
    "updates": np.nan,
    "last_layer": np.nan,
    "fixed_version": np.int32(0),  # of what training leaves alone; see ``FixedTensors``
    "n_missed": np.int32(0),  # times that it has not answered since it last did, if that counts
    "asked_from": np.int32(0),  # the round in which it is asked again
}
_NEW = _FACTS | TOTALS
_ROWS = "updates", "last_layer"  # of which a client has several numbers
_N_COUNTED, _FIRST = "n_counted", "first"
_LONGEST = 3  # a client that does not answer is left alone for at most two to this power rounds

#: Facts by name, the digests of their clients under "clients", and under "n_counted" the number of
#: rounds that are in the totals; files that were written before there were totals have none. Under
#: "first" are the columns of :class:`FirstTotals`.
Columns = Mapping[str, Any]


class PastRecords:
    """Facts of clients, kept of those alone of which there are any.

    A round changes them in place, since a copy would take time in proportion to the number of
    clients; it can be undone.
    """

    def __init__(
        self,
        columns: Columns | None = None,
        federation: Federation | None = None,
        n_outputs: int = 0,
    ):
        self._n_outputs = n_outputs  # of the net's last layer
        self._saved: Columns = {"clients": ()} if columns is None else columns
        self.n_counted: int = self._saved.get(_N_COUNTED, 0)
        self._federation = federation
        n_clients = 0 if federation is None else len(federation)
        self._slot = np.full(n_clients, -1, dtype=np.int32)  # of each client; -1: no facts
        self._clients = np.zeros(0, dtype=int)  # of each slot
        self._facts: dict[str, np.ndarray] = {}  # by name, an entry for each slot
        self._arrays: dict[str, np.ndarray] = {}  # over all clients, of facts that were asked for
        # Of the last round: names, clients and old values.
        self._round, self._before = -1, list[tuple[str, np.ndarray, np.ndarray]]()
        self._n_counted_before = self.n_counted
        # Clients that are not in this fit, and may come back: digests, and totals by name.
        self._gone, self._totals_of_gone = list[bytes](), dict[str, np.ndarray]()
        self._first = FirstTotals(federation, self._saved.get(_FIRST))
        if federation is not None:
            self._load(federation)

    def _load(self, federation: Federation) -> None:
        """Take the facts of clients that were in the fit before."""
        place = {key: i for i, key in enumerate(self._saved["clients"])}
        if not place:
            return
        digests = federation.digests(np.arange(len(federation)))
        known = {k: place[key] for k, key in enumerate(digests) if key in place}
        clients, rows = np.array(list(known), dtype=int), list(known.values())
        for name in _NEW.keys() & self._saved.keys() if known else ():
            self._write(name, clients, np.asarray(self._saved[name])[rows])
        if self.n_counted:
            gone, keys = sorted(set(place.values()) - set(rows)), list(place)
            self._gone = [keys[i] for i in gone]
            totals = TOTALS.keys() & self._saved.keys()
            self._totals_of_gone = {name: np.asarray(self._saved[name])[gone] for name in totals}

    def __reduce__(self) -> tuple:
        return PastRecords, (self.to_columns(),)

    def of(self, federation: Federation, n_outputs: int) -> "PastRecords":
        """Return the facts for a fit with the clients of a federation, maybe others than before.

        ``n_outputs`` are those of the net's last layer.
        """
        return PastRecords(self.to_columns(), federation, n_outputs)

    def past(self, needs: Iterable[str]) -> Past:
        """Return what a selector sees of earlier rounds, with what it needs."""
        return Past(self.column, needs)

    def column(self, name: str) -> np.ndarray:
        """Return one fact of all clients, a view that is not to be changed."""
        if name not in self._arrays:
            shapes = {"updates": (SKETCH_SIZE,), "last_layer": (self._n_outputs,)}
            facts = self._facts.get(name, np.zeros((0, *shapes.get(name, ()))))
            array = np.full((len(self._slot), *facts.shape[1:]), _NEW[name])
            n = min(len(facts), len(self._clients))
            array[self._clients[:n]] = facts[:n]
            self._arrays[name] = array
        return read_only(self._arrays[name])

    def add(self, t: int, chosen: np.ndarray, exchanges: Iterable[Exchange]) -> None:
        """Add what round t has told; ``chosen`` are the clients of the selector's cohort."""
        self._round, self._before, self._n_counted_before = t, [], self.n_counted
        self._first.keep()
        self._count("n_chosen", chosen)
        self._set("last_chosen", chosen, np.full(len(chosen), t))
        for exchange in exchanges:
            if exchange.kind is POLL:
                self._count("n_polled", exchange.clients)
            elif exchange.kind in (TRAINING, REPORT):
                self._add_training(exchange)
            elif exchange.kind is UPLOAD:
                self._add_extras(exchange)

    def add_missed(self, t: int, exchanges: Sequence[Exchange], deadline: float | None) -> None:
        """Note who has not answered in the round of the last ``add``, and who has.

        Those who have not are asked again after some rounds; see :class:`BackOff`.
        """
        asked = [np.zeros(0, dtype=int), *(exchange.clients for exchange in exchanges)]
        clients = np.unique(np.concatenate(asked))
        missed = np.isin(clients, missing_clients(exchanges, deadline))
        n_missed = np.where(missed, self._read("n_missed", clients) + 1, 0)
        waits = 2 ** np.minimum(n_missed - 1, _LONGEST).clip(0)
        self._set("n_missed", clients, n_missed)
        self._set("asked_from", clients, np.where(missed, t + 1 + waits, 0))

    @property
    def n_clients(self) -> int:
        """The number of clients of the fit."""
        return len(self._slot)

    def versions(self, clients: np.ndarray) -> np.ndarray:
        """Return what version each has received of what training leaves alone."""
        return self._read("fixed_version", clients)

    def note_versions(self, clients: np.ndarray, versions: np.ndarray) -> None:
        """Note what some clients have received in the round of the last ``add``."""
        self._set("fixed_version", clients, versions)

    def add_costs(
        self,
        first: Sequence[Exchange],
        exchanges: Sequence[Exchange],
        model_bytes: int,
        chosen: Cohort,
        aggregated: Cohort,
    ) -> None:
        """Add what the round of the last ``add`` has cost each client.

        ``first`` are the exchanges before the round. The cohorts are that of the selector, and the
        one whose updates are in the new model.
        """
        self.n_counted += 1
        self._first.add(first, model_bytes)
        added = RoundTotals(exchanges, model_bytes, chosen, aggregated)
        slots = self._slots(added.clients)
        for name, sums in added.sums.items():
            before = self._facts_with_room(name)[slots]
            self._put(name, added.clients, slots, before + sums)
            self._before.append((name, added.clients, before))

    def undo(self, n_rounds: int) -> None:
        """Undo the last round if it is not one of the first ``n_rounds``."""
        if self._round >= n_rounds:
            for name, clients, values in reversed(self._before):
                self._write(name, clients, values)
            self._before, self.n_counted = [], self._n_counted_before
            self._first.undo()

    def totals(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the totals of the clients of the last fit by name, given all of their ids."""
        past = self
        if self._federation is None or self._federation.ids is not ids:  # read from a file
            past = PastRecords(self.to_columns(), Federation.without_rows(ids))
        return {name: past.column(name) + past._first.sums.get(name, 0) for name in TOTALS}

    def _add_training(self, training: Exchange) -> None:
        clients, losses = training.clients, training.answers
        failed, finite = training.outcomes == Outcome.FAILED, np.isfinite(losses)
        # What late clients have reported before stays.
        self._set("reported", clients[failed | finite], losses[failed | finite])
        self._set("loss_mean", clients[finite], losses[finite])
        self._add_extras(training)
        if training.seconds is None or training.duration is None:
            return
        late = training.outcomes == Outcome.LATE
        waited = np.where(late, training.duration, training.seconds)
        known = ~np.isnan(waited) & ~failed  # a client that fails may do so at once
        self._set("waited", clients[known], waited[known])
        self._set("seconds", clients[known & finite], waited[known & finite])

    def _add_extras(self, exchange: Exchange) -> None:
        finite = np.isfinite(exchange.answers)
        for name in sorted(exchange.extras.keys() & _FACTS.keys()):
            self._set(name, exchange.clients[finite], exchange.extras[name][finite])

    def _count(self, name: str, clients: np.ndarray) -> None:
        distinct, n = np.unique(clients, return_counts=True)
        self._set(name, distinct, self._read(name, distinct) + n)

    def _set(self, name: str, clients: np.ndarray, values: np.ndarray) -> None:
        """Set a fact; of a client that is listed twice, to the last value."""
        if len(clients):
            self._before.append((name, clients, self._write(name, clients, values)))

    def _read(self, name: str, clients: np.ndarray, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Return a fact of some clients, of the shape that it has been given or is to have."""
        values = np.full((len(clients), *shape), _NEW[name])
        facts, slots = self._facts.get(name), self._slot[clients]
        if facts is not None and facts.shape[1:] == shape:
            known = (slots >= 0) & (slots < len(facts))
            values[known] = facts[slots[known]]
        return values

    def _write(self, name: str, clients: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Set a fact of some clients, in the array over all of them too if there is one.

        Return what it was.
        """
        slots = self._slots(clients)
        before = self._facts_with_room(name, values.shape[1:])[slots]
        self._put(name, clients, slots, values)
        return before

    def _put(self, name: str, clients: np.ndarray, slots: np.ndarray, values: np.ndarray) -> None:
        self._facts[name][slots] = values
        if name in self._arrays:
            self._arrays[name][clients] = values

    def _facts_with_room(self, name: str, shape: tuple[int, ...] = ()) -> np.ndarray:
        """Return the entries of a fact, with room for each slot; they have a shape."""
        facts = self._facts.get(name)
        if facts is None or facts.shape[1:] != shape:
            facts = np.full((0, *shape), _NEW[name])
            if name in self._arrays and self._arrays[name].shape[1:] != shape:
                del self._arrays[name]
        if len(facts) < len(self._clients):  # with room for as many again
            n_slots = min(2 * len(self._clients), len(self._slot))
            room = np.full((n_slots, *shape), _NEW[name])
            room[: len(facts)] = facts
            self._facts[name] = facts = room
        return facts

    def _slots(self, clients: np.ndarray) -> np.ndarray:
        """Return the slots of some clients, of which some may have none yet."""
        slots = self._slot[clients]
        if slots.min(initial=0) >= 0:
            return slots
        new = np.unique(clients[slots < 0])
        self._slot[new] = np.arange(len(self._clients), len(self._clients) + len(new))
        self._clients = np.concatenate([self._clients, new])
        return self._slot[clients]

    def to_columns(self) -> dict[str, Any]:
        """Return the facts as they are in a file, without clients that are as if they were new."""
        if self._federation is None:
            return dict(self._saved)
        clients = np.sort(self._clients)
        facts = {name: self._facts[name] for name in _NEW if name in self._facts}
        columns = {name: self._read(name, clients, one.shape[1:]) for name, one in facts.items()}
        told = {name: ~_is_new(name, values) for name, values in columns.items()}
        known = np.logical_or.reduce([np.zeros(len(clients), dtype=bool), *told.values()])
        digests = self._federation.digests(clients[known])
        told_of = {name: v[known] for name, v in columns.items() if told[name].any()}
        if self._gone:
            told_of = self._with_gone(told_of, len(digests))
        of_first = self._first.to_columns()
        first = {_FIRST: of_first} if of_first else {}
        return {"clients": (*digests, *self._gone), **told_of, _N_COUNTED: self.n_counted, **first}

    def _with_gone(self, columns: dict[str, np.ndarray], n_clients: int) -> dict[str, np.ndarray]:
        """Append those that are gone to the facts of the clients of this fit."""
        n_gone, all_of = len(self._gone), {}
        for name in columns.keys() | self._totals_of_gone.keys():
            own = columns.get(name, np.full(n_clients, _NEW[name]))
            of_gone = np.full((n_gone, *own.shape[1:]), _NEW[name])
            all_of[name] = np.concatenate([own, self._totals_of_gone.get(name, of_gone)])
        return all_of


def missing_clients(exchanges: Iterable[Exchange], deadline: float | None) -> np.ndarray:
    """Return the clients that have not answered; who is late only for the report goal has."""
    found = [np.zeros(0, dtype=int)]
    for exchange in exchanges:
        missed = exchange.outcomes == Outcome.AWAY
        if deadline is not None and (exchange.duration or 0.0) >= deadline:
            missed |= exchange.outcomes == Outcome.LATE
        for i, cause in exchange.causes.items():
            missed[i] |= isinstance(cause, TimeoutError | ConnectionError)
        found.append(exchange.clients[missed])
    return np.unique(np.concatenate(found))


def _is_new(name: str, values: np.ndarray) -> np.ndarray:
    """Return a mask of the clients that have the values of a new one."""
    same = np.isnan(values) if np.isnan(_NEW[name]) else values == _NEW[name]
    return same.reshape(len(values), -1).all(axis=1)


def checked_columns(columns: Any) -> Columns:
    """Return the facts that a file has; raise if they are not valid."""
    clients = columns["clients"]
    for name, values in columns.items():
        if name == "clients":
            is_valid = all(isinstance(key, bytes) for key in clients)
        elif name == _N_COUNTED:
            is_valid = isinstance(values, int) and values >= 0
        elif name == _FIRST:
            is_valid = FirstTotals.are_valid(values)
        else:
            kind = "iu" if isinstance(_NEW[name], np.integer) else "f"
            is_valid = values.dtype.kind in kind and values.ndim == 1 + (name in _ROWS)
            is_valid = is_valid and len(values) == len(clients)
        if not is_valid:
            raise TypeError(f"past has a {name} that is not valid")
    return columns
