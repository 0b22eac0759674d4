"""What can go wrong in the rig, as two exceptions that callers tell apart."""

from __future__ import annotations


class RigUnavailable(Exception):
    """This machine cannot run the rig: QEMU, a compiler or the kernel packages are missing.

    Tests turn it into a skip, or into an error when ``ZC_RIG=required``; it is never a pass.
    """


class RigError(Exception):
    """The rig itself failed: the module did not build, the guest did not come up."""
