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
Any GStreamer pipeline: made from its text, with states and a bus.

There is no GLib main loop.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
import re
import time
from typing import Any, ClassVar, NamedTuple

from zc_perception.camera.gstreamer.abi import (
    Error,
    GStreamer,
    INSTALL,
    Message,
    MessageType,
    PARSE_FATAL_ERRORS,
    PARSE_NO_SUCH_ELEMENT,
    State,
    StateChange,
)
from zc_perception.errors import CameraError, ConfigError, ZcError

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
        """Return what an element's error means here."""
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
