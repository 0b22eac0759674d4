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

"""Video files for the tests of replay: known pictures, encoded, then damaged or cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
import struct
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

RATE = 25
Planes = tuple[NDArray[Any], ...]


def scene(number: int, width: int, height: int) -> Planes:
    """Return smooth 4:2:0 planes that move with *number*; codecs keep them, rotations don't."""
    rows, columns = np.mgrid[:height, :width]
    luma = 40 + 90 * columns / width + 50 * rows / height
    luma += 30 * np.sin((columns + 4 * number) / 9) * (rows > height / 3)
    u = np.linspace(90, 160, width // 2)[None, :] + np.zeros((height // 2, 1))
    v = np.linspace(80, 170, height // 2)[:, None] + np.zeros((1, width // 2))
    return tuple(np.rint(plane).astype(np.uint8) for plane in (luma, u, v))


def scenes(count: int, width: int = 64, height: int = 48) -> list[Planes]:
    return [scene(number, width, height) for number in range(count)]


def frame_of(planes: Planes, form: str) -> Any:
    """Return a PyAV frame; planes are (rows, columns) or (rows, columns, components)."""
    height, width = planes[0].shape[:2]
    frame = av.VideoFrame(width, height, form)
    for plane, samples in zip(frame.planes, planes, strict=True):
        row = np.ascontiguousarray(samples).reshape(samples.shape[0], -1).view(np.uint8)
        padded = np.zeros((row.shape[0], plane.line_size), np.uint8)
        padded[:, : row.shape[1]] = row
        plane.update(padded.tobytes())
    return frame


def write_video(
    path: Path,
    codec: str,
    pictures: Sequence[Planes],
    form: str = 'yuv420p',
    *,
    options: Mapping[str, str] | None = None,
    times: Sequence[int] | None = None,
    unit: Fraction = Fraction(1, RATE),
    rate: int = RATE,
    container: Mapping[str, str] | None = None,
    said: Mapping[str, int] | None = None,
    silence: int = 0,
) -> Path:
    """
    Write *pictures*; *times* are in *unit*, and *said* are attributes of the encoder.

    *silence* is how many blocks of 1,024 samples of sound to add.
    """
    with av.open(str(path), 'w', options=dict(container or {})) as out:
        stream = out.add_stream(codec, rate=rate, options=dict(options or {}))
        height, width = pictures[0][0].shape[:2]
        stream.width, stream.height, stream.pix_fmt = width, height, form
        stream.codec_context.time_base = unit
        sound = out.add_stream('aac', rate=44100) if silence else None
        for number, planes in enumerate(pictures):
            frame = frame_of(planes, form)
            for name, value in (said or {}).items():
                setattr(stream.codec_context, name, value)
                if hasattr(frame, name):
                    setattr(frame, name, value)
            frame.pts, frame.time_base = times[number] if times else number, unit
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
        for number in range(silence):
            block = np.zeros((1, 1024), np.float32)
            samples = av.AudioFrame.from_ndarray(block, format='fltp', layout='mono')
            samples.sample_rate, samples.pts = 44100, 1024 * number
            out.mux(sound.encode(samples))
        out.mux(sound.encode(None) if sound else [])
    return path


def rewritten(source: Path, target: Path, change: Callable[[int, bytes], bytes]) -> Path:
    """Copy a video without encoding it; *change* gets each packet's number and content."""
    with av.open(str(source)) as given, av.open(str(target), 'w') as out:
        stream = given.streams.video[0]
        copy = out.add_stream_from_template(stream)
        for number, packet in enumerate(each for each in given.demux(stream) if each.size):
            new = av.Packet(change(number, bytes(packet)))
            new.pts, new.dts, new.time_base = packet.pts, packet.dts, packet.time_base
            new.is_keyframe = packet.is_keyframe
            if new.dts is None:  # Matroska has none for the first few
                new.dts = number - 3
            new.stream = copy
            out.mux(new)
    return target


def halved(*numbers: int) -> Callable[[int, bytes], bytes]:
    """Return a change for :func:`rewritten`: these packets lose half, as if a disk failed."""
    return lambda number, content: content[: len(content) // 2] if number in numbers else content


def with_matrix(video: Path, target: Path, matrix: tuple[float, float, float, float]) -> Path:
    """Copy an MP4 with (a, b, c, d) in its track header's matrix in place of (1, 0, 0, 1)."""

    def packed(a: float, b: float, c: float, d: float) -> bytes:
        fixed = [round(value * 65536) for value in (a, b, 0, c, d, 0, 0, 0)]
        return struct.pack('>8iI', *fixed, 1 << 30)

    content = video.read_bytes()
    at = content.index(b'tkhd')
    before = content.index(packed(1, 0, 0, 1), at)
    target.write_bytes(content[:before] + packed(*matrix) + content[slice(before + 36, None)])
    return target


def pictures_of(video: Path, count: int, form: str) -> list[NDArray[np.uint8]]:
    """Return a file's first pictures in a format that FFmpeg converts them to."""
    with av.open(str(video)) as container:
        frames = islice(container.decode(video=0), count)
        return [frame.to_ndarray(format=form) for frame in frames]


def psnr(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    difference = found.astype(float) - wanted.astype(float)
    mean = float((difference * difference).mean())
    return 99.0 if mean == 0 else float(10 * np.log10(255**2 / mean))


def compressed_video(frame_id: str, data: bytes, kind: str = 'h264') -> bytes:
    text = frame_id.encode() + b'\0'
    body = struct.pack('<iII', 1, 2, len(text)) + text + bytes(-len(text) % 4)
    body += struct.pack('<I', len(data)) + data
    body += bytes(-len(body) % 4) + struct.pack('<I', 5) + kind.encode() + b'\0'
    return b'\0\1\0\0' + body
