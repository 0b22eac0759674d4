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

There is no GLib main loop and there are no callbacks per frame: the camera's own thread pulls with
a bounded wait. The sink keeps the newest frame, so that a slow consumer never holds the pipeline
up.

Source: GStreamer's *appsink*, *GstBus*, *GstElement* states and ALLOCATION query documentation.

A pipeline whose frames have changed runs on: the next camera takes it as a :class:`Continuation`,
so that nothing of its source is lost or shown again.
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
# Nothing but a property's value may be in quotes.
_FOR_A_SHELL = re.compile(rf'!\s*[{_QUOTES}]|[“”‘’]|\\[\s()]')
_MAX_WARNINGS = 8


def without_a_shell(description: str) -> str:
    """
    Return the text of a pipeline as a user gives it.

    :raises ConfigError: something around it is for a shell, or it ends with a link.
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
    What an element has said on the bus.

    :param text: with the element's name in front.
    :param debug: the first line of it is a place in GStreamer's source.
    :param source: the element; 0: it isn't known.
    """

    text: str
    debug: str
    domain: str
    code: int
    source: int

    @property
    def reason(self) -> str:
        """The debug text's own words."""
        words = ' '.join(self.debug.partition('\n')[2].split())
        return f' ({words})' if words else ''

    @property
    def not_negotiated(self) -> bool:
        """
        Whether an element can't take what the one before it makes.

        Where a pad appears late, such as decodebin's, that is an element that is not linked.
        """
        return 'not-negotiated' in self.debug or 'not-linked' in self.debug


class BarePipeline:
    """
    One pipeline.

    :param description: as for gst-launch-1.0.
    :raises ConfigError: it can't be understood, or an element is missing.
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
        # The reference is floating until it is taken.
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
        """Return the element of that name; 0: there is none."""
        found: int = self._gst.gst_bin_get_by_name(self._pipeline, name.encode()) or 0
        if found:
            self._held.insert(0, found)
        return found

    def use_system_clock(self) -> bool:
        """Let the pipeline use the system's clock, and tell whether that is CLOCK_MONOTONIC."""
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
        Read everything that the bus has.

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
        """Tell whether every sink has got the last of its stream."""

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
        """Stop and free it. Idempotent."""
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
    """What one element makes, the next one does not take."""


class Reference:
    """
    One reference to one of GStreamer's counted objects, dropped once.

    :param address: the object whose reference is passed here; 0 for none.
    """

    __slots__ = ('_gst', 'address')

    def __init__(self, gst: GStreamer, address: int) -> None:
        self._gst = gst
        self.address = address

    def close(self) -> None:
        """Drop it. Idempotent, from any thread."""
        address, self.address = self.address, 0
        if address:
            self._gst.gst_mini_object_unref(address)

    def __enter__(self: _R) -> _R:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The interpreter may be going away.
        with contextlib.suppress(AttributeError, TypeError):
            self.close()


class Sample(Reference):
    """
    One frame with everything around it, and a reference.

    The reference keeps the frame's memory from being filled again.
    """

    __slots__ = ('buffer',)

    def __init__(self, gst: GStreamer, address: int) -> None:
        super().__init__(gst, address)
        self.buffer: int = gst.gst_sample_get_buffer(address) or 0

    @property
    def caps(self) -> int:
        """The caps' address, good while the sample is; another one may say the same."""
        return int(self._gst.gst_sample_get_caps(self.address) or 0)

    def keep_caps(self) -> Reference:
        """
        Return the caps, for longer than the sample.

        While they are kept, no other caps come to lie at their address.
        """
        return Reference(self._gst, self._gst.gst_mini_object_ref(self.caps))

    @property
    def frame_number(self) -> int | None:
        """
        The buffer's offset, which for raw video is the source's number of the frame.

        Only if the source numbers frames one by one.
        """
        buffer = Buffer.from_address(self.buffer)
        return (
            None
            if buffer.offset == OFFSET_NONE or buffer.offset_end != buffer.offset + 1
            else int(buffer.offset)
        )

    @property
    def corrupted(self) -> bool:
        """Whether its source marked it: V4L2's error flag."""
        return bool(Buffer.from_address(self.buffer).mini_object.flags & BUFFER_CORRUPTED)

    @property
    def running_time_ns(self) -> int | None:
        """Its time stamp, counted from the pipeline's base time; ``None`` without one."""
        pts = Buffer.from_address(self.buffer).pts
        segment = self._gst.gst_sample_get_segment(self.address)
        if pts == CLOCK_TIME_NONE or not segment:
            return None
        running = self._gst.gst_segment_to_running_time(segment, FORMAT_TIME, pts)
        return None if running == CLOCK_TIME_NONE else int(running)


def complete(description: str) -> tuple[str, str]:
    """
    Return *description* with our sink at its end, and the sink's name.

    It may end in an ``appsink`` of its own, with or without a name, or in any other element,
    behind which our sink is put.

    :raises ConfigError: there is nothing in it, it ends with a link or another sink, or something
        around it is for a shell.
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

    :raises ConfigError: GStreamer isn't there, the description can't be understood, or an element
        is missing.
    """
    Pipeline(load_gstreamer(), description, buffers=1).close()


class Pipeline(BarePipeline):
    """
    One pipeline.

    :meth:`start`, :meth:`pull` and :meth:`close` belong to one thread.

    :param description: as for gst-launch-1.0; see :func:`complete`.
    :param buffers: how many the sink asks upstream for on top of what that needs itself.
    :param accepts: caps that the sink takes, and that its answer to the CAPS query says, the best
        first; empty: any.
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
        # Kept here, because GStreamer calls it from its own threads as long as the pad exists.
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

        If the description gives it caps of its own, it accepts only those that are in both.
        """
        gst = self._gst
        # One structure with a list of formats would let the other side's order count.
        accepted = Reference(gst, gst.gst_caps_normalize(gst.gst_caps_from_string(text.encode())))
        with Reference(gst, gst.gst_app_sink_get_caps(self._sink) or 0) as own:
            if own.address:
                with accepted:
                    accepted = self._common(own.address, accepted.address)
        if gst.gst_caps_is_empty(accepted.address):
            # If both have nothing in common, the description counts, and a consumer that can't
            # take its format is refused by name later.
            accepted.close()
            return
        self._accepted = accepted
        gst.gst_app_sink_set_caps(self._sink, accepted.address)

    def _common(self, first: int, second: int) -> Reference:
        """Return the caps that are in both, in the order of the first."""
        gst = self._gst
        return Reference(gst, gst.gst_caps_intersect_full(first, second, CAPS_INTERSECT_FIRST))

    def could_give(self, caps: Sequence[str]) -> list[bool]:
        """Tell which of *caps* the elements before the sink could give if started anew."""
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
        """Answer a query for the sink, whose own answer says too little."""
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

        The sink would answer in the order of the caps in the question, so that a source would
        choose its first format.
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

        Without the first a V4L2 source copies every frame whose rows are padded; without the
        second it has too few buffers, and copies whenever we hold some: both into system memory,
        without a word. ``False``: it is no raw video, and is not answered.
        """
        gst, caps, need_pool, video = self._gst, c_void_p(), c_int(), VideoInfo()
        gst.gst_query_parse_allocation(query, byref(caps), byref(need_pool))
        structure = gst.gst_caps_get_structure(caps, 0) if caps.value else None
        # Elements for other kinds of streams would take the pool's size for the size of their
        # buffers.
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
        Start it and wait for the first frame, which describes all of them.

        A source that isn't live then still waits.

        :param stopping: whether the frame isn't wanted any more.
        :raises CameraError: an element failed, the stream ended at once, no frame came within
            *timeout_s*, or *stopping* said so.
        """
        deadline = time.monotonic() + timeout_s
        change = self._set_state(State.PAUSED)
        self.live = change == StateChange.NO_PREROLL
        # For a live source a wait would only add latency. Other pictures come at the pace of their
        # time stamps.
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
        """Go on behind the first frame, where :meth:`start` waits for that."""
        self._last_sample = time.monotonic()
        if not self.live:
            self._set_state(State.PLAYING)

    def pull(self, timeout_s: float) -> Sample | None:
        """
        Return the next frame, or ``None`` within *timeout_s*.

        :raises CameraError: an element failed meanwhile.
        """
        sample = self._taken(
            self._gst.gst_app_sink_try_pull_sample(self._sink, round(timeout_s * 1e9))
        )
        self._pulls += 1
        # Take warnings off the bus, so that they don't pile up there.
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
        """Whether the last frame was taken and no other will come."""
        return bool(self._gst.gst_app_sink_is_eos(self._sink))

    @property
    def silent_s(self) -> float:
        """Seconds since the last frame."""
        return time.monotonic() - self._last_sample

    def captured_ns(self, sample: Sample) -> int | None:
        """
        Return the CLOCK_MONOTONIC time at which the sample's source says it was taken.

        ``None``: it doesn't say, or not in that clock.
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
        """Stop and free it. Frames that were pulled stay as they are. Idempotent."""
        super().close()
        self._sink = 0
        self._accepted.close()


@dataclass
class Continuation:
    """
    A pipeline whose frames have changed, and that runs on for the next camera.

    Its owner gives it to that camera, or closes it.

    :param samples: the first frame of the new kind, and those behind it that were pulled already.
    :param offer: the caps that its sink takes; empty: any.
    """

    pipeline: Pipeline
    samples: deque[Sample]
    offer: str

    def close(self) -> None:
        """Close it: no camera goes on with it."""
        while self.samples:
            self.samples.pop().close()
        self.pipeline.close()
