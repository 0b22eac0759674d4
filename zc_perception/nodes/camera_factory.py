"""From parameters to a camera.

Each kind is imported when it is wanted: together they are a tenth of what a start spends on importing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zc_perception.camera.camera import Camera
from zc_perception.camera.clock import StampClock
from zc_perception.camera.pattern import PATTERNS
from zc_perception.camera.replay.source import STAMPS
from zc_perception.camera.synthetic import DEFAULT_FRAMERATE, DEFAULT_SIZE, SyntheticCamera
from zc_perception.errors import ConfigError
from zc_perception.memory.heaps import OfferedHeaps, working_heaps
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.params.spec import ParameterSpec

if TYPE_CHECKING:
    from zc_perception.camera.gstreamer.camera import GStreamerCamera
    from zc_perception.camera.gstreamer.continuation import Continuation

# Of pipelines, which may take long to start.
_SILENT_S = 5.0
_SILENT_FRAMES = 10
CAMERAS = ('synthetic', 'replay', 'v4l2', 'gstreamer', 'argus', 'libcamera')
# Their first frame may take seconds, or never come.
_SLOW = ('gstreamer', 'argus')
_ARGUS_HEAP = 'nvbufsurface'
CAMERA_SPECS = (
    ParameterSpec('camera', 'synthetic', 'Kind of camera.', choices=CAMERAS),
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
                  'keeps the framerate.'),
    ParameterSpec('memory', 'auto', "v4l2: export: the driver's own buffers. import: the driver fills buffers from parameter heap.",
                  choices=('auto', 'export', 'import')),
    ParameterSpec('silent', 0.0, 'A camera counts as lost after this time without a good frame. 0: the time of 10 frames, at least 2 s '
                  '(gstreamer, argus, libcamera: at least 5 s).', 's', 0.0, 3600.0),
    ParameterSpec('video', '', 'replay: path of a video, a folder of pictures, a .nv12 file, a rosbag2 recording or a .zcr file.'),
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
        raise ConfigError(f"parameter 'keep_all' is true, but camera '{kind}' never ends; use it with camera: replay")
    if kind != 'argus' and values['heap'] == _ARGUS_HEAP:
        raise ConfigError(
            f"parameter 'heap' is '{_ARGUS_HEAP}', which has memory for whole images only, as camera argus takes them by itself; "
            f"camera '{kind}' needs auto, dma_heap/NAME, udmabuf or memfd"
        )
    if kind == 'gstreamer' and not values['pipeline'].strip():
        raise ConfigError("parameter 'pipeline' is empty; camera gstreamer needs one: 'v4l2src device=/dev/video0 io-mode=dmabuf'")


def check_recording(values: Mapping[str, Any]) -> None:
    """Whether what camera replay is to play is there; opening it says so, too.

    :raises ConfigError: it isn't.
    """
    if values['camera'] == 'replay':
        from zc_perception.camera.replay.video import check_file

        check_file(values['video'])


@dataclass
class CameraFactory:
    """Opens the camera that the parameters describe, as often as it takes.

    :param parameters: values of :data:`CAMERA_SPECS`.
    :param now_ns: the ROS clock.
    :param ledger: books what the CPU does to pixels.
    :param clock: makes the stamps of all that it opens, which then increase over a loss; ``None``: each camera has its own.
    :param stopping: whether nobody waits for a camera that is being opened.
    :param consumers: what is known of the frames' consumers now; a pipeline is asked for a format that they accept.
    """

    parameters: Mapping[str, Any]
    now_ns: Callable[[], int]
    ledger: CopyLedger
    clock: StampClock | None = None
    stopping: Callable[[], bool] = lambda: False
    consumers: Callable[[], Sequence[BufferConstraints]] = tuple
    _before: GStreamerCamera | None = None

    @property
    def slow(self) -> bool:
        """Whether opening takes so long that nobody should wait for it; :meth:`check` says meanwhile what can't be at all."""
        return self.parameters['camera'] in _SLOW

    def check(self) -> None:
        """Look at what can be known without opening anything.

        :raises ConfigError: the parameters don't go together, or name a pipeline that can't be made.
        """
        check_camera(self.parameters)
        parameters = self.parameters
        pipeline = parameters['pipeline'].strip()
        if parameters['camera'] == 'argus' and not pipeline:
            from zc_perception.camera.argus import source_description
            from zc_perception.camera.gstreamer.abi import load_gstreamer

            sensor, mode = parameters['sensor_id'], parameters['sensor_mode']
            size = (parameters['width'], parameters['height'])
            pipeline = source_description(load_gstreamer(), sensor, mode, *size, parameters['framerate'], {})
        if self.slow:
            from zc_perception.camera.gstreamer.pipeline import check_description

            check_description(pipeline)

    def open(self, identity: str) -> Camera:
        """Open it.

        :param identity: that of the camera which was lost, to look for where it is now; empty: whatever the parameters name.
        :raises ConfigError: the parameters don't go together.
        :raises CameraError: it can't be opened now.
        """
        parameters = self.parameters
        kind = parameters['camera']
        check_camera(parameters)
        if kind == 'v4l2':
            return self._v4l2(identity)
        if kind in ('gstreamer', 'argus', 'libcamera'):
            return {'gstreamer': self._gstreamer, 'argus': self._argus, 'libcamera': self._libcamera}[kind]()
        heaps = self._heaps()
        try:
            return self._replay(heaps) if kind == 'replay' else self._synthetic(heaps)
        except ValueError as error:
            heaps.close()
            raise ConfigError(str(error)) from error
        except BaseException:
            heaps.close()
            raise

    def _heaps(self) -> OfferedHeaps:
        return working_heaps(self.parameters['heap'])

    def _silent_s(self) -> float:
        """Of pipelines: long enough for so many frames of the rate that is asked for."""
        silent, framerate = float(self.parameters['silent']), float(self.parameters['framerate'])
        return silent or max(_SILENT_S, _SILENT_FRAMES / framerate if framerate else 0.0)

    def _drawn(self, heaps: OfferedHeaps) -> dict[str, Any]:
        return {'frame_id': self.parameters['frame_id'], 'heap': heaps, 'now_ns': self.now_ns, 'clock': self.clock, 'ledger': self.ledger}

    def _v4l2(self, identity: str) -> Camera:
        from zc_perception.camera.v4l2.camera import V4l2Camera
        from zc_perception.camera.v4l2.identity import find_device

        parameters = self.parameters
        # A camera that was plugged in again may have another node.
        path = (find_device(identity) if identity else None) or parameters['device']
        return V4l2Camera(
            path,
            parameters['width'],
            parameters['height'],
            parameters['framerate'],
            parameters['frame_id'],
            now_ns=self.now_ns,
            clock=self.clock,
            memory=parameters['memory'],
            heap=parameters['heap'],
            ledger=self.ledger,
            pixel_format=parameters['pixel_format'],
            input=None if parameters['input'] < 0 else parameters['input'],
            silent_s=parameters['silent'],
        )

    def _resumed(self) -> Continuation | None:
        """The pipeline that the camera before has left running, because its frames changed."""
        before, self._before = self._before, None
        return None if before is None else before.continuation()

    def close(self) -> None:
        """No camera is opened any more, or not soon: end what waits for the next one."""
        resumed = self._resumed()
        if resumed is not None:
            resumed.close()

    def _gstreamer(self) -> Camera:
        from zc_perception.camera.gstreamer.camera import GStreamerCamera

        parameters = self.parameters
        self._before = GStreamerCamera(
            parameters['pipeline'],
            frame_id=parameters['frame_id'],
            now_ns=self.now_ns,
            clock=self.clock,
            ledger=self.ledger,
            open_heap=self._heaps,
            width=parameters['width'],
            height=parameters['height'],
            buffers=parameters['pipeline_buffers'],
            require_dmabuf=parameters['require_dmabuf'],
            stopping=self.stopping,
            assume_linear=parameters['assume_linear'],
            consumers=self.consumers(),
            resumable=True,
            resumed=self._resumed(),
            watchdog_s=self._silent_s(),
        )
        return self._before

    def _argus(self) -> Camera:
        from zc_perception.camera.argus import ArgusCamera

        parameters = self.parameters
        self._before = ArgusCamera(
            parameters['sensor_id'],
            sensor_mode=parameters['sensor_mode'],
            width=parameters['width'],
            height=parameters['height'],
            framerate=parameters['framerate'],
            pipeline=parameters['pipeline'],
            frame_id=parameters['frame_id'],
            now_ns=self.now_ns,
            clock=self.clock,
            ledger=self.ledger,
            stopping=self.stopping,
            consumers=self.consumers(),
            resumable=True,
            resumed=self._resumed(),
            buffers=parameters['pipeline_buffers'],
            watchdog_s=self._silent_s(),
        )
        return self._before

    def _libcamera(self) -> Camera:
        from zc_perception.camera.libcamera import LibcameraCamera

        parameters = self.parameters
        return LibcameraCamera(
            parameters['libcamera_id'],
            width=parameters['width'],
            height=parameters['height'],
            framerate=parameters['framerate'],
            frame_id=parameters['frame_id'],
            now_ns=self.now_ns,
            clock=self.clock,
            buffers=max(3, min(32, parameters['pipeline_buffers'])),
            watchdog_s=self._silent_s(),
        )

    def _replay(self, heaps: OfferedHeaps) -> Camera:
        from zc_perception.camera.replay.camera import ReplayCamera

        parameters = self.parameters
        return ReplayCamera(
            parameters['video'],
            width=parameters['width'],
            height=parameters['height'],
            framerate=parameters['framerate'],
            loop=parameters['loop'],
            keep_all=parameters['keep_all'],
            topic=parameters['replay_topic'],
            rate=parameters['replay_rate'],
            start_s=parameters['replay_start'],
            stamps=parameters['stamps'],
            **self._drawn(heaps),
        )

    def _synthetic(self, heaps: OfferedHeaps) -> Camera:
        parameters = self.parameters
        return SyntheticCamera(
            parameters['width'] or DEFAULT_SIZE[0],
            parameters['height'] or DEFAULT_SIZE[1],
            parameters['framerate'] or DEFAULT_FRAMERATE,
            seed=parameters['seed'],
            palette=parameters['palette'],
            pattern=parameters['pattern'],
            **self._drawn(heaps),
        )
