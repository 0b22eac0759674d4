"""Answers of a consumer to its producer, for peers whose frames aren't given back: a socket beside what carries the frames."""

from __future__ import annotations

import contextlib
import select
import socket
import time

from zc_perception.bench.link_roles.role import ANSWER_S

_SIZE = 8


def answered(answers: socket.socket, number: int) -> bool:
    """Wait for the answer to frame *number*, not for ever; ``False``: none came."""
    deadline = time.monotonic() + ANSWER_S
    while select.select([answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
        answer = answers.recv(_SIZE)
        # An earlier frame's is late; without any, the other end has ended.
        if not answer or int.from_bytes(answer, 'little') == number:
            return bool(answer)
    return False


def give_answer(answers: socket.socket, number: int) -> None:
    """Frame *number* is here."""
    with contextlib.suppress(OSError):  # nobody waits for it any more
        answers.send(number.to_bytes(_SIZE, 'little'), socket.MSG_DONTWAIT)
