"""The skorch net of an estimator: made, copied, read and written."""

from skfed.nets._convolutions import evaluated_channels_last, pool_before_relu
from skfed.nets._evaluate import evaluate_net, normalized, weighed, weighted_mean
from skfed.nets._inputs import (
    batch_size,
    cast,
    float_dtype,
    set_shift,
    shift_of,
    standardize_layers,
    to_tensors,
    whole,
)
from skfed.nets._make import CLASSIFIER, REGRESSOR, NetSpec, make_net
from skfed.nets._own_code import HOOKS, STEP_METHODS, has_hooks, has_plain_steps, overridden
from skfed.nets._pool import NetPool
from skfed.nets._predict import output_of, predict, predict_log
from skfed.nets._state import (
    LINEAR_ATTRIBUTES,
    State,
    add_to_gradients,
    buffer_names,
    by_member,
    bytes_of,
    get_state,
    group_of_parameters,
    linear_attributes,
    model_bytes,
    moved,
    named_tensors,
    parameter_names,
    set_state,
)

__all__ = [
    "CLASSIFIER",
    "HOOKS",
    "LINEAR_ATTRIBUTES",
    "REGRESSOR",
    "STEP_METHODS",
    "NetPool",
    "NetSpec",
    "State",
    "add_to_gradients",
    "batch_size",
    "buffer_names",
    "by_member",
    "bytes_of",
    "cast",
    "evaluate_net",
    "evaluated_channels_last",
    "float_dtype",
    "get_state",
    "group_of_parameters",
    "has_hooks",
    "has_plain_steps",
    "linear_attributes",
    "make_net",
    "model_bytes",
    "moved",
    "named_tensors",
    "normalized",
    "output_of",
    "overridden",
    "parameter_names",
    "pool_before_relu",
    "predict",
    "predict_log",
    "set_shift",
    "set_state",
    "shift_of",
    "standardize_layers",
    "to_tensors",
    "weighed",
    "weighted_mean",
    "whole",
]
