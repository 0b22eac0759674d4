"""What can go wrong in the rig, as two exceptions that callers tell apart."""

from __future__ import annotations

import os
import sys

#: The exit status that test runners (Automake, Meson) know as "skipped".
RC_UNAVAILABLE = 77


class RigUnavailable(Exception):
    """
    This machine cannot run the rig: QEMU, a compiler or the kernel packages are missing.

    Tests turn it into a skip, or into an error when ``ZC_RIG=required``; it is never a pass.
    """


class RigError(Exception):
    """The rig itself failed: the module did not build, the guest did not come up."""


def tell(error: RigUnavailable | RigError) -> int:
    """
    Say why a program of the rig ends; return its exit code.

    That there is no rig is an error only where it is required.
    """
    absent = isinstance(error, RigUnavailable)
    print(f'rig: {"not run" if absent else "error"}: {error}', file=sys.stderr)
    return RC_UNAVAILABLE if absent and os.environ.get('ZC_RIG') != 'required' else 1
