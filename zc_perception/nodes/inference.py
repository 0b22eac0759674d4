"""``inference_node``: imports frames into an accelerator and publishes what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile
from std_srvs.srv import SetBool
from vision_msgs.msg import Detection2DArray, LabelInfo

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.session import Consumer
from zc_perception.nodes.frame_links import SUBSCRIPTION_SPECS, subscribe_frames, user_ids
from zc_perception.nodes.frame_log_facts import inference_facts
from zc_perception.nodes.inference_status import InferenceStatus
from zc_perception.nodes.inference_stream import (
    ClassFilter,
    InferenceStream,
    Pace,
    accelerator_options,
    check_classes,
    select_accelerator,
)
from zc_perception.nodes.liveness import PATIENCE_S
from zc_perception.nodes.messages import label_message
from zc_perception.nodes.params.qos_overrides import Endpoint, publisher_qos
from zc_perception.nodes.params.spec import ParameterSpec
from zc_perception.nodes.perception_node import LIFECYCLE_SPECS, PerceptionNode, process_ledger
from zc_perception.nodes.realtime import REALTIME_SPECS, Realtime, parse_cpus
from zc_perception.nodes.startup import STARTUP
from zc_perception.npu.accelerator import OUTPUT_DMABUF, Accelerator, AcceleratorOptions
from zc_perception.npu.axl.abi import parse_ioctl_numbers
from zc_perception.npu.constraints import with_frames
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.scheduler import InFlight, Scheduler
from zc_perception.npu.selection import ACCELERATORS, Selection, other_accelerators
from zc_perception.observe.diagnostics import DiagnosticsPublisher, Status
from zc_perception.observe.frame_log import FrameLog
from zc_perception.observe.metrics import StageLatencies

_OWN = -1.0
# Frames in flight are waited for so long when the node is deactivated; what takes longer gives its buffers back by itself.
_DRAIN_S = 1.0
_DRAIN_LOOK_S = 0.002
_TUNED = ('in_flight', 'timeout', 'import_cache')
Observer = Callable[[InFlight, Detections], None]
_SPECS = (
    ParameterSpec('accelerator', 'auto', 'Where the model runs. auto: axl, axruntime and cpu are tried in this order, and /diagnostics '
                  'says why each did not fit.', choices=ACCELERATORS, other_choices=other_accelerators),
    ParameterSpec('model', 'road', 'Name of a shipped model (road, hog), or path of a model.yaml.'),
    ParameterSpec('score_threshold', _OWN, "Detections with a lower score are dropped. -1: the model's own value.", '', 0.0, 1.0, _OWN,
                  dynamic=True),
    ParameterSpec('nms_threshold', _OWN, "Boxes of one class that overlap more than this become one. -1: the model's own value.", 'IoU',
                  0.0, 1.0, _OWN, dynamic=True),
    ParameterSpec('max_detections', 0, "Most detections per frame. 0: the model's own value.", '', 0, 10000, dynamic=True),
    ParameterSpec('enabled', True, 'Whether frames are run. Service ~/enable sets it too.', dynamic=True),
    ParameterSpec('classes', [], 'Names or indices of the classes that are published. Empty: all.', whole_numbers=True, dynamic=True),
    ParameterSpec('max_rate', 0.0, 'Most frames that are run per second, each time the newest. 0: no limit.', 'Hz', 0.0, 1000.0,
                  dynamic=True),
    ParameterSpec('keep_all', False, 'Run every frame instead of the newest. For recordings only.'),
    ParameterSpec('in_flight', 1, 'Most frames that are on the accelerator at the same time.', '', 1, 16, dynamic=True),
    ParameterSpec('timeout', 1.0, 'A frame that takes longer than this is given up.', 's', 0.01, 60.0, dynamic=True),
    ParameterSpec('accelerator_device', '', 'axl, axruntime: the card, as name (metis-0:1:0), device node (/dev/metis-0:1:0), PCI address '
                  '(01:00.0, in quotes) or index in PCI order. Empty: the first card.', whole_numbers=True),
    ParameterSpec('import_cache', True, 'axl: import each buffer once. false: import again for every frame.', dynamic=True),
    ParameterSpec('axl_ioctls', [], "axl: other ioctl numbers for a driver, each as 'name=number' with a number from 0 to 255."),
    ParameterSpec('axruntime_library', '', "axruntime: path of libaxruntime.so. Empty: the system's."),
    ParameterSpec('aipu_cores', 1, 'axruntime: number of cores that the model uses. 0: as it was compiled.', '', 0, 4),
    ParameterSpec('double_buffer', False, 'axruntime: transfers overlap with computing: more frames per second, results two frames '
                  'late. Set in_flight to 3.'),
    ParameterSpec('output_dmabuf', 'auto', 'axruntime: whether results are written to dma-bufs. auto: yes if a trial run works.',
                  choices=OUTPUT_DMABUF),
    ParameterSpec('threads', 0, 'cpu: number of threads of ONNX Runtime. 0: one per core.', '', 0, 64),
    *SUBSCRIPTION_SPECS,
    *LIFECYCLE_SPECS,
    *REALTIME_SPECS,
)  # fmt: skip


class InferenceNode(PerceptionNode):
    """Subscribes to ``image_raw`` (type-adapted), publishes ``detections`` and the latched ``label_info``; service ``~/enable``.

    :param ledger: the process's copy ledger.
    :param accelerator_factory: opens the accelerator, at the start and after each loss of the device, in place of the one that parameter
        ``accelerator`` names.
    :raises ConfigError: a parameter or the model can't be used.
    """

    SPECS = _SPECS
    CHECKS: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        'axl_ioctls': parse_ioctl_numbers, 'cpu_affinity': parse_cpus, 'shared_memory_users': user_ids,
    }  # fmt: skip
    ENDPOINTS = (
        Endpoint('detections', 'publisher'), Endpoint('label_info', 'publisher'), Endpoint('image_raw', 'subscription', adapted=True),
    )  # fmt: skip

    def __init__(
        self,
        *,
        ledger: CopyLedger | None = None,
        accelerator_factory: Callable[[], Accelerator] | None = None,
        **node_options: Any,
    ) -> None:
        super().__init__('inference', **node_options)
        self.ledger = ledger or process_ledger(self.context)
        self.latencies = StageLatencies()
        self.observers: list[Observer] = []
        self.processed = 0
        self.detected = 0
        self.failed = 0
        self._factory = accelerator_factory
        self._stream: InferenceStream | None = None
        self._pace = Pace(self.parameters['max_rate'])
        self._classes = ClassFilter((), ())
        self._realtime = Realtime(self, self.parameters)
        self._realtime.of(lambda: () if self._stream is None else self._stream.hot_threads())
        self._status = InferenceStatus(self)
        self._publisher = self.create_publisher(Detection2DArray, 'detections', publisher_qos(self, 'detections', QoSProfile(depth=10)))
        latched = publisher_qos(self, 'label_info', QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL))
        self._label_publisher = self.create_publisher(LabelInfo, 'label_info', latched)
        self._enable_service = self.create_service(SetBool, '~/enable', self._on_enable)
        self.frame_log = FrameLog('inference', self.get_fully_qualified_name(), self.get_logger().warning)
        try:
            self._begin()
            self._diagnostics = DiagnosticsPublisher(self, self.collect_diagnostics, before_publishing=self._describe)
        except BaseException:
            self.frame_log.close()
            raise

    def _open(self) -> None:
        """Accelerator and model; and the subscription, which takes nothing before the node is active."""
        STARTUP.reached('accelerator_asked')
        selected = select_accelerator(self.parameters, self.ledger, self._factory)
        STARTUP.reached('accelerator')
        try:
            self._classes = ClassFilter(self.parameters['classes'], selected.manifest.classes)
            subscription = self._subscribe()
        except BaseException:
            selected.accelerator.close()
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
            self._stream = InferenceStream(selected, subscription, scheduler)
        except BaseException:
            subscription.destroy()
            selected.accelerator.close()
            raise
        self._publish_labels()
        subscription.take_part(self._consumer())

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
        if not self._stopped:  # one that has ended may still be asked for its counters
            self._stream = None
        self._realtime.cleanup()

    def _accepts(self) -> bool:
        return self._flowing and bool(self.parameters['enabled']) and self._pace.accepts()

    def _configured(self) -> InferenceStream:
        stream = self._stream
        if stream is None:
            raise AttributeError(f"node '{self.get_name()}' is {self.state}: it has neither accelerator nor subscription; configure it")
        return stream

    @property
    def subscription(self) -> AdaptedSubscription[Frame]:
        """Of ``image_raw``, while the node is configured."""
        return self._configured().subscription

    @property
    def scheduler(self) -> Scheduler:
        """What runs frames, while the node is configured."""
        return self._configured().scheduler

    @property
    def manifest(self) -> ModelManifest:
        """The model, while the node is configured."""
        return self._configured().manifest

    @property
    def selected(self) -> Selection:
        """Which accelerator was taken and why no better one, while the node is configured."""
        return self._configured().selected

    def _accelerator_options(self) -> AcceleratorOptions:
        return accelerator_options(self.parameters)

    @property
    def accelerator(self) -> Accelerator:
        """The one in use. Another one after the device was lost."""
        return self.scheduler.accelerator

    def _publish_labels(self) -> None:
        self._label_publisher.publish(label_message(self.manifest.classes, self.score_threshold))

    @classmethod
    def check_together(cls, values: Mapping[str, Any], node: str) -> None:
        """See :class:`PerceptionNode`."""
        check_classes(values)

    def _check_parameter(self, name: str, value: Any) -> None:
        if name == 'classes' and self._stream is not None:
            ClassFilter(value, self._stream.manifest.classes)
        super()._check_parameter(name, value)

    def _on_parameter(self, name: str, value: Any) -> None:
        if name == 'max_rate':
            self._pace.set(value)
        stream = self._stream
        if stream is None:
            return
        if name == 'classes':
            self._classes = ClassFilter(value, stream.manifest.classes)
        elif name == 'score_threshold':
            self._publish_labels()
        elif name in _TUNED:
            values = self.parameters
            if name == 'in_flight':
                stream.subscription.hold(value)
            stream.scheduler.tune(in_flight=values['in_flight'], timeout_s=values['timeout'], import_cache=values['import_cache'])
        self._realtime.changed(name)

    def _announce_accelerator(self) -> None:
        capabilities = self.accelerator.capabilities()
        selected, logger = self.selected, self.get_logger()
        # Where there is no card nothing is wrong with it. Diagnostics and zc_doctor have the reasons in any case.
        for reason in selected.reasons:
            (logger.debug if selected.without_card else logger.info)(reason)
        if capabilities.name == 'cpu':
            logger.info(f'running on the CPU (model {selected.manifest.name}, {capabilities.device.partition(", ")[0]})')
        else:
            access = 'it reads each frame itself' if capabilities.copy_free else 'each frame is converted once'
            logger.info(f"running on accelerator '{capabilities.name}' (model {selected.manifest.name}, {capabilities.device}): {access}")
        self._status.say_notices()

    def _subscribe(self) -> AdaptedSubscription[Frame]:
        qos = QoSProfile(history=HistoryPolicy.KEEP_ALL) if self.parameters['keep_all'] else QoSProfile(depth=1)
        return subscribe_frames(self, self.parameters, self.ledger, qos, held=self.parameters['in_flight'])

    def _consumer(self) -> Consumer:
        """The accelerator as a participant in the camera's buffers: it holds the frames in flight and the one that waits."""
        stream = self._configured()
        most = self.accelerator.capabilities().max_in_flight
        return Consumer(
            with_frames(self.accelerator.constraints(), self.parameters['in_flight'], most),
            lambda settings, buffers: stream.scheduler.trial_import(settings.layout, buffers),
        )

    @property
    def score_threshold(self) -> float:
        """The one in force."""
        return float(self._own('score_threshold', self.manifest.score_threshold))

    def _own(self, name: str, models: float) -> float:
        value = self.parameters[name]
        return float(models) if value < 0 else float(value)

    def _describe(self) -> None:
        if self._stream is not None:
            self.frame_log.describe(lambda: inference_facts(self))

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        result = self.set_parameters([Parameter('enabled', value=bool(request.data))])[0]
        response.success = result.successful
        response.message = result.reason or ('enabled' if request.data else 'disabled')
        return response

    def _on_result(self, entry: InFlight) -> None:
        if not self._flowing:
            return
        done_ns = time.monotonic_ns()
        data, stream = entry.frame.data, self._configured()
        maximum = self.parameters['max_detections'] or stream.manifest.max_detections
        limits = DecodeLimits(self.score_threshold, self._own('nms_threshold', stream.manifest.nms_threshold), maximum)
        found = self._classes(stream.head.decode(entry.job.outputs(), entry.job.letterbox, limits))
        decoded_ns = time.monotonic_ns()
        self._publisher.publish(stream.to_message(data.header, found))
        published_ns = time.monotonic_ns()
        self.frame_log.processed(entry, done_ns, decoded_ns, published_ns, len(found))
        self.processed += 1
        self.detected += len(found)
        received_ns = entry.received_ns
        self.latencies.record_frame(
            received_ns - entry.frame.published_ns, done_ns - received_ns, decoded_ns - done_ns, published_ns - decoded_ns,
            published_ns - data.captured_ns,
        )  # fmt: skip
        for observer in self.observers:
            observer(entry, found)

    def _on_error(self, frame: Frame, error: Exception) -> None:
        self.failed += 1
        self.frame_log.failed(frame, time.monotonic_ns(), self.scheduler.failing)
        self._status.lost(error)
        self.get_logger().error(f'frame {frame.data.sequence} was lost: {error}', throttle_duration_sec=5.0)

    def detection_readers(self) -> int:
        """Subscribers of ``detections``, in any process."""
        return int(self._publisher.get_subscription_count())

    @property
    def idle(self) -> bool:
        """Whether no frame is queued or in flight."""
        return len(self.subscription.queue) == 0 and self.scheduler.in_flight == 0

    def progress(self) -> int | None:
        """Frames that are done with; ``None`` while none is in work, or the device is lost."""
        stream = self._stream
        if not self._flowing or stream is None or stream.scheduler.in_flight == 0 or stream.scheduler.state.since_ns:
            return None
        return self.processed + self.failed

    @property
    def patience_s(self) -> float:
        """A frame may take its timeout, and a device its second one."""
        return PATIENCE_S + 2.0 * float(self.parameters['timeout'])

    def collect_diagnostics(self) -> list[Status]:
        """The state of the node, and what :class:`InferenceStatus` says."""
        return [self.lifecycle_status(), *self._status.collect(), *self._realtime.statuses()]

    def stop(self) -> None:
        """See :class:`PerceptionNode`."""
        super().stop()
        self.frame_log.close()
        self._status.close()
