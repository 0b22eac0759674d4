"""
The kernel rig: a real Linux kernel with real dma-bufs, in QEMU, without KVM and without root.

    from rig import Rig
    result = Rig().run(["/usr/bin/python3", "-I", "script.py"], timeout=120, out_dir=tmp_path)
    result.check()

``test/`` must be on ``sys.path``, for this package and for ``environment``, which fetches the
kernel.
"""

from .errors import RigError, RigUnavailable
from .machine import RigResult
from .rig import Rig

__all__ = ['Rig', 'RigError', 'RigResult', 'RigUnavailable']
