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

"""
The GStreamer camera, which takes frames from a pipeline that the user writes.

Frames in dma-bufs are used without a copy; other frames are copied, and each copy is counted.

A frame's GstBuffer is held while the frame has a lease, so that the GStreamer element doesn't fill
the buffer again. Each dma-buf is one slot of the pool, so that a device imports it only once. A
dma-buf is recognised by the file that its descriptor refers to, because descriptor numbers and the
buffers' order may change. This camera duplicates GStreamer's descriptors, and closes only the
duplicates.

``v4l2src`` of GStreamer 1.22 and 1.24 leaves a descriptor of the device open after its pipeline
has run, whatever the sink is. The descriptor keeps the device's number in use, so a camera that
was unplugged may come back as another ``/dev/videoN``. In the pipeline's text, name the device
by ``/dev/v4l/by-id``, or use camera: v4l2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
import time
from typing import Any

from zc_perception.camera.camera import CameraOptions, CameraStatistics, heap_pool
from zc_perception.camera.clock import CaptureClock
from zc_perception.camera.gstreamer.abi import GStreamer, load_gstreamer
from zc_perception.camera.gstreamer.image import (
    accepted_formats,
    copy_frame,
    frame_layout,
    FrameReader,
    offered_caps,
    read_format,
    READABLE_FORMATS,
    SharedFrames,
)
from zc_perception.camera.gstreamer.kind import GStreamerKind, RESERVE
from zc_perception.camera.gstreamer.pipeline import (
    check_description,
    Continuation,
    NotNegotiatedError,
    Pipeline,
    Reference,
    Sample,
)
from zc_perception.errors import (
    AllocationError,
    CameraChangedError,
    CameraError,
    CameraLostError,
    ConfigError,
    FormatError,
    LayoutError,
    ZcError,
)
from zc_perception.frame import Frame, Header
from zc_perception.machine.checks import fail, Finding, Need, Needs, ok, skip, told
from zc_perception.machine.system import System
from zc_perception.memory.dmabuf import CpuAccess, pending_fence
from zc_perception.memory.heaps import OfferedHeaps
from zc_perception.memory.pool import (
    BufferPool,
    close_buffers,
    ForeignBufferPool,
    own_descriptors,
    Slot,
)
from zc_perception.negotiation.constraints import (
    BufferConstraints,
    Format,
    format_text,
    NO_CPU,
    placement_of,
)
from zc_perception.negotiation.settings import AllocationRequest
from zc_perception.pixel.modifier import LINEAR, modifier_name

COPY_REASON = 'gstreamer_copy'
_WAIT_S, _FENCE_POLL_S = 0.25, 0.005
_ADVICE = (
    'use a source that gives dma-bufs, such as v4l2src io-mode=dmabuf, and remove elements '
    'that make new frames'
)


class GStreamerCamera(GStreamerKind):
    """
    Takes frames from a GStreamer pipeline.

    The constructor starts the pipeline, because the first frame shows the format of all frames. If
    the pipeline can give several formats, it is asked for one that the consumers accept.

    After a change of caps, :meth:`close` leaves the pipeline running. The next camera, whose
    options have this camera as ``before``, takes the pipeline over. If no camera follows,
    :meth:`close_rest` closes the pipeline.

    :param start_timeout_s: the longest wait for the first frame, in seconds.
    :raises ConfigError: GStreamer isn't installed, the pipeline can't be made, or its frames
        don't have the size that the parameters name.
    :raises CameraError: the pipeline doesn't run.
    """

    def __init__(self, options: CameraOptions, *, start_timeout_s: float = 10.0) -> None:
        parameters, before = options.parameters, options.before
        # Drop the reference to the previous camera; otherwise all earlier cameras would stay in
        # memory as a chain.
        self._options = replace(options, before=None)
        self._frame_id = parameters['frame_id']
        self._assume_linear, self._require_dmabuf = (
            parameters['assume_linear'],
            parameters['require_dmabuf'],
        )
        self._watchdog_s = options.pipeline_silence_s()
        width, height, buffers = (
            parameters['width'],
            parameters['height'],
            parameters['pipeline_buffers'],
        )
        self._text = self._description(parameters)
        self._where = f"pipeline '{self._text}'"
        self._gst = load_gstreamer()
        self.clock = options.stamp_clock()
        self._heaps: OfferedHeaps | None = None
        self._shared: SharedFrames | None = None
        self._early: deque[Sample] = deque()
        self._caps = Reference(self._gst, 0)
        self._stopped = self._playing = self._ended = False
        self._last_number: int | None = None
        self._sequence = -1
        self._captured = self._lost = self._bad = self._no_slot = 0
        self.copy_reason = ''  # why the CPU copies every frame; empty: it copies no frame
        self._resumable, self._given = True, False
        self._changed: Sample | None = None
        self._unmet = ''
        resumed = before.continuation() if isinstance(before, GStreamerCamera) else None
        # The error to raise if the frames can't be used. If the pipeline gave usable frames
        # before, it may do so again: CameraError lets the supervisor open the camera again. If it
        # never did, a parameter is wrong: ConfigError.
        refusal = CameraError if resumed is not None or options.identity else ConfigError
        if resumed is None:
            accepted = accepted_formats(options.consumers)
            self._offer = self._offered_caps(accepted)
            self._pipeline = Pipeline(self._gst, self._text, buffers=buffers, accepts=self._offer)
        else:
            self._pipeline, self._early, self._offer = (
                resumed.pipeline,
                resumed.samples,
                resumed.offer,
            )
        try:
            if resumed is not None:
                self._begin(self._early[0])
            else:
                # If the pipeline can't give a format that all consumers accept, ask for one that
                # the CPU can read; if that fails, too, accept any format. If a consumer can't
                # use these frames, the later negotiation refuses it with a message that names it.
                for offer in dict.fromkeys(
                    (self._offer, self._offered_caps(READABLE_FORMATS), '')
                ):
                    if offer != self._offer:
                        self._unmet, self._offer = ', '.join(map(format_text, accepted)), offer
                        self._pipeline.close()
                        self._pipeline = Pipeline(
                            self._gst, self._text, buffers=buffers, accepts=offer
                        )
                    try:
                        first = self._pipeline.start(start_timeout_s, options.stopping)
                        break
                    except NotNegotiatedError:
                        if not offer:
                            raise
                with first:
                    self._begin(first)
            if (width and width != self.width) or (height and height != self.height):
                raise refusal(
                    f'{self._where} gives {self.width}x{self.height}, parameters width and '
                    f'height say {width}x{height}; '
                    "put the wanted size into the pipeline's caps, or set both parameters to 0"
                )
        except FormatError as error:
            self.close()
            raise refusal(f'{self._where}: {error}') from error
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, options: CameraOptions) -> GStreamerCamera:  # noqa: A003
        return cls(options)

    @classmethod
    def try_out(cls, options: CameraOptions) -> None:
        """Check that GStreamer can make the pipeline, without opening a device."""
        check_description(cls._description(options.parameters))

    @classmethod
    def _description(cls, parameters: Mapping[str, Any]) -> str:
        return str(parameters['pipeline']).strip()

    def _offered_caps(self, formats: Sequence[Format]) -> str:
        return offered_caps(formats, assume_linear=self._assume_linear)

    def _begin(self, first: Sample) -> None:
        """Read format, size and layout of all frames from the first frame."""
        try:
            self._caps = first.keep_caps()
            self._format = read_format(self._gst, first.caps, assume_linear=self._assume_linear)
            self._take(first)
        except LayoutError as error:
            raise CameraError(f'{self._where}: {error}') from error
        self.width, self.height = self._layout.width, self._layout.height
        self.framerate, self._colorimetry = self._format.framerate, self._format.colorimetry

    def _take(self, first: Sample) -> None:
        """Decide from the first frame whether frames are shared or copied, and if copied, why."""
        self._reader = reader = self._open_reader(first)
        memory = reader.memory(first)
        if memory is None:
            self._begin_copying(first, "the pipeline's frames are in system memory")
            return
        layout, order = reader.layout(first, memory)
        try:
            buffers = own_descriptors(memory.parts[i] for i in order)
        except AllocationError as error:
            self._begin_copying(first, str(error))
            return
        self._shared_heap = f'gstreamer/{buffers[0].heap.removeprefix("foreign/")}'
        close_buffers(buffers)
        self._layout = layout
        self._shared = SharedFrames(self._pipeline, reader, layout, self._where, self.heap_name)

    def _open_reader(self, first: Sample) -> FrameReader:
        if self._format.nvmm:
            raise FormatError(
                "the pipeline's frames are in NVMM memory; use camera: argus, or put "
                "'nvvidconv ! video/x-raw' at the pipeline's end"
            )
        return FrameReader(self._gst, self._format)

    def _begin_copying(self, first: Sample, reason: str) -> None:
        if self._require_dmabuf:
            raise CameraError(
                f'each frame of {self._where} would be copied: {reason}; {_ADVICE}, or set '
                'require_dmabuf to false'
            )
        if self._format.modifier != LINEAR:
            raise FormatError(
                f'{reason}, and a frame with modifier {modifier_name(self._format.modifier)} '
                f"can't be copied; {_ADVICE}, or add an element that makes LINEAR frames, like "
                'videoconvert'
            )
        self.copy_reason = reason
        self._layout = frame_layout(self._gst, first, self._format)
        self._heaps = self._options.open_heaps()

    @property
    def device(self) -> str:
        return self._where

    @property
    def identity(self) -> str:
        """The pipeline's text, which contains the device's name."""
        return f'gstreamer: {self._text}'

    @property
    def heap_name(self) -> str:
        return self._shared_heap if self._heaps is None else self._heaps.name

    @property
    def ended(self) -> bool:
        return self._ended

    def notices(self) -> Sequence[str]:
        found = [f'{self._where}: {warning}' for warning in self._pipeline.warnings]
        if self.copy_reason:
            found.insert(
                0,
                (
                    f'the output of {self._where} is copied by the CPU, frame by frame: '
                    f'{self.copy_reason}; {_ADVICE}'
                ),
            )
        if self._unmet:
            found.append(
                f'{self._where} gives no format that all consumers accept ({self._unmet}); it '
                f"gives '{self._format.caps}': end the pipeline with an element that converts the "
                'format, such as videoconvert'
            )
        if self._shared is not None and self._shared.copied_upstream:
            found.append(
                f'{self._where} ran out of buffers and copied {self._shared.copied_upstream} '
                'frames; the node drops such copies: '
                "raise parameter 'slots', or let consumers hold fewer frames"
            )
        return found

    def facts(self) -> dict[str, object]:
        copied = 0 if self._shared is None else self._shared.copied_upstream
        replaced = self._pool.replaced if isinstance(self._pool, ForeignBufferPool) else 0
        facts: dict[str, object] = {
            'caps': self._format.caps,
            'caps_offered': self._offer or 'any',
            'live': self._pipeline.live,
            'copy_reason': self.copy_reason,
        }
        return {**facts, 'copied_upstream': copied, 'buffers_replaced': replaced}

    def constraints(self) -> BufferConstraints:
        """Return the constraints; only copied frames can get the strides that consumers need."""
        layout, size = self._layout, (self.width, self.height)
        heaps, copied = self._heaps, self._heaps is not None
        return BufferConstraints(
            'gstreamer camera',
            formats=((layout.fourcc, layout.modifier),),
            heaps=(self._shared_heap,) if heaps is None else heaps.names,
            memory_note='' if heaps is None else '; '.join(heaps.reasons),
            slots=RESERVE,
            min_size=size,
            max_size=size,
            placement=None if copied else placement_of(layout),
            cpu_access=CpuAccess.READ | CpuAccess.WRITE if copied else NO_CPU,
        )

    def possible(self) -> BufferConstraints:
        """Return the constraints with all formats that the running pipeline could change to."""
        now = self.constraints()
        known = now.formats or ()
        others = [fmt for fmt in READABLE_FORMATS if fmt not in known]
        can = self._pipeline.could_give([self._offered_caps([fmt]) for fmt in others])
        formats = (*known, *(fmt for fmt, good in zip(others, can, strict=True) if good))
        return replace(now, formats=formats, placement=None)

    @property
    def reallocates(self) -> bool:
        """
        Whether the pool's buffers can be replaced between two frames.

        This is so if frames are copied: the buffers then are this camera's, not the pipeline's.
        """
        return self._shared is None

    def allocate(self, request: AllocationRequest) -> None:
        """Make the pool; if frames are shared, its slots are the pipeline's own buffers."""
        if self._shared is None:
            assert self._heaps is not None
            before = self._pool
            self._pool = heap_pool(request.settings(), self._heaps, name='camera', reserve=RESERVE)
            if before is not None:
                before.close()
            return
        self._play()
        try:
            self._pool, early = self._shared.pool(request.slots, self.framerate)
        except LayoutError as error:
            raise CameraError(f'{self._where}: {error}') from error
        self._early.extend(early)

    def _play(self) -> None:
        if not self._playing:
            self._playing = True
            self._pipeline.play()

    def capture(self) -> Frame | None:
        """
        Return the next frame; ``None``: no frame came in time, or the frame was dropped.

        :raises CameraLostError: the device is gone, the pipeline gives no frames, or a live source
            has ended.
        :raises CameraChangedError: frames have another size, format or layout.
        """
        pool = self._pool
        if pool is None:
            raise CameraError('the camera is not configured')
        if self._stopped:
            return None
        self._play()
        pool.collect()
        sample = (
            self._early.popleft()
            if self._early
            else self._pull(_FENCE_POLL_S if pool.waiting else _WAIT_S)
        )
        if sample is None:
            self._look_why()
            return None
        try:
            return self._frame(pool, sample)
        except (FormatError, LayoutError) as error:
            sample.close()
            raise CameraError(f'{self._where}: {error}') from error
        except BaseException:
            if sample is not self._changed:
                sample.close()
            raise

    def _pull(self, timeout_s: float) -> Sample | None:
        try:
            return self._pipeline.pull(timeout_s)
        except NotNegotiatedError as error:
            # The pipeline has given frames before, so its elements agreed on a format then. They
            # don't agree now because the source has changed its format.
            raise CameraChangedError(f'{error}; the pipeline is opened again') from error

    def _look_why(self) -> None:
        """Check, when no frame came, whether the stream has ended or the camera is lost."""
        if self._stopped:
            return
        if self._pipeline.ended:
            if self._pipeline.live:
                raise CameraLostError(
                    f'{self._where} has ended although its source is live; check that the camera '
                    'is still there'
                )
            self._ended = True
        elif self._pipeline.live and 0.0 < self._watchdog_s < self._pipeline.silent_s:
            raise CameraLostError(
                f'{self._where} gave no frame for {self._pipeline.silent_s:.1f} s; check '
                'the cable and read the kernel log'
            )

    def _frame(self, pool: BufferPool, sample: Sample) -> Frame | None:
        """Return the sample as a frame; ``None``: the sample was dropped and counted."""
        started_ns = time.monotonic_ns()
        if sample.caps != self._caps.address:
            self._check_caps(sample)
        if sample.corrupted:
            self._bad += 1
            self._count(sample.frame_number)
            sample.close()
            return None
        slot, copied = self._fill(pool, sample)
        self._count(sample.frame_number)
        if slot is None:
            self._no_slot += 1
            sample.close()
            return None
        captured_ns = self._pipeline.captured_ns(sample)
        if copied:
            sample.close()
        stamp_ns = self.clock.stamp(
            captured_ns or 0,
            CaptureClock.UNKNOWN if captured_ns is None else CaptureClock.MONOTONIC,
        )
        self._captured += 1
        return Frame.publish_slot(
            pool,
            slot,
            header=Header(stamp_ns, self._frame_id),
            colorimetry=self._colorimetry,
            sequence=self._sequence,
            captured_ns=started_ns if captured_ns is None else captured_ns,
            capture_cost_ns=time.monotonic_ns() - started_ns if copied else 0,
            acquire_fence=None if copied else pending_fence(slot.buffers, CpuAccess.READ),
        )

    def _fill(self, pool: BufferPool, sample: Sample) -> tuple[Slot | None, bool]:
        """Return the sample's slot (``None``: none was free), and whether the frame is a copy."""
        if isinstance(pool, ForeignBufferPool) and self._shared is not None:
            return self._shared.slot_for(pool, sample), False
        slot = pool.acquire()
        if slot is not None:
            try:
                self._options.ledger.book(
                    COPY_REASON, copy_frame(self._gst, sample, self._format, slot)
                )
            except BaseException:
                pool.discard(slot)
                raise
        return slot, True

    def _count(self, number: int | None) -> None:
        """Count lost frames by the gaps in the source's numbers, if the source numbers frames."""
        if number is not None and self._last_number is not None and number > self._last_number:
            self._lost += number - self._last_number - 1
            self._sequence += number - self._last_number
        else:
            self._sequence += 1
        self._last_number = number

    def _check_caps(self, sample: Sample) -> None:
        now = read_format(self._gst, sample.caps, assume_linear=self._assume_linear)
        if not now.same_picture(self._format):
            self._changed = sample if self._resumable else None
            raise CameraChangedError(
                f"{self._where} now gives '{now.caps}' instead of '{self._format.caps}'; it is "
                'opened again'
            )
        self._caps.close()
        self._caps = sample.keep_caps()

    def continuation(self) -> Continuation | None:
        """
        Return the running pipeline after a change of caps; the caller then owns the pipeline.

        ``None``: the caps didn't change, or the pipeline was handed over before.
        """
        changed, self._changed, self._resumable = self._changed, None, False
        if changed is None:
            return None
        self._given = True
        samples, self._early = deque([changed, *self._early]), deque()
        return Continuation(self._pipeline, samples, self._offer)

    def close_rest(self) -> None:
        """Close the pipeline that :meth:`close` left running after a change of caps."""
        rest = self.continuation()
        if rest is not None:
            rest.close()

    def statistics(self) -> CameraStatistics:
        """Return the counters; gaps in the source's frame numbers count as lost frames."""
        lost, bad, no_slot = self._lost, self._bad, self._no_slot
        return CameraStatistics(self._captured, lost + bad + no_slot, 0, lost, bad, no_slot)

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self.stop()
        if self._shared is not None:
            self._shared.held.begin_close()
        self._caps.close()
        if self._pool is not None:
            self._pool.close()
        if self._changed is None and not self._given:
            while self._early:
                self._early.pop().close()
            self._pipeline.close()
        if self._shared is not None:
            self._shared.held.end_close()
        if self._heaps is not None:
            self._heaps.close()


_JETPACK = 'it comes with JetPack (nvidia-l4t-gstreamer), and a container needs it mounted'


#: For each GStreamer element: its use, and how to install it.
PURPOSES = {
    'appsink': (
        'the end of every pipeline, which gives frames to this package',
        'apt install gstreamer1.0-plugins-base',
    ),
    'v4l2src': ('V4L2 cameras in pipelines', 'apt install gstreamer1.0-plugins-good'),
    'nvarguscamerasrc': ("the Argus camera (ZED X through Jetson's ISP)", _JETPACK),
    'nvv4l2camerasrc': ('V4L2 cameras that write frames into NVMM memory', _JETPACK),
    'nvvidconv': ('conversions in NVMM memory', _JETPACK),
    'libcamerasrc': ('libcamera in pipelines', 'apt install gstreamer1.0-libcamera'),
}


# For each kind of camera, the elements that its pipelines always need.
_OF_CAMERA = {'gstreamer': ('appsink',), 'argus': ('appsink', 'nvarguscamerasrc')}


def _pipeline_need(needs: Needs) -> Need:
    return needs.camera('gstreamer', 'argus')


def gstreamer_library(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that GStreamer loads."""
    if _pipeline_need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask(describe_gstreamer, *PURPOSES)
    if 'error' in answer:
        yield told(
            _pipeline_need(needs).missing_extra, answer['error']
        )  # GStreamer's message already names the packages to install
    else:
        yield ok(f'GStreamer {answer["version"]}', version=answer['version'])


def gstreamer_elements(system: System, needs: Needs) -> Iterator[Finding]:
    """Report for each element in :data:`PURPOSES` whether it is installed."""
    if _pipeline_need(needs) is Need.UNUSED:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
        return
    answer = system.ask(describe_gstreamer, *PURPOSES)
    if 'error' in answer:
        yield skip('GStreamer can not be loaded; see check gstreamer.library')
        return
    wanted = {name for camera in needs.cameras for name in _OF_CAMERA.get(camera.kind, ())}
    if all(camera['pipeline'].strip() for camera in needs.cameras if camera.kind == 'argus'):
        # The user wrote the pipelines of all argus cameras; this package makes none. So
        # nvarguscamerasrc is needed only if one of the pipelines names it.
        wanted.discard('nvarguscamerasrc')
    pipelines = [camera['pipeline'] for camera in needs.cameras if camera.kind in _OF_CAMERA]
    wanted |= {
        part.split()[0] for pipeline in pipelines for part in pipeline.split('!') if part.split()
    }
    for name, (purpose, advice) in PURPOSES.items():
        found: dict[str, Any] = answer['elements'].get(name, {'there': False})
        need = Need.REQUIRED if name in wanted else Need.UNUSED if needs.known else Need.POSSIBLE
        figures = {'there': found['there']}
        if not found['there']:
            step = advice if need is Need.REQUIRED else ''
            yield Finding(
                need.missing_extra,
                f'element {name} is missing; it is for: {purpose}',
                step,
                name,
                figures,
            )
        elif 'error' in found:
            yield Finding(need.missing, f'{name}: {found["error"]}', advice, name, figures)
        else:
            yield ok(f'{name}, for: {purpose}', name, **figures)


def gstreamer_pipelines(system: System, needs: Needs) -> Iterator[Finding]:
    """Check that GStreamer can make each pipeline of the parameter file."""
    cameras = [camera for camera in needs.cameras if camera.kind in _OF_CAMERA]
    if not cameras:
        yield skip('no camera in the parameter file uses a GStreamer pipeline')
    for camera in cameras:
        if not camera['pipeline'].strip():
            if camera.kind == 'argus':
                yield skip(
                    (
                        f'argus makes its own pipeline for sensor {camera["sensor_id"]}; see '
                        'check gstreamer.elements'
                    ),
                    camera.node,
                )
            else:
                advice = (
                    "set parameter pipeline, for example to 'v4l2src device=/dev/video0 "
                    "io-mode=dmabuf'"
                )
                yield fail('camera gstreamer has an empty pipeline', advice, camera.node)
            continue
        answer = system.ask(try_pipeline, camera['pipeline'])
        if 'error' in answer:
            advice = (
                'compare the names of elements and properties in the pipeline with what '
                'gst-inspect-1.0 ELEMENT prints, and see check gstreamer.elements'
            )
            yield fail(
                f'GStreamer can not make the pipeline: {answer["error"]}', advice, camera.node
            )
        else:
            yield ok('GStreamer can make the pipeline', camera.node)


def _element(gst: GStreamer, name: str) -> dict[str, Any]:
    if not gst.has_element(name):
        return {'there': False}
    made = gst.gst_element_factory_make(name.encode(), None)
    if not made:
        return {
            'there': True,
            'error': (
                'GStreamer lists this element, but can not make it: a library that its plugin '
                'needs is missing'
            ),
        }
    gst.gst_object_unref(gst.gst_object_ref_sink(made))
    return {'there': True}


def describe_gstreamer(*elements: str) -> dict[str, Any]:
    """Return GStreamer's version, and whether each of *elements* is installed; or the error."""
    try:
        gst = load_gstreamer()
    except ZcError as error:
        return {'error': str(error)}
    return {
        'version': '.'.join(map(str, gst.version)),
        'elements': {name: _element(gst, name) for name in elements},
    }


def try_pipeline(description: str) -> dict[str, Any]:
    """Make a pipeline without opening a device; return the error, or ``{}`` if there is none."""
    try:
        check_description(description)
    except ZcError as error:
        return {'error': str(error)}
    return {}
