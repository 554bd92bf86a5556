"""Errors of TensorFlow that are about a lost peer, and those of the user's functions in a graph, which are not."""

from __future__ import annotations

import pytest

from velodrome.errors import PeerLost

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.unit

LOST = "Collective ops is aborted by: Error from /job:worker/task:1: connection refused"
RAISED = """RuntimeError: cannot connect to the label service
Traceback (most recent call last):

  File "/home/me/task.py", line 4, in weigh
    raise RuntimeError("cannot connect to the label service")

RuntimeError: cannot connect to the label service


\t [[{{node PyFunc}}]] at /job:worker/replica:0/task:1
"""


def test_a_function_of_the_users_that_speaks_of_connections_is_no_lost_peer() -> None:
    from velodrome.engines.tensorflow.strategies.cluster import translate_errors

    with pytest.raises(PeerLost, match="a peer: Collective ops is aborted by"), translate_errors(1):
        raise tf.errors.UnavailableError(None, None, LOST)
    with pytest.raises(tf.errors.UnknownError), translate_errors(1):
        raise tf.errors.UnknownError(None, None, RAISED)
