"""The other side of :func:`~zc_perception.doctor.asking.ask`: ``python -m …answers DESCRIPTOR QUESTION [ARGUMENT ...]``.

Each question is a function that returns what can be written as JSON. It runs alone in its process, so that it may load what it likes.
ROS is looked up by name, so that this module needs none.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
#: Who answers what: module and function.
QUESTIONS = {
    'gstreamer': 'gstreamer_answers:describe_gstreamer',
    'pipeline': 'gstreamer_answers:try_pipeline',
    'libcamera': 'library_answers:describe_libcamera',
    'voyager': 'library_answers:describe_voyager',
    'nvbufsurface': 'library_answers:describe_nvbufsurface',
    'vic': 'library_answers:describe_vic',
    'ros': 'ros_answers:describe_ros',
    'parameters': 'ros_answers:check_parameters',
    'recording': 'recording_answers:try_recording',
    'model': 'model_answers:try_model',
}


def answer_to(question: str, *arguments: str) -> dict[str, Any]:
    """Call the function that knows."""
    module, _, name = QUESTIONS[question].partition(':')
    function: Callable[..., dict[str, Any]] = getattr(importlib.import_module(f'zc_perception.doctor.{module}'), name)
    return function(*arguments)


def main(arguments: list[str]) -> None:
    """Write the answer to the descriptor, and end without what libraries do at exit."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    number, question = int(arguments[0]), arguments[1]
    os.set_inheritable(number, False)
    answer = json.dumps(answer_to(question, *arguments[2:])).encode()
    with open(number, 'wb') as out:
        out.write(answer + b'\n')
    sys.stderr.flush()
    os._exit(0)


if __name__ == '__main__':
    main(sys.argv[1:])
