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

"""A camera that has to be opened anew for other buffers, and can't be, or only once more."""

from __future__ import annotations

from dataclasses import replace
import os
from pathlib import Path
import time
from typing import Any

from link.shared_memory.memory_link import RawPeer
from nodes.ros_kit import ros, spun
import pytest
from waiting import until

from zc_perception.camera.synthetic import SyntheticCamera
from zc_perception.errors import CameraBusyError
from zc_perception.link.shared_memory import wire
from zc_perception.link.shared_memory.protocol import MessageType, Requirements
from zc_perception.memory.heaps import SealedMemfd
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.capture import CaptureNode
from zc_perception.pixel.fourcc import fourcc_code

YUYV = fourcc_code('YUYV'), 0


class Sensor(SyntheticCamera):
    """It says that another format is possible once it is opened anew."""

    def __init__(self) -> None:
        super().__init__(
            128,
            96,
            60.0,
            'lens',
            seed=1,
            pattern='counter',
            heap=SealedMemfd(),
            now_ns=time.time_ns,
            ledger=CopyLedger(),
        )

    def possible(self) -> BufferConstraints:
        found = self.constraints()
        return replace(found, formats=(*(found.formats or ()), YUYV))


class Node(CaptureNode):
    """Its camera can't be opened while somebody wants YUYV."""

    def __init__(self, **options: Any) -> None:
        self.busy: list[bool] = []
        super().__init__(camera_factory=self._new, **options)

    def _new(self, identity: str) -> Sensor:
        self.busy.append(any(YUYV in (each.formats or ()) for each in self._known_consumers()))
        if self.busy[-1]:
            raise CameraBusyError('the driver has no such mode')
        return Sensor()


def take_frames(peer: RawPeer, count: int) -> None:
    while count:
        packet, fds = peer.receive()
        for fd in fds:
            os.close(fd)
        if wire.message_type(packet) is MessageType.FRAME:
            uid, generation = wire.parse_frame(packet, len(packet))[3:5]
            peer.send(wire.pack_release(uid, generation, False))
            count -= 1


def test_who_waits_for_what_the_camera_can_not_be_opened_for_is_refused_and_the_others_go_on(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('ZC_RUNTIME_DIR', str(tmp_path))
    with ros(free_domain) as context:
        node = Node(context=context)
        with spun(context, node):
            assert node._server is not None and node._server.server is not None
            path = node._server.server.path
            until(lambda: node.session is not None)
            with RawPeer.welcomed(path) as witness, RawPeer.connected(path) as late:
                take_frames(witness, 3)
                late.hello(waits=True, requirements=Requirements(formats=(YUYV,)))
                assert late.receive_type() is MessageType.NOTED
                refused = late.receive_refused()
                assert refused.code == 3 and 'no such mode' in refused.text
            until(lambda: node.busy == [False, True, False])
            with RawPeer.connected(path) as witness:
                witness.hello(waits=True)
                take_frames(witness, 3)
