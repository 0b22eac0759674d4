"""Where a capture device's picture comes from: its input, the signal there, and the event that tells of another one.

Sources: the kernel's *Video Inputs and Outputs*, *Digital Video (DV) Timings* (query, set, and only then choose a format),
*VIDIOC_DQEVENT* (V4L2_EVENT_SOURCE_CHANGE). A plain camera has none of this, and its driver says so with ENOTTY.
"""

from __future__ import annotations

import ctypes
import errno

from zc_perception.camera.v4l2 import control_abi as abi
from zc_perception.camera.v4l2.device import V4l2Device
from zc_perception.camera.v4l2.file import V4l2Error
from zc_perception.errors import CameraError, CameraLostError

_NONE = (errno.ENOTTY, errno.EINVAL, errno.ENODATA)
_NO_SIGNAL = (errno.ENOLINK, errno.ENOLCK, errno.ERANGE)


class V4l2Signal:
    """The input of an opened device.

    :param wanted: number of the input to switch to; ``None`` leaves it.
    :raises CameraError: there is no such input.
    """

    def __init__(self, device: V4l2Device, wanted: int | None = None) -> None:
        self._device = device
        self._input = self._select(wanted)
        self._set: bytes | None = None

    def _select(self, wanted: int | None) -> abi.Input | None:
        number = ctypes.c_int(0 if wanted is None else wanted)
        name, request = ('G_INPUT', abi.VIDIOC_G_INPUT) if wanted is None else ('S_INPUT', abi.VIDIOC_S_INPUT)
        argument = abi.Input()
        try:
            self._device.call(name, request, number)
            argument.index = number.value
            self._device.call('ENUMINPUT', abi.VIDIOC_ENUMINPUT, argument)
        except V4l2Error as error:
            if wanted is None and error.number in _NONE:
                return None
            if error.number in _NONE:
                names = ', '.join(self._names()) or 'none that can be chosen'
                raise CameraError(f"'{self._device.path}' has no input {wanted}; it has {names}; set parameter 'input'") from error
            raise
        return argument

    def _names(self) -> list[str]:
        argument, found = abi.Input(), []
        for index in range(64):
            argument.index = index
            try:
                self._device.call('ENUMINPUT', abi.VIDIOC_ENUMINPUT, argument)
            except V4l2Error:
                break
            found.append(f'{index} ({argument.name.decode(errors="replace")})')
        return found

    @property
    def name(self) -> str:
        """The input's name, empty where there is no choice."""
        return '' if self._input is None else self._input.name.decode(errors='replace')

    def follow(self) -> None:
        """Set the device to what comes in: timings for HDMI and SDI, the standard for analogue. Before the format is chosen.

        :raises CameraLostError: no signal.
        """
        if self._input is None:
            return
        if self._input.capabilities & abi.IN_CAP_DV_TIMINGS:
            timings = self._query()
            if timings is not None:
                self._set = bytes(timings)
                try:
                    self._device.call('S_DV_TIMINGS', abi.VIDIOC_S_DV_TIMINGS, timings)
                except V4l2Error as error:
                    raise CameraError(
                        f"'{self._device.path}': it can't take the {timings.words[0]}x{timings.words[1]} signal at input '{self.name}' "
                        f'({error}); set the source to another mode'
                    ) from error
        elif self._input.capabilities & abi.IN_CAP_STD:
            standard = ctypes.c_uint64()
            if self._asked('QUERYSTD', abi.VIDIOC_QUERYSTD, standard):
                if not standard.value:
                    raise self._no_signal('no standard')
                # Several bits: it can't tell them apart, and the standard in force may be any of them.
                if standard.value & (standard.value - 1) == 0:
                    self._device.call('S_STD', abi.VIDIOC_S_STD, standard)

    def _query(self) -> abi.DvTimings | None:
        timings = abi.DvTimings()
        return timings if self._asked('QUERY_DV_TIMINGS', abi.VIDIOC_QUERY_DV_TIMINGS, timings) else None

    def _asked(self, name: str, request: int, argument: abi.DvTimings | ctypes.c_uint64) -> bool:
        """Whether the driver can tell."""
        try:
            self._device.call(name, request, argument)
        except V4l2Error as error:
            if error.number in _NO_SIGNAL:
                raise self._no_signal(errno.errorcode[error.number]) from error
            if error.number in _NONE:
                return False
            raise
        return True

    def _no_signal(self, detail: str) -> CameraLostError:
        return CameraLostError(f"'{self._device.path}': no signal at input '{self.name}' ({detail}); look at its cable and source")

    def changed(self) -> str | None:
        """What comes in now, if that isn't what the device was set to; ``None`` when it is the same again: the signal was only away.

        :raises CameraLostError: no signal.
        """
        if self._input is None or not self._input.capabilities & abi.IN_CAP_DV_TIMINGS:
            return 'another format'
        timings = self._query()
        if timings is None:
            return 'another format'
        if bytes(timings) == self._set:
            return None
        return f'{timings.words[0]}x{timings.words[1]} at input {self.name!r}'

    def subscribe(self) -> bool:
        """Ask for source-change events; whether the driver has them."""
        wanted = abi.EventSubscription(type=abi.EVENT_SOURCE_CHANGE, id=0 if self._input is None else self._input.index)
        try:
            self._device.call('SUBSCRIBE_EVENT', abi.VIDIOC_SUBSCRIBE_EVENT, wanted)
        except V4l2Error:
            return False
        return True

    def source_changed(self) -> bool:
        """Take all events that wait; whether one of them says that the picture's size or format changed."""
        found = False
        while True:
            event = abi.Event()
            try:
                self._device.call('DQEVENT', abi.VIDIOC_DQEVENT, event)
            except V4l2Error as error:
                if error.number in (errno.ENOENT, *_NONE):
                    return found
                raise
            found |= event.type == abi.EVENT_SOURCE_CHANGE and bool(event.u.src_change & abi.EVENT_SRC_CH_RESOLUTION)
            if not event.pending:
                return found
