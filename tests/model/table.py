"""What the model asks of the transition table and the chain, with the answers kept: a walk asks a million times."""

from __future__ import annotations

from functools import cache

from dlpipe.core import flow, states

sources = cache(states.sources)
claimable = cache(states.claimable)
start_target = cache(states.start_target)
is_terminal = cache(states.is_terminal)
startable = cache(flow.startable)
remaining = cache(flow.remaining)
