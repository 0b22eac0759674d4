"""Where this installation has its pages, parameter files and examples, which messages name."""

from __future__ import annotations

import functools
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@functools.cache
def share_folder() -> Path | None:
    """
    Return the source tree, or the installation's ``share/zc_perception``.

    It is found from the code's own place: sudo removes the environment. ``None``: the code was
    copied alone.
    """
    shares = (folder / 'share' / _PACKAGE.name for folder in _PACKAGE.parents)
    for folder in (_PACKAGE.parent, *shares):
        if (folder / 'package.xml').is_file():
            return folder
    return None


def shipped_file(name: str) -> str:
    """
    Return the path of a file in ``config/``, ``docs/`` or ``examples/``.

    It is for a message, or to read the file.

    :param name: its path in the repository. Without a share folder the answer is this name.
    """
    folder = share_folder()
    return name if folder is None else str(folder / name)
