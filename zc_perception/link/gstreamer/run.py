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
One run of a pipeline that begins with our frames.

It goes from the pipeline's text to its end, its error, or the moment when it is not needed any
more.
"""

from __future__ import annotations

from collections.abc import Sequence
import threading
import time
from typing import Any

from zc_perception.camera.gstreamer.abi import CLOCK_TIME_NONE, GStreamer, State
from zc_perception.camera.gstreamer.bare_pipeline import BarePipeline, Said, without_a_shell
from zc_perception.camera.gstreamer.image import offered_caps
from zc_perception.camera.gstreamer.pipeline import Reference, SINK
from zc_perception.errors import ConfigError, FormatError, ZcError
from zc_perception.frame import Frame, FrameData
from zc_perception.link.gstreamer.lent_frames import LentFrames
from zc_perception.memory.dmabuf import BufferKind
from zc_perception.negotiation.constraints import Format
from zc_perception.pixel.fourcc import FORMATS
from zc_perception.pixel.gstreamer_caps import frame_caps
from zc_perception.pixel.modifier import LINEAR

SOURCE = 'zc_frames'
# GStreamer knows DMA_DRM caps from here on.
_DRM_SINCE = (1, 24)
# PTS are whole microseconds: drivers count in these, and give them back as they got them.
TICK_NS = 1000
# A frame's age when it comes: sinks that wait for its time take it for late otherwise.
_LATENCY_NS = 33_000_000
_END_S = 1.0
_POLL_S = 0.01
_FLOW_OK = 0


class PipelineError(ZcError):
    """
    A pipeline can't run, or has failed.

    The message names the element that said so.
    """


def complete(description: str) -> str:
    """
    Return *description* with our source in front.

    :raises ConfigError: it begins with a source of its own, or something around it is for a shell.
    """
    text = without_a_shell(description)
    first = text.lstrip('! ').partition('!')[0].split()
    if first and (first[0] in ('appsrc', 'unixfdsrc') or text.startswith('!')):
        raise ConfigError(
            f"pipeline '{description}' begins with "
            f"'{first[0] if not text.startswith('!') else '!'}'; leave that out: "
            'the frames are put in front of its first element'
        )
    return f'appsrc name={SOURCE} ! {text}'


class FramePipeline(BarePipeline):
    """
    A pipeline over frames.

    All methods but :meth:`close` belong to one thread.

    :param description: see :func:`complete`.
    :param framerate: 0: unknown. Encoders wait for one frame more then.
    :param refused: caps that are not offered, because an element that seemed to take them did not.
    :raises ConfigError: it can't be understood, or an element is missing.
    """

    ERROR = PipelineError

    def __init__(
        self,
        gst: GStreamer,
        description: str,
        lent: LentFrames,
        framerate: float = 0.0,
        refused: Sequence[str] = (),
    ) -> None:
        super().__init__(gst, complete(description))
        self._framerate = framerate
        self._lent = lent
        self._source = self.element(SOURCE)
        self.sink = self.element(SINK)
        self.ended = False
        self.caps = ''
        self.offers_left = 0
        self._stream: tuple[Any, ...] = ()
        self._refused = refused
        self._last_pts = -TICK_NS
        self._base_ns = 0
        self._closing: threading.Thread | None = None
        for name, value in (
            ('is-live', True),
            ('format', 'time'),
            ('do-timestamp', False),
            ('block', False),
            ('min-latency', _LATENCY_NS),
            # The window of the subscription bounds what waits in it.
            ('max-bytes', 0),
        ):
            gst.set_property(self._source, name, value)
        if self.sink and not gst.has_property(self.sink, 'max-buffers'):
            self.close()
            raise ConfigError(
                f"pipeline '{description}': {SINK} is not an appsink; give another element "
                'another name'
            )
        self.use_system_clock()

    def _peer_caps(self) -> Reference:
        """Return the caps that the element behind our source takes now."""
        pad = self._gst.gst_element_get_static_pad(self._source, b'src')
        try:
            return Reference(self._gst, self._gst.gst_pad_peer_query_caps(pad, None))
        finally:
            self._gst.gst_object_unref(pad)

    def _suits(self, caps: str, accepted: Reference) -> bool:
        with Reference(self._gst, self._gst.gst_caps_from_string(caps.encode())) as offer:
            return bool(self._gst.gst_caps_can_intersect(offer.address, accepted.address))

    def formats(self) -> tuple[Format, ...] | None:
        """
        Return the linear formats that the pipeline takes; ``None``: any.

        Its devices are opened for that.

        :raises PipelineError: an element can't open what it needs.
        """
        self._set_state(State.READY)
        with self._peer_caps() as accepted:
            if self._gst.gst_caps_is_any(accepted.address):
                return None
            every = [(fourcc, LINEAR) for fourcc in FORMATS]
            return tuple(
                each
                for each in every
                if (caps := offered_caps([each], assume_linear=False))
                and self._suits(caps, accepted)
            )

    def start(self) -> None:
        """
        Start the pipeline.

        :raises PipelineError: an element can't run.
        """
        # PTS count from here, whenever which element begins.
        self._base_ns = time.monotonic_ns()
        self._gst.gst_element_set_start_time(self._pipeline, CLOCK_TIME_NONE)
        self._gst.gst_element_set_base_time(self._pipeline, self._base_ns)
        self._set_state(State.PLAYING)

    def pts_of(self, data: FrameData) -> int:
        """Return the next frame's time stamp."""
        pts = (data.captured_ns - self._base_ns) // TICK_NS * TICK_NS
        # Frames of before the start, and of several cameras: encoders want each to be later than
        # the one before.
        self._last_pts = max(pts, self._last_pts + TICK_NS)
        return self._last_pts

    def push(self, frame: Frame, pts_ns: int) -> bool:
        """
        Hand a frame over, which is the pipeline's from here on.

        ``False``: the pipeline takes none, and the frame is released.

        :raises PipelineError: no caps of the frame suit the pipeline. The frame
            is still the caller's then, as with every error.
        """
        data = frame.data
        stream = data.layout, data.buffers[0].kind, data.colorimetry
        if stream != self._stream:
            self._choose_caps(data)
            self._stream = stream
        buffer = self._lent.buffer(frame, pts_ns)
        return bool(self._gst.gst_app_src_push_buffer(self._source, buffer) == _FLOW_OK)

    def offers(self, data: FrameData) -> list[str]:
        """Return the caps of a frame, the best first."""
        dmabuf, found = data.buffers[0].kind is BufferKind.DMABUF, list[str]()
        understood = dmabuf and self._gst.version >= _DRM_SINCE
        for drm in (True, False) if understood else (False,):
            try:
                caps = frame_caps(
                    data.layout, data.colorimetry, self._framerate, dmabuf=dmabuf, drm=drm
                )
            except FormatError as error:
                last = error
            else:
                found += [caps] if caps not in found else []
        if not found:
            raise PipelineError(str(last)) from last
        return found

    def _choose_caps(self, data: FrameData) -> None:
        offers = self.offers(data)
        with self._peer_caps() as accepted:
            suiting = [
                caps
                for caps in offers
                if caps not in self._refused and self._suits(caps, accepted)
            ]
            if not suiting:
                takes = self._gst.take_text(self._gst.gst_caps_to_string(accepted.address))
                raise PipelineError(
                    f"pipeline '{self.description}' takes none of the frames: they are "
                    f"'{offers[-1]}', it takes '{takes}'; "
                    "put 'videoconvert' in front, or change the camera's pixel_format"
                )
        self.caps, self.offers_left = suiting[0], len(suiting) - 1
        with Reference(self._gst, self._gst.gst_caps_from_string(self.caps.encode())) as caps:
            self._gst.gst_app_src_set_caps(self._source, caps.address)

    def force_key_unit(self) -> None:
        """Let the encoder begin a new picture, with all that is needed to decode it."""
        event = self._gst.gst_video_event_new_upstream_force_key_unit(CLOCK_TIME_NONE, 1, 0)
        self._gst.gst_element_send_event(self.sink, event)

    def _error(self, said: Said) -> PipelineError:
        kind = NotTakenError if said.not_negotiated else PipelineError
        return kind(f"pipeline '{self.description}': {said.text}{said.reason}")

    def _end_of_stream(self) -> None:
        self.ended = True

    def finish(self) -> None:
        """Let elements write what they still have, for a second at most."""
        self._gst.gst_app_src_end_of_stream(self._source)
        deadline = time.monotonic() + _END_S
        while not self.ended and time.monotonic() < deadline:
            self.check()
            time.sleep(_POLL_S)

    def close(self) -> None:
        """
        Stop it within a second, on a thread of its own.

        An element that is stuck keeps that thread, and the frames that it holds.
        """
        if self._closing is None:
            self._closing = threading.Thread(
                target=super().close, name='gstreamer stop', daemon=True
            )
            self._closing.start()
            self._closing.join(_END_S)

    @property
    def stuck(self) -> bool:
        """Whether it was closed and hasn't come to an end."""
        return self._closing is not None and self._closing.is_alive()


class NotTakenError(PipelineError):
    """An element did not take the caps of the one before it."""
