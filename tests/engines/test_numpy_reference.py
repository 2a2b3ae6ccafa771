"""Both engines against rounds written out in NumPy, from the papers: FedALIGN and power-of-choice.

Softmax regression by local SGD on ragged clients. What is taken from skfed are its random draws
(minibatches, candidates, who takes part); losses, gradients, rules, weights and sums are here.
"""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from skfed import FedAlignSelector, FederatedClassifier, PowerOfChoice
from skfed.engines._batching import minibatches
from skfed.schedules import LinearDecay
from skfed.selection._sampling import draw_by_size
from skfed.utils._ids import digest
from skfed.utils._seeding import Purpose, draw_seed, stream

N_ROUNDS, LR, DECAY, BATCH = 20, 0.2, 1e-3, 8
SIZES = np.array([12, 40, 3, 18, 23, 34, 9, 25, 6])
NOISE = np.array([0.1, 0.4, 0.2, 0.0, 0.3, 0.6, 0.2, 0.4, 0.1])  # share of labels drawn anew
EPS, WARMUP, SHARE = 0.3, 3, 0.7  # of FedALIGN
N_FEATURES, N_CLASSES = 7, 4


def federation():
    """Return each client's X and y; labels are noisier at some, so that losses differ."""
    rng = np.random.default_rng(5)
    parts = []
    for n, share in zip(SIZES, NOISE, strict=True):
        y = rng.integers(0, N_CLASSES, n)
        X = rng.normal(size=(n, N_FEATURES)) + 2 * np.eye(N_FEATURES)[y]
        parts.append((X, np.where(rng.random(n) < share, rng.integers(0, N_CLASSES, n), y)))
    parts[1][1][:N_CLASSES] = range(N_CLASSES)
    return parts


class Reference:
    """The rounds of one run; a subclass has the rule by which a round's cohort is chosen."""

    def __init__(self, selector, parts, start, *, epochs=1, steps=None, priority=None):
        self.selector, self.parts = selector, parts
        self.W, self.b = start
        self.epochs, self.steps = epochs, steps
        self.seed = draw_seed(0)
        self.sizes = np.array([len(y) for _, y in parts])
        self.s = np.ones(len(parts)) if priority is None else np.array(priority, float)
        self.last = np.full(len(parts), np.inf)  # the loss that each reported last
        self.cohorts = []

    def run(self):
        for t in range(N_ROUNDS):
            clients, weights = self.cohort(t, stream(self.seed, Purpose.SELECTION, t))
            seen, trained, losses = {}, [], {}
            for k in clients:
                copy = seen[k] = seen.get(k, -1) + 1
                *model, losses[k] = self.train(k, t, copy)
                trained.append(model)
            self.W = sum(q * W for q, (W, _) in zip(weights, trained, strict=True))
            self.b = sum(q * b for q, (_, b) in zip(weights, trained, strict=True))
            for k, loss in losses.items():
                self.last[k] = loss
            self.cohorts.append(sorted(clients))
        return self

    def train(self, k, t, copy):
        """Return w_k and the mean of its minibatch losses, after SGD with weight decay."""
        X, y = self.parts[k]
        rng = stream(self.seed, Purpose.MINIBATCHES, t, digest(k), copy)
        W, b, losses = self.W, self.b, []
        for _, rows in minibatches(rng, len(y), BATCH, self.epochs, self.steps):
            p, loss = softmax_and_loss(X[rows], y[rows], W, b)
            slope = (p - np.eye(N_CLASSES)[y[rows]]) / len(rows)
            W, b = W - LR * (slope.T @ X[rows] + DECAY * W), b - LR * (slope.sum(0) + DECAY * b)
            losses.append(loss)
        return W, b, np.mean(losses)

    def loss(self, k, rows=slice(None)):
        """Return F_k at the global model."""
        X, y = self.parts[k]
        return softmax_and_loss(X[rows], y[rows], self.W, self.b)[1]


def softmax_and_loss(X, y, W, b):
    z = X @ W.T + b
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return p, -np.log(p[np.arange(len(y)), y]).mean()


class FedAlign(Reference):
    """Algorithm 1, with priority weights s_k; F over the priority clients reached."""

    def eps(self, t):
        return EPS * (1 - t / (N_ROUNDS - 1))  # LinearDecay

    def matched(self, t, reached, free):
        """Return I_k of all clients; nobody is asked in the warm-up."""
        inside = np.zeros(len(self.parts))
        if t < WARMUP:
            return inside
        mass = self.s * self.sizes
        losses = {k: self.loss(k) for k in (*reached, *free)}
        F = sum(mass[k] * losses[k] for k in reached) / sum(mass[k] for k in reached)
        for k, loss in losses.items():
            inside[k] = abs(loss - F) < self.eps(t)
        return inside

    def cohort(self, t, rng):
        everybody = np.arange(len(self.parts))
        inside = self.matched(t, everybody[self.s > 0], everybody[self.s == 0])
        weights = self.sizes * (self.s + (1 - self.s) * inside)
        clients = everybody[weights > 0]
        return clients.tolist(), weights[clients] / weights.sum()


class FedAlignInPart(FedAlign):
    """Equation 56: K draws with replacement by s_k p_k at (1/K) / (1 + M), and what is matched of
    the free clients drawn, (1 - s_k) p_k / (1 + M), where M is the sum of these p_k."""

    def cohort(self, t, rng):
        p = self.sizes / (self.s * self.sizes).sum()
        priority, free = np.flatnonzero(self.s > 0), np.flatnonzero(self.s == 0)
        K, n_free = int(SHARE * len(priority)), int(SHARE * len(free))
        drawn = rng.choice(priority, K, p=(self.s * p)[priority])
        free = rng.choice(free, n_free, replace=False)
        reached = sorted(set(drawn.tolist()))
        inside = self.matched(t, reached, free.tolist())
        gains = {k: (1 - self.s[k]) * p[k] * inside[k] for k in (*reached, *free.tolist())}
        M = sum(gains.values())
        clients, weights = [], []
        for k in sorted(drawn.tolist()):  # a client drawn twice trains twice, and shares its gain
            clients.append(k)
            weights.append((1 / K + gains[k] / (drawn == k).sum()) / (1 + M))
        for k in free.tolist():
            if gains[k]:
                clients.append(k)
                weights.append(gains[k] / (1 + M))
        return clients, weights


class PowerOfChoiceReference(Reference):
    """Section 4: d candidates by p_k without replacement, the m of highest loss, each at 1/m."""

    def cohort(self, t, rng):
        d, m = 6, 3
        everybody = np.ones(len(self.parts), bool)
        candidates = rng.permutation(
            draw_by_size(rng, np.cumsum(self.sizes), everybody, d, replace=False)
        ).tolist()
        kind = self.selector.loss
        losses = [self.last[k] if kind == "reported" else self.polled(k, t) for k in candidates]
        ranks = sorted(range(d), key=lambda i: (-losses[i], i))  # ties in the order shuffled
        return [candidates[i] for i in ranks[:m]], np.full(m, 1 / m)

    def polled(self, k, t):
        """Return the loss over all rows, or over min(b, D_k) drawn from them (cpow-d)."""
        if self.selector.loss == "full" or self.sizes[k] <= BATCH:
            return self.loss(k)
        rng = stream(self.seed, Purpose.POLL, t, digest(k))
        return self.loss(k, rng.choice(self.sizes[k], BATCH, replace=False))


PLAIN = [1, 1, 1, 1, 0, 0, 0, 0, 0]
WEIGHTS = [1, 0.5, 0.25, 1, 0.75, 0, 0, 0, 0]
ALIGN = FedAlignSelector(eps=LinearDecay(EPS), warmup=WARMUP)
IN_PART = clone(ALIGN).set_params(participation=SHARE)
RUNS = {
    "FedALIGN": (FedAlign, ALIGN, {"priority": PLAIN, "epochs": 2}),
    "FedALIGN, priority weights": (FedAlign, ALIGN, {"priority": WEIGHTS, "epochs": 2}),
    "FedALIGN, equation 56": (FedAlignInPart, IN_PART, {"priority": PLAIN, "epochs": 1}),
    "FedALIGN, equation 56, priority weights": (
        FedAlignInPart,
        IN_PART,
        {"priority": WEIGHTS, "steps": 5},
    ),
    "pow-d": (PowerOfChoiceReference, PowerOfChoice(6, 3), {"steps": 5}),
    "cpow-d": (PowerOfChoiceReference, PowerOfChoice(6, 3, loss="batch"), {"steps": 5}),
    "rpow-d": (PowerOfChoiceReference, PowerOfChoice(6, 3, loss="reported"), {"epochs": 2}),
}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("name", RUNS)
def test_twenty_rounds_are_those_of_plain_numpy(name, engine):
    kind, selector, how = RUNS[name]
    parts = federation()
    torch.manual_seed(0)
    module = nn.Linear(N_FEATURES, N_CLASSES).double()
    start = [w.detach().numpy().copy() for w in (module.weight, module.bias)]
    reference = kind(selector, parts, start, **how).run()
    net = NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        lr=LR,
        batch_size=BATCH,
        optimizer__weight_decay=DECAY,
    )
    priority = {k: s for k, s in enumerate(how.get("priority", ())) if s}
    model = FederatedClassifier(
        net,
        selector=selector,
        priority=priority or None,
        n_rounds=N_ROUNDS,
        local_epochs=how.get("epochs", 1),
        local_steps=how.get("steps"),
        engine=engine,
        random_state=0,
    )
    X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    model.fit(X, y, clients=np.repeat(np.arange(len(parts)), SIZES))
    assert [sorted(cohort) for cohort in model.history_["cohort"]] == reference.cohorts
    assert len({tuple(cohort) for cohort in reference.cohorts}) > 3  # else little is shown
    trained = model.net_.module_
    np.testing.assert_allclose(trained.weight.detach(), reference.W, rtol=0, atol=1e-12)
    np.testing.assert_allclose(trained.bias.detach(), reference.b, rtol=0, atol=1e-12)
