"""The one exception of the set-up."""

from __future__ import annotations


class SetupError(RuntimeError):
    """
    The set-up cannot go on.

    The message says what is missing or failed, and what to do about it.
    """
