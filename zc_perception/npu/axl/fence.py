"""The fence of an axl job: its error is the driver's errno, explained."""

from __future__ import annotations

from collections.abc import Callable

from zc_perception.errors import AcceleratorError
from zc_perception.memory.fence import SyncFile
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.npu.axl.errors import AxlError


class JobFence(SyncFile):
    """A sync_file of the driver.

    :param explain: makes the exception for the errno that the job ended with; asked only when one did.
    :param seqno: the driver's number of the job; 0: it didn't say.
    """

    def __init__(self, fd: OwnedFd, explain: Callable[[int], AxlError], seqno: int = 0) -> None:
        super().__init__(fd)
        self.seqno = seqno
        self._explain = explain

    def check(self) -> None:
        """See :class:`Fence`.

        :raises AcceleratorError: it has not signalled.
        :raises AxlTimeoutError: the job was not done in time.
        :raises DeviceLostError: the card is gone.
        :raises AxlError: any other errno of the driver.
        """
        try:
            super().check()
        except AcceleratorError:
            status = self.info().status
            if status >= 0:
                raise
            raise self._explain(-status) from None
