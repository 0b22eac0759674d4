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

"""Parameter ``unixfd`` of capture: the camera as a socket for GStreamer's own ``unixfdsrc``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rclpy.node import Node

from zc_perception.errors import ConfigError
from zc_perception.link.bus import BusKey, MEETING
from zc_perception.link.unixfd import UnixfdServer
from zc_perception.local_path import local_path
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.observe.diagnostics import Figures, Part, Row, Status, WARN
from zc_perception.observe.metrics import RecentCount

_PEERS = ('command', 'release', 'stopped', 'internal', 'not_allowed', 'readers')
UNIXFD = Part(
    'unixfd',
    Row(
        lambda s: s.unfit,
        WARN,
        'GStreamer can have no frames: {unfit}',
        "change the camera's pixel_format or heap",
    ),
    Row(
        lambda s: s.slots,
        WARN,
        '{slots} time(s) a reader was turned away lately, for which no slot is left',
        "raise 'slots', or lower 'unixfd_window'",
    ),
    Row(
        lambda s: s.broken,
        WARN,
        '{broken} time(s) a reader was disconnected lately: {last}',
        'see who opens that socket: only unixfdsrc of GStreamer 1.24 or newer should',
    ),
    well='{readers} reader(s) at {path}',
)


def socket_path(named: str) -> Path | None:
    """
    Return the path that parameter ``unixfd`` gives the socket; ``None``: there is none.

    :raises ConfigError: it names a variable or a user that isn't known here, or isn't a whole
        path.
    """
    if not named:
        return None
    path = Path(local_path(named, 'unixfd'))
    if not path.is_absolute():
        raise ConfigError(
            f"parameter 'unixfd' is '{named}'; give the whole path, such as "
            '/run/user/1000/front.sock'
        )
    return path


class GStreamerSocket:
    """
    One camera's socket for ``unixfdsrc``, as the node's parameters say.

    It takes part in the agreement on buffers with one window.

    :param key: of the camera's frames on the bus.
    :param framerate: the camera's; 0: unknown.
    :raises ConfigError: the socket can't be there.
    """

    def __init__(
        self,
        node: Node,
        parameters: NodeParameters,
        key: BusKey,
        path: Path,
        ledger: CopyLedger,
        framerate: Callable[[], float],
    ) -> None:
        self._key = key
        self._recent = {name: RecentCount() for name in ('slots', 'broken')}
        logger = node.get_logger()
        self.server = UnixfdServer(
            key,
            path,
            name=node.get_fully_qualified_name(),
            window=parameters['unixfd_window'],
            ledger=ledger,
            drm=parameters['unixfd_caps'] == 'drm-format',
            framerate=framerate,
            quarantine_s=parameters['quarantine'],
            report=lambda text: logger.info(text),
            warn=lambda text: logger.warning(text),
        )
        self._consumer = Consumer(BufferConstraints('unixfd', slots=parameters['unixfd_window']))
        MEETING.add_consumer(key, self._consumer)

    def status(self) -> Status:
        """Report the readers, and those that were turned away lately."""
        seen = self.server.statistics()
        values: dict[str, object] = {
            'path': self.server.path,
            'connected': seen.connected,
            'taken_back': seen.taken_back,
            **{f'ended_{reason}': count for reason, count in seen.ended.items()},
        }
        for reader in seen.readers:
            values[f'reader {reader.pid}'] = (
                f'uid {reader.uid}, sent {reader.sent}, dropped {reader.dropped}, holds '
                f'{reader.held}, copied {reader.copied}'
            )
        return UNIXFD.status(
            Figures(lambda: values),
            unfit=seen.unfit,
            slots=self._recent['slots'].see(seen.ended.get('slots', 0)),
            broken=self._recent['broken'].see(sum(seen.ended.get(name, 0) for name in _PEERS)),
            last=seen.last,
            readers=len(seen.readers),
            path=self.server.path,
        )

    def close(self) -> None:
        """End all streams. A second call does nothing."""
        MEETING.remove_consumer(self._key, self._consumer)
        self.server.close()
