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
from collections.abc import Sequence
import hashlib
from pathlib import Path
import random
import sys
import time
import traceback

if __name__ == '__main__':
    _TEST = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(_TEST), str(_TEST.parent)]

from fuzz.targets import CORPUS, Target, TARGETS

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
            path = (
                CORPUS
                / name
                / f'found-{hashlib.sha256(content).hexdigest()[:12]}.{TARGETS[name].suffix}'
            )
            path.write_bytes(content)
            print(f'{path}\n{text}')
        broken += len(found)
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
