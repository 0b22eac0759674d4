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

"""A consumer that sends the packets of a test, right or wrong."""

from __future__ import annotations

from contextlib import suppress
import os
from pathlib import Path
import socket

import wire_spec as spec
from wire_violations import INSTEAD, INSTEAD_OF_RELEASE

GOOD_HELLO = spec.Hello(window=2, name=b'bad').pack()


class RawConsumer:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        self.socket.connect(str(path))

    def say(self, packet: bytes, descriptors: int = 0) -> None:
        with suppress(BrokenPipeError):  # the producer may have refused it already
            socket.send_fds(self.socket, [packet], descriptors * [self.socket.fileno()])

    def wait_for(self, kind: int) -> bytes:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, spec.MAX_PACKET, 4)
            except ConnectionResetError:  # reported once, before the packets that are still queued
                continue
            for fd in fds:
                os.close(fd)
            assert data, 'the producer closed without a word'
            if spec.HEADER.unpack_from(data)[0] == kind:
                return data

    def begin(self, kind: str) -> None:
        """Send HELLO, or the packets that replace it in *kind*."""
        packets, descriptors = INSTEAD.get(kind, ([GOOD_HELLO], 0))
        for packet in packets:
            self.say(packet, descriptors)

    def release_first_frame(self, kind: str) -> None:
        """Wait for the first frame, and send the packets of *kind* in place of its RELEASE."""
        frame = self.wait_for(spec.FRAME)
        packets, descriptors = INSTEAD_OF_RELEASE[kind]
        for packet in packets(*spec.FRAME_BODY.unpack_from(frame, 8)[:2]):
            self.say(packet, descriptors)

    def refusal(self) -> tuple[int, str]:
        data = self.wait_for(spec.REFUSED)
        return int.from_bytes(data[8:12], 'little'), data[12:].decode()

    def __enter__(self) -> RawConsumer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()
