"""The capture node's parameters of cameras, and the camera that they describe.

Which kinds there are is in :mod:`zc_perception.camera.kinds`; each reads its own parameters in its class method ``open``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zc_perception.camera.camera import Camera, CameraOptions
from zc_perception.camera.kinds import CAMERAS
from zc_perception.camera.pattern import PATTERNS
from zc_perception.camera.replay.source import STAMPS
from zc_perception.errors import ConfigError
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.parameters import ParameterSpec

_ARGUS_HEAP = 'nvbufsurface'
CAMERA_SPECS = (
    ParameterSpec('camera', 'synthetic', 'Kind of camera.', choices=tuple(CAMERAS.built_in),
                  other_choices=lambda: CAMERAS.others),
    ParameterSpec('width', 0, "Picture width. 0: the camera's own (synthetic: 640).", 'px', 0, 8192, even=True),
    ParameterSpec('height', 0, "Picture height. 0: the camera's own (synthetic: 360).", 'px', 0, 8192, even=True),
    ParameterSpec('framerate', 0.0, "Frames per second. 0: the camera's own (synthetic: 30).", 'Hz', 0.0, 1000.0),
    ParameterSpec('frame_id', 'camera_optical_frame', 'The frame_id of every message header.'),
    ParameterSpec('seed', 0, 'synthetic: number of the scene. The same number gives the same scene.', '', 0, 2**31 - 1),
    ParameterSpec('palette', 'all', 'synthetic: which colours the objects have.', choices=('all', 'train', 'held_out')),
    ParameterSpec('pattern', 'road', 'synthetic: the road scene, colour bars, or a frame counter with a time code in the pixels.',
                  choices=PATTERNS),
    ParameterSpec('device', '/dev/video0', 'v4l2: device node. After a loss the same camera is looked for, wherever it is plugged in.'),
    ParameterSpec('input', -1, "v4l2: which of the device's inputs (HDMI, SDI, …). -1: the input is not changed.", '', -1, 63),
    ParameterSpec('pixel_format', 'auto', "v4l2: the driver's fourcc, such as NV12, YUYV, MJPG. auto: the cheapest that suits all and "
                  'keeps the framerate. replay: the format of a .yuv file, such as I420.'),
    ParameterSpec('memory', 'auto', "v4l2: export: the driver's own buffers. import: the driver fills buffers from parameter heap.",
                  choices=('auto', 'export', 'import')),
    ParameterSpec('silent', 0.0, 'A camera counts as lost after this time without a good frame. 0: the time of 10 frames, at least 2 s '
                  '(gstreamer, argus, libcamera: at least 5 s).', 's', 0.0, 3600.0),
    ParameterSpec('video', '', 'replay: path or file:// URL of a video, a folder of pictures, a .nv12 or '
                  '.yuv file, a rosbag2 recording or a .zcr file. ~ and $NAME are replaced.'),
    ParameterSpec('loop', True, 'replay: start again when the end is reached.'),
    ParameterSpec('keep_all', False, 'replay: every frame exactly once, as fast as consumers take them. It overrides loop. Set it '
                  'for inference too.'),
    ParameterSpec('replay_topic', '', 'replay: topic of a rosbag2 recording. Empty: the only topic with pictures.'),
    ParameterSpec('replay_rate', 1.0, 'replay: speed, as a multiple of the recorded speed.', '', 0.01, 100.0),
    ParameterSpec('replay_start', 0.0, 'replay: this much time at the beginning is left out.', 's', 0.0, 1e6),
    ParameterSpec('stamps', 'now', 'replay: stamps of frames. now: the time of the replay. recorded: the recorded ones.', choices=STAMPS),
    ParameterSpec('pipeline', '', 'gstreamer, argus: the pipeline as for gst-launch-1.0, without a sink. argus: if empty, its own.'),
    ParameterSpec('pipeline_buffers', 8, 'gstreamer, argus, libcamera: number of buffers of the pipeline.', '', 3, 32),
    ParameterSpec('assume_linear', False, 'gstreamer: treat old memory:DMABuf caps, which do not name the layout, as LINEAR.'),
    ParameterSpec('sensor_id', 0, 'argus: number of the sensor.', '', 0, 63),
    ParameterSpec('sensor_mode', -1, 'argus: number of the sensor mode. -1: Argus chooses.', '', -1, 63),
    ParameterSpec('libcamera_id', '', "libcamera: the camera's id, a part of it, or its number. Empty: the only camera."),
    ParameterSpec('require_dmabuf', False, 'gstreamer: refuse a pipeline whose frames would have to be copied.'),
    ParameterSpec('heap', 'auto', 'Where buffers come from: auto, dma_heap/NAME, udmabuf or memfd. auto: the first that works here and '
                  'suits all.'),
)  # fmt: skip


def check_camera(values: Mapping[str, Any]) -> None:
    """What can be known of a camera without opening it, nor a library for it.

    :param values: of :data:`CAMERA_SPECS`.
    :raises ConfigError: they don't go together.
    """
    kind = values['camera']
    if values['keep_all'] and kind != 'replay':
        raise ConfigError(
            f"parameter 'keep_all' is true, but camera '{kind}' never ends; use it with camera: replay"
        )
    if kind != 'argus' and values['heap'] == _ARGUS_HEAP:
        raise ConfigError(
            f"parameter 'heap' is '{_ARGUS_HEAP}', which has memory for whole images only, as camera argus takes them by itself; "
            f"camera '{kind}' needs auto, dma_heap/NAME, udmabuf or memfd"
        )
    if kind == 'gstreamer' and not values['pipeline'].strip():
        raise ConfigError(
            "parameter 'pipeline' is empty; camera gstreamer needs one: 'v4l2src device=/dev/video0 io-mode=dmabuf'"
        )


def check_recording(values: Mapping[str, Any]) -> None:
    """Whether what camera replay is to play is there; opening it says so, too."""
    if values['camera'] == 'replay':
        from zc_perception.camera.replay.place import recording_path

        recording_path(values['video'])


class CameraFactory:
    """Opens the camera that the parameters describe, as often as it takes.

    :param options: with values of :data:`CAMERA_SPECS`. Their clock makes all stamps, which so increase over a loss.
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
        check_camera(self._options.parameters)
        self._kind().check(self._options)

    def open(self, identity: str) -> Camera:
        """Open it.

        :param identity: that of the camera which was lost, to look for where it is now; empty: whatever the parameters name.
        :raises ConfigError: the parameters don't go together.
        :raises CameraError: it can't be opened now.
        """
        check_camera(self._options.parameters)
        before, self._before = self._before, None
        options = replace(
            self._options, consumers=tuple(self._consumers()), identity=identity, before=before
        )
        self._before = self._kind().open(options)
        return self._before

    def close(self) -> None:
        """No camera is opened any more, or not soon: end what waits for the next one."""
        before, self._before = self._before, None
        if before is not None:
            before.close_rest()
