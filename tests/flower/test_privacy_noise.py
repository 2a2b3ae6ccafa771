"""What a client never sends."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from local_grid import contents, requests

from skfed import FedAlignSelector, FederatedClassifier, FederatedRegressor, RandomSelector
from skfed.aggregation import Scaffold
from skfed.modules import SoftmaxRegression
from skfed.privacy import GaussianMechanism, privacy_spent

ALIGN = {"selector": FedAlignSelector(eps=1e-4, warmup=0), "priority": ["f"], "random_state": 0}


@pytest.fixture
def polled(federate):
    """Return a strategy and grid after rounds in which some clients were above the bound."""
    strategy, grid = federate(FederatedClassifier(SoftmaxRegression(5, 3), **ALIGN, n_rounds=3))
    strategy.start(grid)
    return strategy, grid


def test_above_the_bound_nothing_is_sent(polled):
    strategy, grid = polled
    sent = {m.metadata.message_id: m for m in grid.sent}
    silent = []
    for reply in grid.received:
        request = sent[reply.metadata.reply_to_message_id].content["request"]
        if "at_most" not in request:
            continue
        if "metrics" in reply.content:
            assert reply.content["metrics"]["loss"] <= request["at_most"]
        else:
            assert not reply.content
            silent.append((request["client"], request["round"]))
    assert silent  # else nothing is tested
    trained = {(request["client"], request["round"]) for request in requests(grid.sent, "train")}
    assert not trained & set(silent)
    rows = strategy.model_.history_
    assert rows["scalars_up"].sum() < rows["n_polled"].sum()


def test_a_silent_client_does_not_train(polled):
    """Even if a server requests it."""
    _, grid = polled
    for node in grid.nodes.values():
        poll = node.context.state.get("skfed.held current")
        if poll is not None and poll["silent"]:
            request = requests(grid.sent, "train")[0]
            request = {**request, "client": node.config["client-name"], "round": poll["round"]}
            content = ask(node, request, "train")
            assert set(content) == {"failure"}
            assert "it was silent in this round" in content["failure"]["message"]
            return
    pytest.fail("nobody was silent in the last round")


def test_noise_is_added_at_the_client_and_is_its_own(federate):
    private = FederatedClassifier(
        selector=RandomSelector(1.0, probability="uniform", replace=False),
        update_privacy=GaussianMechanism(clip=1.0, noise_multiplier=0.5),
        loss_privacy=GaussianMechanism(clip=5.0, noise_multiplier=2.0),
        n_rounds=1,
        random_state=0,
    )
    models, losses = [], []
    for _ in range(2):
        strategy, grid = federate(private, classes=[0, 1, 2])
        strategy.start(grid)
        models.append(
            [s["module.linear.weight"].numpy() for s in contents(grid.received, "state-0")]
        )
        losses.append([r["loss"] for r in contents(grid.received, "report-0")])
    assert len(models[0]) == 6
    assert all((a != b).all() for a, b in zip(*models, strict=True))
    assert all(a != b for a, b in zip(*losses, strict=True))
    spent = privacy_spent(strategy.model_)
    assert spent["n_updates"].tolist() == [1] * 6
    assert np.isfinite(spent["epsilon"]).all()


def test_the_clients_own_noise_is_used_whatever_the_server_has(federate):
    """A server without privacy parameters gets noisy updates from clients that have them."""
    net = SoftmaxRegression(5, 3)
    plain = FederatedClassifier(
        net,
        selector=RandomSelector(1.0, probability="uniform", replace=False),
        n_rounds=1,
        random_state=0,
    )
    own = FederatedClassifier(net, update_privacy=GaussianMechanism(clip=1.0, noise_multiplier=3.0))
    sent = {}
    for name, at_client in (("plain", plain), ("noisy", own)):
        strategy, grid = federate(plain, at_client=at_client, classes=[0, 1, 2])
        strategy.start(grid)
        received = contents(grid.received, "state-0")
        sent[name] = torch.tensor(
            [float(np.abs(m["module.linear.weight"].numpy()).max()) for m in received]
        )
    assert sent["noisy"].min() > 10 * sent["plain"].max()


def test_a_client_with_noise_sends_no_variate_whatever_the_server_requests(federate):
    """The variate contains the model without the noise."""
    net = SoftmaxRegression(5, 3)
    scaffold = FederatedClassifier(net, aggregator=Scaffold(), n_rounds=1, random_state=0)
    own = FederatedClassifier(net, update_privacy=GaussianMechanism(clip=1.0, noise_multiplier=3.0))
    strategy, grid = federate(scaffold, at_client=own, classes=[0, 1, 2])
    with pytest.raises(RuntimeError, match="update_privacy does not cover SCAFFOLD's variates"):
        strategy.start(grid)
    assert contents(grid.sent, "correction")
    assert not contents(grid.received, "state-0") + contents(grid.received, "variate-0")


def test_a_client_with_noise_sends_no_means_and_variances(federate):
    own = FederatedClassifier(update_privacy=GaussianMechanism(clip=1.0, noise_multiplier=3.0))
    strategy, grid = federate(
        FederatedClassifier(n_rounds=1, random_state=0), at_client=own, classes=[0, 1, 2]
    )
    with pytest.warns(UserWarning, match="no priority client has sent the means and variances"):
        strategy.start(grid)
    assert not contents(grid.received, "moments")
    assert not strategy.model_.net_.module_.standardize.mean.any()
    assert strategy.model_.history_["scalars_up"].tolist() == [0]


@pytest.mark.parametrize("name", ["update_privacy", "loss_privacy"])
def test_labels_are_not_sent_without_noise(federate, name):
    """The server must be given them; a client with privacy refuses to send them."""
    params = {"n_rounds": 1, "random_state": 0}
    private = FederatedClassifier(**params, **{name: GaussianMechanism()})
    with pytest.raises(ValueError, match="classes=None requests the labels"):
        federate(private)
    strategy, grid = federate(FederatedClassifier(**params), at_client=private, timeout=0.1)
    with pytest.raises(ValueError, match=r"does not cover the labels.*classes="):
        strategy.start(grid)
    assert not contents(grid.received, "info")
    strategy, grid = federate(private, classes=[0, 1, 2])
    strategy.start(grid)
    infos = contents(grid.received, "info")
    assert len(infos) == 6 and not any("classes" in info for info in infos)


def test_a_regressor_with_privacy_has_no_labels(federate):
    private = FederatedRegressor(n_rounds=1, loss_privacy=GaussianMechanism(), random_state=0)
    strategy, grid = federate(private)
    strategy.start(grid)
    assert strategy.model_.n_rounds_ == 1


def test_the_servers_noise_is_not_added_to_the_clients(federate):
    """The model is the weighted mean of what was sent."""
    noise = GaussianMechanism(clip=1.0, noise_multiplier=1.0)
    private = FederatedClassifier(
        selector=RandomSelector(1.0, probability="uniform", replace=False),
        update_privacy=noise,
        n_rounds=1,
        random_state=0,
    )
    strategy, grid = federate(private, classes=[0, 1, 2])
    strategy.start(grid)
    sent = contents(grid.received, "state-0")
    name_of = {m.metadata.message_id: m.content["request"].get("client") for m in grid.sent}
    by_name = {
        name_of[r.metadata.reply_to_message_id]: r.content["state-0"][
            "module.linear.weight"
        ].numpy()
        for r in grid.received
        if "state-0" in r.content
    }
    assert len(sent) == 6
    model = strategy.model_
    shares = dict(zip(model.clients_.tolist(), model.fractions_.tolist(), strict=True))
    mean = sum(shares[name] * weight for name, weight in by_name.items())
    np.testing.assert_allclose(
        model.net_.module_.linear.weight.detach(), mean, rtol=1e-5, atol=1e-6
    )


def ask(node, request, message_type="query.skfed_poll", **records):
    """Return the content of a node's reply to a request."""
    message = Message(RecordDict({"request": ConfigRecord(request), **records}), 1, message_type)
    message.metadata.__dict__["_message_id"] = "x"
    return node.app(message, node.context).content


def test_a_silent_client_does_not_send_its_loss_at_a_higher_bound(polled):
    _, grid = polled
    request = dict(next(r for r in requests(grid.sent, "poll") if "at_most" in r))
    for node in grid.nodes.values():
        poll = node.context.state.get("skfed.held current")
        if poll is not None and poll["silent"]:
            last = request | {"client": node.config["client-name"], "round": poll["round"]}
            without = {key: value for key, value in last.items() if key != "at_most"}
            for again in (without, last | {"at_most": 99.0}, last | {"at_most": float("nan")}):
                content = ask(node, again)
                assert "it was silent in this round" in content["failure"]["message"]
            assert not ask(node, last | {"at_most": 0.0})
            return
    pytest.fail("nobody was silent in the last round")


def test_a_loss_that_is_not_finite_is_above_every_bound(polled):
    """The client is silent, also later in this round."""
    _, grid = polled
    node = grid.nodes[10]
    request = next(r for r in requests(grid.sent, "poll") if "at_most" in r)
    request = {**request, "client": node.config["client-name"], "round": 99, "at_most": np.inf}
    zeros = contents(grid.sent, "state")[0]
    state = ArrayRecord({k: Array(np.full_like(a.numpy(), np.nan)) for k, a in zeros.items()})
    assert not ask(node, request, state=state)
    request |= {"round": 100, "at_most": 0.5}
    assert not ask(node, request, state=state)
    del request["at_most"]
    content = ask(node, request, state=zeros)
    assert "it was silent in this round" in content["failure"]["message"]
    content = ask(node, request | {"round": 101}, state=state)
    assert "its loss is not finite" in content["failure"]["message"]


def test_silence_in_one_fit_has_no_effect_on_the_next(federate, blobs):
    X, y, clients = blobs
    strategy, grid = federate(FederatedClassifier(**ALIGN, n_rounds=2))
    strategy.start(grid)
    wide = FederatedClassifier(
        **ALIGN | {"selector": FedAlignSelector(eps=np.inf, warmup=1)}, n_rounds=2
    )
    strategy.estimator = wide
    strategy.start(grid)
    cohorts = wide.fit(X, y, clients=clients).history_["cohort"]
    assert strategy.model_.history_["cohort"].tolist() == cohorts.tolist()
