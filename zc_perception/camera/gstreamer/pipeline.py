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
Run a GStreamer pipeline that ends in an ``appsink``: pull its samples, and read its messages.

There is no GLib main loop, and no callback per frame: the camera's own thread pulls samples, and
waits for each only for a limited time. The sink keeps only the newest frame, so that a slow
consumer never stops the pipeline.

If the frames' format changes, the pipeline keeps running. The camera object that is opened next
takes the pipeline over, as a :class:`Continuation`. So no frame is lost or used twice.

Source: GStreamer's *appsink*, *GstBus*, *GstElement* states and ALLOCATION query documentation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
import contextlib
import ctypes
from ctypes import byref, c_int, c_void_p
from dataclasses import dataclass
import re
import time
from typing import Any, ClassVar, NamedTuple, TypeVar

from zc_perception.camera.gstreamer.abi import (
    Buffer,
    BUFFER_CORRUPTED,
    CAPS_INTERSECT_FIRST,
    CLOCK_TIME_NONE,
    Error,
    FORMAT_TIME,
    GStreamer,
    INSTALL,
    load_gstreamer,
    Message,
    MessageType,
    OFFSET_NONE,
    PARSE_FATAL_ERRORS,
    PARSE_NO_SUCH_ELEMENT,
    PROBE_HANDLED,
    PROBE_OK,
    PROBE_QUERY_DOWNSTREAM,
    ProbeCallback,
    Query,
    QUERY_ALLOCATION,
    QUERY_CAPS,
    ResourceError,
    State,
    StateChange,
    VideoInfo,
)
from zc_perception.errors import (
    CameraBusyError,
    CameraError,
    CameraLostError,
    ConfigError,
    ZcError,
)

_SAME_CLOCK_NS = 5_000_000
_LAUNCHER = re.compile(r'(?:\S*/)?gst-launch\S*')
_QUOTES = '"\'“”‘’'
# Quotes and backslashes that only a shell understands. GStreamer allows quotes only around the
# value of a property.
_FOR_A_SHELL = re.compile(rf'!\s*[{_QUOTES}]|[“”‘’]|\\[\s()]')
_MAX_WARNINGS = 8


def without_a_shell(description: str) -> str:
    """
    Return the pipeline text without white space around it; refuse a shell's command line.

    :raises ConfigError: the text begins with a quote or ``gst-launch-1.0``, or ends with ``!``.
    """
    text = description.strip()
    if text[:1] and text[0] in _QUOTES:
        raise ConfigError(
            f'pipeline {description} begins with a quote; leave out the quotes around the '
            'pipeline, only a shell needs them'
        )
    if launcher := _LAUNCHER.match(text):
        raise ConfigError(
            f"pipeline '{description}' begins with '{launcher[0]}'; leave out that program and "
            'its options, such as -v'
        )
    if text.endswith('!'):
        raise ConfigError(f"pipeline '{description}' ends with a '!'; leave that last '!' out")
    return text


class Said(NamedTuple):
    """
    An error or warning that an element has posted on the bus.

    :param text: the message, which begins with the element's name.
    :param debug: the debug text; its first line names file and line of GStreamer's source.
    :param domain: the name of the GError's domain; *code* is a number within this domain.
    :param source: the element's address; 0: unknown.
    """

    text: str
    debug: str
    domain: str
    code: int
    source: int

    @property
    def reason(self) -> str:
        """The debug text without its first line, in parentheses; empty: there is no other line."""
        words = ' '.join(self.debug.partition('\n')[2].split())
        return f' ({words})' if words else ''

    @property
    def not_negotiated(self) -> bool:
        """Whether an element can't take the format of the element before it."""
        # If a pad is created late, as decodebin's pads are, GStreamer reports not-linked instead.
        return 'not-negotiated' in self.debug or 'not-linked' in self.debug


class BarePipeline:
    """
    A pipeline and its message bus; the last element may be of any kind.

    :param description: the pipeline's text, as for gst-launch-1.0.
    :raises ConfigError: GStreamer can't parse the description, or an element is missing.
    """

    ERROR: ClassVar[type[ZcError]] = CameraError

    def __init__(self, gst: GStreamer, description: str) -> None:
        self._gst = gst
        self.description = description
        self.warnings: list[str] = []
        self._held: list[int] = []
        failure = ctypes.POINTER(Error)()
        pipeline = gst.gst_parse_launch_full(
            description.encode(), None, PARSE_FATAL_ERRORS, byref(failure)
        )
        if failure or not pipeline:
            if pipeline:
                gst.gst_object_unref(gst.gst_object_ref_sink(pipeline))
            self._refuse(failure)
        # The new pipeline has a floating reference, which nobody owns; after ref_sink, this Python
        # object owns it.
        self._pipeline: int = gst.gst_object_ref_sink(pipeline)
        self._bus: int = gst.gst_element_get_bus(self._pipeline)
        self._held = [self._bus, self._pipeline]

    def _refuse(self, failure: ctypes._Pointer[Any]) -> None:
        message, domain, code = self._gst.take_error(failure)
        advice = 'try it with gst-launch-1.0 first'
        if 'parse' in domain and code == PARSE_NO_SUCH_ELEMENT:
            advice = f'gst-inspect-1.0 lists the installed elements; {INSTALL}'
        elif _FOR_A_SHELL.search(self.description):
            advice = (
                'leave out quotes and backslashes that are for a shell; '
                'write for example ! video/x-raw, format=NV12 !'
            )
        raise ConfigError(f"pipeline '{self.description}': {message}; {advice}")

    def element(self, name: str) -> int:
        """Return the address of the element with this name; 0: there is no such element."""
        found: int = self._gst.gst_bin_get_by_name(self._pipeline, name.encode()) or 0
        if found:
            self._held.insert(0, found)
        return found

    def use_system_clock(self) -> bool:
        """Make the pipeline use GStreamer's system clock; tell whether it is CLOCK_MONOTONIC."""
        gst = self._gst
        clock = gst.gst_system_clock_obtain()
        gst.gst_pipeline_use_clock(self._pipeline, clock)
        same = bool(abs(gst.gst_clock_get_time(clock) - time.monotonic_ns()) < _SAME_CLOCK_NS)
        gst.gst_object_unref(clock)
        return same

    def _set_state(self, state: State) -> StateChange:
        change = StateChange(self._gst.gst_element_set_state(self._pipeline, state))
        if change == StateChange.FAILURE:
            self.check()
            raise self.ERROR(
                f"pipeline '{self.description}' can't change to state {state.name}; run it with "
                'GST_DEBUG=3 to see which element refuses'
            )
        return change

    def check(self) -> None:
        """
        Read all messages on the bus, and keep warnings in :attr:`warnings`.

        :raises ZcError: an element reported an error.
        """
        while message := self._gst.gst_bus_pop(self._bus):
            try:
                kind = Message.from_address(message).type
                if kind == MessageType.ERROR:
                    raise self._error(self._parse(message, error=True))
                if kind == MessageType.WARNING:
                    self._warn(self._parse(message, error=False))
                elif kind == MessageType.LATENCY:
                    self._gst.gst_bin_recalculate_latency(self._pipeline)
                elif kind == MessageType.EOS:
                    self._end_of_stream()
            finally:
                self._gst.gst_mini_object_unref(message)

    def _error(self, said: Said) -> ZcError:
        """Return the exception that :meth:`check` raises for an element's error."""
        raise NotImplementedError

    def _end_of_stream(self) -> None:
        """React when the stream has ended in all sinks; subclasses override this."""

    def _warn(self, said: Said) -> None:
        sentence = f'{said.text}{said.reason}'
        if sentence not in self.warnings and len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(sentence)

    def _parse(self, message: int, *, error: bool) -> Said:
        failure, debug = ctypes.POINTER(Error)(), c_void_p()
        parse = self._gst.gst_message_parse_error if error else self._gst.gst_message_parse_warning
        parse(message, byref(failure), byref(debug))
        text, domain, code = self._gst.take_error(failure)
        source = int(Message.from_address(message).src or 0)
        name = self._gst.take_text(self._gst.gst_object_get_name(source)) if source else 'pipeline'
        return Said(f'{name}: {text}', self._gst.take_text(debug.value), domain, code, source)

    def close(self) -> None:
        """Stop and free the pipeline. Idempotent."""
        held, self._held = self._held, []
        if not held:
            return
        self._gst.gst_element_set_state(self._pipeline, State.NULL)
        for thing in held:
            self._gst.gst_object_unref(thing)
        self._pipeline = self._bus = 0


SINK = 'zc_sink'
_SLICE_S = 0.1
_LAST_SINK = re.compile(r'!\s*(?!appsink\b)(\w*sink)\b[^!]*$')
_LAST_ELEMENT = re.compile(r'!\s*appsink\b([^!]*)$')
_NAME = re.compile(r'\bname\s*=\s*"?([\w.-]+)"?')
_R = TypeVar('_R', bound='Reference')


class NotNegotiatedError(CameraError):
    """An element does not accept the format of the element before it."""


class Reference:
    """
    Owns one reference to a reference-counted object of GStreamer.

    :param address: the address of GStreamer's object, or 0: there is none. This instance
        takes over the caller's reference, so the caller must not give up the reference.
    """

    __slots__ = ('_gst', 'address')

    def __init__(self, gst: GStreamer, address: int) -> None:
        self._gst = gst
        self.address = address

    def close(self) -> None:
        """Give up the reference. Idempotent; any thread may call this."""
        address, self.address = self.address, 0
        if address:
            self._gst.gst_mini_object_unref(address)

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # At interpreter shutdown, modules and attributes that close() needs may be gone.
        with contextlib.suppress(AttributeError, TypeError):
            self.close()


class Sample(Reference):
    """
    A reference to a GstSample, which is a frame with its caps.

    While the reference is held, GStreamer doesn't fill the frame's memory again.
    """

    __slots__ = ('buffer',)

    def __init__(self, gst: GStreamer, address: int) -> None:
        super().__init__(gst, address)
        self.buffer: int = gst.gst_sample_get_buffer(address) or 0

    @property
    def caps(self) -> int:
        """
        The address of the caps, which is valid until the sample is closed.

        Equal caps of two samples may have different addresses.
        """
        return int(self._gst.gst_sample_get_caps(self.address) or 0)

    def keep_caps(self) -> Reference:
        """Return a reference to the caps; while it is open, no other caps can get this address."""
        return Reference(self._gst, self._gst.gst_mini_object_ref(self.caps))

    @property
    def frame_number(self) -> int | None:
        """
        The source's number of the frame; ``None``: the source numbers no frames.

        The number is in the GstBuffer's field ``offset``. This field is a frame number only if
        field ``offset_end`` is larger by one.
        """
        buffer = Buffer.from_address(self.buffer)
        return (
            None
            if buffer.offset == OFFSET_NONE or buffer.offset_end != buffer.offset + 1
            else int(buffer.offset)
        )

    @property
    def corrupted(self) -> bool:
        """Whether the source marked the frame as damaged; v4l2src marks V4L2's bad frames."""
        return bool(Buffer.from_address(self.buffer).mini_object.flags & BUFFER_CORRUPTED)

    @property
    def running_time_ns(self) -> int | None:
        """The frame's time stamp in ns after the pipeline's base time; ``None``: no stamp."""
        pts = Buffer.from_address(self.buffer).pts
        segment = self._gst.gst_sample_get_segment(self.address)
        if pts == CLOCK_TIME_NONE or not segment:
            return None
        running = self._gst.gst_segment_to_running_time(segment, FORMAT_TIME, pts)
        return None if running == CLOCK_TIME_NONE else int(running)


def complete(description: str) -> tuple[str, str]:
    """
    Return *description* with a named ``appsink`` at its end, and this sink's name.

    If *description* already ends with an ``appsink``, that sink is used. It keeps its name if it
    has one.

    :raises ConfigError: the description is empty, ends with ``!`` or another sink, or begins with
        a quote or ``gst-launch-1.0``.
    """
    text = description.strip()
    if not text:
        raise ConfigError(
            "parameter 'pipeline' is empty; set it to what you would give gst-launch-1.0, such as "
            "'v4l2src io-mode=dmabuf ! video/x-raw,format=NV12'"
        )
    text = without_a_shell(text)
    if sink := _LAST_SINK.search(text):
        raise ConfigError(
            f"pipeline '{description}' ends with the sink '{sink[1]}'; leave that out, "
            'the camera adds its own sink'
        )
    found = _LAST_ELEMENT.search(text)
    if found is None:
        return f'{text} ! appsink name={SINK}', SINK
    named = _NAME.search(found[1])
    return (text, named[1]) if named else (f'{text} name={SINK}', SINK)


def check_description(description: str) -> None:
    """
    Check that GStreamer can make a pipeline of *description*, without opening a device.

    :raises ConfigError: GStreamer isn't installed or can't parse the description, an element is
        missing, or :func:`complete` refuses the description.
    """
    Pipeline(load_gstreamer(), description, buffers=1).close()


class Pipeline(BarePipeline):
    """
    A pipeline that ends in an ``appsink``, from which frames are pulled.

    The same thread calls :meth:`start`, :meth:`pull` and :meth:`close`.

    :param description: the text as for gst-launch-1.0, see :func:`complete`.
    :param buffers: the number of buffers that the sink asks the source for, in addition to the
        buffers that the source itself needs.
    :param accepts: the caps that the sink accepts, the best first. Empty: any caps.
    :raises ConfigError: GStreamer can't parse the description, or an element is missing.
    """

    def __init__(
        self, gst: GStreamer, description: str, *, buffers: int, accepts: str = ''
    ) -> None:
        self._buffers = buffers
        self.live = False
        self._last_sample = time.monotonic()
        self._pulls = 0
        self._had_sample = False
        self._accepted = Reference(gst, 0)
        text, sink = complete(description)
        super().__init__(gst, text)
        self._sink = self.element(sink)
        if not self._sink or not gst.has_property(self._sink, 'max-buffers'):
            self.close()
            raise ConfigError(
                f"pipeline '{description}': '{sink}' is not an appsink; leave the sink out, the "
                'camera adds its own'
            )
        # Keep a reference to the callback: GStreamer's threads call it as long as the pad exists.
        self._probe = ProbeCallback(self._answer)
        self._prepare()
        if accepts:
            self._accept(accepts)

    def _prepare(self) -> None:
        gst, sink = self._gst, self._sink
        # With enable-last-sample, the sink would keep the last buffer, so that the source couldn't
        # fill it again.
        for name, value in (
            ('enable-last-sample', False),
            ('qos', False),
            ('emit-signals', False),
            ('max-buffers', 1),
            ('drop', True),
        ):
            gst.set_property(sink, name, value)
        pad = gst.gst_element_get_static_pad(sink, b'sink')
        gst.gst_pad_add_probe(pad, PROBE_QUERY_DOWNSTREAM, self._probe, None, None)
        gst.gst_object_unref(pad)
        self.clock_is_monotonic = self.use_system_clock()

    def _accept(self, text: str) -> None:
        """Make the sink accept only caps that are in *text* and in the sink's own ``caps``."""
        gst = self._gst
        # Put each format into a caps structure of its own, in the order of *text*. If one
        # structure had a list of formats, the source would choose the format that it prefers.
        accepted = Reference(gst, gst.gst_caps_normalize(gst.gst_caps_from_string(text.encode())))
        with Reference(gst, gst.gst_app_sink_get_caps(self._sink) or 0) as own:
            if own.address:
                with accepted:
                    accepted = self._common(own.address, accepted.address)
        if gst.gst_caps_is_empty(accepted.address):
            # No caps are both in *text* and in the sink's own caps. Keep the sink's own caps: the
            # user's pipeline sets them. If a consumer can't take such frames, the later
            # negotiation refuses this consumer with a message that names it.
            accepted.close()
            return
        self._accepted = accepted
        gst.gst_app_sink_set_caps(self._sink, accepted.address)

    def _common(self, first: int, second: int) -> Reference:
        """Return the caps that *first* and *second* have in common, in the order of *first*."""
        gst = self._gst
        return Reference(gst, gst.gst_caps_intersect_full(first, second, CAPS_INTERSECT_FIRST))

    def could_give(self, caps: Sequence[str]) -> list[bool]:
        """Return for each of *caps* whether the elements before the sink could give them."""
        gst, found = self._gst, []
        pad = gst.gst_element_get_static_pad(self._sink, b'sink')
        try:
            with Reference(gst, gst.gst_pad_peer_query_caps(pad, None)) as upstream:
                for text in caps:
                    with (
                        Reference(gst, gst.gst_caps_from_string(text.encode())) as wanted,
                        self._common(wanted.address, upstream.address) as both,
                    ):
                        found.append(not gst.gst_caps_is_empty(both.address))
        finally:
            gst.gst_object_unref(pad)
        return found

    def _answer(self, _pad: int, info: ctypes._Pointer[Any], _data: int) -> int:
        """Answer CAPS and ALLOCATION queries in the sink's place, on GStreamer's threads."""
        query = info[0].data
        kind = Query.from_address(query).type if query else None
        if kind == QUERY_CAPS and self._accepted.address:
            self._answer_caps(query)
            return PROBE_HANDLED
        return (
            PROBE_HANDLED
            if kind == QUERY_ALLOCATION and self._answer_allocation(query)
            else PROBE_OK
        )

    def _answer_caps(self, query: int) -> None:
        """
        Answer a CAPS query with the accepted caps, in this package's order of preference.

        If the sink itself answered, the caps would be in the source's order.
        """
        gst, wanted = self._gst, c_void_p()
        gst.gst_query_parse_caps(query, byref(wanted))
        if wanted.value is None:
            gst.gst_query_set_caps_result(query, self._accepted.address)
            return
        with self._common(self._accepted.address, wanted.value) as both:
            gst.gst_query_set_caps_result(query, both.address)

    def _answer_allocation(self, query: int) -> bool:
        """
        Answer that the source may choose strides, and that this package holds several buffers.

        Without the first answer, a V4L2 source copies every frame whose rows are padded. Without
        the second answer, the source has too few buffers, and copies frames while this package
        holds its buffers. The source copies to system memory, and reports neither kind of copy.

        :returns: ``False`` if the stream isn't raw video; then the query isn't answered.
        """
        gst, caps, need_pool, video = self._gst, c_void_p(), c_int(), VideoInfo()
        gst.gst_query_parse_allocation(query, byref(caps), byref(need_pool))
        structure = gst.gst_caps_get_structure(caps, 0) if caps.value else None
        # Don't answer if the stream isn't raw video: its elements would make buffers of the
        # answer's size, which is right only for raw video.
        if structure is None or gst.gst_structure_get_name(structure) != b'video/x-raw':
            return False
        known = gst.gst_video_info_from_caps(byref(video), caps)
        gst.gst_query_add_allocation_meta(query, gst.video_meta_type, None)
        gst.gst_query_add_allocation_meta(query, gst.crop_meta_type, None)
        gst.gst_query_add_allocation_pool(
            query, None, video.size if known else 0, self._buffers, 0
        )
        return True

    def start(self, timeout_s: float, stopping: Callable[[], bool] = lambda: False) -> Sample:
        """
        Start the pipeline, and return its first frame.

        A source that isn't live stays paused until :meth:`play`.

        :param stopping: called repeatedly; if it returns ``True``, the wait ends.
        :raises CameraError: an element failed, the stream ended at once, no frame came within
            *timeout_s*, or *stopping* returned ``True``.
        """
        deadline = time.monotonic() + timeout_s
        change = self._set_state(State.PAUSED)
        self.live = change == StateChange.NO_PREROLL
        # Take a live source's frames as soon as they come: the sink's wait until the time of their
        # stamps would only add latency. Take a file's frames at the times of their stamps.
        self._gst.set_property(self._sink, 'sync', not self.live)
        if self.live:
            self._set_state(State.PLAYING)
        take = (
            self._gst.gst_app_sink_try_pull_sample
            if self.live
            else self._gst.gst_app_sink_try_pull_preroll
        )
        while True:
            sample = self._taken(take(self._sink, round(_SLICE_S * 1e9)))
            if sample is not None:
                return sample
            self.check()
            if stopping():
                raise CameraLostError(
                    f"pipeline '{self.description}' was stopped before its first frame; start "
                    'the node again'
                )
            if self.ended:
                raise CameraError(
                    f"pipeline '{self.description}' ended before its first frame; try it with "
                    'gst-launch-1.0 first'
                )
            if time.monotonic() >= deadline:
                raise CameraLostError(
                    f"pipeline '{self.description}' gave no frame within {timeout_s:g} s; try "
                    'it with gst-launch-1.0, and check that its '
                    'source is connected and that no element is blocked'
                )

    def play(self) -> None:
        """Let a source that isn't live continue after the first frame."""
        self._last_sample = time.monotonic()
        if not self.live:
            self._set_state(State.PLAYING)

    def pull(self, timeout_s: float) -> Sample | None:
        """
        Return the next frame; ``None``: no frame came within *timeout_s*.

        :raises CameraError: an element has reported an error on the pipeline's bus.
        """
        sample = self._taken(
            self._gst.gst_app_sink_try_pull_sample(self._sink, round(timeout_s * 1e9))
        )
        self._pulls += 1
        # Read the bus now and then even while frames come, so that messages don't pile up there.
        if sample is None or self._pulls % 32 == 0:
            try:
                self.check()
            except BaseException:
                if sample is not None:
                    sample.close()
                raise
        return sample

    def _taken(self, address: int | None) -> Sample | None:
        if not address:
            return None
        self._last_sample = time.monotonic()
        self._had_sample = True
        return Sample(self._gst, address)

    @property
    def ended(self) -> bool:
        """Whether the stream has ended and its last frame was pulled."""
        return bool(self._gst.gst_app_sink_is_eos(self._sink))

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame."""
        return time.monotonic() - self._last_sample

    def captured_ns(self, sample: Sample) -> int | None:
        """
        Return the frame's capture time on CLOCK_MONOTONIC in ns, from its time stamp.

        ``None``: the frame has no time stamp, or the pipeline's clock isn't CLOCK_MONOTONIC.
        """
        running = sample.running_time_ns if self.clock_is_monotonic else None
        return (
            None
            if running is None
            else int(self._gst.gst_element_get_base_time(self._pipeline)) + running
        )

    def _error(self, said: Said) -> CameraError:
        where = f"pipeline '{self.description}': {said.text}"
        if said.not_negotiated:
            return NotNegotiatedError(
                f"{where} (not negotiated): an element can't take the previous element's format; "
                'check the caps with gst-launch-1.0 -v'
            )
        if 'resource' not in said.domain:
            return CameraError(f'{where}{said.reason}; try it with gst-launch-1.0')
        if said.code == ResourceError.BUSY:
            return CameraBusyError(f'{where}; end the other program that uses the device')
        if said.source and self._gst.has_property(said.source, 'location'):
            advice = (
                "the element's property location names a file: check that the file exists and may "
                'be read, and write its absolute path in that property'
            )
            kind = CameraLostError if self._had_sample else CameraError
            return kind(f'{where}{said.reason}; {advice}')
        if said.code == ResourceError.NOT_FOUND or self._had_sample:
            return CameraLostError(
                f'{where}{said.reason}; plug the device in, or see the kernel log'
            )
        return CameraError(
            f'{where}{said.reason}; check that the device is there and that this user may use it'
        )

    def close(self) -> None:
        """Stop and free the pipeline. Frames that were pulled stay valid. Idempotent."""
        super().close()
        self._sink = 0
        self._accepted.close()


@dataclass
class Continuation:
    """
    A running pipeline whose frame format has changed, to be taken over by the next camera.

    The object that holds the Continuation must hand it to the next camera or close it.

    :param samples: the first frame of the new format, and later frames that were already pulled.
    :param offer: the caps that the pipeline's sink accepts; empty: any.
    """

    pipeline: Pipeline
    samples: deque[Sample]
    offer: str

    def close(self) -> None:
        """Close the pipeline, because no camera takes it over."""
        while self.samples:
            self.samples.pop().close()
        self.pipeline.close()
