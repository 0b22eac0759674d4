"""Calls of services whose server has only just heard of the client.

``wait_for_service`` tells that the client knows the server. The middleware gives an answer up whose reader the server doesn't know within
100 ms ("failed to send response"), which a machine that is busy elsewhere may take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.node import Node

_PATIENCE_S = 10.0


def wait_until_known(client: Any, caller: Node, server: Node, timeout_s: float = 60.0) -> None:
    """Until each knows the other; the server is in this process."""
    assert client.wait_for_service(timeout_s), client.srv_name
    deadline = time.monotonic() + timeout_s
    while server.count_clients(client.srv_name) < caller.count_clients(client.srv_name):
        assert time.monotonic() < deadline, f'{client.srv_name}: its server does not see the client'
        time.sleep(0.005)


def answer_of(client: Any, request: Any, wait: Callable[[Any, float], bool], timeout_s: float = 60.0) -> Any:
    """The answer of a server in another process to a call that may be made twice.

    :param wait: whether a future is done within so many seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        future = client.call_async(request)
        if wait(future, _PATIENCE_S):
            return future.result()
        assert time.monotonic() < deadline, f'{client.srv_name}: no answer within {timeout_s:g} s'
