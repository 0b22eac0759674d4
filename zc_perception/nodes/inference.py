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

"""``inference_node``: runs a model on each frame, on an accelerator, and publishes detections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import threading
import time
from typing import Any, ClassVar, Protocol, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile
from std_srvs.srv import SetBool
from vision_msgs.msg import Detection2DArray, LabelInfo

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.detection.tiles import decode, parse_roi, parse_tiles
from zc_perception.detection.tracking import Tracking
from zc_perception.errors import ConfigError, nearest, one_line, shown
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.endpoints.remote_links import TooSlow
from zc_perception.link.rungs import REFUSED, UNMATCHED
from zc_perception.log import Seldom
from zc_perception.memory.ledger import CopyLedger
from zc_perception.native import compiled, how_it_runs
from zc_perception.negotiation.session import Consumer
from zc_perception.nodes import STARTUP
from zc_perception.nodes.capture_status import copies_status, copy_facts, latency_status
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.frame_links import (
    check_topic,
    CONVERTIBLE,
    subscribe_frames,
    subscription_status,
    user_ids,
)
from zc_perception.nodes.messages import detections_writer, label_message
from zc_perception.nodes.params.qos_overrides import Endpoint, publisher_qos
from zc_perception.nodes.perception_node import PATIENCE_S, PerceptionNode
from zc_perception.nodes.realtime import parse_cpus, Realtime
from zc_perception.npu.accelerator import Accelerator, close_accelerator, with_frames
from zc_perception.npu.manifest import load_manifest, ModelManifest
from zc_perception.npu.recovering_device import DeviceState
from zc_perception.npu.scheduler import InFlight, Scheduler, SchedulerStatistics
from zc_perception.npu.selection import engines_of, open_accelerator, Selection
from zc_perception.observe.diagnostics import ERROR, Figures, OK, Part, Row, Status, WARN
from zc_perception.observe.frame_log import FrameLog
from zc_perception.observe.metrics import RecentCount, RecentRates, Silence, StageLatencies
from zc_perception.observe.timeline import FrameBudget, Late
from zc_perception.parameters import whole_number

if TYPE_CHECKING:
    from zc_perception.nodes.stages import BoxesInSpace

# Let a frame pass if it is early by at most this share of a period: cameras jitter, and without
# this margin a limit equal to the camera's rate would halve the rate.
_EARLY = 0.125


def select_accelerator(
    values: Mapping[str, Any], ledger: CopyLedger, factory: Callable[[], Accelerator] | None
) -> Selection:
    """Open the accelerator with *factory* (``None``: as *values* say), and load the model."""
    manifest = load_manifest(values['model'])
    if factory is None:
        return open_accelerator(values['accelerator'], manifest, values, ledger)
    return Selection(_loaded(factory, manifest), manifest, (), lambda: _loaded(factory, manifest))


def _loaded(factory: Callable[[], Accelerator], manifest: ModelManifest) -> Accelerator:
    accelerator = factory()
    try:
        accelerator.load(manifest)
    except BaseException:
        close_accelerator(accelerator)
        raise
    return accelerator


@dataclass
class InferenceStream:
    """Accelerator, subscription and scheduler of a configured inference node."""

    selected: Selection
    subscription: AdaptedSubscription[Frame]
    scheduler: Scheduler
    limits: DecodeLimits

    def __post_init__(self) -> None:
        self.manifest = self.selected.manifest
        self.head = make_head(self.manifest.head)
        self.to_message = detections_writer(len(self.manifest.classes))

    def hot_threads(self) -> Sequence[threading.Thread]:
        """
        Return the threads that process frames: the scheduler's and the accelerator's.

        The scheduler's thread reopens a lost accelerator, so the accelerator's new threads
        inherit the CPUs and the priority of the scheduler's thread.
        """
        return [self.scheduler.thread, *self.scheduler.accelerator.hot_threads()]

    def close(self) -> None:
        """Close the stream, but leave the accelerator open if one of its calls never returns."""
        ended = self.scheduler.stop()
        self.subscription.destroy()
        if ended:
            close_accelerator(self.scheduler.accelerator)


class Pace:
    """Limits the rate of frames. Only one thread may call :meth:`accepts`."""

    def __init__(
        self, max_rate: float, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._due_ns = 0
        self.set_rate(max_rate)

    def set_rate(self, max_rate: float) -> None:
        """Set the limit in frames per second; 0: no limit."""
        #: Shortest time between two frames; 0: every frame is let through.
        self.period_ns = round(1e9 / max_rate) if max_rate else 0

    def accepts(self) -> bool:
        """Return whether a frame may pass now; if so, set the time when the next frame is due."""
        period = self.period_ns
        if not period:
            return True
        now = self._monotonic_ns()
        if now < self._due_ns - period * _EARLY:
            return False
        # While frames come regularly, count from the last due time, so that the average rate is
        # exact. After a pause of a period or more, count from now.
        self._due_ns = self._due_ns + period if now - self._due_ns < period else now + period
        return True


def class_mask(wanted: Sequence[str], known: Sequence[str]) -> NDArray[np.bool_] | None:
    """
    Return for each known class whether it is wanted; ``None``: all are, or none is named.

    :param wanted: names or indices of classes.
    :raises ConfigError: the model doesn't have a wanted class.
    """
    if not wanted:
        return None
    mask = np.zeros(len(known), np.bool_)
    for name in wanted:
        index = known.index(name) if name in known else whole_number(name, len(known) - 1)
        if index is None:
            raise ConfigError(
                f"parameter 'classes' has {shown(name)}, which the model doesn't "
                f'know{nearest(name, known)}; '
                f'write {", ".join(known[:12])}{", …" if len(known) > 12 else ""}, or '
                f'an index from 0 to {len(known) - 1}'
            )
        mask[index] = True
    return None if mask.all() else mask


def check_classes(values: Mapping[str, Any]) -> None:
    """
    Raise ConfigError for parameters ``model``, ``classes`` and ``tiles`` that can't work.

    The parameters can't work if the model is missing, lacks one of the wanted classes, or finds
    masks although there is more than one tile.
    """
    manifest = load_manifest(values['model'])
    engines = engines_of(values['accelerator'])
    variants = [variant for variant in manifest.variants if variant.engine in engines]
    refusals = []
    for variant in variants:
        try:
            class_mask(values['classes'], variant.classes)
        except ConfigError as error:
            refusals.append(error)
    if variants and len(refusals) == len(variants):
        raise refusals[0]
    tiles = values.get('tiles', '1x1')
    if manifest.head.options.get('masks') and parse_tiles(tiles) != (1, 1):
        raise ConfigError(
            f"parameter 'tiles' is {tiles}, but model {manifest.name} finds masks, which can't "
            "be joined across tiles; use parameter 'roi', or a model for task detect, pose or obb"
        )


# If fewer than this share of the camera's frames get a result, report that the model is too slow.
# Count all frames that came, because the node drops those for which the model has no time.
_LEAST = 0.8
_SLOW_MODEL = TooSlow(
    'the model is too slow',
    "lower the camera's framerate or set max_rate, take a smaller model, or raise in_flight if "
    'the device can work on more frames at a time',
)
# Measure the rate of detections over at least this many frames, so that one frame more or less
# doesn't matter. If `max_rate` is set, the measurement also lasts at least as long as this many
# frames take at that rate.
_JUDGED_FRAMES = 10
# After this many lost frames in a row, report that every frame is lost.
_ALL_LOST = 10
# Judge the import cache only if at least this many frames came lately: the first frame of each
# buffer needs an import, however well the cache works.
_IMPORTS_FROM = 10
_IF_REFUSED = 'the error says what the device refused; see dmesg'
_IF_LATE = "raise parameter 'timeout' ({timeout:g} s), or give the device less to do"
_GIVES = 'only {done:.1f} of {target:.1f} frames per second give results, {failing:.1f} fail'
ACCELERATOR = Part(
    'accelerator',
    Row(
        lambda s: s.state.recovering,
        ERROR,
        '{device}; frames are dropped until the device is back',
        'look at the card: lspci -d 1f9d:, dmesg | grep -i metis',
        'recovering for …',
        'see [accelerators](accelerators.md)',
    ),
    Row(
        lambda s: s.lost and s.in_a_row >= _ALL_LOST and s.too_late,
        ERROR,
        'every frame is lost, {in_a_row} since the last result: {last_error}',
        _IF_LATE,
    ),
    Row(
        lambda s: s.lost and s.in_a_row >= _ALL_LOST,
        ERROR,
        'every frame is lost, {in_a_row} since the last result: {last_error}',
        _IF_REFUSED,
    ),
    Row(
        lambda s: s.too_late,
        WARN,
        '{lost} frame(s) lost lately, most because no result came in time; last error: '
        '{last_error}',
        _IF_LATE,
    ),
    Row(
        lambda s: s.lost,
        WARN,
        '{lost} frame(s) lost lately, last error: {last_error}',
        _IF_REFUSED,
    ),
    Row(
        lambda s: s.cached and s.submitted >= _IMPORTS_FROM and s.imports * 2 >= s.submitted,
        WARN,
        'the import cache is of no use: {imports} imports for {submitted} frames lately',
        (
            'the publisher gives new buffers all the time: let it reuse a fixed number of them, '
            'as a pool does'
        ),
    ),
    well='running',
)
DETECTIONS = Part(
    'detections',
    Row(lambda s: not s.active, OK, 'the node is not active'),
    Row(lambda s: not s.enabled, OK, 'switched off'),
    Row(lambda s: s.alone, OK, 'waits for a publisher'),
    Row(
        lambda s: s.unconverted and (s.silent_s or s.nothing),
        ERROR,
        'no frame could be converted lately; the conversion of {unconverted} message(s) failed',
        CONVERTIBLE,
    ),
    Row(
        lambda s: s.silent_s,
        WARN,
        'no frame comes any more, for {silent_s:.0f} s now',
        (
            "look at the camera in the publisher's diagnostics; after the end of a recording "
            'this is normal'
        ),
    ),
    Row(lambda s: not s.judged and s.nothing, OK, 'waits for frames'),
    Row(lambda s: not s.judged, OK, 'frames come, but too few yet to measure their rate'),
    Row(
        lambda s: s.too_few and s.failed and not s.done,
        ERROR,
        _GIVES,
        "part 'accelerator' of these diagnostics has the last error",
    ),
    Row(
        lambda s: s.too_few and s.failed,
        WARN,
        _GIVES,
        "part 'accelerator' of these diagnostics has the last error",
    ),
    Row(
        lambda s: s.too_few,
        WARN,
        f'{_SLOW_MODEL.what}: only {{done:.1f}} of {{target:.1f}} frames per second go through it',
        _SLOW_MODEL.advice,
    ),
    well='{done:.1f} of {coming:.1f} frames per second go through the model',
)
# The diagnostics' advice on a late frame. The key is the stage that exceeded its usual duration
# most.
_TOO_LONG = {
    'capture': (
        "the camera's thread waits for a CPU: see realtime_priority, or move other nodes "
        'out of its process'
    ),
    'link': (
        'this node was busy with the previous frame, or waits for a CPU: see in_flight and '
        'realtime_priority'
    ),
    'import': "importing or converting the frame takes too long: see part 'accelerator'",
    'infer': 'the device takes too long: use a smaller model, or run fewer frames (max_rate)',
    'queue': (
        'the previous frame was decoded late, or the thread that decodes waits for a CPU: '
        'see realtime_priority'
    ),
    'decode': (
        'the model finds many candidates: raise score_threshold or set classes; or the thread '
        'that decodes waits for a CPU: see realtime_priority'
    ),
    'publish': 'the middleware takes too long: see which nodes subscribe to detections',
}
BUDGET = Part(
    'budget',
    Row(lambda s: s.late, WARN, ('{late} frame(s) took longer than {deadline_ms:g} ms lately, '
                                 'the worst {worst}'), '{advice}',
        see='the advice depends on the stage that the message names; see '
        '[zc_timeline](timeline.md#a-deadline)'),
    well='no frame took longer than {deadline_ms:g} ms lately',
)  # fmt: skip
# Deactivation waits at most this many seconds for frames in flight; a slower frame is released
# when the device is done with it.
_DRAIN_S = 1.0
_DRAIN_LOOK_S = 0.002
Observer = Callable[[InFlight, Detections], None]


class Stage(Protocol):
    """Publishes messages made from a frame's detections, on a topic other than ``detections``."""

    def see(self, entry: InFlight, found: Detections) -> None:
        """
        Take a frame and its detections, and return soon.

        The scheduler's thread calls this for each frame, after the detections were published.
        """

    def close(self) -> None:
        """Close the stage's publishers and subscriptions."""


class InferenceNode(PerceptionNode):
    """
    Subscribes to ``image_raw`` (type-adapted), publishes ``detections`` and ``label_info``.

    ``label_info`` is latched; service ``~/enable`` switches detection on and off.

    :param accelerator_factory: opens the accelerator at the start and after each loss of the
        device; it replaces parameter ``accelerator``.
    """

    SPECS = NODES['inference']
    CHECKS: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        'cpu_affinity': parse_cpus,
        'shared_memory_users': user_ids,
        'roi': parse_roi,
        'tiles': parse_tiles,
        'depth_topic': lambda name: name and check_topic('depth_topic', name),
    }
    ENDPOINTS = (
        Endpoint('detections', 'publisher'),
        Endpoint('label_info', 'publisher'),
        Endpoint('image_raw', 'subscription', adapted=True),
        Endpoint('detections/masks', 'publisher'),
        Endpoint('detections/annotations', 'publisher'),
        Endpoint('detections_3d', 'publisher'),
        Endpoint('detections_3d/markers', 'publisher'),
    )

    def __init__(
        self, *, accelerator_factory: Callable[[], Accelerator] | None = None, **node_options: Any
    ) -> None:
        super().__init__('inference', **node_options)
        self._complain = Seldom(lambda text: self.get_logger().error(text), 5.0)
        self.latencies = StageLatencies()
        self.observers: list[Observer] = []
        self.processed = 0
        self.detected = 0
        self.failed = 0
        self._quiet = Silence()
        self.budget = FrameBudget(self.parameters['deadline'])
        self._shown = False
        self._factory = accelerator_factory
        self._stream: InferenceStream | None = None
        self._pace = Pace(self.max_rate)
        self._tracking = Tracking(self.parameters)
        self._space: BoxesInSpace | None = None
        self._stages: list[Stage] = []
        self._realtime = Realtime(
            self,
            self.parameters,
            lambda: () if self._stream is None else self._stream.hot_threads(),
        )
        self._status = InferenceStatus(self)
        self._publisher = self.create_publisher(
            Detection2DArray, 'detections', publisher_qos(self, 'detections', QoSProfile(depth=10))
        )
        latched = publisher_qos(
            self, 'label_info', QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        )
        self._label_publisher = self.create_publisher(LabelInfo, 'label_info', latched)
        self._enable_service = self.create_service(SetBool, '~/enable', self._on_enable)
        self.frame_log = FrameLog(
            'inference', self.get_fully_qualified_name(), self.get_logger().warning
        )
        self._ends.callback(self.frame_log.close)
        self._begin()

    def _open(self) -> None:
        """Open accelerator and model; subscribe to frames, which come only after activation."""
        STARTUP.reached('accelerator_asked')
        selected = select_accelerator(self.parameters, self.ledger, self._factory)
        STARTUP.reached('accelerator')
        try:
            limits = self._limits(selected.manifest)
            subscription = self._subscribe()
        except BaseException:
            close_accelerator(selected.accelerator)
            raise
        try:
            subscription.pause()
            scheduler = Scheduler(
                selected.accelerator,
                subscription.queue,
                self._on_result,
                self._on_error,
                in_flight=self.parameters['in_flight'],
                timeout_s=self.parameters['timeout'],
                reopen=selected.reopen,
                keep_all=self.parameters['keep_all'],
                accept=self._accepts,
            )
            self._stream = InferenceStream(selected, subscription, scheduler, limits)
            self._open_stages(self._stream)
        except BaseException:
            subscription.destroy()
            close_accelerator(selected.accelerator)
            raise
        self._publish_labels()
        subscription.take_part(self._consumer())

    def _open_stages(self, stream: InferenceStream) -> None:
        """
        Open a :class:`Stage` for each further topic that the parameters or the model ask for.

        Import the module of the stages only if a stage is needed: its messages load slowly.
        """
        head, values = stream.manifest.head.options, self.parameters
        depth, masks, keypoints = values['depth_topic'], head.get('masks'), head.get('keypoints')
        if not (depth or masks or keypoints or values['annotations']):
            return
        from zc_perception.nodes import stages

        if depth:
            self._space = stages.BoxesInSpace(self, depth, stream.scheduler.stamps)
            self._add_stage(self._space)
        if masks:
            self._add_stage(stages.MaskTopic(self, self.ledger, stream.head, masks))
        if values['annotations'] or keypoints:
            names = stream.manifest.classes
            self._add_stage(stages.AnnotationTopic(self, stream.head, names, keypoints or ()))

    def _add_stage(self, stage: Stage) -> None:
        self._stages.append(stage)
        self.observers.append(stage.see)

    def _agree(self) -> None:
        self._announce_accelerator()
        self.scheduler.start()
        self._realtime.configure()

    def _activate(self) -> None:
        self._realtime.activate()
        self._flowing = True
        self.subscription.resume()
        self._describe()

    def _deactivate(self) -> None:
        stream = self._stream
        if stream is None:
            return
        stream.subscription.pause()
        deadline = time.monotonic() + _DRAIN_S
        while stream.scheduler.in_flight and time.monotonic() < deadline:
            time.sleep(_DRAIN_LOOK_S)

    def _cleanup(self) -> None:
        if self._stream is not None:
            self._describe()
            self._stream.close()
        # A stopped node keeps its stream: diagnostics still read the stream's counters.
        if not self._stopped:
            self._stream = None
        self._realtime.cleanup()
        self._space, stages, self._stages = None, self._stages, []
        for stage in stages:
            self.observers.remove(stage.see)
            stage.close()

    def _accepts(self) -> bool:
        pace = self._pace
        return (
            self._flowing
            and bool(self.parameters['enabled'])
            and (not pace.period_ns or pace.accepts())
        )

    @property
    def max_rate(self) -> float:
        """The highest number of frames to run per second; 0, also with ``keep_all``: no limit."""
        return 0.0 if self.parameters['keep_all'] else float(self.parameters['max_rate'])

    @property
    def stream(self) -> InferenceStream | None:
        """Accelerator, subscription and scheduler; ``None``: the node isn't configured."""
        return self._stream

    def _configured(self) -> InferenceStream:
        stream = self._stream
        if stream is None:
            raise self.lacks('accelerator and no subscription')
        return stream

    @property
    def subscription(self) -> AdaptedSubscription[Frame]:
        """The subscription of ``image_raw``, while the node is configured."""
        return self._configured().subscription

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that runs frames, while the node is configured."""
        return self._configured().scheduler

    @property
    def manifest(self) -> ModelManifest:
        """The manifest of the node's model, while the node is configured."""
        return self._configured().manifest

    @property
    def accelerator(self) -> Accelerator:
        """The accelerator in use; after the device was lost and reopened, it is a new object."""
        return self.scheduler.accelerator

    def _publish_labels(self) -> None:
        self._label_publisher.publish(label_message(self.manifest.classes, self.score_threshold))

    @classmethod
    def check_together(cls, values: Mapping[str, Any], node: str) -> None:
        """Raise ConfigError as :func:`check_classes` does; open no device."""
        check_classes(values)

    def _check_parameter(self, name: str, value: Any) -> None:
        if name == 'classes' and self._stream is not None:
            class_mask(value, self._stream.manifest.classes)
        super()._check_parameter(name, value)

    def _on_parameter(self, name: str, value: Any) -> None:
        if name in ('max_rate', 'keep_all'):
            self._pace.set_rate(self.max_rate)
        elif name == 'deadline':
            self.budget = FrameBudget(value)
        self._tracking.tune(self.parameters)
        stream = self._stream
        if stream is None:
            return
        stream.limits = self._limits(stream.manifest)
        if name == 'score_threshold':
            self._publish_labels()
        elif name in stream.scheduler.accelerator.own({}):
            if name == 'in_flight':
                stream.subscription.hold(value)
            stream.scheduler.tune(self.parameters)
        self._realtime.changed(name)

    def _announce_accelerator(self) -> None:
        capabilities = self.accelerator.capabilities()
        selected, logger = self._configured().selected, self.get_logger()
        # Log at level info why a better accelerator isn't used; but at level debug if this machine
        # has no accelerator card: diagnostics and zc_doctor report a missing card.
        for reason in selected.reasons:
            (logger.debug if selected.without_card else logger.info)(reason)
        if not capabilities.on_card:
            what, _, provider = capabilities.device.partition(', ')[0].partition(' on ')
            logger.info(
                f'running on {provider or "the CPU"} (model {selected.manifest.name}, {what})'
            )
        else:
            access = (
                'it reads each frame itself'
                if capabilities.copy_free
                else 'each frame is converted once'
            )
            logger.info(
                f"running on accelerator '{capabilities.name}' (model "
                f'{selected.manifest.name}, {capabilities.device}): {access}'
            )
        if compiled is None:
            logger.info(f'{how_it_runs()}: decoding takes more CPU time than with compiled code')
        if selected.manifest.finds:
            logger.info(f'model {selected.manifest.name} finds {selected.manifest.finds}')
        self._status.say_notices()

    def _subscribe(self) -> AdaptedSubscription[Frame]:
        qos = (
            QoSProfile(history=HistoryPolicy.KEEP_ALL)
            if self.parameters['keep_all']
            else QoSProfile(depth=1)
        )
        return subscribe_frames(
            self,
            self.parameters,
            self.ledger,
            qos,
            held=self.parameters['in_flight'],
            slow=_SLOW_MODEL,
        )

    def _consumer(self) -> Consumer:
        """
        Return the accelerator as a participant in the negotiation of buffers.

        It needs a lease for each frame that the device works on, and one for the next frame.
        """
        stream = self._configured()
        most = self.accelerator.capabilities().max_in_flight
        return Consumer(
            with_frames(self.accelerator.constraints(), self.parameters['in_flight'], most),
            lambda settings, buffers: stream.scheduler.trial_import(settings.layout, buffers),
        )

    @property
    def score_threshold(self) -> float:
        """The lowest published score: parameter ``score_threshold``, or the model's value."""
        return self._configured().limits.score

    def _limits(self, manifest: ModelManifest) -> DecodeLimits:
        """
        Return score threshold, overlap threshold (NMS), limit of detections and wanted classes.

        Each is the parameter's value, or the model's if the parameter isn't set.
        """
        return DecodeLimits(
            float(self._own('score_threshold', manifest.score_threshold)),
            self._own('nms_threshold', manifest.nms_threshold),
            self.parameters['max_detections'] or manifest.max_detections,
            class_mask(self.parameters['classes'], manifest.classes),
        )

    def _own(self, name: str, models: float) -> float:
        value = self.parameters[name]
        return float(models) if value < 0 else float(value)

    def _describe(self) -> None:
        if self._stream is not None:
            self.frame_log.describe(self._facts)

    def _facts(self) -> dict[str, Any]:
        accelerator, statistics, link = (
            self.accelerator,
            self.scheduler.statistics(),
            self.subscription.statistics(),
        )
        capabilities = accelerator.capabilities()
        known = accelerator.facts()
        return {
            'accelerator': capabilities.name,
            'device': capabilities.device,
            'pci_address': known.get('pci_address', ''),
            'copy_free': capabilities.copy_free,
            'import_cache': accelerator.keeps_imports,
            'in_flight': statistics.in_flight,
            'imports': statistics.imports,
            'trial_imports': statistics.trial_imports,
            'submitted': statistics.submitted,
            'rung': link.rung,
            'reason': link.reason,
            'conversions': link.conversions,
            'processed': self.processed,
            'failed': self.failed,
            'deadline_s': self.parameters['deadline'],
            'copies': copy_facts(self.ledger),
            'startup': STARTUP.facts(),
        }

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        result = self.set_parameters([Parameter('enabled', value=bool(request.data))])[0]
        response.success = result.successful
        response.message = result.reason or ('enabled' if request.data else 'disabled')
        return response

    def _on_result(self, entry: InFlight) -> None:
        if not self._flowing:
            return
        done_ns = time.monotonic_ns()
        data, stream, job = entry.frame.data, self._stream or self._configured(), entry.job
        found = decode(stream.head, job.outputs(), job.letterbox, stream.limits)
        layout = data.layout
        found = self._tracking(found, data.header.stamp_ns, (layout.width, layout.height))
        decoded_ns = time.monotonic_ns()
        self._publisher.publish(stream.to_message(data.header, found))
        published_ns = time.monotonic_ns()
        count = len(found)
        self.frame_log.processed(entry, done_ns, decoded_ns, published_ns, count)
        self.processed += 1
        self.detected += count
        if not self._shown and count:
            self._shown = True
            self.get_logger().info(first_found(found, stream.manifest.classes))
        received_ns = entry.received_ns
        self.latencies.record_frame(
            received_ns - entry.frame.published_ns,
            done_ns - received_ns,
            decoded_ns - done_ns,
            published_ns - decoded_ns,
            published_ns - data.captured_ns,
        )
        budget = self.budget
        if budget.deadline_ns:
            budget.judge(
                data.captured_ns,
                entry.frame.published_ns,
                received_ns,
                entry.submitted_ns,
                entry.signalled_ns,
                done_ns,
                decoded_ns,
                published_ns,
            )
        for observer in self.observers:
            observer(entry, found)

    def _on_error(self, frame: Frame, error: BaseException) -> None:
        self.failed += 1
        self.frame_log.failed(frame, time.monotonic_ns(), self.scheduler.failing)
        self._status.lost(error)
        self._complain(f'frame {frame.data.sequence} was lost: {one_line(error)}', 'lost')

    @property
    def idle(self) -> bool:
        """Whether no frame is queued or in flight."""
        return len(self.subscription.queue) == 0 and self.scheduler.in_flight == 0

    def progress(self) -> int | None:
        """
        Return how many frames have a result or an error so far.

        Return ``None`` while a standstill is no fault: while the node isn't active, no frame is in
        flight, or the device is lost.
        """
        stream = self._stream
        if (
            not self._flowing
            or stream is None
            or stream.scheduler.in_flight == 0
            or stream.scheduler.state.since_ns
        ):
            return None
        return self.processed + self.failed

    @property
    def patience_s(self) -> float:
        """Seconds without progress that count as a fault: 15 s plus twice ``timeout``."""
        return PATIENCE_S + 2.0 * float(self.parameters['timeout'])

    def signs(self) -> object:
        """Return values that change whenever a diagnostic level may have changed."""
        stream = self._stream
        if stream is None:
            return self._stirred
        silent = self._quiet.see(self.processed) > 0.0
        return (
            self._stirred,
            silent,
            self.failed,
            self.budget.late,
            stream.subscription.choice,
            stream.scheduler.state.since_ns,
        )

    def collect_diagnostics(self) -> list[Status]:
        """Return the node's state and the statuses of :class:`InferenceStatus`."""
        space = self._space
        return [
            self.lifecycle_status(),
            *self._status.collect(),
            *self._realtime.statuses(),
            *([] if space is None else [space.status()]),
        ]


class InferenceStatus:
    """
    Makes the diagnostics of an inference node: link, accelerator, rate, latencies and copies.

    The node owns this object. The thread that publishes diagnostics calls :meth:`collect`, up to
    several times a second; each call compares counters with their values at the previous call. The
    scheduler's thread calls :meth:`lost`.
    """

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self._last_error = ''
        self._logged = SchedulerStatistics()
        self._shown = SchedulerStatistics()
        self._lost = 0
        self._at_result = SchedulerStatistics()
        self._recently_lost = RecentCount()
        self._recent = {name: RecentCount() for name in ('timed_out', 'submitted', 'imports')}
        self._conversion_errors = RecentCount()
        self._rates = RecentRates()
        self._judged: tuple[float, ...] | None = None
        self._came_before: int | None = None
        self._silence = Silence()
        self._enabled = True
        self._most = 0.0
        self._budget: FrameBudget | None = None
        self._late = RecentCount()
        self._worst: Late | None = None

    def lost(self, error: BaseException) -> None:
        """Count a frame without a result, and keep its error. Any thread may call this."""
        self._last_error = one_line(error)
        self._lost += 1

    def say_notices(self) -> None:
        """Log each of the accelerator's notices once, as a warning."""
        stream = self._node.stream
        self._node.warn_once([] if stream is None else stream.scheduler.accelerator.notices())

    def collect(self) -> list[Status]:
        """Return the statuses; while the node isn't configured, only latencies and copies."""
        node, stream = self._node, self._node.stream
        found = [latency_status(node.latencies), copies_status(node.ledger)]
        if stream is None:
            self._begin_anew()
            return found
        self.say_notices()
        statistics, state = stream.scheduler.statistics(), stream.scheduler.state
        self._log_losses(statistics, state)
        lost = self._recently_lost.see(self._lost)
        if statistics.completed != self._at_result.completed:
            self._at_result = statistics
        untaken = lost and self._since_result(statistics, 'refused_device') >= _ALL_LOST
        return [
            subscription_status(
                stream.subscription, self._conversion_errors, self._last_error if untaken else ''
            ),
            self._accelerator_status(stream, statistics, state, lost),
            self._rate_status(stream, statistics, state),
            *self._budget_status(),
            *found,
        ]

    def _budget_status(self) -> list[Status]:
        """Report whether frames kept the deadline, if a deadline is set."""
        budget = self._node.budget
        if budget is not self._budget:
            self._budget, self._late, self._worst = budget, RecentCount(), None
        if not budget.deadline_ns:
            return []
        late = self._late.see(budget.late)
        worst = [each for each in (budget.take_worst(), self._worst) if late and each is not None]
        self._worst = max(worst, default=None)
        values = {
            'deadline_ms': f'{budget.deadline_ns / 1e6:g}',
            'late': budget.late,
            **{f'late_by_{stage}': count for stage, count in budget.stages.copy().items()},
        }
        return [
            BUDGET.status(
                values,
                late=self._worst is not None and late,
                deadline_ms=budget.deadline_ns / 1e6,
                worst=self._worst,
                advice='' if self._worst is None else _TOO_LONG[self._worst.stage],
            )
        ]

    def _since_result(self, statistics: SchedulerStatistics, *counters: str) -> int:
        """Return by how much the sum of *counters* grew since the last result or activation."""
        return sum(getattr(statistics, name) - getattr(self._at_result, name) for name in counters)

    def _accelerator_status(
        self,
        stream: InferenceStream,
        statistics: SchedulerStatistics,
        state: DeviceState,
        lost: int,
    ) -> Status:
        recent = {
            name: counter.see(getattr(statistics, name)) for name, counter in self._recent.items()
        }
        capabilities = stream.scheduler.accelerator.capabilities()
        return ACCELERATOR.status(
            Figures(lambda: self._accelerator_values(stream, statistics, state)),
            capabilities.device,
            state=state,
            device=state.describe(),
            lost=lost,
            too_late=lost and recent['timed_out'] * 2 >= lost,
            in_a_row=self._since_result(statistics, 'refused_device', 'timed_out', 'failed'),
            last_error=self._last_error,
            timeout=self._node.parameters['timeout'],
            cached=stream.scheduler.accelerator.keeps_imports,
            imports=recent['imports'],
            submitted=recent['submitted'],
        )

    def _accelerator_values(
        self, stream: InferenceStream, statistics: SchedulerStatistics, state: DeviceState
    ) -> dict[str, object]:
        node, accelerator = self._node, stream.scheduler.accelerator
        capabilities = accelerator.capabilities()
        earlier, self._shown = self._shown, statistics
        return {
            **accelerator.facts(),
            'accelerator': capabilities.name,
            'device': capabilities.device,
            'copy_free': capabilities.copy_free,
            'model': stream.manifest.name,
            'model_finds': stream.manifest.finds,
            'state': state.describe(),
            'processed': node.processed,
            'failed': node.failed,
            'imports': statistics.imports,
            'trial_imports': statistics.trial_imports,
            'import_cache_hits': max(0, statistics.submitted - statistics.imports)
            if statistics.imports
            else 0,
            'last_error': self._last_error,
            'notices': '; '.join(accelerator.notices()),
            'why_no_better': '; '.join(stream.selected.reasons),
            'utilisation': f'{statistics.utilisation_since(earlier):.0%}',
            'in_flight': statistics.in_flight,
            'submitted': statistics.submitted,
            'completed': statistics.completed,
            'timed_out': statistics.timed_out,
            'job_errors': statistics.failed,
            'device_losses': statistics.losses,
            'recovered': statistics.recovered,
            'dropped_newest_wins': statistics.dropped,
            'refused_disabled': statistics.refused_disabled,
            'refused_recovering': statistics.refused_recovering,
            'refused_device': statistics.refused_device,
        }

    def _begin_anew(self) -> None:
        self._at_result = SchedulerStatistics()
        self._judge_anew()
        self._came_before = None
        self._silence.forget()

    def _judge_anew(self) -> None:
        self._rates.forget()
        self._judged = None

    def _rate_status(
        self, stream: InferenceStream, statistics: SchedulerStatistics, state: DeviceState
    ) -> Status:
        """Report the rate of results, compared with the rate of incoming frames."""
        node = self._node
        enabled = bool(node.parameters['enabled']) and node.flowing
        if enabled is not self._enabled:
            self._enabled = enabled
            self._begin_anew()
        most = node.max_rate
        if most != self._most:  # rates before and after max_rate changed can't be compared
            self._most = most
            self._judge_anew()
        taken = stream.subscription.statistics()
        came = statistics.taken + taken.dropped
        if self._came_before is None:
            self._came_before = came
        # Per second: frames, results, lost frames, and frames that the node left out, most of them
        # because of max_rate. None until enough frames came to measure.
        self._judged = rates = (
            self._rates.see(
                came,
                statistics.completed,
                statistics.lost,
                statistics.refused_disabled,
                over_s=_JUDGED_FRAMES / most if most > 0 else 0.0,
                at_least=_JUDGED_FRAMES,
            )
            or self._judged
        )
        silent_s = self._silence.see(came)
        unconverted = self._conversion_errors.see(taken.conversion_errors)
        coming, done, failing, left_out = (0.0,) * 4 if rates is None or silent_s else rates
        # The target is the rate of the frames that max_rate let through. It is below max_rate if
        # the camera is slower, or ran only for a part of the measured time.
        target = min(coming - left_out, most) if most > 0 else coming
        values = Figures(lambda: {
            'rate': f'{done:.2f}',
            'rate_of_frames': f'{coming:.2f}',
            'rate_target': f'{target:.2f}',
            'rate_least': f'{_LEAST * target:.2f}',
            'rate_most': f'{most:g}' if most > 0 else 'that of the frames',
            'detections': node.detected,
            'dropped_newest_wins': statistics.dropped,
        })  # fmt: skip
        few = _LEAST * target
        return DETECTIONS.status(
            values,
            stream.scheduler.accelerator.capabilities().device,
            active=node.flowing,
            enabled=enabled,
            alone=taken.rung in (UNMATCHED, REFUSED),
            unconverted=unconverted,
            silent_s=silent_s,
            nothing=came == self._came_before,
            judged=rates is not None,
            too_few=done < few and not state.recovering,
            failed=failing and (failing >= done or done + failing >= few),
            done=done,
            coming=coming,
            failing=failing,
            target=target,
        )

    def _log_losses(self, now: SchedulerStatistics, state: DeviceState) -> None:
        earlier, self._logged = self._logged, now
        logger = self._node.get_logger()
        if now.losses > earlier.losses:
            logger.error(
                f'the device was lost: {state.last_error or self._last_error}; the node opens '
                'it again'
            )
        if now.recovered > earlier.recovered:
            logger.info(
                'the device is back and runs frames again; so far, '
                f'{now.refused_recovering} frame(s) were dropped while the device was lost'
            )


def first_found(found: Detections, names: Sequence[str]) -> str:
    """Return a log line with the class names of the first boxes; messages have only numbers."""
    kinds, counts = np.unique(found.classes, return_counts=True)
    seen = ', '.join(
        f'{count} {names[kind]} (class_id {kind})'
        for kind, count in zip(kinds, counts, strict=True)
    )
    return f'first detections: {seen}; the names of all classes are in topic label_info'
