"""The capture node's parameters of cameras, and the camera that they describe.

Which kinds there are is in :mod:`zc_perception.camera.kinds`; each reads its own parameters in its class method ``open``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from zc_perception.camera.camera import Camera, CameraOptions
from zc_perception.camera.kinds import CAMERAS
from zc_perception.negotiation.constraints import BufferConstraints


class CameraFactory:
    """Opens the camera that the parameters describe, as often as it takes.

    :param options: with the node's parameters. Their clock makes all stamps, which so increase over a loss.
    :param consumers: what is known of the frames' consumers now; a pipeline is asked for a format that they accept.
    """

    def __init__(
        self, options: CameraOptions, consumers: Callable[[], Sequence[BufferConstraints]] = tuple
    ) -> None:
        self._options = options
        self._consumers = consumers
        self._before: Camera | None = None

    def _kind(self) -> type[Camera]:
        return CAMERAS.load(self._options.parameters['camera'])

    @property
    def slow(self) -> bool:
        """Whether opening takes so long that nobody should wait for it; :meth:`check` says meanwhile what can't be at all."""
        return self._kind().SLOW

    def check(self) -> None:
        """Look at what can be known without opening anything.

        :raises ConfigError: the parameters don't go together, or name a pipeline that can't be made.
        """
        kind = self._kind()
        kind.check(self._options.parameters)
        kind.try_out(self._options)

    def open(self, identity: str) -> Camera:
        """Open it.

        :param identity: that of the camera which was lost, to look for where it is now; empty: whatever the parameters name.
        :raises ConfigError: the parameters don't go together.
        :raises CameraError: it can't be opened now.
        """
        kind = self._kind()
        kind.check(self._options.parameters)
        before, self._before = self._before, None
        options = replace(
            self._options, consumers=tuple(self._consumers()), identity=identity, before=before
        )
        self._before = kind.open(options)
        return self._before

    def close(self) -> None:
        """No camera is opened any more, or not soon: end what waits for the next one."""
        before, self._before = self._before, None
        if before is not None:
            before.close_rest()
