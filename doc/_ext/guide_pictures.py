"""The pictures of the user guide, drawn when the site is built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from skfed import FederatedClassifier, PowerOfChoice
from skfed.devices import LognormalDevices
from skfed.diagnostics import selection_skew
from skfed.inspection import TimelineDisplay
from skfed.inspection._style import COLOURS, FREE, PRIORITY, STYLE

GREY = "#666666"


def draw_all(folder: Path) -> None:
    """Write an SVG of each picture, unless they are newer than this file."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{name}.svg" for name in PICTURES]
    own = Path(__file__).stat().st_mtime
    if all(path.exists() and path.stat().st_mtime > own for path in made):
        return
    # No date and no random ids: the same picture is the same file.
    settings: Any = STYLE | {"svg.hashsalt": "skfed", "svg.fonttype": "none", "font.size": 10}
    with mpl.rc_context(settings):
        for name, draw in PICTURES.items():
            path = folder / f"{name}.svg"
            draw().savefig(path, metadata={"Date": None}, bbox_inches="tight")


def axes(width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def arrow(ax, start, end, colour=GREY, style="-|>") -> None:
    """Draw an arrow from one point to another."""
    line = {"arrowstyle": style, "color": colour, "lw": 1.4, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=line)


def draw_round() -> Figure:
    """The steps of a round, and what flows between them."""
    figure, ax = axes(8.5, 2.0)
    steps = {
        "poll": "clients tell\ntheir loss",
        "select": "a rule chooses\nthe cohort",
        "train": "the cohort trains\nthe global model",
        "aggregate": "updates make the\nnext global model",
        "record": "models, bytes,\nseconds",
    }
    for i, (step, text) in enumerate(steps.items()):
        box = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": COLOURS[0], "lw": 1.5}
        ax.text(i, 0.55, step, ha="center", va="center", fontsize=12, bbox=box)
        ax.text(i, 0.33, text, ha="center", va="top", color=GREY, fontsize=9)
        if i:
            arrow(ax, (i - 0.64, 0.55), (i - 0.38, 0.55))
    ax.plot([4, 4, 0], [0.72, 1.0, 1.0], color=GREY, lw=1.4)
    arrow(ax, (0, 1.0), (0, 0.74))
    ax.text(2, 1.04, "next round, with the next global model", ha="center", color=GREY)
    ax.set(xlim=(-0.5, 4.5), ylim=(-0.05, 1.15))
    ax.axis("off")
    return figure


def draw_fedalign() -> Figure:
    """Which free clients FedALIGN includes: those within eps of the objective."""
    figure, ax = axes(7, 2.6)
    priority, eps = np.array([0.42, 0.5, 0.58]), 0.2
    free = np.array([0.1, 0.36, 0.63, 0.68, 0.95, 1.2])
    objective = priority.mean()
    ax.axvspan(objective - eps, objective + eps, color=FREE, alpha=0.12, lw=0)
    ax.axvline(objective, color=PRIORITY, lw=1.2, ls="--")
    matched = np.abs(free - objective) < eps
    groups = (
        (priority, 2, PRIORITY, PRIORITY, "priority clients: always train"),
        (free[matched], 1, FREE, FREE, "free clients that match: train too"),
        (free[~matched], 0, "white", GREY, "others: do not train"),
    )
    for losses, y, face, edge, text in groups:
        ax.plot(losses, np.full(len(losses), y), "o", mfc=face, mec=edge, ms=9, mew=1.5)
        ax.text(1.32, y, text, va="center", color=edge)
    ax.text(objective, 2.55, r"$F$", ha="center", color=PRIORITY)
    ax.text(objective - eps, 2.55, r"$F - \epsilon$", ha="center", color=FREE)
    ax.text(objective + eps, 2.55, r"$F + \epsilon$", ha="center", color=FREE)
    ax.text(1.08, 0.3, "above the bound: silent", ha="center", color=GREY, fontsize=8.5)
    ax.text(0.1, 0.3, "sends its loss", ha="center", color=GREY, fontsize=8.5)
    ax.set(xlim=(0, 1.3), ylim=(-0.4, 2.5), xlabel="loss of the global model on a client's rows")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    return figure


def draw_skew() -> Figure:
    """Candidates d against the selection skew, of 20 clients whose losses are spread evenly."""
    figure, ax = axes(6, 3)
    losses = np.linspace(1.0, 2.0, 20)
    for m, colour in ((1, COLOURS[0]), (3, COLOURS[1]), (6, COLOURS[2])):
        d = np.unique([m, 2, 3, 4, 6, 8, 11, 15, 20])
        d = d[d >= m]
        skews = [skew_of(int(k), m, losses) for k in d]
        ax.plot(d, skews, "o-", ms=4, color=colour, label=f"m = {m}")
    ax.axhline(1.0, color=GREY, lw=1, ls=":")
    ax.text(20, 1.02, "random selection", ha="right", va="bottom", color=GREY)
    ax.set(
        xlabel="candidates d", ylabel="selection skew", xticks=[1, 5, 10, 15, 20], ylim=(0.9, 2.05)
    )
    ax.legend(loc="upper left")
    return figure


def skew_of(d: int, m: int, losses: np.ndarray) -> float:
    """Return the skew of power-of-choice, where each client's optimal loss is 1."""
    table = selection_skew(PowerOfChoice(d, m), losses, losses - 1.0, random_state=0)
    return float(table.loc[0, "rho"])


def draw_charges() -> Figure:
    """What goes between the server and four clients in a round of power-of-choice."""
    figure, ax = axes(7.5, 3.4)
    down, up = COLOURS[0], COLOURS[1]
    rows = ["server", "client 1", "client 2", "client 3", "client 4"]
    for y, name in enumerate(rows):
        ax.plot([0, 10], [-y, -y], color="#DDDDDD", lw=1, zorder=0)
        ax.text(-0.15, -y, name, ha="right", va="center")
    for client in (1, 2, 3):
        x = 0.4 + 0.35 * client
        arrow(ax, (x, 0), (x, -client), down)
        arrow(ax, (x + 2.2, -client), (x + 2.2, 0), up, "->")
    for client in (1, 3):
        ax.plot([4.9, 7.1], [-client, -client], color=COLOURS[2], lw=7, solid_capstyle="butt")
        arrow(ax, (7.1 + 0.35 * client, -client), (7.1 + 0.35 * client, 0), up)
    labels = (
        (1.1, "3 models down", down),
        (3.3, "3 numbers up", up),
        (6.0, "2 clients train\nwhat they have", COLOURS[2]),
        (7.9, "2 models up", up),
    )
    for x, text, colour in labels:
        ax.text(x, 0.2, text, ha="center", va="bottom", color=colour)
    ax.text(10.1, -4, "not drawn:\nno charge", ha="left", va="center", color=GREY)
    ax.text(10.1, -2, "polled, not\nchosen", ha="left", va="center", color=GREY)
    ax.set(xlim=(-1.2, 12), ylim=(-4.4, 1.0))
    ax.axis("off")
    return figure


def draw_timeline() -> Figure:
    """A round of pow-d with a deadline: 12 clients of 20 are polled, and 5 of them train."""
    X, y = load_digits(return_X_y=True)
    model = FederatedClassifier(
        selector=PowerOfChoice(d=12, clients_per_round=5),
        devices=LognormalDevices(100, 1e5, 1e4, latency=0.1, rows_sigma=1.0, correlation=0.5),
        deadline=4.0,
        n_rounds=2,
        random_state=1,
    ).fit(X, y, clients=np.arange(len(y)) % 20)
    figure, ax = axes(7.5, 3.4)
    TimelineDisplay.from_estimator(model, round=1, ax=ax)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "round": draw_round,
    "fedalign": draw_fedalign,
    "skew": draw_skew,
    "charges": draw_charges,
    "timeline": draw_timeline,
}
