"""Power-of-choice on images: a Dirichlet partition, 784-64-30-10 with dropout."""

from functools import partial

from skorch import NeuralNetClassifier
from torch import nn

from benchmarks.papers.claims import (
    POINTS,
    Bound,
    Claim,
    Direction,
    Equal,
    Figure,
    final_gain,
    gain_over,
    ratio_to,
)
from benchmarks.runs.problems import dirichlet, redrawn_dirichlet
from benchmarks.runs.settings import Setting
from skfed import ActiveFLSelector, PowerOfChoice, RandomSelector
from skfed.availability import AlternatingHalves
from skfed.modules import MLP
from skfed.schedules import StepDecay

LR, LOWER_LR = 0.005, 0.0005  # the paper's, and a reproduction's
LOWEST_LR = 0.00025  # random selection then takes hundreds of rounds, as in the paper
# Found by random selection alone (calibration.md). One rate for all alphas, as in the paper: those
# found for each alpha differ by little more than the standard error of the rounds, and Figure 8 has
# an alpha that was not calibrated.
CALIBRATED_LR = 0.0003
CALIBRATION = (
    f"{CALIBRATED_LR:g} was calibrated on random selection alone, at C=0.1 and on other partitions "
    "(calibration.md). With it random selection needs roughly the paper's rounds to 60%; the "
    "numbers are in *the absolute figures of its tables*."
)
N_ROUNDS = 400
RAND, AFL = "rand", "afl"
RAND_10 = "rand, C=0.1"


def powd(d: int) -> str:
    return f"pow-d, d={d}"


def cpowd(d: int) -> str:
    return f"cpow-d, d={d}"


def rpowd(d: int) -> str:
    return f"rpow-d, d={d}"


def strategies(m: int, n_clients: int) -> dict[str, dict]:
    """Return the strategies at m clients a round, d being 2, 3 and 5 m, or K/2 for rpow-d."""
    return {
        RAND: {"selector": RandomSelector(m)},
        **{powd(d): {"selector": PowerOfChoice(d, m)} for d in (2 * m, 3 * m, 5 * m)},
        cpowd(2 * m): {"selector": PowerOfChoice(2 * m, m, loss="batch")},
        rpowd(n_clients // 2): {"selector": PowerOfChoice(n_clients // 2, m, loss="reported")},
        AFL: {"selector": ActiveFLSelector(m)},
        RAND_10: {"selector": RandomSelector(n_clients // 10)},
    }


def perceptron(lr: float, batch_size: int) -> NeuralNetClassifier:
    """Return 784-64-30-10, dropout after the second hidden layer, SGD with weight decay."""
    return NeuralNetClassifier(
        MLP,
        module__n_features=784,
        module__hidden=(64, 30),
        module__n_classes=10,
        module__dropout=0.5,
        criterion=nn.CrossEntropyLoss,
        optimizer__weight_decay=1e-4,
        lr=lr,
        batch_size=batch_size,
    )


def fashion_mnist(
    alpha: float,
    lr: float,
    *,
    m: int = 3,
    batch_size: int = 64,
    tau: int = 30,
    intermittent: bool = False,
    redrawn: bool = False,
) -> Setting:
    """Return Fashion-MNIST, K=100; the learning rate is halved at rounds 150 and 300.

    With ``redrawn`` each seed has a partition of its own.
    """
    problem = redrawn_dirichlet if redrawn else dirichlet
    availability = AlternatingHalves(removed=0.1) if intermittent else None
    name = f"pow-fashion-mnist-alpha{alpha:g}-lr{lr:g}-m{m}-b{batch_size}-tau{tau}"
    return Setting(
        name=name + "-halves" * intermittent + "-redrawn" * redrawn,
        problem=partial(problem, name="fashion-mnist", n_clients=100, alpha=alpha),
        net=partial(perceptron, lr, batch_size),
        training={
            "local_steps": tau,
            "lr_schedule": StepDecay(lr, 0.5, [150, 300]),
            "availability": availability,
        },
        strategies=strategies(m, 100),
        n_rounds=N_ROUNDS,
        loss_every=20,
    )


def mnist(alpha: float, lr: float) -> Setting:
    """Return EMNIST's set-up on MNIST, K=500, m=15; the learning rate is halved at round 300."""
    return Setting(
        name=f"pow-mnist-alpha{alpha:g}-lr{lr:g}",
        problem=partial(dirichlet, name="mnist", n_clients=500, alpha=alpha),
        net=partial(perceptron, lr, 64),
        training={"local_steps": 30, "lr_schedule": StepDecay(lr, 0.5, [300])},
        strategies=strategies(15, 500),
        n_rounds=N_ROUNDS,
        loss_every=20,
    )


def more_accurate(place: str, strategy: str, points: float, than: str = RAND) -> Claim:
    """Claim that a strategy's final accuracy is higher by ``points``."""
    return Figure(
        words=f"{strategy}: accuracy above {than}'s",
        place=place,
        measure=final_gain(strategy, than, "test_accuracy", 100),
        claimed=points,
        form=POINTS,
        paper=POINTS.format(points),
    )


def higher(place: str, strategy: str, than: str = RAND) -> Claim:
    """Claim that a strategy's final accuracy is higher."""
    return Direction(
        words=f"{strategy}: higher accuracy than {than}",
        place=place,
        measure=final_gain(strategy, than, "test_accuracy", 100),
        form=POINTS,
        paper="higher",
    )


def as_good(place: str, strategy: str, than: str) -> Claim:
    """Claim that two strategies have the same final accuracy."""
    return Equal(
        words=f"{strategy}: as accurate as {than}",
        place=place,
        measure=final_gain(strategy, than, "test_accuracy", 100),
        tolerance=1.0,
        form=POINTS,
        paper="equal",
    )


def faster(place: str, strategy: str, than: str) -> Claim:
    """Claim that a strategy's accuracy rises faster: its mean over the rounds is higher."""
    return Direction(
        words=f"{strategy}: accuracy above {than}'s, mean over all rounds",
        place=place,
        measure=gain_over(strategy, than, "test_accuracy", 0, 1, 100),
        form=POINTS,
        paper="faster",
    )


def faster_loss(place: str, strategy: str, than: str = RAND) -> Claim:
    """Claim that a strategy's training loss falls faster: its mean over the rounds is lower."""
    return Direction(
        words=f"{strategy}: training loss below {than}'s, mean over all rounds",
        place=place,
        measure=gain_over(strategy, than, "global_loss", 0, 1),
        more=False,
        form="{:+.3f}",
        paper="lower",
    )


def fewer_rounds(place: str, strategy: str, share: float, than: str) -> Claim:
    """Claim that a strategy needs a share of another's rounds to reach an accuracy of 60%."""
    return Figure(
        words=f"{strategy}: rounds to 60% over those of {than}",
        place=place,
        measure=ratio_to(strategy, than, "test_accuracy", 0.6),
        claimed=share,
        neutral=1,
        paper=f"{share:.2f}",
    )


def no_more_rounds(strategy: str, share: float, than: str) -> Claim:
    """Require at most a share of another's rounds to reach an accuracy of 60%."""
    return Bound(
        words=f"{strategy}: rounds to 60% over those of {than}",
        measure=ratio_to(strategy, than, "test_accuracy", 0.6),
        limit=share,
        paper=f"at most {share}",
    )
