"""``inference_node``: imports frames into an accelerator and publishes what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile
from std_srvs.srv import SetBool
from vision_msgs.msg import Detection2DArray, LabelInfo

from zc_perception.detection.detections import Detections
from zc_perception.detection.heads import make_head
from zc_perception.detection.heads.spec import DecodeLimits
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.token import Consumer
from zc_perception.nodes.frame_links import SUBSCRIPTION_SPECS, subscribe_frames, subscription_status
from zc_perception.nodes.messages import DetectionsWriter, label_message
from zc_perception.nodes.parameters import ParameterSpec
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.npu.manifest import load_manifest
from zc_perception.npu.pipeline import InferencePipeline, InFlight
from zc_perception.npu.selection import ACCELERATORS, AcceleratorOptions, open_accelerator
from zc_perception.observe.diagnostics import DiagnosticsPublisher, Level, Status
from zc_perception.observe.metrics import StageLatencies

_OWN = -1.0
Observer = Callable[[InFlight, Detections], None]
_SPECS = (
    ParameterSpec('accelerator', 'auto', 'Where the model runs.', choices=ACCELERATORS),
    ParameterSpec('model', 'road', "A shipped model's name, or the path of a model.yaml."),
    ParameterSpec('score_threshold', _OWN, "Detections below are dropped; -1: the model's own.", '', -1.0, 1.0, dynamic=True),
    ParameterSpec('nms_threshold', _OWN, "Same-class boxes that overlap more are one; -1: the model's.", 'IoU', -1.0, 1.0, dynamic=True),
    ParameterSpec('max_detections', 0, "At most so many per frame; 0: the model's own.", '', 0, 10000, dynamic=True),
    ParameterSpec('enabled', True, 'Whether frames are run; also service ~/enable.', dynamic=True),
    ParameterSpec('keep_all', False, 'Run every frame instead of the newest; for recordings only.'),
    ParameterSpec('in_flight', 1, 'Frames submitted before the first is done.', '', 1, 16),
    ParameterSpec('timeout', 1.0, 'A frame that takes longer is given up.', 's', 0.01, 60.0),
    ParameterSpec('accelerator_device', '', 'axl: device node such as /dev/metis-0:1:0; empty: the first card.'),
    ParameterSpec('import_cache', True, 'axl: import each buffer once; false: every frame anew.'),
    ParameterSpec('threads', 0, 'cpu accelerator: threads of ONNX Runtime; 0: one per core.', '', 0, 64),
    *SUBSCRIPTION_SPECS,
)  # fmt: skip


class InferenceNode(PerceptionNode):
    """Subscribes to ``image_raw`` (type-adapted), publishes ``detections`` and the latched ``label_info``; service ``~/enable``.

    :param ledger: the process's copy ledger.
    :raises ConfigError: a parameter or the model can't be used.
    """

    SPECS = _SPECS

    def __init__(self, *, ledger: CopyLedger | None = None, **node_options: Any) -> None:
        super().__init__('inference', **node_options)
        self.ledger = ledger or CopyLedger()
        self.latencies = StageLatencies()
        self.observers: list[Observer] = []
        self.processed = 0
        self.detected = 0
        self.failed = 0
        self._last_error = ''
        self.manifest = load_manifest(self.parameters['model'])
        self._head = make_head(self.manifest.head)
        self._writer = DetectionsWriter(len(self.manifest.classes))
        self.accelerator, self._accelerator_reasons = open_accelerator(
            self.parameters['accelerator'], self.manifest, self._accelerator_options(), self.ledger
        )
        try:
            self._publisher = self.create_publisher(Detection2DArray, 'detections', QoSProfile(depth=10))
            latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
            self._label_publisher = self.create_publisher(LabelInfo, 'label_info', latched)
            self._label_publisher.publish(label_message(self.manifest.classes, self.score_threshold))
            self._enable_service = self.create_service(SetBool, '~/enable', self._on_enable)
            self.subscription = self._subscribe()
            self.pipeline = InferencePipeline(
                self.accelerator,
                self.subscription.queue,
                self._on_result,
                self._on_error,
                in_flight=self.parameters['in_flight'],
                timeout_s=self.parameters['timeout'],
                accept=lambda: bool(self.parameters['enabled']),
            )
            self._diagnostics = DiagnosticsPublisher(self, self.collect_diagnostics)
        except BaseException:
            self.accelerator.close()
            raise

    def _accelerator_options(self) -> AcceleratorOptions:
        values = self.parameters
        return AcceleratorOptions(values['accelerator_device'], values['import_cache'], values['timeout'], values['threads'])

    def _announce_accelerator(self) -> None:
        capabilities = self.accelerator.capabilities()
        for reason in self._accelerator_reasons:
            self.get_logger().info(reason)
        access = 'reads the frame itself' if capabilities.copy_free else 'reads the frame through the CPU, one pass booked as a copy'
        self.get_logger().info(f"accelerator '{capabilities.name}' ({capabilities.device}): {access}")

    def _subscribe(self) -> AdaptedSubscription[Frame]:
        qos = QoSProfile(history=HistoryPolicy.KEEP_ALL) if self.parameters['keep_all'] else QoSProfile(depth=1)
        return subscribe_frames(self, self.parameters, self.ledger, qos, held=self.parameters['in_flight'])

    def consumer(self) -> Consumer:
        """The accelerator as a participant in the camera's buffers: it holds the frames in flight and the one that waits.

        Without an accelerator that can import the buffers every frame would be lost, so it is required.
        """
        accelerator = self.accelerator
        in_flight = min(self.parameters['in_flight'], accelerator.capabilities().max_in_flight)
        return Consumer(
            replace(accelerator.constraints(), slots=in_flight + 1),
            trial_import=lambda settings, buffers: accelerator.trial_import(settings.layout, buffers),
            required=True,
        )

    @property
    def score_threshold(self) -> float:
        """The one in force."""
        return float(self._own('score_threshold', self.manifest.score_threshold))

    def _own(self, name: str, models: float) -> float:
        value = self.parameters[name]
        return float(models) if value < 0 else float(value)

    def start(self) -> None:
        """See :class:`PerceptionNode`."""
        self._announce_accelerator()
        self.subscription.update_rung()
        self.pipeline.start()

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        result = self.set_parameters([Parameter('enabled', value=bool(request.data))])[0]
        response.success = result.successful
        response.message = result.reason or ('enabled' if request.data else 'disabled')
        return response

    def _on_result(self, entry: InFlight) -> None:
        done_ns = time.monotonic_ns()
        data = entry.frame.data
        maximum = self.parameters['max_detections'] or self.manifest.max_detections
        limits = DecodeLimits(self.score_threshold, self._own('nms_threshold', self.manifest.nms_threshold), maximum)
        found = self._head.decode(entry.job.outputs(), entry.job.letterbox, limits)
        decoded_ns = time.monotonic_ns()
        self._publisher.publish(self._writer.write(data.header, found))
        published_ns = time.monotonic_ns()
        self.processed += 1
        self.detected += len(found)
        for stage, duration in (
            ('link', entry.received_ns - entry.frame.published_ns),
            ('infer', done_ns - entry.received_ns),
            ('decode', decoded_ns - done_ns),
            ('publish', published_ns - decoded_ns),
            ('end_to_end', published_ns - data.captured_ns),
        ):
            self.latencies.record(stage, duration)
        for observer in self.observers:
            observer(entry, found)

    def _on_error(self, frame: Frame, error: Exception) -> None:
        self.failed += 1
        self._last_error = str(error)
        self.get_logger().error(f'frame {frame.data.sequence} was lost: {error}', throttle_duration_sec=5.0)

    def detection_readers(self) -> int:
        """Subscribers of ``detections``, in any process."""
        return int(self._publisher.get_subscription_count())

    @property
    def idle(self) -> bool:
        """Whether no frame is queued or in flight."""
        return len(self.subscription.queue) == 0 and self.pipeline.in_flight == 0

    def collect_diagnostics(self) -> list[Status]:
        """Link, accelerator, latencies."""
        capabilities = self.accelerator.capabilities()
        npu_values = {
            'accelerator': capabilities.name,
            'device': capabilities.device,
            'copy_free': capabilities.copy_free,
            'model': self.manifest.name,
            'processed': self.processed,
            'failed': self.failed,
            'imports': self.accelerator.imports,
            'trial_imports': self.accelerator.trial_imports,
            'last_error': self._last_error,
        }
        failing = f'{self.failed} frame(s) lost, last: {self._last_error}'
        npu = Status('accelerator', Level.WARN if self.failed else Level.OK, failing if self.failed else 'running', npu_values)
        latencies = {f'{stage}_ms': f'p50 {p.p50:.3f}, p99 {p.p99:.3f}' for stage, p in self.latencies.summary().items()}
        return [
            subscription_status(self.subscription),
            npu,
            Status('latency', Level.OK, 'per stage', latencies),
        ]

    def stop(self) -> None:
        """See :class:`PerceptionNode`."""
        self.pipeline.stop()
        self.subscription.destroy()
        self.accelerator.close()
