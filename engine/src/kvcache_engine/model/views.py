"""What the layers of one component share in one forward: where its pages or states are, and which tokens they belong to.

A view is made by whoever pads the batch. It says nothing about requests: page numbers and slots are all there is.
"""

from typing import NamedTuple

import jax


class PageView(NamedTuple):
    """Pages of one component. int32 unless said otherwise; B rows, T new tokens, P pages a row.

    `cos`, `sin`: float32 [B, T, rotated / 2]. `positions`, `pages`, `slots`: [B, T]; `pages` is out of range where a token is
    padding. `kv_lengths`: [B], tokens a row has after this forward. `page_table`: [B, P]; `first`: [B], the position of the first
    token of a row's first page there: a window's table begins where the window does.
    """

    cos: jax.Array
    sin: jax.Array
    positions: jax.Array
    pages: jax.Array
    slots: jax.Array
    kv_lengths: jax.Array
    page_table: jax.Array
    first: jax.Array


class StateView(NamedTuple):
    """States of one component; all [B]. A row's state is read from slot `source` and written to slot `target`, which is out of
    range for padding. `lengths`: int32, how many of the T new tokens are real. `fresh`: bool, the row starts without a past."""

    source: jax.Array
    target: jax.Array
    lengths: jax.Array
    fresh: jax.Array
