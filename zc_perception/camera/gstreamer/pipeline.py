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
A GStreamer pipeline that ends in our sink.

This module builds it, starts it, pulls samples out of it, and reads its bus.

There is no GLib main loop, and no callback per frame: the camera's own thread pulls samples with a
bounded wait. The sink keeps only the newest frame, so that a slow consumer never stops the
pipeline.

Source: GStreamer's *appsink*, *GstBus*, *GstElement* states and ALLOCATION query documentation.

A pipeline whose frames have changed runs on, and the next camera takes it over as a
:class:`Continuation`. So no frame of its source is lost or shown twice.
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
# Only the value of a property may be in quotes.
_FOR_A_SHELL = re.compile(rf'!\s*[{_QUOTES}]|[“”‘’]|\\[\s()]')
_MAX_WARNINGS = 8


def without_a_shell(description: str) -> str:
    """
    Return a user's pipeline text, stripped of white space; refuse text for a shell.

    :raises ConfigError: the text has quotes or a program's name around the pipeline, or ends with
        ``!``.
    """
    text = description.strip()
    if text[:1] and text[0] in _QUOTES:
        raise ConfigError(
            f'pipeline {description} begins with a quote; leave out the quotes around it, '
            'they are for a shell'
        )
    if launcher := _LAUNCHER.match(text):
        raise ConfigError(
            f"pipeline '{description}' begins with '{launcher[0]}'; leave out that program and "
            'its options, such as -v'
        )
    if text.endswith('!'):
        raise ConfigError(f"pipeline '{description}' ends with a '!'; leave the last one out")
    return text


class Said(NamedTuple):
    """
    An error or warning of an element on the bus.

    :param text: the message, which begins with the element's name.
    :param debug: the debug text, whose first line is a place in GStreamer's source.
    :param source: the element's address; 0: it isn't known.
    """

    text: str
    debug: str
    domain: str
    code: int
    source: int

    @property
    def reason(self) -> str:
        """The debug text without its first line."""
        words = ' '.join(self.debug.partition('\n')[2].split())
        return f' ({words})' if words else ''

    @property
    def not_negotiated(self) -> bool:
        """
        Whether an element can't take the format of the element before it.

        For a pad that appears late, such as decodebin's, the error is that no element is linked to
        it.
        """
        return 'not-negotiated' in self.debug or 'not-linked' in self.debug


class BarePipeline:
    """
    A pipeline with its bus, whatever its last element is.

    :param description: as for gst-launch-1.0.
    :raises ConfigError: the description can't be understood, or an element is missing.
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
        # The new object has a floating reference, which has to be taken.
        self._pipeline: int = gst.gst_object_ref_sink(pipeline)
        self._bus: int = gst.gst_element_get_bus(self._pipeline)
        self._held = [self._bus, self._pipeline]

    def _refuse(self, failure: ctypes._Pointer[Any]) -> None:
        message, domain, code = self._gst.take_error(failure)
        advice = 'try it with gst-launch-1.0 first'
        if 'parse' in domain and code == PARSE_NO_SUCH_ELEMENT:
            advice = f'gst-inspect-1.0 lists what there is; {INSTALL}'
        elif _FOR_A_SHELL.search(self.description):
            advice = (
                'leave out quotes and backslashes that are for a shell: '
                "'! video/x-raw, format=NV12 !'"
            )
        raise ConfigError(f"pipeline '{self.description}': {message}; {advice}")

    def element(self, name: str) -> int:
        """Return the address of the element of that name; 0: there is none."""
        found: int = self._gst.gst_bin_get_by_name(self._pipeline, name.encode()) or 0
        if found:
            self._held.insert(0, found)
        return found

    def use_system_clock(self) -> bool:
        """Let the pipeline use the system's clock; return whether that is CLOCK_MONOTONIC."""
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
                f"pipeline '{self.description}' can't go to {state.name}; run it with "
                'GST_DEBUG=3 to see which element refuses'
            )
        return change

    def check(self) -> None:
        """
        Read all messages on the bus.

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
        """Return the exception for an element's error."""
        raise NotImplementedError

    def _end_of_stream(self) -> None:
        """Tell whether every sink has reached the end of its stream."""

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

    :param address: the object; the caller passes its reference on. 0: there is no object.
    """

    __slots__ = ('_gst', 'address')

    def __init__(self, gst: GStreamer, address: int) -> None:
        self._gst = gst
        self.address = address

    def close(self) -> None:
        """Drop the reference. Idempotent; any thread may call this."""
        address, self.address = self.address, 0
        if address:
            self._gst.gst_mini_object_unref(address)

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The interpreter may be shutting down.
        with contextlib.suppress(AttributeError, TypeError):
            self.close()


class Sample(Reference):
    """
    A GstSample: a frame with its caps, and a reference to it.

    While the reference is held, the frame's memory is not filled again.
    """

    __slots__ = ('buffer',)

    def __init__(self, gst: GStreamer, address: int) -> None:
        super().__init__(gst, address)
        self.buffer: int = gst.gst_sample_get_buffer(address) or 0

    @property
    def caps(self) -> int:
        """
        The address of the caps, valid as long as the sample.

        Two samples with equal caps may have different addresses.
        """
        return int(self._gst.gst_sample_get_caps(self.address) or 0)

    def keep_caps(self) -> Reference:
        """
        Return a reference to the caps, which may be kept longer than the sample.

        While the reference is kept, no other caps get the same address.
        """
        return Reference(self._gst, self._gst.gst_mini_object_ref(self.caps))

    @property
    def frame_number(self) -> int | None:
        """
        The number that the source gave to the frame: the offset of the GstBuffer.

        ``None``: the source doesn't number frames one by one.
        """
        buffer = Buffer.from_address(self.buffer)
        return (
            None
            if buffer.offset == OFFSET_NONE or buffer.offset_end != buffer.offset + 1
            else int(buffer.offset)
        )

    @property
    def corrupted(self) -> bool:
        """Whether the source marked the frame as damaged, such as by V4L2's error flag."""
        return bool(Buffer.from_address(self.buffer).mini_object.flags & BUFFER_CORRUPTED)

    @property
    def running_time_ns(self) -> int | None:
        """The frame's time in ns since the pipeline's base time; ``None``: it has no stamp."""
        pts = Buffer.from_address(self.buffer).pts
        segment = self._gst.gst_sample_get_segment(self.address)
        if pts == CLOCK_TIME_NONE or not segment:
            return None
        running = self._gst.gst_segment_to_running_time(segment, FORMAT_TIME, pts)
        return None if running == CLOCK_TIME_NONE else int(running)


def complete(description: str) -> tuple[str, str]:
    """
    Return *description* with our sink at its end, and the sink's name.

    If it ends in an ``appsink``, with or without a name, that is the sink. Otherwise our sink is
    put behind the last element.

    :raises ConfigError: the description is empty, ends with ``!`` or another sink, or has quotes
        or a program's name around it.
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
            "the camera's own is put there"
        )
    found = _LAST_ELEMENT.search(text)
    if found is None:
        return f'{text} ! appsink name={SINK}', SINK
    named = _NAME.search(found[1])
    return (text, named[1]) if named else (f'{text} name={SINK}', SINK)


def check_description(description: str) -> None:
    """
    Check that a pipeline can be made of *description*.

    No device is opened.

    :raises ConfigError: GStreamer isn't installed, the description can't be understood, or an
        element is missing.
    """
    Pipeline(load_gstreamer(), description, buffers=1).close()


class Pipeline(BarePipeline):
    """
    A pipeline that ends in our sink.

    One thread calls :meth:`start`, :meth:`pull` and :meth:`close`.

    :param description: the text as for gst-launch-1.0, see :func:`complete`.
    :param buffers: the number of buffers that the sink asks the other elements for, in addition to
        those that they need themselves.
    :param accepts: caps that the sink accepts, the best first; they are its answer to the CAPS
        query. Empty: any caps.
    :raises ConfigError: the description can't be understood, or an element is missing.
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
                f"pipeline '{description}': '{sink}' is not an appsink; leave the sink out, it "
                'is put behind the last element'
            )
        # Keep the callback, because GStreamer calls it from its own threads as long as the pad
        # exists.
        self._probe = ProbeCallback(self._answer)
        self._prepare()
        if accepts:
            self._accept(accepts)

    def _prepare(self) -> None:
        gst, sink = self._gst, self._sink
        # The sink must keep neither its last nor its first sample, because the source would have
        # one buffer less for each.
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
        """
        Let the sink accept only these caps.

        If the description gives the sink caps, too, it accepts only the caps that are in both.
        """
        gst = self._gst
        # Each format gets its own structure: with a list in one structure the other side's order
        # would decide.
        accepted = Reference(gst, gst.gst_caps_normalize(gst.gst_caps_from_string(text.encode())))
        with Reference(gst, gst.gst_app_sink_get_caps(self._sink) or 0) as own:
            if own.address:
                with accepted:
                    accepted = self._common(own.address, accepted.address)
        if gst.gst_caps_is_empty(accepted.address):
            # If both have no caps in common, the description decides. A consumer that can't take
            # its format is refused by name later.
            accepted.close()
            return
        self._accepted = accepted
        gst.gst_app_sink_set_caps(self._sink, accepted.address)

    def _common(self, first: int, second: int) -> Reference:
        """Return the caps that are in both, in the order of the first."""
        gst = self._gst
        return Reference(gst, gst.gst_caps_intersect_full(first, second, CAPS_INTERSECT_FIRST))

    def could_give(self, caps: Sequence[str]) -> list[bool]:
        """Return those of *caps* that the elements before the sink could give after a restart."""
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
        """Answer a query in place of the sink, whose own answer says too little."""
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
        Answer which caps are accepted, in our order.

        The sink's own answer would have the order of the caps in the query, so that a source would
        choose its own first format.
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
        Answer that strides may be the source's own, and that we keep several buffers.

        Without the first answer a V4L2 source copies every frame whose rows are padded. Without
        the second it has too few buffers, and copies frames while we hold some. Both copies go to
        system memory, without a message. Return ``False`` if the stream is no raw video; the query
        is then not answered.
        """
        gst, caps, need_pool, video = self._gst, c_void_p(), c_int(), VideoInfo()
        gst.gst_query_parse_allocation(query, byref(caps), byref(need_pool))
        structure = gst.gst_caps_get_structure(caps, 0) if caps.value else None
        # Elements of other kinds of streams would take the size in the answer for the size of
        # their buffers.
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
        Start the pipeline and wait for the first frame, which describes all frames.

        A source that isn't live stays paused until :meth:`play`.

        :param stopping: returns whether the camera is being stopped, so that the wait ends.
        :raises CameraError: an element failed, the stream ended at once, no frame came within
            *timeout_s*, or *stopping* said so.
        """
        deadline = time.monotonic() + timeout_s
        change = self._set_state(State.PAUSED)
        self.live = change == StateChange.NO_PREROLL
        # Synchronising to time stamps would only add latency for a live source. Pictures of other
        # sources come at the pace of their time stamps.
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
                    'it with gst-launch-1.0, and see that its '
                    'source is there and that nothing in it waits'
                )

    def play(self) -> None:
        """Let a source that isn't live go on behind the first frame."""
        self._last_sample = time.monotonic()
        if not self.live:
            self._set_state(State.PLAYING)

    def pull(self, timeout_s: float) -> Sample | None:
        """
        Return the next frame; ``None``: no frame came within *timeout_s*.

        :raises CameraError: an element failed meanwhile.
        """
        sample = self._taken(
            self._gst.gst_app_sink_try_pull_sample(self._sink, round(timeout_s * 1e9))
        )
        self._pulls += 1
        # Take warnings off the bus, so that they don't collect there.
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
        """Whether the last frame was taken, so that no other will come."""
        return bool(self._gst.gst_app_sink_is_eos(self._sink))

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame."""
        return time.monotonic() - self._last_sample

    def captured_ns(self, sample: Sample) -> int | None:
        """
        Return the CLOCK_MONOTONIC time at which the frame was taken, as its source states.

        ``None``: the source gives no time, or a time of another clock.
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
                f'{where} (not negotiated): what one element makes the next can not take; '
                'check the caps with gst-launch-1.0 -v'
            )
        if 'resource' not in said.domain:
            return CameraError(f'{where}{said.reason}; try it with gst-launch-1.0')
        if said.code == ResourceError.BUSY:
            return CameraBusyError(f'{where}; end the other program that uses it')
        if said.source and self._gst.has_property(said.source, 'location'):
            advice = (
                'see that what its location names is there and may be read; '
                'write the whole path of a file'
            )
            kind = CameraLostError if self._had_sample else CameraError
            return kind(f'{where}{said.reason}; {advice}')
        if said.code == ResourceError.NOT_FOUND or self._had_sample:
            return CameraLostError(f'{where}{said.reason}; plug it in, or see the kernel log')
        return CameraError(f'{where}{said.reason}; see that the device is there and may be used')

    def close(self) -> None:
        """Stop and free the pipeline. Frames that were pulled stay valid. Idempotent."""
        super().close()
        self._sink = 0
        self._accepted.close()


@dataclass
class Continuation:
    """
    A running pipeline whose frames have changed, for the next camera.

    Its owner hands it to that camera, or closes it.

    :param samples: the first frame of the new kind, and later frames that were pulled already.
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
