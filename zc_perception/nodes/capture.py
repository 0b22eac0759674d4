# Copyright 2026 The zc_perception authors
# SPDX-License-Identifier: Apache-2.0
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""``capture_node``: opens a camera, reopens it after a loss, and publishes its frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
import os
import threading
import time
from typing import Any, ClassVar

from ament_index_python.packages import get_package_share_directory, PackageNotFoundError
from rclpy.qos import DurabilityPolicy, QoSProfile
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from sensor_msgs.srv import SetCameraInfo

from zc_perception.camera.calibration import camera_name_of, CameraInfoStore, from_camera_info
from zc_perception.camera.camera import Camera, CameraOptions
from zc_perception.camera.clock import StampClock
from zc_perception.camera.kinds import CAMERAS
from zc_perception.camera.stereo import PairingRule, Side, SideCamera, StereoSides
from zc_perception.camera.supervisor import CameraCondition, CameraState, CameraSupervisor, Renewal
from zc_perception.errors import AllocationError, CameraLostError, ConfigError, NegotiationError
from zc_perception.frame import Frame, Header
from zc_perception.link.endpoints import AdaptedPublisher, ExtraMessage
from zc_perception.link.endpoints.frame_offer import FrameOffer
from zc_perception.link.endpoints.qos import bus_key
from zc_perception.link.image_conversion import frame_adapter, FrameToJpeg, stamp_to_message
from zc_perception.link.rclpy_compat import name_before_remaps, subscription_count
from zc_perception.link.rungs import IN_PROCESS
from zc_perception.link.shared_memory.wire import frame_id_bytes
from zc_perception.negotiation.constraints import BufferConstraints, formats_text, parse_stand_ins
from zc_perception.negotiation.session import BufferSession
from zc_perception.negotiation.settings import Allocation, AllocationRequest
from zc_perception.nodes import STARTUP
from zc_perception.nodes.camera_controls import CameraControls, PREFIX
from zc_perception.nodes.capture_status import (
    camera_status,
    CaptureCounters,
    clock_status,
    copies_status,
    copy_facts,
    latency_status,
    negotiation_status,
    pool_status,
)
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.frame_links import FrameServer, group_ids, GStreamerSocket, socket_path
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.params.qos_overrides import Endpoint, overridden, publisher_qos
from zc_perception.nodes.perception_node import PATIENCE_S, PerceptionNode
from zc_perception.nodes.realtime import parse_cpus, Realtime
from zc_perception.nodes.triggers import snapshot_folder, SnapshotService
from zc_perception.observe.diagnostics import ERROR, OK, Part, Row, Status, WARN
from zc_perception.observe.frame_log import FrameLog
from zc_perception.observe.metrics import Silence, StageLatencies
from zc_perception.pixel.fourcc import fourcc_name

# Levels of diagnostics. OK: also if no parameter names a file and there is no calibration, because
# many cameras need none. WARN: the named file is missing, or the calibration has a fault, such as
# another picture size. ERROR: the file can't be read, or its URL is wrong.
CALIBRATION = Part(
    'calibration',
    Row(lambda s: s.failed, ERROR, '{text}', '{advice}', ('why the file or its URL is wrong; '
        'the camera counts as not calibrated'),
        'correct the file or the URL, or [calibrate](calibration.md)'),
    Row(lambda s: s.wrong, WARN, '{text}', '{advice}', 'the file of `camera_info_url` is '
                                                       'missing, or its calibration is of another '
                                                       'camera '
        'or picture size', 'calibrate, set `camera_name` or `camera_info_url`, or see '
        '[another picture size](calibration.md#another-picture-size)'),
    Row(lambda s: s.text, OK, '{text}', '{advice}'),
    Row(lambda s: not s.calibrated, OK, 'no calibration'),
    well='calibrated',
)  # fmt: skip


def _package_folder(name: str) -> str:
    try:
        return str(get_package_share_directory(name))
    except (
        PackageNotFoundError,
        ValueError,
    ) as error:  # ament raises ValueError for a name that no package can have
        raise LookupError(name) from error


def calibration_store(values: Mapping[str, Any], node: str) -> CameraInfoStore:
    """
    Return a store with the calibration file that the parameters name.

    :param values: parameters of the capture node.
    :param node: the node's full name, from which a missing ``camera_name`` is made.
    :raises ConfigError: the URL can't name a file.
    """
    name = camera_name_of(values['camera_name'] or node)
    return CameraInfoStore(
        values['camera_info_url'],
        name,
        (0, 0),
        package_folder=_package_folder,
        rescale=values['rescale_camera_info'],
    )


class CameraInfoPublisher:
    """Publishes the calibration with the header of each frame, if there is a subscriber."""

    def __init__(self, node: PerceptionNode, parameters: NodeParameters) -> None:
        self._node = node
        self._lock = threading.Lock()
        self.reload(parameters)
        self._message = CameraInfo()
        self._publisher = node.create_publisher(
            CameraInfo, 'camera_info', publisher_qos(node, 'camera_info', QoSProfile(depth=5))
        )
        self._service = node.create_service(SetCameraInfo, 'set_camera_info', self._on_set)

    def reload(self, parameters: NodeParameters) -> None:
        """Read the calibration again, from the file that the parameters name now."""
        store = calibration_store(parameters, self._node.get_fully_qualified_name())
        with self._lock:
            self._store = store
        if store.failure:
            self._node.warn_once(store.notices, error=True)

    def begin(self, camera: Camera) -> None:
        """Fit the calibration to this camera's picture size; publish the result from now on."""
        with self._lock:
            self._store.resize(camera.width, camera.height, has_lens=camera.has_lens)
            self._update()
        if not self._store.failure:  # reload() has logged a failure, as an error
            self._node.warn_once(self._store.notices)

    def _update(self) -> None:
        message = CameraInfo()
        self._store.current.fill(message)
        self._message = message

    def publish(self, header: Header) -> None:
        """Publish the calibration with a frame's header; called for each frame."""
        if subscription_count(self._publisher):
            # Don't take the lock, which is held while a calibration is written to the disk. Other
            # threads replace the message, and never change it.
            message = self._message
            stamp_to_message(header, message)
            self._publisher.publish(message)

    def _on_set(
        self, request: SetCameraInfo.Request, response: SetCameraInfo.Response
    ) -> SetCameraInfo.Response:
        try:
            with self._lock:
                self._store.replace(from_camera_info(request.camera_info, self._store.camera_name))
                self._update()
        except ConfigError as error:
            response.success, response.status_message = False, str(error)
            return response
        response.success, response.status_message = True, (
            f"the calibration was written to '{self._store.place}'"
        )
        return response

    def status(self) -> Status:
        """Report whether the calibration is there and fits the camera."""
        with self._lock:
            store = self._store
            troubles, published = store.troubles, store.current
            failed, wrong = bool(store.failure), store.wrong
        values = {
            'file': store.place,
            'camera_name': store.camera_name,
            'calibrated': published.calibrated,
        }
        if published.calibrated and published.picture != store.calibration.picture:
            values['scaled_from'] = '{}x{}'.format(*store.calibration.picture)
        text, advice = (
            '; '.join(dict.fromkeys(trouble[n] for trouble in troubles)) for n in range(2)
        )
        return CALIBRATION.status(
            values,
            failed=failed,
            wrong=wrong,
            text=text,
            advice=advice,
            calibrated=published.calibrated,
        )


STEREO = Part(
    'stereo',
    Row(lambda s: s.closed, WARN, ('the {closed} camera is not open: no frame has a '
                                   'counterpart, so no frame is published'),
        "see part 'camera' of the {closed} node's diagnostics"),
    Row(lambda s: not s.paired and s.close, WARN, 'frames of the {silent} camera do not come',
        'look at its cable and power, and at its trigger'),
    Row(lambda s: not s.paired, WARN, ('left and right frames come {apart_ms:.1f} ms apart, '
                                       'the tolerance is {tolerance}'),
        'trigger the cameras together or raise stereo_tolerance'),
    well='{pairs} pairs',
)  # fmt: skip


class StereoRig:
    """Joins two capture nodes to a stereo pair; both must have the same :class:`PairingRule`."""

    def __init__(self) -> None:
        self._sides: StereoSides | None = None
        self._begun: set[Side] = set()

    @property
    def sides(self) -> StereoSides:
        """The object that pairs the frames; ConfigError: neither capture node is configured."""
        if self._sides is None:
            raise ConfigError('stereo: neither capture node of the pair is configured')
        return self._sides

    def settle(self, side: Side, rule: PairingRule) -> None:
        """Register a side and its pairing rule; ConfigError: the other side has another rule."""
        if self._sides is None:
            self._sides = StereoSides(rule)
        self._sides.rule.check_same(rule)
        self._begun.add(side)

    def end(self, side: Side) -> None:
        """End a side; when both have ended, another pairing rule may be set. Idempotent."""
        self._begun.discard(side)
        if not self._begun:
            self._sides = None


class StereoSide:
    """One capture node's side of a stereo pair."""

    def __init__(self, rig: StereoRig, side: Side) -> None:
        self._rig = rig
        self.side = side
        self._seen = (0, 0, 0)
        self._paired = True
        self._silent = side.other

    def begin(self, node: str, parameters: Mapping[str, Any]) -> None:
        """Begin to pair frames; ConfigError: the node's *parameters* don't suit a pair."""
        kind = CAMERAS.load(parameters['camera'])
        by_stamp = kind.recorded_stamps(parameters)
        try:
            if kind.keeps_all(parameters):
                raise ConfigError(
                    "parameter 'keep_all' is true, but a camera of a stereo pair cannot wait for "
                    "its consumers; set 'keep_all' to false"
                )
            repeated = str(parameters['video']) if by_stamp and parameters.get('loop') else ''
            tolerance_ns = round(parameters['stereo_tolerance'] * 1e9)
            self._rig.settle(self.side, PairingRule(tolerance_ns, by_stamp, repeated))
        except ConfigError as error:
            raise ConfigError(f"node '{node}': {error}") from None

    def end(self) -> None:
        """Leave the pair, when the node is cleaned up. Idempotent."""
        self._rig.end(self.side)
        self._seen = (0, 0, 0)
        self._paired = True

    def join(self, camera: Camera) -> SideCamera:
        """Wrap *camera* so that it gives only frames with a counterpart of the other camera."""
        return self._rig.sides.join(self.side, camera)

    def status(self) -> Status:
        """Report the numbers of pairs and of unmatched frames, and why no pairs come."""
        sides, both = self._rig.sides, (self.side, self.side.other)
        found = sides.statistics()
        alone = dict(found.alone)
        tolerance = f'{sides.rule.tolerance_ns / 1e6:g} ms'
        values: dict[str, object] = {
            'side': self.side.value,
            'pairs': found.pairs,
            'unmatched_left': alone[Side.LEFT],
            'unmatched_right': alone[Side.RIGHT],
            'tolerance': tolerance,
            'difference_ns': found.difference_ns,
            'max_difference_ns': found.max_difference_ns,
            'restarts': found.restarts,
        }
        seen, self._seen = self._seen, (found.pairs, alone[Side.LEFT], alone[Side.RIGHT])
        pairs, left, right = (now - before for now, before in zip(self._seen, seen, strict=True))
        # If no pair was made and no frame was dropped since the last call, report what that call
        # reported.
        if pairs or left or right:
            self._paired = pairs > 0
            # `left` and `right` are numbers of dropped frames. A side that gives no frames drops
            # none, so the side with the lower number is reported as silent.
            self._silent = Side.LEFT if left < right else Side.RIGHT
        apart_ns = found.apart_ns
        return STEREO.status(
            values,
            closed=next((one.value for one in both if not sides.present(one)), ''),
            silent=self._silent.value,
            paired=self._paired,
            pairs=found.pairs,
            close=apart_ns is None or apart_ns <= sides.rule.tolerance_ns,
            apart_ms=(apart_ns or 0) / 1e6,
            tolerance=tolerance,
        )


_KEEP_ALL_DELAY_S = 1.0
# A camera slower than this may give no frame within PATIENCE_S and still work.
_SLOWEST_HZ = 3.0 / PATIENCE_S
# The camera and one reader need this many slots. Each frame that is kept for later subscribers
# needs one more.
_CAMERA_SLOTS = 4
_FIXED = (
    "set parameter 'renegotiate' of {0} to true, start this consumer before {0}, or "
    "name the consumer's needs in parameter 'participants'"
)
_FRAMES = Endpoint('image_raw', 'publisher', adapted=True)


def _check_frame_id(frame_id: str) -> None:
    frame_id_bytes(frame_id, "parameter 'frame_id'")


def _check_room(qos: QoSProfile, slots: int) -> None:
    """
    Check that a publisher with *qos* leaves the camera enough slots; else raise ConfigError.

    With ``transient_local``, the publisher of ``image_raw`` keeps its last frames for readers that
    subscribe later. Each kept frame takes one of the camera's *slots*.
    """
    room = slots - _CAMERA_SLOTS
    if qos.durability == DurabilityPolicy.TRANSIENT_LOCAL and qos.depth > room:
        raise ConfigError(
            f"topic 'image_raw': transient_local with depth {qos.depth} would pin {qos.depth} of "
            f"{slots} slots; depth may be at most {max(0, room)}, or raise parameter 'slots'"
        )


class CameraFactory:
    """
    Opens the camera that the parameters describe, at the start and after each loss.

    :param options: the node's parameters and a clock. Each camera uses this clock for its
        stamps, so that stamps still increase after a loss.
    :param consumers: returns the constraints of the frames' consumers. A GStreamer pipeline is
        asked for a format that the consumers accept.
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
        """Whether the supervisor's thread shall open the camera, because this may take seconds."""
        return self._kind().SLOW

    def check(self) -> None:
        """Check the parameters without opening a device; ConfigError: they are wrong."""
        kind = self._kind()
        kind.check(self._options.parameters)
        kind.try_out(self._options)

    def open(self, identity: str) -> Camera:  # noqa: A003
        """
        Open the camera.

        :param identity: identity of the lost camera, by which to find its present device path;
            empty: open the camera that the parameters name.
        :raises ConfigError: the parameters contradict each other.
        :raises CameraError: the camera can't be opened now.
        """
        kind = self._kind()
        kind.check(self._options.parameters)
        before, self._before = self._before, None
        options = replace(
            self._options, consumers=tuple(self._consumers()), identity=identity, before=before
        )
        values = dict(options.parameters)
        camera = self._before = kind.open(options)
        try:
            # Opening may take seconds, and meanwhile the node has no camera that it could tune.
            for name in (spec.name for spec in kind.PARAMETERS):
                if options.parameters[name] != values[name]:
                    camera.tune(name, options.parameters[name])
        except BaseException:
            camera.close()
            raise
        return camera

    def close(self) -> None:
        """Free what a closed camera kept for the next camera, because no camera opens soon."""
        before, self._before = self._before, None
        if before is not None:
            before.close_rest()


class CaptureNode(PerceptionNode):
    """
    Publishes ``image_raw`` (type-adapted) and ``camera_info``.

    If the camera can't be opened yet, or is lost, the node waits for it, and diagnostics report
    the reason. An error that waiting can't mend is raised at once.

    :param camera_factory: opens the camera; called with the identity of the lost camera, or with
        ``''`` if none was lost. ``None``: open the camera that the parameters describe.
    :param stereo: this node's side of a stereo pair; then only frames are published that have a
        counterpart of the other camera.
    """

    SPECS = NODES['capture']
    PREFIXES = (PREFIX,)
    CHECKS: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        'frame_id': _check_frame_id,
        'participants': parse_stand_ins,
        'shared_memory_group': group_ids,
        'cpu_affinity': parse_cpus,
        'snapshot_folder': snapshot_folder,
        'unixfd': socket_path,
    }
    ENDPOINTS = (
        _FRAMES,
        Endpoint('image_raw/compressed', 'publisher'),
        Endpoint('camera_info', 'publisher'),
    )

    def __init__(
        self,
        *,
        camera_factory: Callable[[str], Camera] | None = None,
        stereo: StereoSide | None = None,
        **node_options: Any,
    ) -> None:
        super().__init__('capture', **node_options)
        self.latencies = StageLatencies()
        self._took = self.latencies.windows['capture'].record
        self._node_clock = self.get_clock()
        self._disagreement = ''
        self.pause_s = 0.0
        self._paused_ns = 0
        self._counters = CaptureCounters()
        self._quiet = Silence()
        self._stamps = StampClock(
            self.now_ns, is_simulated=lambda: self._node_clock.ros_time_is_active
        )
        self._camera_factory = camera_factory
        self._stereo = stereo
        self._key = bus_key(self, self.resolve_topic_name('image_raw'), Image)
        self._realtime = Realtime(self, self.parameters, lambda: self.supervisor.threads)
        self._publisher: AdaptedPublisher[Frame] | None = None
        self._server: FrameServer | None = None
        self._offer: FrameOffer | None = None
        self._unixfd: GStreamerSocket | None = None
        self._camera_info = CameraInfoPublisher(self, self.parameters)
        self._controls = CameraControls(self)
        self._factory = self._new_factory()
        self.supervisor = self._new_supervisor()
        self._snapshots = SnapshotService(
            self, self.parameters, self.ledger, lambda: self.supervisor
        )
        self._ends.callback(self._snapshots.close)
        self.frame_log = FrameLog(
            'capture', self.get_fully_qualified_name(), self.get_logger().warning
        )
        self._ends.callback(self.frame_log.close)
        self._begin()

    def _new_factory(self) -> CameraFactory:
        options = CameraOptions(
            self.parameters,
            self.now_ns,
            self.ledger,
            self._stamps,
            lambda: self.supervisor.stopping,
        )
        return CameraFactory(options, self._known_consumers)

    def _known_consumers(self) -> list[BufferConstraints]:
        """Return the constraints of present consumers and of those that ``participants`` names."""
        here = [] if self._offer is None else self._offer.consumers()
        names = {constraints.participant.partition(' (pid ')[0] for constraints in here}
        return [*(one for one in self._stand_ins if one.participant not in names), *here]

    def _new_supervisor(self, identity: str = '') -> CameraSupervisor:
        return CameraSupervisor(
            'camera',
            self._open_camera,
            self._prepare,
            self._publish,
            self._on_condition,
            renew=self._renew,
            before_close=self._controls.detach,
            wait_s=self._delay(),
            identity=identity,
        )

    def _open(self) -> None:
        """Open publisher, sockets and camera; the supervisor opens a slow camera later."""
        self._stand_ins = parse_stand_ins(self.parameters['participants'])
        self._factory = self._new_factory()
        if self._stereo is not None:
            self._stereo.begin(self.get_fully_qualified_name(), self.parameters)
        self.supervisor = self._new_supervisor()
        adapter = frame_adapter(
            self.parameters['image_encoding'], self.ledger, holder=self.get_name()
        )
        # Declare the compressed topic's QoS parameters now, even if its publisher comes later.
        self._compressed_qos()
        qos = publisher_qos(self, 'image_raw', QoSProfile(depth=1))
        _check_room(qos, self.parameters['slots'])
        self._publisher = AdaptedPublisher(self, adapter, 'image_raw', qos, extras=self._extras())
        self._server = FrameServer(self, self.parameters, self._publisher)
        self._offer = FrameOffer(
            self,
            self._publisher,
            self._server.server,
            changed=self._describe,
            fixed=''
            if self.parameters['renegotiate']
            else _FIXED.format(self.get_fully_qualified_name()),
        )
        if (path := socket_path(self.parameters['unixfd'])) is not None:
            self._unixfd = GStreamerSocket(
                self, self.parameters, self._key, path, self.ledger, self._framerate
            )
        # Listen for consumers before the camera opens: its format may depend on the formats that
        # they accept.
        self._offer.listen((self.parameters['width'] or 1, self.parameters['height'] or 1))
        if self._factory.slow:
            # Only check the parameters. The supervisor's thread opens the camera, so that other
            # cameras, and the program's end after Ctrl-C, need not wait for the first frame.
            self._factory.check()
        else:
            self.supervisor.open_now()
        self._camera_info.reload(self.parameters)

    def _framerate(self) -> float:
        camera = self.supervisor.camera
        return 0.0 if camera is None else camera.framerate

    def _agree(self) -> None:
        """Negotiate buffers now; if the camera isn't open yet, its thread does this later."""
        assert self._offer is not None
        self._offer.open()
        self.supervisor.prepare_now()
        self._realtime.configure()

    def _activate(self) -> None:
        # After an earlier activation: open the same camera again.
        if self.supervisor.started:
            self.supervisor = self._new_supervisor(self.supervisor.identity)
        self._flowing = True
        self.supervisor.start()
        self._realtime.activate()

    def _deactivate(self) -> None:
        """Switch the sensor off and free the buffers; other programs may then open the camera."""
        if self.supervisor.started:
            self.supervisor.stop()
            if self._unixfd is not None:
                self._unixfd.server.end_streams()
            self._factory.close()
            self._end_buffers()

    def _cleanup(self) -> None:
        if self._offer is not None:
            self._offer.close()
        self._describe()
        self.supervisor.stop()
        self._factory.close()
        if self._unixfd is not None:
            self._unixfd.close()
            self._unixfd = None
        self._end_buffers()
        if self._publisher is not None:
            self._publisher.destroy()
        # A stopped node keeps these objects: its diagnostics may still read the links' counters.
        if not self._stopped:
            self._publisher = self._server = self._offer = None
        if self._stereo is not None:
            self._stereo.end()
        self._realtime.cleanup()

    def _end_buffers(self) -> None:
        if self._offer is not None:
            self._offer.withdraw()

    @property
    def session(self) -> BufferSession | None:
        """The session in which consumers agreed on buffers; ``None``: there are no buffers."""
        return None if self._offer is None else self._offer.session

    @property
    def publisher(self) -> AdaptedPublisher[Frame]:
        """The publisher of ``image_raw``, while the node is configured."""
        if self._publisher is None:
            raise self.lacks('publisher of image_raw')
        return self._publisher

    @classmethod
    def check_together(cls, values: Mapping[str, Any], node: str) -> None:
        """Check the parameters of camera, calibration and QoS, see :class:`PerceptionNode`."""
        CAMERAS.load(values['camera']).check(values)
        calibration_store(values, node)
        _check_room(overridden(_FRAMES, node.rpartition('/')[0], values), values['slots'])

    def _on_parameter(self, name: str, value: Any) -> None:
        publisher = self._publisher
        if publisher is not None and name == 'image_encoding':
            publisher.messages.convert_by(
                frame_adapter(value, self.ledger, holder=self.get_name()).to_ros
            )
        elif publisher is not None and name == 'jpeg_quality':
            publisher.messages.offer(self._extras())
        elif name in (spec.name for spec in self._kind.PARAMETERS):
            camera = self.supervisor.camera
            if camera is not None:
                camera.tune(name, value)
        self._realtime.changed(name)

    @property
    def _kind(self) -> type[Camera]:
        return CAMERAS.load(self.parameters['camera'])

    @property
    def keeps_all(self) -> bool:
        """Whether the camera drops no frame, but waits for the consumers."""
        return self._kind.keeps_all(self.parameters)

    def _delay(self) -> float:
        delay = float(self.parameters['start_delay'])
        return max(delay, _KEEP_ALL_DELAY_S) if self.keeps_all else delay

    def _extras(self) -> list[ExtraMessage[Frame]]:
        quality = self.parameters['jpeg_quality']
        return (
            [
                ExtraMessage(
                    CompressedImage,
                    '/compressed',
                    FrameToJpeg(quality, self.ledger),
                    self._compressed_qos(),
                )
            ]
            if quality
            else []
        )

    def _compressed_qos(self) -> QoSProfile:
        topic = f'{self.resolve_topic_name("image_raw")}/compressed'
        return publisher_qos(self, name_before_remaps(self, topic), QoSProfile(depth=1))

    def now_ns(self) -> int:
        """Return the ROS time in ns; unless it is simulated, read it from the system clock."""
        clock = self._node_clock
        return int(clock.now().nanoseconds) if clock.ros_time_is_active else time.time_ns()

    @property
    def camera(self) -> Camera:
        """The open camera; CameraLostError: no camera is open."""
        camera = self.supervisor.camera
        if camera is None:
            raise CameraLostError(
                f"node '{self.get_name()}': no camera is open: "
                f'{self.supervisor.condition.reason or "it is not there yet"}'
            )
        return camera

    def _renew(self) -> Renewal:
        """Return how the camera gets new buffers now, if it does; the supervisor calls this."""
        offer, camera = self._offer, self.supervisor.camera
        if offer is None or camera is None or time.monotonic() < offer.due:
            return Renewal.NONE
        self._paused_ns = time.monotonic_ns()
        in_place = camera.reallocates and offer.would_suit(camera.constraints())
        self.get_logger().info(f'negotiating new buffers; waiting consumers: {offer.renew()}')
        return Renewal.REALLOCATE if in_place else Renewal.REOPEN

    def _open_camera(self, identity: str) -> Camera:
        if self._offer is not None and self.session is None:
            self._offer.await_consumers()
        camera = (self._camera_factory or self._factory.open)(identity)
        STARTUP.reached('camera')
        if self._stereo is not None:
            camera = self._stereo.join(camera)
        self._counters.begin(camera)
        return camera

    def _prepare(self, camera: Camera) -> None:
        self._camera_info.begin(camera)
        self._controls.attach(camera)
        self._end_buffers()
        self._disagreement = ''
        offer = self._offer
        if offer is None:
            raise CameraLostError('the node is being cleaned up')

        def allocate(request: AllocationRequest) -> Allocation:
            camera.allocate(request)
            slots = camera.slots
            return Allocation(slots[0].layout, tuple(slot.buffers for slot in slots))

        size, wanted = (camera.width, camera.height), self.parameters['slots']
        try:
            session = offer.agree(
                camera.constraints(),
                size,
                allocate,
                wanted_slots=wanted,
                stand_ins=self._stand_ins,
                possible=camera.possible,
            )
        except (NegotiationError, AllocationError) as error:
            self._disagreement = str(error)
            raise
        offer.begin(session, camera.pool, camera.heap_name, camera.sizes())
        layout = session.settings.layout
        choice = camera.facts().get('choice')
        self.get_logger().info(
            f'{camera.device}: {layout.describe()} at {camera.framerate:g} '
            f'Hz{f"; {choice}" if choice else ""}'
        )
        offer.say_agreement(session)
        self.warn_once(camera.notices())
        self._describe()

    def _describe(self) -> None:
        server = self._server
        if server is not None:
            self.frame_log.describe(lambda: self._facts(server.peers()))

    def _facts(self, peers: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return facts for the frame log; if no camera is open, without the camera's facts."""
        camera = self.supervisor.camera
        link = self.publisher.statistics()
        session = self.session
        here = [
            {'name': IN_PROCESS, 'pid': os.getpid(), 'rung': IN_PROCESS}
        ] * link.in_process_subscriptions
        facts: dict[str, Any] = {
            'camera': self.parameters['camera'],
            'conversions': link.conversions,
            'published': link.published,
            'peers': [*here, *peers],
            'copies': copy_facts(self.ledger),
            'startup': STARTUP.facts(),
        }
        if session is not None and session.settled and self._offer is not None:
            facts |= {
                'agreed': session.describe(),
                'possible_formats': formats_text(session.possible.formats),
                'possible_heaps': list(session.possible.heaps or ()),
                'refused': self._offer.refused(),
            }
        if camera is None:
            return facts
        statistics = camera.statistics()
        facts |= {
            'device': camera.device,
            'heap': camera.heap_name,
            'captured': statistics.captured,
            'dropped': statistics.dropped,
        }
        slots = camera.slots
        if slots:
            layout = slots[0].layout
            facts |= {
                'slots': len(slots),
                'pool': [
                    [buffer.identity.device, buffer.identity.inode]
                    for slot in slots
                    for buffer in slot.buffers
                ],
                'layout': layout.describe(),
                'fourcc': fourcc_name(layout.fourcc),
                'width': layout.width,
                'height': layout.height,
            }
        return facts

    def _on_condition(self, condition: CameraCondition) -> None:
        """React to the camera's new condition, on the thread that opens or runs the camera."""
        self.stir()
        if condition.state is CameraState.LOST:
            if self._paused_ns and self._offer is not None:
                # The camera may have failed because of its new buffers: refuse the consumers that
                # asked for them.
                self._offer.give_up(f'the camera failed with the new buffers: {condition.reason}')
            again = f'; next attempt in {condition.retry_s:.1f} s' if condition.retry_s else ''
            self.get_logger().error(f'the camera is not there: {condition.reason}{again}')
        elif condition.state is CameraState.FAILED:
            self.get_logger().error(f'the camera stopped: {condition.reason}')
        elif (
            condition.state is CameraState.STREAMING
            and (condition.losses or self._counters.openings > 1)
            and self._flowing
        ):
            self.get_logger().info('the camera is back')
        elif condition.state is CameraState.ENDED:
            # Log the notices that the recording's end adds: the node may end before the next
            # diagnostics, which otherwise log notices.
            self.warn_once(self.camera.notices())
            captured = self._counters.total().captured
            self.get_logger().info(
                f'{self.camera.device}: end of the recording after {captured} frames'
            )

    def _publish(self, frame: Frame) -> None:
        publisher = self._publisher
        if not self._flowing or publisher is None:
            return
        self._took(frame.data.capture_cost_ns)
        began_ns = time.monotonic_ns()
        if self._paused_ns:
            self._end_pause(began_ns)
        publisher.publish(frame)
        self.frame_log.published(frame, began_ns, time.monotonic_ns())
        self._camera_info.publish(frame.data.header)
        self._snapshots.offer(frame)

    def _end_pause(self, now_ns: int) -> None:
        """Store how long the camera paused; called at the first frame with the new buffers."""
        self.pause_s, self._paused_ns = (now_ns - self._paused_ns) / 1e9, 0
        self.get_logger().info(
            f'the new buffers are in use; the camera paused for {self.pause_s:.2f} s'
        )

    @property
    def finished(self) -> bool:
        """Whether no frame comes any more: the recording has ended, or the camera failed."""
        return self.supervisor.finished

    def progress(self) -> int | None:
        """Return how many frames came or were dropped; ``None``: frames don't come regularly."""
        camera = self.supervisor.camera
        if (
            not self._flowing
            or not self._kind.PACED
            or camera is None
            or 0 < camera.framerate < _SLOWEST_HZ
        ):
            return None
        total = self._counters.total()
        return (
            total.captured + total.dropped
            if self.supervisor.condition.state is CameraState.STREAMING
            else None
        )

    def given_up(self) -> str:
        """Return why only a restart of the node helps; empty: no restart is needed."""
        condition = self.supervisor.condition
        return condition.reason if self._flowing and condition.state is CameraState.FAILED else ''

    def signs(self) -> object:
        """Return values that change whenever a diagnostic level may have changed."""
        camera, server = self.supervisor.camera, self._server
        if camera is None or server is None:
            return self._stirred
        seen, pool = camera.statistics(), camera.pool
        silent = self._quiet.see(self._counters.openings + seen.captured) > 0.0
        return (
            self._stirred, silent, seen.lost, seen.bad, seen.no_slot,
            0 if pool is None else pool.troubles, camera.clock.troubles, server.troubles,
        )  # fmt: skip

    def collect_diagnostics(self) -> list[Status]:
        """Return the statuses of camera, buffers, links and, in a stereo pair, of the pairing."""
        camera, server, session = self.supervisor.camera, self._server, self.session
        if camera is not None and session is not None:
            self.warn_once(camera.notices())
        agreed = negotiation_status(
            session,
            self._disagreement,
            self.state,
            waits=server is not None,
            renewals=0 if self._offer is None else self._offer.renewals,
            pause_s=self.pause_s,
        )
        found = [
            self.lifecycle_status(),
            copies_status(self.ledger),
            latency_status(self.latencies),
            agreed,
        ]
        if server is None:
            return found
        return [
            camera_status(
                camera,
                self.supervisor.condition,
                self._counters,
                started=self._flowing,
                paced=self._kind.PACED,
            ),
            pool_status(camera, self._counters),
            clock_status(camera, self._counters, self.now_ns()),
            server.status(),
            *found,
            self._camera_info.status(),
            self._controls.status(),
            *([] if self._stereo is None else [self._stereo.status()]),
            *([] if self._unixfd is None else [self._unixfd.status()]),
            *self._realtime.statuses(),
        ]
