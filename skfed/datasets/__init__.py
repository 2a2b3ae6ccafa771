"""Data to federate: loaders, generators of synthetic data, and partitioners of rows into clients.

To add one, write a function in a new file here and name it below.
"""

from skfed.datasets._adult import load_adult
from skfed.datasets._cifar10 import load_cifar10
from skfed.datasets._dirichlet import partition_dirichlet
from skfed.datasets._flights import load_flights
from skfed.datasets._held_labels import has_priority_label
from skfed.datasets._mnist import load_fashion_mnist, load_mnist
from skfed.datasets._quadratic import make_quadratic
from skfed.datasets._shards import draw_shards, partition_by_shards
from skfed.datasets._synthetic import make_prioritized_synthetic, make_synthetic
from skfed.datasets._wisdm import load_wisdm

__all__ = [
    "draw_shards",
    "has_priority_label",
    "load_adult",
    "load_cifar10",
    "load_fashion_mnist",
    "load_flights",
    "load_mnist",
    "load_wisdm",
    "make_prioritized_synthetic",
    "make_quadratic",
    "make_synthetic",
    "partition_by_shards",
    "partition_dirichlet",
]
