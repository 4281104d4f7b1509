"""What the kernels of `transition_select` are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wmrt.kernels.triton.arrays import Array, arrays
from wmrt.kernels.triton.formulas import ANY

PARTS_ARRAYS = arrays(
    "token input batch, WIDTH; action input batch, ACTION; step input batch; key weights:key SIZE, "
    "WIDTH; hidden input batch, LSTM; cell state batch, LSTM; work output batch, LSTM;"
    "select_keys state batch, WINDOW, SIZE; lstm_in weights:lstm_in 4 * LSTM, ACTION;"
    "lstm_hidden weights:lstm_hidden 4 * LSTM, LSTM; lstm_bias weights:lstm_bias 2, 4 * LSTM;"
    "key_bias weights:key_bias SIZE; robots input batch"
)
SLOTS_ARRAYS = arrays(
    "work input batch, LSTM; step input batch; select_keys input batch, WINDOW, SIZE;"
    "query weights:query SIZE, LSTM; query_bias weights:query_bias SIZE; cos output batch, HALF;"
    "age_bias weights:age_bias WINDOW; increments weights:increments HALF; sin output batch, HALF;"
    "hidden output batch, LSTM; slots output batch, COUNT + 1; bias output batch, COUNT + 1;"
    "robots input batch"
)
#: What only the kind `learned` reads.
LEARNED = ("select_keys", "query", "query_bias", "age_bias")


def of_some(given: Mapping[str, Array]) -> dict[str, Array]:
    """The same with the state of any number of robots, of whom those in `robots` step."""
    state = given.keys() & {"step", "hidden", "cell", "select_keys"}
    many = {n: replace(given[n], shape=(ANY, *given[n].shape[1:])) for n in state}
    return {**given, **many}
