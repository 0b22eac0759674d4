"""What diagnostics say of an inference node: its link, its accelerator, the rate of its detections, latencies, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.rungs import REFUSED, UNMATCHED
from zc_perception.nodes.capture_status import copies_status, latency_status
from zc_perception.nodes.frame_links import CONVERTIBLE, subscription_status
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.metis_card import Temperatures, TemperatureWatch, place_of
from zc_perception.npu.recovering_device import DeviceState
from zc_perception.npu.scheduler import Scheduler, SchedulerStatistics
from zc_perception.observe.diagnostics import Figures, Level, Status
from zc_perception.observe.recent import RecentCount, RecentRates, Silence

if TYPE_CHECKING:
    from zc_perception.nodes.inference import InferenceNode


class _Parts(NamedTuple):
    """What a configured node has; taken together, as any of them may go while one looks."""

    accelerator: Accelerator
    scheduler: Scheduler
    subscription: AdaptedSubscription[Frame]
    manifest: ModelManifest
    reasons: tuple[str, ...]


# Of the frames that come. Fewer results than that: the model is too slow, which newest-wins hides well.
_LEAST = 0.8
# A rate of detections is judged over so many frames, and over the time of so many results where `max_rate` lets fewer through: one more
# or less must not matter.
_JUDGED_FRAMES = 10
# So many frames at least before imports are compared with them.
_IMPORTS_FROM = 10


class InferenceStatus:
    """Looks at its node several times a second and remembers what it saw.

    :param node: whose parts it describes.
    """

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self._last_error = ''
        self._said: set[str] = set()
        self._logged = SchedulerStatistics()
        self._shown = SchedulerStatistics()
        self._lost = 0
        self._recently_lost = RecentCount()
        self._recent = {name: RecentCount() for name in ('timed_out', 'submitted', 'imports')}
        self._conversion_errors = RecentCount()
        self._rates = RecentRates()
        self._judged: tuple[float, ...] | None = None
        self._came_before: int | None = None
        self._silence = Silence()
        self._enabled = True
        self._most = 0.0
        self._temperature = TemperatureWatch()

    def lost(self, error: Exception) -> None:
        """A frame has no result. Any thread."""
        self._last_error = str(error)
        self._lost += 1

    def _parts(self) -> _Parts | None:
        node = self._node
        try:
            return _Parts(node.accelerator, node.scheduler, node.subscription, node.manifest, node.selected.reasons)
        except AttributeError:  # not configured
            return None

    def _notices(self, accelerator: Accelerator) -> list[str]:
        node = self._node
        capabilities, given = accelerator.capabilities(), node.parameters['in_flight']
        notices = list(accelerator.notices())
        needed = capabilities.max_in_flight
        if node.parameters['double_buffer'] and capabilities.name == 'axruntime' and given < needed:
            notices.append(f'double_buffer with in_flight: {given} waits for frames that never come; set in_flight to {needed}')
        return notices

    def say_notices(self) -> None:
        """Log what the accelerator has to say, each sentence once."""
        parts = self._parts()
        for notice in [] if parts is None else self._notices(parts.accelerator):
            if notice not in self._said:
                self._said.add(notice)
                self._node.get_logger().warning(notice)

    def collect(self) -> list[Status]:
        """Link, accelerator, detections, latencies, copies; the first three while there are an accelerator and a subscription."""
        node, parts = self._node, self._parts()
        found = [latency_status(node.latencies), copies_status(node.ledger)]
        if parts is None:
            self._begin_anew()
            return found
        self.say_notices()
        statistics, state = parts.scheduler.statistics(), parts.scheduler.state
        self._log_losses(statistics, state)
        link = subscription_status(parts.subscription, self._conversion_errors)
        return [link, self._accelerator_status(parts, statistics, state), self._rate_status(parts, statistics, state, link), *found]

    def _accelerator_status(self, parts: _Parts, statistics: SchedulerStatistics, state: DeviceState) -> Status:
        recent = {name: counter.see(getattr(statistics, name)) for name, counter in self._recent.items()}
        lost = self._recently_lost.see(self._lost)
        capabilities = parts.accelerator.capabilities()
        heat = self._temperature.latest(_pci_address(parts.accelerator))
        level, message, advice = self._accelerator_verdict(state, lost, recent, heat)
        values = Figures(lambda: self._accelerator_values(parts, statistics, state, heat))
        return Status('accelerator', level, message, values, advice, capabilities.device)

    def _accelerator_verdict(self, state: DeviceState, lost: int, recent: dict[str, int], heat: Temperatures) -> tuple[Level, str, str]:
        """Level, message and advice."""
        if state.recovering:
            return (
                Level.ERROR,
                f'{state.describe()}; frames are dropped until the device is back',
                'look at the card: lspci -d 1f9d:, dmesg | grep -i metis',
            )
        if heat.too_hot:
            text = f'the card is too hot: {", ".join(map(str, heat.too_hot))} degrees'
            return Level.WARN, text, 'look at its fan and air, or run fewer frames'
        if lost and recent['timed_out'] * 2 >= lost:
            timeout = self._node.parameters['timeout']
            return (
                Level.WARN,
                f'{lost} frame(s) lost lately, most of them too late: {self._last_error}',
                f"raise parameter 'timeout' ({timeout:g} s), or give the device less to do",
            )
        if lost:
            return Level.WARN, f'{lost} frame(s) lost lately, last: {self._last_error}', 'the error says what the device refused; see dmesg'
        imports, submitted = recent['imports'], recent['submitted']
        if self._node.parameters['import_cache'] and submitted >= _IMPORTS_FROM and imports * 2 >= submitted:
            return (
                Level.WARN,
                f'the import cache is of no use: {imports} imports for {submitted} frames lately',
                'the publisher gives new buffers all the time: let it reuse a fixed number of them, as a pool does',
            )
        return Level.OK, 'running', ''

    def _accelerator_values(
        self, parts: _Parts, statistics: SchedulerStatistics, state: DeviceState, heat: Temperatures
    ) -> dict[str, object]:
        node, accelerator = self._node, parts.accelerator
        capabilities = accelerator.capabilities()
        earlier, self._shown = self._shown, statistics
        return {
            **accelerator.facts(),
            'accelerator': capabilities.name,
            'device': capabilities.device,
            'copy_free': capabilities.copy_free,
            'model': parts.manifest.name,
            'state': state.describe(),
            'processed': node.processed,
            'failed': node.failed,
            'imports': statistics.imports,
            'trial_imports': statistics.trial_imports,
            'import_cache_hits': max(0, statistics.submitted - statistics.imports) if statistics.imports else 0,
            'last_error': self._last_error,
            'notices': '; '.join(self._notices(accelerator)),
            'why_no_better': '; '.join(parts.reasons),
            'utilisation': f'{statistics.utilisation_since(earlier):.0%}',
            'temperature_c': str(heat) if capabilities.name != 'cpu' else 'unreadable (the cpu is not a card)',
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
        self._judge_anew()
        self._came_before = None
        self._silence.forget()

    def _judge_anew(self) -> None:
        self._rates.forget()
        self._judged = None

    def _judge(self, *counts: int) -> tuple[float, ...] | None:
        """Frames that came, results and frames that failed, per second, over enough of the first two; ``None`` until there were."""
        over_s = _JUDGED_FRAMES / self._most if self._most > 0 else 0.0
        self._judged = self._rates.see(*counts, over_s=over_s, at_least=_JUDGED_FRAMES) or self._judged
        return self._judged

    def _rate_status(self, parts: _Parts, statistics: SchedulerStatistics, state: DeviceState, link: Status) -> Status:
        """Results per second against the frames that come."""
        node = self._node
        enabled = bool(node.parameters['enabled']) and node.flowing
        if enabled is not self._enabled:
            self._enabled = enabled
            self._begin_anew()
        most = float(node.parameters['max_rate'])
        if most != self._most:  # what ran under another one says nothing of this one
            self._most = most
            self._judge_anew()
        taken = parts.subscription.statistics()
        came = statistics.taken + taken.dropped
        if self._came_before is None:
            self._came_before = came
        rates = self._judge(came, statistics.completed, statistics.lost)
        silent_s = self._silence.see(came)
        unconverted = self._conversion_errors.see(taken.conversion_errors)
        coming, done, failing = (0.0, 0.0, 0.0) if rates is None or silent_s else rates
        target = min(coming, most) if most > 0 else coming
        values = Figures(lambda: {
            'rate': f'{done:.2f}',
            'rate_of_frames': f'{coming:.2f}',
            'rate_target': f'{target:.2f}',
            'rate_least': f'{_LEAST * target:.2f}',
            'rate_most': f'{most:g}' if most > 0 else 'that of the frames',
            'detections': node.detected,
            'dropped_newest_wins': statistics.dropped,
        })  # fmt: skip
        level, message, advice = Level.OK, f'{done:.1f} of {coming:.1f} frames per second', ''
        if not enabled:
            message = 'switched off' if node.flowing else 'the node is not active'
        elif link.level is not Level.OK and link.values['rung'] in (UNMATCHED, REFUSED):
            message = 'waits for a publisher'
        elif unconverted and (silent_s or came == self._came_before):
            level, message = Level.WARN, f'no frame could be converted lately, of {unconverted} message(s)'
            advice = f'see part link: {CONVERTIBLE}'
        elif silent_s:
            level, message = Level.WARN, f'no frame comes any more, for {silent_s:.0f} s now'
            advice = "look at the camera in the publisher's diagnostics; if its recording has ended, all is well"
        elif rates is None:
            message = 'waits for frames' if came == self._came_before else 'frames come, not for long enough yet to judge their rate'
        elif done < _LEAST * target and not state.recovering and failing and (failing >= done or done + failing >= _LEAST * target):
            level, message = Level.WARN, f'only {done:.1f} of {target:.1f} frames per second give results, {failing:.1f} fail'
            advice = 'see part accelerator, which has the last error'
        elif done < _LEAST * target and not state.recovering:
            level, message = Level.WARN, f'the model is too slow: only {done:.1f} of {target:.1f} frames per second are run'
            advice = "lower the camera's framerate or set max_rate, take a smaller model, or raise in_flight where the device takes more"
        return Status('detections', level, message, values, advice, parts.accelerator.capabilities().device)

    def _log_losses(self, now: SchedulerStatistics, state: DeviceState) -> None:
        earlier, self._logged = self._logged, now
        logger = self._node.get_logger()
        if now.losses > earlier.losses:
            logger.error(f'the device was lost: {state.last_error or self._last_error}; the node opens it again')
        if now.recovered > earlier.recovered:
            logger.info(f'the device is back, frames are run again ({now.refused_recovering} were dropped meanwhile in all)')

    def close(self) -> None:
        """End what runs aside."""
        self._temperature.close()


def _pci_address(accelerator: Accelerator) -> str:
    """Of a card that is on PCI; the cpu has none."""
    capabilities = accelerator.capabilities()
    place = None if capabilities.name == 'cpu' else place_of(capabilities.device.rpartition('/')[2])
    if place is None and capabilities.name != 'cpu':
        place = place_of(str(accelerator.facts().get('pci_address', '')))
    return '' if place is None else '{:04x}:{:02x}:{:02x}.{:x}'.format(*place)
