"""``capture_node``: keeps a camera going, publishes its frames and its ``camera_info``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.qos import QoSProfile
from sensor_msgs.msg import CompressedImage

from zc_perception.camera.camera import Camera
from zc_perception.camera.clock import StampClock
from zc_perception.camera.supervisor import CameraCondition, CameraState, CameraSupervisor
from zc_perception.errors import CameraLostError, ConfigError, NegotiationError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedPublisher, ExtraMessage
from zc_perception.link.image_conversion import OUTPUT_ENCODINGS, FrameToJpeg, frame_adapter
from zc_perception.link.shared_memory.codes import MAX_FRAME_ID
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.settings import BufferSettings
from zc_perception.negotiation.stand_in import SYNTAX, parse_stand_ins
from zc_perception.negotiation.token import Consumer
from zc_perception.nodes.camera_buffers import CameraBuffers
from zc_perception.nodes.camera_controls import PREFIX, CameraControls
from zc_perception.nodes.camera_factory import CAMERA_SPECS, CameraFactory
from zc_perception.nodes.camera_info import CAMERA_INFO_SPECS, CameraInfoPublisher
from zc_perception.nodes.capture_status import CaptureCounters, camera_status, copies_status, pool_status
from zc_perception.nodes.frame_links import PUBLISHER_SPECS, FrameServer
from zc_perception.nodes.parameters import ParameterSpec
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.nodes.stereo_side import STEREO_SPECS, StereoSide
from zc_perception.observe.diagnostics import DiagnosticsPublisher, Level, Status
from zc_perception.observe.metrics import StageLatencies
from zc_perception.pixel.drm_format import drm_format_string

_KEEP_ALL_DELAY_S = 1.0
_SPECS = (
    *CAMERA_SPECS,
    *CAMERA_INFO_SPECS,
    *STEREO_SPECS,
    ParameterSpec('start_delay', 0.0, 'Wait before the first frame, for subscribers to match; keep_all: at least 1.', 's', 0.0, 60.0),
    ParameterSpec('slots', 8, 'Buffers in the pool, or as many as participants hold together.', '', 3, 64),
    ParameterSpec('participants', [], f"Stand-ins whose constraints count so that they can join later, each '{SYNTAX}', see stand_in.py."),
    ParameterSpec('image_encoding', 'rgb8', 'What plain image_raw subscribers get.', choices=OUTPUT_ENCODINGS),
    ParameterSpec('jpeg_quality', 0, 'image_raw/compressed for those who subscribe to it; 0: not offered.', '', 0, 100),
    *PUBLISHER_SPECS,
)  # fmt: skip


class CaptureNode(PerceptionNode):
    """Publishes ``image_raw`` (type-adapted) and ``camera_info``.

    A camera that can't be opened yet, or goes away, is waited for; diagnostics say what is wrong. What no waiting mends is an error
    at once.

    :param ledger: the process's copy ledger.
    :param camera_factory: opens a camera, by the identity of the one that was lost, in place of that which the parameters describe.
    :param stereo: which side of a pair it is; only frames with a counterpart are published then.
    :raises ConfigError: a parameter or file can't be used.
    """

    SPECS = _SPECS
    PREFIXES = (PREFIX,)

    def __init__(
        self,
        *,
        ledger: CopyLedger | None = None,
        camera_factory: Callable[[str], Camera] | None = None,
        stereo: StereoSide | None = None,
        **node_options: Any,
    ) -> None:
        super().__init__('capture', **node_options)
        self.ledger = ledger or CopyLedger()
        self.latencies = StageLatencies()
        self._node_clock = self.get_clock()
        self.buffers: CameraBuffers | None = None
        self._participants: Sequence[BufferConstraints | Consumer] = ()
        self._settings: BufferSettings | None = None
        self._counters = CaptureCounters()
        self._said: set[str] = set()
        self._check_frame_id(self.parameters['frame_id'])
        self._stand_ins = parse_stand_ins(self.parameters['participants'])
        stamps = StampClock(self.now_ns, is_simulated=lambda: self._node_clock.ros_time_is_active)
        self._factory = CameraFactory(self.parameters, self.now_ns, self.ledger, stamps, lambda: self.supervisor.stopping)
        self._open = camera_factory or self._factory.open
        self._stereo = stereo
        if stereo is not None:
            stereo.begin(self.get_fully_qualified_name(), self.parameters)
        self.supervisor = CameraSupervisor(
            'camera',
            self._open_camera,
            self._prepare,
            self._publish,
            self._on_condition,
            before_close=self._controls_detach,
            wait_s=self._delay(),
        )
        try:
            if self._factory.slow:
                # The camera's thread opens it: the other cameras and a signal don't wait for its first frame.
                self._factory.check()
            else:
                self.supervisor.open_now()
            adapter = frame_adapter(self.parameters['image_encoding'], self.ledger, holder=self.get_name())
            self.publisher = AdaptedPublisher(self, adapter, 'image_raw', QoSProfile(depth=1), extras=self._extras())
            self._server = FrameServer(self, self.parameters, self.publisher)
            self._camera_info = CameraInfoPublisher(self, self.parameters)
            self._controls = CameraControls(self)
            self._diagnostics = DiagnosticsPublisher(self, self.collect_diagnostics)
        except ConfigError as error:
            self.supervisor.stop()
            raise ConfigError(f"node '{self.get_name()}': {error}") from error
        except BaseException:
            self.supervisor.stop()
            raise

    def _check_frame_id(self, frame_id: str) -> None:
        size = len(frame_id.encode(errors='replace'))
        if size > MAX_FRAME_ID:
            raise ConfigError(
                f"node '{self.get_name()}': parameter 'frame_id' has {size} bytes; at most {MAX_FRAME_ID} can be sent to other processes"
            )

    def _delay(self) -> float:
        delay = float(self.parameters['start_delay'])
        return max(delay, _KEEP_ALL_DELAY_S) if self.parameters['keep_all'] else delay

    def _extras(self) -> list[ExtraMessage[Frame]]:
        quality = self.parameters['jpeg_quality']
        return [ExtraMessage(CompressedImage, '/compressed', FrameToJpeg(quality, self.ledger))] if quality else []

    def now_ns(self) -> int:
        """The ROS clock, in ns. Unless a simulation drives it, that is the system's, which costs less to read."""
        clock = self._node_clock
        return int(clock.now().nanoseconds) if clock.ros_time_is_active else time.time_ns()

    @property
    def camera(self) -> Camera:
        """The camera that is open.

        :raises CameraLostError: none is.
        """
        camera = self.supervisor.camera
        if camera is None:
            raise CameraLostError(
                f"node '{self.get_name()}': no camera is open: {self.supervisor.condition.reason or 'it is not there yet'}"
            )
        return camera

    def _open_camera(self, identity: str) -> Camera:
        camera = self._open(identity)
        if self._stereo is not None:
            camera = self._stereo.join(camera)
        self._counters.begin(camera)
        return camera

    def configure(self, participants: Sequence[BufferConstraints | Consumer] = ()) -> None:
        """Agree on the buffers, allocate them, and import them on trial; now, or when the camera is there.

        :param participants: the consumers that are bound already; those of parameter ``participants`` come on top. Their trial imports
            may be called from the camera's thread.
        :raises NegotiationError: nothing fits all of them, or a required one can't import the buffers.
        :raises AllocationError: no memory.
        """
        if self.buffers is not None:
            raise NegotiationError(f"node '{self.get_name()}': its buffers are negotiated already; consumers that come later join them")
        self._participants = participants
        self.supervisor.prepare_now()

    def _prepare(self, camera: Camera) -> None:
        self._camera_info.resize(camera.width, camera.height)
        self._controls.attach(camera)
        old = self.buffers
        if old is not None:
            old.close()
        self.buffers = CameraBuffers(camera, wanted_slots=self.parameters['slots'], stand_ins=self._stand_ins)
        settings = self.buffers.configure(self._participants)
        layout = settings.layout
        if camera.pool is not None:
            self._server.offer(camera.pool, self.buffers.local_slots)
        self.publisher.announce(
            width=layout.width,
            height=layout.height,
            formats=[drm_format_string(layout.fourcc, layout.modifier)],
            heap=camera.heap_name,
        )
        self.get_logger().info(f'{camera.device}: {layout.describe()} at {camera.framerate:g} Hz')
        reasons = self._factory.heap_reasons
        tried = f' ({"; ".join(reasons)})' if reasons else ''
        self.get_logger().info(f"{settings.slots} slots from heap '{camera.heap_name}'{tried}")
        self.get_logger().info(f'negotiated {self.buffers.describe()}')
        self._say_notices(camera)
        self._settings = settings

    def _say_notices(self, camera: Camera) -> None:
        """Each once, though the camera be opened again and again."""
        for notice in camera.notices():
            if notice not in self._said:
                self._said.add(notice)
                self.get_logger().warning(notice)

    def start(self) -> None:
        """Start the camera's thread."""
        if self._settings is None:
            self.supervisor.prepare_now()
        self.supervisor.start()

    def _on_condition(self, condition: CameraCondition) -> None:
        """On the camera's thread, or that which opens it first."""
        if condition.state is CameraState.LOST:
            again = f'; next attempt in {condition.retry_s:.1f} s' if condition.retry_s else ''
            self.get_logger().error(f'the camera is not there: {condition.reason}{again}')
        elif condition.state is CameraState.FAILED:
            self.get_logger().error(f'the camera stopped: {condition.reason}')
        elif condition.state is CameraState.STREAMING and (condition.losses or self._counters.openings > 1):
            self.get_logger().info('the camera is back')
        elif condition.state is CameraState.ENDED:
            captured = self._counters.total().captured
            self.get_logger().info(f'{self.camera.device}: end of the recording after {captured} frames')

    def _controls_detach(self) -> None:
        # At the first opening there are none yet.
        controls = getattr(self, '_controls', None)
        if controls is not None:
            controls.detach()

    def _publish(self, frame: Frame) -> None:
        self.latencies.record('capture', frame.data.capture_cost_ns)
        self.publisher.publish(frame)
        self._camera_info.publish(frame.header)

    @property
    def finished(self) -> bool:
        """See :class:`PerceptionNode`."""
        return self.supervisor.finished

    def collect_diagnostics(self) -> list[Status]:
        """Camera, pool, link, copies, calibration, negotiation, controls and, of a side, the pairs."""
        camera = self.supervisor.camera
        if camera is not None and self._settings is not None:
            self._say_notices(camera)
        paced = self.parameters['camera'] != 'replay'  # recordings have pauses, and keep_all goes as fast as its consumers
        negotiation = Status('negotiation', Level.WARN, 'waits for the camera') if self.buffers is None else self.buffers.status()
        return [
            camera_status(camera, self.supervisor.condition, self._counters, started=self.supervisor.started, paced=paced),
            pool_status(camera),
            self._server.status(),
            copies_status(self.ledger),
            self._camera_info.status(),
            negotiation,
            self._controls.status(),
            *([] if self._stereo is None else [self._stereo.status()]),
        ]

    def stop(self) -> None:
        """See :class:`PerceptionNode`."""
        self.supervisor.stop()
        self.publisher.destroy()
        if self.buffers is not None:
            self.buffers.close()
