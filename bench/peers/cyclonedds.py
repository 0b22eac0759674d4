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
Eclipse Cyclone DDS, from process to process, in its fastest setup for Python.

The picture is an array of bytes (a sequence would be a list of integers). It goes over the
loopback device without multicast, in datagrams of 65 kB, with socket buffers of 4 MB if the kernel
allows them, and a writer's history that holds an 8K frame. The writer is reliable: with best
effort most frames of 1080p are lost. The message type includes the frame's size, so each size has
its own topic.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
import socket
import threading
from typing import Any

from bench.link_roles import nv12_size, PicturesIn, PicturesOut
from bench.peers import wait_until
from cyclonedds.core import (
    DDSException,
    InstanceState,
    ReadCondition,
    SampleState,
    ViewState,
    WaitSet,
)
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import array, uint8
from cyclonedds.pub import DataWriter
from cyclonedds.qos import Policy, Qos
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration
import numpy as np

_CONFIG = """<CycloneDDS><Domain id="any">
<General><Interfaces><NetworkInterface name="lo" multicast="false"/></Interfaces>
<AllowMulticast>false</AllowMulticast>
<MaxMessageSize>65500B</MaxMessageSize></General>
<Discovery><ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>100</MaxAutoParticipantIndex>
<Peers><Peer address="localhost"/></Peers></Discovery>
<Internal><SocketReceiveBufferSize max="4MB"/>
<Watermarks><WhcHigh>64MB</WhcHigh></Watermarks></Internal>
</Domain></CycloneDDS>"""
_QOS = Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(2))
_WAKE = duration(milliseconds=500)


class _Participant:
    def __init__(self, place: Path) -> None:
        domain = int(os.environ.get('ROS_DOMAIN_ID', '0'))
        self._domain = Domain(domain, _CONFIG)
        self.participant = DomainParticipant(domain)
        self._name = place.name

    def topic(self, size: int) -> tuple[type[Any], Topic[Any]]:
        """Return the type of a picture of this many bytes, and its topic."""
        kind = dataclasses.dataclass(
            type('Picture', (IdlStruct,), {'__annotations__': {'data': array[uint8, size]}})
        )
        return kind, Topic(self.participant, f'{self._name}_{size}', kind, qos=_QOS)


class CycloneDdsOut(PicturesOut):
    """Publishes pictures with a DataWriter."""

    def __init__(self, place: Path, answers: socket.socket) -> None:
        super().__init__(answers)
        self._participant = _Participant(place)
        self._writer: Any = None

    def prepare(self, width: int, height: int) -> None:
        super().prepare(width, height)
        kind, topic = self._participant.topic(nv12_size(width, height))
        self._writer = DataWriter(self._participant.participant, topic, qos=_QOS)
        self._picture = kind(data=self.source)
        wait_until(
            lambda: bool(self._writer.get_matched_subscriptions()),
            'Cyclone DDS has found no reader',
        )

    def publish(self) -> None:
        # An error means that the history is full because the reader is too slow: the frame is
        # lost.
        with contextlib.suppress(DDSException):
            self._writer.write(self._picture)


class CycloneDdsIn(PicturesIn):
    """Takes pictures from a DataReader, on a thread of its own."""

    def __init__(self, place: Path, answers: socket.socket) -> None:
        super().__init__(answers)
        self._participant = _Participant(place)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def prepare(self, width: int, height: int) -> None:
        self.close()
        self._stop.clear()
        _, topic = self._participant.topic(nv12_size(width, height))
        reader = DataReader(self._participant.participant, topic, qos=_QOS)
        self._thread = threading.Thread(
            target=self._receive, args=(reader,), name='bench cyclonedds', daemon=True
        )
        self._thread.start()

    def _receive(self, reader: DataReader[Any]) -> None:
        wait_set = WaitSet(self._participant.participant)
        wait_set.attach(
            ReadCondition(reader, SampleState.NotRead | ViewState.Any | InstanceState.Alive)
        )
        while not self._stop.is_set():
            if wait_set.wait(_WAKE):
                for picture in reader.take(4):
                    self.arrived(np.frombuffer(picture.data, np.uint8))

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2.0)
            self._thread = None
