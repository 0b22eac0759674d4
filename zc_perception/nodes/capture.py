"""``capture_node``: opens a camera, publishes its frames and its ``camera_info``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from rclpy.qos import QoSProfile
from sensor_msgs.msg import CameraInfo, CompressedImage

from zc_perception.camera.camera import Camera
from zc_perception.camera.replay import ReplayCamera
from zc_perception.camera.synthetic import DEFAULT_FRAMERATE, DEFAULT_SIZE, SyntheticCamera
from zc_perception.camera.v4l2 import V4l2Camera
from zc_perception.errors import ConfigError, ZcError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedPublisher, ExtraMessage
from zc_perception.link.image_conversion import OUTPUT_ENCODINGS, FrameToJpeg, frame_adapter, stamp_to_message
from zc_perception.link.shared_memory.codes import MAX_FRAME_ID
from zc_perception.memory.heaps import open_heap
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import SlotState
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.negotiation.stand_in import SYNTAX, parse_stand_ins
from zc_perception.negotiation.token import Consumer
from zc_perception.nodes.camera_buffers import CameraBuffers
from zc_perception.nodes.frame_links import PUBLISHER_SPECS, FrameServer
from zc_perception.nodes.parameters import ParameterSpec
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.observe.diagnostics import DiagnosticsPublisher, Level, Status
from zc_perception.observe.metrics import StageLatencies
from zc_perception.pixel.drm_format import drm_format_string

CAMERAS = ('synthetic', 'replay', 'v4l2')
_KEEP_ALL_DELAY_S = 1.0
_SPECS = (
    ParameterSpec('camera', 'synthetic', 'Kind of camera.', choices=CAMERAS),
    ParameterSpec('width', 0, "Picture width; 0: the camera's own (synthetic: 640).", 'px', 0, 8192),
    ParameterSpec('height', 0, "Picture height; 0: the camera's own (synthetic: 360).", 'px', 0, 8192),
    ParameterSpec('framerate', 0.0, "Frames per second; 0: the camera's own (synthetic: 30).", 'Hz', 0.0, 1000.0),
    ParameterSpec('frame_id', 'camera_optical_frame', 'frame_id of every header.'),
    ParameterSpec('seed', 0, 'synthetic: which scene.', '', 0, 2**31 - 1),
    ParameterSpec('palette', 'all', "synthetic: objects' colours.", choices=('all', 'train', 'held_out')),
    ParameterSpec('device', '/dev/video0', 'v4l2: device node.'),
    ParameterSpec('video', '', 'replay: path of the video file.'),
    ParameterSpec('loop', True, 'replay: start again at the end.'),
    ParameterSpec('keep_all', False, 'replay: every frame exactly once, as fast as consumers take them; overrides loop.'),
    ParameterSpec('start_delay', 0.0, 'Wait before the first frame, for subscribers to match; keep_all: at least 1.', 's', 0.0, 60.0),
    ParameterSpec('heap', 'auto', 'Where buffers come from: auto, dma_heap/NAME, udmabuf, memfd.'),
    ParameterSpec('slots', 8, 'Buffers in the pool, or as many as participants hold together.', '', 3, 64),
    ParameterSpec('participants', [], f"Stand-ins whose constraints count so that they can join later, each '{SYNTAX}', see stand_in.py."),
    ParameterSpec('image_encoding', 'rgb8', 'What plain image_raw subscribers get.', choices=OUTPUT_ENCODINGS),
    ParameterSpec('jpeg_quality', 0, 'image_raw/compressed for those who subscribe to it; 0: not offered.', '', 0, 100),
    *PUBLISHER_SPECS,
)  # fmt: skip


class CaptureNode(PerceptionNode):
    """Publishes ``image_raw`` (type-adapted) and ``camera_info``.

    :param ledger: the process's copy ledger.
    :raises ConfigError: a parameter or file can't be used.
    """

    SPECS = _SPECS

    def __init__(self, *, ledger: CopyLedger | None = None, **node_options: Any) -> None:
        super().__init__('capture', **node_options)
        self.ledger = ledger or CopyLedger()
        self.latencies = StageLatencies()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failure: str | None = None
        self._done = False
        self._settings: BufferSettings | None = None
        self._heap_reasons: list[str] = []
        self._check_frame_id(self.parameters['frame_id'])
        stand_ins = parse_stand_ins(self.parameters['participants'])
        self.camera = self._open_camera()
        self.buffers = CameraBuffers(self.camera, wanted_slots=self.parameters['slots'], stand_ins=stand_ins)
        try:
            adapter = frame_adapter(self.parameters['image_encoding'], self.ledger, holder=self.get_name())
            self.publisher = AdaptedPublisher(self, adapter, 'image_raw', QoSProfile(depth=1), extras=self._extras())
            self._server = FrameServer(self, self.parameters, self.publisher)
            self._info_publisher = self.create_publisher(CameraInfo, 'camera_info', QoSProfile(depth=5))
            self._info = CameraInfo(width=self.camera.width, height=self.camera.height)
            self._diagnostics = DiagnosticsPublisher(self, self.collect_diagnostics)
        except BaseException:
            self.camera.close()
            raise

    def _check_frame_id(self, frame_id: str) -> None:
        size = len(frame_id.encode(errors='replace'))
        if size > MAX_FRAME_ID:
            raise ConfigError(
                f"node '{self.get_name()}': parameter 'frame_id' has {size} bytes; at most {MAX_FRAME_ID} can be sent to other processes"
            )

    def _extras(self) -> list[ExtraMessage[Frame]]:
        quality = self.parameters['jpeg_quality']
        return [ExtraMessage(CompressedImage, '/compressed', FrameToJpeg(quality, self.ledger))] if quality else []

    def _open_camera(self) -> Camera:
        parameters = self.parameters
        width, height, framerate = (parameters[k] for k in ('width', 'height', 'framerate'))
        if parameters['keep_all'] and parameters['camera'] != 'replay':
            raise ConfigError(f"parameter 'keep_all' is true, but camera '{parameters['camera']}' never ends; use it with camera: replay")
        if parameters['camera'] == 'v4l2':
            return V4l2Camera(parameters['device'], width, height, framerate, parameters['frame_id'], now_ns=self._now_ns)
        heap, self._heap_reasons = open_heap(parameters['heap'])
        common = {'frame_id': parameters['frame_id'], 'heap': heap, 'now_ns': self._now_ns, 'ledger': self.ledger}
        try:
            if parameters['camera'] == 'replay':
                return ReplayCamera(
                    parameters['video'],
                    width=width,
                    height=height,
                    framerate=framerate,
                    loop=parameters['loop'],
                    keep_all=parameters['keep_all'],
                    **common,
                )
            return SyntheticCamera(
                width or DEFAULT_SIZE[0],
                height or DEFAULT_SIZE[1],
                framerate or DEFAULT_FRAMERATE,
                seed=parameters['seed'],
                palette=parameters['palette'],
                **common,
            )
        except ValueError as error:
            heap.close()
            raise ConfigError(f"node '{self.get_name()}': {error}") from error
        except BaseException:
            heap.close()
            raise

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def configure(self, participants: Sequence[BufferConstraints | Consumer] = ()) -> BufferSettings:
        """Agree on the buffers, allocate them, and import them on trial. Once.

        :param participants: the consumers that are bound already; those of parameter ``participants`` come on top.
        :raises NegotiationError: nothing fits all of them, or a required one can't import the buffers.
        :raises AllocationError: no memory.
        """
        settings = self.buffers.configure(participants)
        layout = settings.layout
        if self.camera.pool is not None:
            self._server.offer(self.camera.pool, self.buffers.local_slots)
        self.publisher.announce(
            width=layout.width,
            height=layout.height,
            formats=[drm_format_string(layout.fourcc, layout.modifier)],
            heap=self.camera.heap_name,
        )
        self.get_logger().info(f'{self.camera.device}: {layout.describe()} at {self.camera.framerate:g} Hz')
        tried = f' ({"; ".join(self._heap_reasons)})' if self._heap_reasons else ''
        self.get_logger().info(f"{settings.slots} slots from heap '{self.camera.heap_name}'{tried}")
        self.get_logger().info(f'negotiated {self.buffers.describe()}')
        self._settings = settings
        return settings

    def start(self) -> None:
        """Start the camera's thread."""
        if self._settings is None:
            self.configure()
        self._thread = threading.Thread(target=self._run, name='camera', daemon=True)
        self._thread.start()

    def _run(self) -> None:
        delay = self.parameters['start_delay']
        self._stop.wait(max(delay, _KEEP_ALL_DELAY_S) if self.parameters['keep_all'] else delay)
        try:
            while not self._stop.is_set() and not self.camera.ended:
                frame = self.camera.capture()
                if frame is not None:
                    with frame:
                        self._publish(frame)
        except Exception as error:
            # Whatever it was, the node lives on and its diagnostics say so: a thread that only ended would look like the end of a file.
            self._failure = str(error) if isinstance(error, ZcError) else f'{type(error).__name__}: {error}'
            self.get_logger().error(f'the camera stopped: {self._failure}')
        finally:
            self._done = True
        if self.camera.ended:
            self.get_logger().info(f'{self.camera.device}: end of the recording after {self.camera.statistics().captured} frames')

    def _publish(self, frame: Frame) -> None:
        self.latencies.record('capture', frame.data.capture_cost_ns)
        self.publisher.publish(frame)
        if self._info_publisher.get_subscription_count():
            stamp_to_message(frame.header, self._info)
            self._info_publisher.publish(self._info)

    @property
    def finished(self) -> bool:
        """See :class:`PerceptionNode`."""
        return self._done

    def collect_diagnostics(self) -> list[Status]:
        """Camera, pool, link, copies and negotiation."""
        return [self._camera_status(), self._pool_status(), self._server.status(), self._copies_status(), self.buffers.status()]

    def _camera_status(self) -> Status:
        statistics = self.camera.statistics()
        values = {
            'device': self.camera.device,
            'size': f'{self.camera.width}x{self.camera.height}',
            'framerate_target': f'{self.camera.framerate:g}',
            'captured': statistics.captured,
            'dropped_no_free_slot': statistics.dropped,
            'late': statistics.late,
        }
        if self._failure is not None:
            return Status('camera', Level.ERROR, f'{self._failure}; restart the node', values)
        if self._thread is None:
            return Status('camera', Level.WARN, 'not started', values)
        return Status('camera', Level.OK, 'ended' if self._done else 'streaming', values)

    def _pool_status(self) -> Status:
        pool = self.camera.pool_statistics()
        if pool is None:
            return Status('pool', Level.WARN, 'not configured')
        values = {
            'heap': self.camera.heap_name,
            'slots': pool.slots,
            'free': pool.states.get(SlotState.FREE, 0),
            'holders': pool.holders,
            'exhausted': pool.exhausted,
            'ending': pool.ending,
            'abandoned_leases': pool.abandoned,
            'retired': pool.retired,
        }
        if pool.abandoned:
            return Status('pool', Level.WARN, 'frames were forgotten, not released: call release() or use with', values)
        if self.camera.heap_name == 'memfd':
            return Status('pool', Level.OK, "memfd: ordinary memory, no dma-buf; devices can't import it", values)
        return Status('pool', Level.OK, 'dma-bufs', values)

    def _copies_status(self) -> Status:
        return Status('copies', Level.OK, 'passes of the CPU over pixels in this process', {
            reason: f'{entry.count} ({entry.bytes} bytes)' for reason, entry in self.ledger.entries().items()
        })  # fmt: skip

    def stop(self) -> None:
        """See :class:`PerceptionNode`."""
        self._stop.set()
        self.camera.stop()
        if self._thread is not None:
            self._thread.join(timeout=1.5)
        self.publisher.destroy()
        self.buffers.close()
        self.camera.close()
