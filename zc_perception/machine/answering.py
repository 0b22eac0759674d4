"""The other side of :func:`~zc_perception.machine.asking.ask`: ``python -m …answering DESCRIPTOR MODULE:FUNCTION [ARGUMENT ...]``.

The function runs alone in its process, so that it may load what it likes.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Write the answer to the descriptor, and end without what libraries do at exit."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    number, (module, _, name) = int(arguments[0]), arguments[1].partition(':')
    os.set_inheritable(number, False)
    answer = getattr(importlib.import_module(module), name)(*arguments[2:])
    with open(number, 'wb') as out:
        out.write(json.dumps(answer).encode() + b'\n')
    sys.stderr.flush()
    os._exit(0)


if __name__ == '__main__':
    main(sys.argv[1:])
