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
One frame on disk: a picture for people, and a recording of this frame alone.

Camera ``replay`` plays the recording, ``NAME.mcap``, to the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
from dataclasses import dataclass
import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.camera.mcap_file import describe_alone, McapWriter, RecordedFormat, SUFFIX
from zc_perception.errors import FormatError
from zc_perception.frame import Frame, Header
from zc_perception.memory.ledger import CopyLedger
from zc_perception.pixel.conversion import ToPicture
from zc_perception.pixel.fourcc import fourcc_name
from zc_perception.pixel.layout import views
from zc_perception.pixel.modifier import LINEAR

REASON = 'snapshot'
PICTURE_SUFFIX = '.png'
_TRIES = 1000
# Little compression: a large picture takes a second otherwise, and the disk has room.
_PNG = (cv2.IMWRITE_PNG_COMPRESSION, 1)
Plane = NDArray[Any]


@dataclass(frozen=True)
class Snapshot:
    """
    A frame's pixels, copied, with all that belongs to them.

    :param content: the planes, tight, one after the other.
    """

    recording_format: RecordedFormat
    header: Header
    sequence: int
    content: bytearray

    @classmethod
    def of(cls, frame: Frame, ledger: CopyLedger) -> Snapshot:
        """
        Copy *frame*, which stays the caller's; booked under ``snapshot``.

        :raises FormatError: it isn't LINEAR: no row that the CPU reads.
        :raises ZcError: it can't be mapped.
        """
        data = frame.data
        if data.layout.modifier != LINEAR:
            raise FormatError(
                f'{data.layout.describe()} has no rows that the CPU reads; let a participant '
                'ask for LINEAR frames'
            )
        found = RecordedFormat(data.layout, data.colorimetry)
        snapshot = cls(found, data.header, data.sequence, bytearray(found.frame_bytes))
        with frame.map() as sources:
            for source, target in zip(sources, snapshot.planes(), strict=True):
                np.copyto(target, source)
        ledger.book(REASON, found.frame_bytes)
        return snapshot

    def planes(self) -> list[Plane]:
        """Return views of the pixels."""
        return views(self.recording_format.tight, self.content)

    def picture(self) -> NDArray[np.uint8] | None:
        """Return B G R, or grey (height, width); ``None``: the format can't be converted here."""
        layout, colorimetry = self.recording_format.layout, self.recording_format.colorimetry
        try:
            picture = ToPicture(
                layout.fourcc, layout.width, layout.height, colorimetry, bgr=True
            ).convert(self.planes())
        except FormatError:
            return None
        return picture[..., 0] if layout.format.is_grey else picture

    def _recording(self) -> bytes:
        """Return a recording of this frame, on topic ``image_raw``."""
        output = io.BytesIO()
        writer = McapWriter(output)
        channel = writer.channel(self.recording_format.topic('image_raw'))
        stamp_ns, head = self.header.stamp_ns, self.recording_format.message_head(self.header)
        writer.add(channel, stamp_ns, stamp_ns, self.sequence, head, self.content)
        writer.flush()
        writer.finish(describe_alone(f'snapshot{SUFFIX}', writer.contents))
        return output.getvalue()

    def _files(self) -> Mapping[str, bytes]:
        """
        Yield contents by suffix.

        The frame itself comes first: a picture alone is of no use to a program.
        """
        files = {SUFFIX: self._recording()}
        picture = self.picture()
        if picture is not None:
            done, encoded = cv2.imencode(PICTURE_SUFFIX, picture, _PNG)
            if done:
                files[PICTURE_SUFFIX] = encoded.tobytes()
        return files

    def write(self, folder: Path, prefix: str) -> tuple[Path, ...]:
        """
        Write ``PREFIX_SECONDS_NANOSECONDS`` with several suffixes; all files, or none.

        The name is one that nothing has yet.

        :raises OSError: the folder or the disk can't take them.
        """
        seconds, nanoseconds = divmod(self.header.stamp_ns, 1_000_000_000)
        files = self._files()
        folder.mkdir(parents=True, exist_ok=True)
        base = f'{prefix}_{seconds}_{nanoseconds:09d}'
        for number in range(1, _TRIES):
            with contextlib.suppress(FileExistsError):
                return _write_new(folder / (base if number == 1 else f'{base}_{number}'), files)
        raise FileExistsError(f"'{folder / base}' and {_TRIES - 1} names like it are taken")

    def describe(self) -> str:
        """Describe it in one phrase."""
        layout = self.recording_format.layout
        return (
            f'frame {self.sequence}, {layout.width}x{layout.height} {fourcc_name(layout.fourcc)}'
        )


def _write_new(base: Path, files: Mapping[str, bytes]) -> tuple[Path, ...]:
    written: list[Path] = []
    try:
        for suffix, content in files.items():
            path = Path(f'{base}{suffix}')
            with path.open('xb') as file:
                written.append(path)
                file.write(content)
    except OSError:
        for path in written:
            with contextlib.suppress(OSError):
                path.unlink()
        raise
    return tuple(written)
