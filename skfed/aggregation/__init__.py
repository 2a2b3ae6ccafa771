"""How the updates of a cohort become the next global model."""

from skfed.aggregation._mean import aggregate_mean

__all__ = ["aggregate_mean"]
