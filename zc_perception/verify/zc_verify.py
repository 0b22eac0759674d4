"""
Start ``zc_verify``: check whether running nodes keep the four invariants.

The nodes run already, or a command starts them. See
:mod:`~zc_perception.verify.verification`, which is imported when a signal can't hurt any more.
"""

from __future__ import annotations

from collections.abc import Sequence
import sys

from zc_perception.terminal import ending_quietly


def main(words: Sequence[str] | None = None) -> int:
    """Run ``zc_verify``; return its exit status."""
    with ending_quietly('zc_verify'):
        from zc_perception.programs import start
        from zc_perception.verify import verification

        return start(verification.parser(), verification.run, words)


if __name__ == '__main__':
    sys.exit(main())
