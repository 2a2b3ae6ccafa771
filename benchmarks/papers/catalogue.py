"""All experiments by name, one module each."""

from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from benchmarks.papers import fedalign, power_of_choice
from benchmarks.papers.experiment import Experiment


def experiments() -> dict[str, Experiment]:
    """Return all experiments: ``fedalign/fig1.py`` is "fedalign-fig1"."""
    found = {}
    for paper in (fedalign, power_of_choice):
        short = paper.__name__.rpartition(".")[2]
        modules = [m.name for m in iter_modules(paper.__path__) if not m.name.startswith("_")]
        for module in sorted(modules, key=_place):
            name = f"{short}-{module}".replace("_", "-")
            found[name] = import_module(f"{paper.__name__}.{module}").EXPERIMENT
    return found


def _place(module: str) -> tuple[bool, int, str]:
    """Return a sort key: figures by number, each before its variants; then tables and others."""
    return not module.startswith("fig"), len(module.partition("_")[0]), module


def shortened(
    experiment: Experiment, n_seeds: int | None, n_rounds: int | None, thin: int = 1
) -> Experiment:
    """Return an experiment with other numbers of seeds and rounds; None keeps them.

    ``thin`` > 1 keeps one row and one local step in ``thin``, and renames the tables.
    """
    panels, is_shortened = [], thin > 1 or (n_seeds or experiment.n_seeds) < experiment.n_seeds
    for panel in experiment.panels:
        setting = panel.setting
        if n_rounds is not None:
            is_shortened |= n_rounds < setting.n_rounds
            setting = replace(setting, n_rounds=n_rounds)
        if thin > 1:
            steps = -(-setting.training["local_steps"] // thin)
            training = {**setting.training, "local_steps": steps}
            name = f"{setting.name}-thin{thin}"
            setting = replace(setting, name=name, training=training, thin=thin)
        panels.append(replace(panel, setting=setting))
    n_seeds = experiment.n_seeds if n_seeds is None else n_seeds
    return replace(experiment, panels=panels, n_seeds=n_seeds, is_shortened=is_shortened)
