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
Mutates the corpus for some seconds.

An input that reveals a defect is added to the corpus, so that the tests include it.

python test/fuzz/run_fuzz.py [--seconds 60] [--seed 1] [TARGET …]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import dataclass
import fcntl
from functools import partial
import hashlib
import json
import os
from pathlib import Path
import random
import sys
import tempfile
import time
import traceback

if __name__ == '__main__':
    _TEST = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from camera.jpeg_kit import FUZZED_SIZE, need_decoder
from camera.replay_kit import COMPRESSED, IMAGE, STORE
import numpy as np

from zc_perception.camera.calibration import parse_calibration
from zc_perception.camera.replay.bag import read_message
from zc_perception.camera.replay.camera import open_source
from zc_perception.camera.v4l2.mjpeg import JpegDecoder
from zc_perception.errors import ZcError
from zc_perception.link.announcement import Announcement
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import MAX_PACKET
from zc_perception.memory.owned_fd import OwnedFd
from zc_perception.nodes.params.yaml_file import read_parameter_yaml
from zc_perception.npu.manifest import load_manifest
from zc_perception.observe.frame_log import FrameLogReader, SIZE
from zc_perception.pixel.format_names import parse_drm_format
from zc_perception.pixel.fourcc import NV12

CORPUS = Path(__file__).with_name('corpus')
_SEAL_SHRINK_GROW = 2 | 4
_F_ADD_SEALS = 1033


@dataclass(frozen=True)
class Target:
    """
    One reader.

    :ivar read: raises one of *allowed* for invalid input; any other error is a defect.
    :ivar suffix: suffix of files in the corpus.
    """

    read: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...] = (ZcError,)
    suffix: str = 'bin'


@contextlib.contextmanager
def _file(content: bytes, suffix: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix='fuzz-') as folder:
        path = Path(folder) / f'a{suffix}'
        path.write_bytes(content)
        yield path


def _packets(raw: bytes) -> None:
    """Parse a packet as both ends do; the first byte gives the message's type."""
    packet = memoryview(bytearray(raw[:MAX_PACKET]))
    kind = wire.message_type(packet)
    name = kind.name.lower().replace('buffer_retired', 'retired')
    if name in ('release', 'frame'):
        buffer = memoryview(bytearray(packet).ljust(MAX_PACKET, b'\0'))
        getattr(wire, f'parse_{name}')(buffer, len(packet))
    else:
        getattr(wire, f'parse_{name}')(packet)


def _announcement(raw: bytes) -> None:
    try:
        text = raw.decode('utf-8', 'surrogatepass')
    except UnicodeDecodeError:
        text = raw.decode('utf-8', 'replace')
    found = Announcement.from_json(text)
    assert found is None or found.sensible in (True, False)
    if found is not None:
        assert Announcement.from_json(found.to_json()) == found


def _yaml(read: Callable[[str], object]) -> Target:
    def read_file(raw: bytes) -> None:
        with _file(raw, '.yaml') as path:
            read(str(path))

    return Target(read_file, suffix='yaml')


def _text(read: Callable[..., object], *more: object) -> Callable[[bytes], object]:
    return lambda raw: read(raw.decode('utf-8', 'replace'), *more)


def _played(suffix: str) -> Callable[[bytes], None]:
    def play(raw: bytes) -> None:
        with _file(raw, suffix) as path:
            source = open_source(str(path))
            try:
                width, height = source.width, source.height
                for _ in range(4):
                    if source.advance() is None:
                        break
                    if width * height < 1 << 22 and source.fourcc == NV12:
                        source.read(
                            (
                                np.empty((height, width), np.uint8),
                                np.empty((height // 2, width // 2, 2), np.uint8),
                            )
                        )
            finally:
                source.close()

    return play


def _jpeg(raw: bytes) -> None:
    need_decoder()
    width, height = FUZZED_SIZE
    decoder = JpegDecoder(width, height)
    try:
        data = np.frombuffer(raw or b'-', np.uint8)
        decoder.decode(
            data,
            np.empty((height, width), np.uint8),
            np.empty((height // 2, width // 2, 2), np.uint8),
        )
    finally:
        decoder.close()


def _frame_log(raw: bytes) -> None:
    """Read a log that begins with these bytes; the rest is zero."""
    with OwnedFd(os.memfd_create('fuzz', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)) as fd:
        os.ftruncate(fd.fileno(), SIZE)
        os.pwrite(fd.fileno(), raw[:SIZE], 0)
        fcntl.fcntl(fd.fileno(), _F_ADD_SEALS, _SEAL_SHRINK_GROW)
        with FrameLogReader(fd, os.getpid()) as reader:
            reader.read()
            json.dumps(reader.facts())
            reader.alive, reader.ended, reader.written  # noqa: B018


TARGETS: dict[str, Target] = {
    'wire': Target(_packets),
    'announcements': Target(_announcement, (), 'json'),
    'parameters': _yaml(read_parameter_yaml),
    'manifests': _yaml(load_manifest),
    'calibrations': Target(_text(parse_calibration, 'a.yaml'), suffix='yaml'),
    'recordings': Target(_played('.mcap')),
    'bags_mcap': Target(_played('.mcap')),
    'bags_sqlite3': Target(_played('.db3')),
    'images_cdr': Target(partial(read_message, STORE, IMAGE)),
    'compressed_images_cdr': Target(partial(read_message, STORE, COMPRESSED)),
    'jpegs': Target(_jpeg, suffix='jpg'),
    'frame_logs': Target(_frame_log, (ValueError, OSError)),
    'drm_formats': Target(_text(parse_drm_format), suffix='txt'),
}


# Mutations of bytes: bits, numbers, cuts, repetitions, other files' pieces, keywords.


_NUMBERS = (
    0, 1, 2, 3, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1,
    2**63, 2**64 - 1,
)  # fmt: skip
_WORDS = (b'\0', b'\xff\xfe', b'\xed\xa0\x80', b'{', b'[', b'"', b"'", b': ', b'- ', b'&a ', b'*a',
          b'!!python/object/apply:os.system [x]',
          b'\n', b'\t', b'null', b'NaN', b'1e999', b'-1', b'99999999999999999999', b'~', b'..',
          b'/', b'<<: ', b'%', b'\x80')  # fmt: skip


def mutated(rng: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    raw = bytearray(content)
    for _ in range(rng.randrange(1, 7)):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(9):
            case 0 if raw:
                raw[at % len(raw)] ^= 1 << rng.randrange(8)
            case 1 if raw:
                raw[at % len(raw)] = rng.randrange(256)
            case 2:
                size = rng.choice((1, 2, 4, 8))
                at -= at % size
                raw[slice(at, at + size)] = (rng.choice(_NUMBERS) & (1 << 8 * size) - 1).to_bytes(
                    size, rng.choice(('little', 'big'))
                )
            case 3:
                del raw[slice(at, at + rng.choice((1, 2, 4, 8, 64, 1 << 20)))]
            case 4:
                raw[at:at] = raw[slice(at, at + rng.randrange(1, 40))]
            case 5:
                raw[at:at] = rng.choice(_WORDS)
            case 6:
                other = rng.choice(others)
                begin = rng.randrange(len(other) + 1)
                raw[slice(at, at + rng.randrange(40))] = other[
                    slice(begin, begin + rng.randrange(80))
                ]
            case 7:
                raw[at:at] = rng.randbytes(rng.randrange(16))
            case _:
                lines = raw.split(b'\n')
                first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[first], lines[second] = lines[second], lines[first]
                raw = bytearray(b'\n'.join(lines))
    return bytes(raw[: 1 << 17])


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def defect(target: Target, content: bytes) -> str:
    try:
        target.read(content)
    except target.allowed:
        return ''
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return ''.join(traceback.format_exception(error))
    return ''


def fuzz(
    name: str, seconds: float, seed: int, most: int = 10**9
) -> tuple[int, list[tuple[bytes, str]]]:
    """Return how many inputs were tried within *seconds*, and those that revealed a defect."""
    target, rng, stored = TARGETS[name], random.Random(f'{seed} {name}'), corpus(name)
    found: list[tuple[bytes, str]] = []
    tried, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline and tried < most and len(found) < 5:
        content = mutated(rng, rng.choice(stored), stored)
        tried += 1
        if text := defect(target, content):
            found.append((content, text))
    return tried, found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        'targets', nargs='*', default=list(TARGETS), metavar='TARGET', help=', '.join(TARGETS)
    )
    parser.add_argument('--seconds', type=float, default=60.0, help='for all of them')
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args(arguments)
    broken = 0
    for name in options.targets:
        tried, found = fuzz(name, options.seconds / len(options.targets), options.seed)
        print(f'{name}: {tried} tried, {len(found)} broke it', flush=True)
        for content, text in found:
            digest = hashlib.sha256(content).hexdigest()[:12]
            path = CORPUS / name / f'found-{digest}.{TARGETS[name].suffix}'
            path.write_bytes(content)
            print(f'{path}\n{text}')
        broken += len(found)
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
