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
from zc_perception.nodes.messages import detections_writer, label_message
from zc_perception.nodes.parameters import ParameterSpec
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.manifest import ModelManifest, load_manifest
from zc_perception.npu.recovering_device import DeviceState
from zc_perception.npu.scheduler import InFlight, Scheduler
from zc_perception.npu.scheduler_statistics import SchedulerStatistics
from zc_perception.npu.selection import (
    ACCELERATORS,
    OUTPUT_DMABUF,
    AcceleratorOptions,
    Selection,
    open_accelerator,
    parse_ioctl_numbers,
)
from zc_perception.observe.diagnostics import DiagnosticsPublisher, Level, Status
from zc_perception.observe.metrics import StageLatencies

_OWN = -1.0
# A lost frame is worth a warning for so long.
_RECENT_NS = 5_000_000_000
Observer = Callable[[InFlight, Detections], None]
_SPECS = (
    ParameterSpec('accelerator', 'auto', 'Where the model runs.', choices=ACCELERATORS),
    ParameterSpec('model', 'road', "A shipped model's name, or the path of a model.yaml."),
    ParameterSpec('score_threshold', _OWN, "Detections below are dropped; -1: the model's own.", '', 0.0, 1.0, _OWN, dynamic=True),
    ParameterSpec('nms_threshold', _OWN, "Same-class boxes above it become one; -1: the model's.", 'IoU', 0.0, 1.0, _OWN, dynamic=True),
    ParameterSpec('max_detections', 0, "At most so many per frame; 0: the model's own.", '', 0, 10000, dynamic=True),
    ParameterSpec('enabled', True, 'Whether frames are run; also service ~/enable.', dynamic=True),
    ParameterSpec('keep_all', False, 'Run every frame instead of the newest; for recordings only.'),
    ParameterSpec('in_flight', 1, 'Frames submitted before the first is done.', '', 1, 16),
    ParameterSpec('timeout', 1.0, 'A frame that takes longer is given up.', 's', 0.01, 60.0),
    ParameterSpec('accelerator_device', '', 'Card: name (metis-0:1:0), node, PCI address or index; empty: the first.', whole_numbers=True),
    ParameterSpec('import_cache', True, 'axl: import each buffer once; false: every frame anew.'),
    ParameterSpec('axl_ioctls', [], "axl: ioctl numbers of a driver that uses others, as 'name=number'."),
    ParameterSpec('axruntime_library', '', "axruntime: path of libaxruntime.so; empty: the system's."),
    ParameterSpec('aipu_cores', 1, 'axruntime: cores that the model uses; 0: as it was compiled.', '', 0, 4),
    ParameterSpec('double_buffer', False, 'axruntime: transfers overlap with computing; results come two frames late.'),
    ParameterSpec('output_dmabuf', 'auto', 'axruntime: results in dma-bufs; auto: where that works.', choices=OUTPUT_DMABUF),
    ParameterSpec('threads', 0, 'cpu accelerator: threads of ONNX Runtime; 0: one per core.', '', 0, 64),
    *SUBSCRIPTION_SPECS,
)  # fmt: skip


class InferenceNode(PerceptionNode):
    """Subscribes to ``image_raw`` (type-adapted), publishes ``detections`` and the latched ``label_info``; service ``~/enable``.

    :param ledger: the process's copy ledger.
    :param accelerator_factory: opens the accelerator, at the start and after each loss of the device, in place of the one that parameter
        ``accelerator`` names.
    :raises ConfigError: a parameter or the model can't be used.
    """

    SPECS = _SPECS

    def __init__(
        self,
        *,
        ledger: CopyLedger | None = None,
        accelerator_factory: Callable[[], Accelerator] | None = None,
        **node_options: Any,
    ) -> None:
        super().__init__('inference', **node_options)
        self.ledger = ledger or CopyLedger()
        self.latencies = StageLatencies()
        self.observers: list[Observer] = []
        self.processed = 0
        self.detected = 0
        self.failed = 0
        self._last_error = ''
        self._last_error_ns = -_RECENT_NS
        self._said: set[str] = set()
        selected = self._open_accelerator(load_manifest(self.parameters['model']), accelerator_factory)
        self.manifest, self._accelerator_reasons = selected.manifest, selected.reasons
        try:
            self._head = make_head(self.manifest.head)
            self._to_message = detections_writer(len(self.manifest.classes))
            self._publisher = self.create_publisher(Detection2DArray, 'detections', QoSProfile(depth=10))
            latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
            self._label_publisher = self.create_publisher(LabelInfo, 'label_info', latched)
            self._label_publisher.publish(label_message(self.manifest.classes, self.score_threshold))
            self._enable_service = self.create_service(SetBool, '~/enable', self._on_enable)
            self.subscription = self._subscribe()
            self.scheduler = Scheduler(
                selected.accelerator,
                self.subscription.queue,
                self._on_result,
                self._on_error,
                in_flight=self.parameters['in_flight'],
                timeout_s=self.parameters['timeout'],
                reopen=selected.reopen,
                keep_all=self.parameters['keep_all'],
                accept=lambda: bool(self.parameters['enabled']),
            )
            self._shown = self.scheduler.statistics()
            self._diagnostics = DiagnosticsPublisher(self, self.collect_diagnostics)
        except BaseException:
            selected.accelerator.close()
            raise

    def _open_accelerator(self, manifest: ModelManifest, factory: Callable[[], Accelerator] | None) -> Selection:
        if factory is None:
            return open_accelerator(self.parameters['accelerator'], manifest, self._accelerator_options(), self.ledger)

        def opened() -> Accelerator:
            accelerator = factory()
            try:
                accelerator.load(manifest)
            except BaseException:
                accelerator.close()
                raise
            return accelerator

        return Selection(opened(), manifest, (), opened)

    def _accelerator_options(self) -> AcceleratorOptions:
        values = self.parameters
        return AcceleratorOptions(
            device=values['accelerator_device'],
            import_cache=values['import_cache'],
            timeout_s=values['timeout'],
            threads=values['threads'],
            ioctl_numbers=parse_ioctl_numbers(values['axl_ioctls']),
            aipu_cores=values['aipu_cores'],
            double_buffer=values['double_buffer'],
            output_dmabuf=values['output_dmabuf'],
            library=values['axruntime_library'],
        )

    @property
    def accelerator(self) -> Accelerator:
        """The one in use. Another one after the device was lost."""
        return self.scheduler.accelerator

    def _announce_accelerator(self) -> None:
        capabilities = self.accelerator.capabilities()
        for reason in self._accelerator_reasons:
            self.get_logger().info(reason)
        access = 'reads the frame itself' if capabilities.copy_free else 'reads the frame through the CPU, one pass booked as a copy'
        self.get_logger().info(f"accelerator '{capabilities.name}' ({capabilities.device}): {access}")
        self._say_notices()

    def _notices(self) -> list[str]:
        notices = list(self.accelerator.notices())
        needed, given = self.accelerator.capabilities().max_in_flight, self.parameters['in_flight']
        if self.parameters['double_buffer'] and self.accelerator.capabilities().name == 'axruntime' and given < needed:
            notices.append(f'double_buffer with in_flight: {given} waits for frames that never come; set in_flight to {needed}')
        return notices

    def _say_notices(self) -> None:
        for notice in self._notices():
            if notice not in self._said:
                self._said.add(notice)
                self.get_logger().warning(notice)

    def _subscribe(self) -> AdaptedSubscription[Frame]:
        qos = QoSProfile(history=HistoryPolicy.KEEP_ALL) if self.parameters['keep_all'] else QoSProfile(depth=1)
        return subscribe_frames(self, self.parameters, self.ledger, qos, held=self.parameters['in_flight'])

    def consumer(self) -> Consumer:
        """The accelerator as a participant in the camera's buffers: it holds the frames in flight and the one that waits.

        Without an accelerator that can import the buffers every frame would be lost, so it is required.
        """
        in_flight = min(self.parameters['in_flight'], self.accelerator.capabilities().max_in_flight)
        return Consumer(
            replace(self.accelerator.constraints(), slots=in_flight + 1),
            trial_import=lambda settings, buffers: self.scheduler.trial_import(settings.layout, buffers),
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
        self.scheduler.start()

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
        self._publisher.publish(self._to_message(data.header, found))
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
        self._last_error_ns = time.monotonic_ns()
        self.get_logger().error(f'frame {frame.data.sequence} was lost: {error}', throttle_duration_sec=5.0)

    def detection_readers(self) -> int:
        """Subscribers of ``detections``, in any process."""
        return int(self._publisher.get_subscription_count())

    @property
    def idle(self) -> bool:
        """Whether no frame is queued or in flight."""
        return len(self.subscription.queue) == 0 and self.scheduler.in_flight == 0

    def collect_diagnostics(self) -> list[Status]:
        """Link, accelerator, scheduler, latencies."""
        self._say_notices()
        latencies = {f'{stage}_ms': f'p50 {p.p50:.3f}, p99 {p.p99:.3f}' for stage, p in self.latencies.summary().items()}
        return [
            subscription_status(self.subscription),
            self._accelerator_status(),
            Status('latency', Level.OK, 'per stage', latencies),
        ]

    def _accelerator_status(self) -> Status:
        accelerator, state = self.accelerator, self.scheduler.state
        earlier, self._shown = self._shown, self.scheduler.statistics()
        statistics, capabilities = self._shown, accelerator.capabilities()
        self._log_losses(earlier, statistics, state)
        values: dict[str, object] = {
            **accelerator.facts(),
            'accelerator': capabilities.name,
            'device': capabilities.device,
            'copy_free': capabilities.copy_free,
            'model': self.manifest.name,
            'state': state.describe(),
            'processed': self.processed,
            'failed': self.failed,
            'imports': statistics.imports,
            'trial_imports': statistics.trial_imports,
            'last_error': self._last_error,
            'notices': '; '.join(self._notices()),
            'utilisation': f'{statistics.utilisation_since(earlier):.0%}',
            'in_flight': statistics.in_flight,
            'submitted': statistics.submitted,
            'completed': statistics.completed,
            'timed_out': statistics.timed_out,
            'job_errors': statistics.failed,
            'dropped_newest_wins': statistics.dropped,
            'refused_disabled': statistics.refused_disabled,
            'refused_recovering': statistics.refused_recovering,
            'refused_device': statistics.refused_device,
            'device_losses': statistics.losses,
            'recovered': statistics.recovered,
        }
        if state.recovering:
            return Status('accelerator', Level.ERROR, f'{state.describe()}; frames are dropped until the device is back', values)
        if time.monotonic_ns() - self._last_error_ns < _RECENT_NS:
            return Status('accelerator', Level.WARN, f'{self.failed} frame(s) lost, last: {self._last_error}', values)
        return Status('accelerator', Level.OK, 'running', values)

    def _log_losses(self, earlier: SchedulerStatistics, now: SchedulerStatistics, state: DeviceState) -> None:
        if now.losses > earlier.losses:
            self.get_logger().error(f'the device was lost: {state.last_error or self._last_error}; it is opened anew')
        if now.recovered > earlier.recovered:
            self.get_logger().info(f'the device is back, frames are run again ({now.refused_recovering} were dropped meanwhile in all)')

    def stop(self) -> None:
        """See :class:`PerceptionNode`."""
        ended = self.scheduler.stop()
        self.subscription.destroy()
        if ended:
            self.accelerator.close()
