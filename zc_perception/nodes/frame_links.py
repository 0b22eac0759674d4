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

"""Makes a node's subscriptions, frame publisher, GStreamer socket, and their diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import grp
from pathlib import Path
import pwd
from types import SimpleNamespace
from typing import Any

from rclpy.exceptions import InvalidTopicNameException
from rclpy.expand_topic_name import expand_topic_name
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.validate_full_topic_name import validate_full_topic_name

from zc_perception.errors import ConfigError, shown
from zc_perception.frame import Frame
from zc_perception.link.bus import BusKey, MEETING
from zc_perception.link.endpoints import (
    AdaptedPublisher,
    AdaptedSubscription,
    IN_PROCESS,
    PublisherStatistics,
    REFUSED,
    ROS_MESSAGE,
    SHARED_MEMORY,
    SharedMemoryLinks,
    UNMATCHED,
)
from zc_perception.link.endpoints.discovery import Rivals
from zc_perception.link.endpoints.frame_offer import serve_frames
from zc_perception.link.endpoints.publisher import UNANNOUNCED
from zc_perception.link.endpoints.remote_links import (
    describe_in_hand,
    full_s,
    OTHER_HOST,
    STALLED_S,
    TooSlow,
)
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.rungs import NO_PUBLISHER
from zc_perception.link.shared_memory.server import ServerStatistics, SharedMemoryServer
from zc_perception.link.shared_memory.unix_socket import HIGHEST_ID
from zc_perception.link.unixfd import READER, UnixfdServer
from zc_perception.local_path import local_path
from zc_perception.log import Seldom
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.params.qos_overrides import subscription_qos
from zc_perception.observe.diagnostics import ERROR, Figures, OK, Part, Row, Status, WARN
from zc_perception.observe.metrics import RecentCount
from zc_perception.parameters import whole_number
from zc_perception.pixel.modifier import LINEAR
from zc_perception.pixel.readable import READABLE

CONVERTIBLE = 'publish another encoding or size; the log says why messages cannot be converted'
"""The advice to a user whose image messages can't be converted to frames."""
SUBSCRIBER_LINK = Part(
    'link',
    Row(lambda s: s.refused, ERROR, '{rung}: {reason}',
        ('run the publisher in this process, or on this host with shared_memory, or set '
         "'copy_free' to 'preferred'")),
    Row(lambda s: s.untaken, ERROR, '{rung}: the accelerator takes none of the frames: {untaken}',
        'the error says what the device refused; see dmesg', see='see [axl](accelerators.md#axl)'),
    Row(lambda s: s.failed, WARN, ('{failed} message(s) could not be converted lately; the '
                                   'rung is {rung}, because {reason}'), CONVERTIBLE),
    Row(lambda s: s.rung == UNMATCHED and s.reason == NO_PUBLISHER, WARN, 'unmatched: {reason}',
        ('start the camera, or compare topic name, namespace and QoS of publisher and '
         'subscriber: ros2 topic info -v')),
    Row(lambda s: s.rung == UNMATCHED, WARN, 'unmatched: {reason}',
        ("if this lasts, see the publisher's log and diagnostics, and compare publisher and "
         'subscriber: ros2 topic info -v')),
    # No warning for a subscriber on another host: hosts can't share memory, so messages are the
    # best link.
    Row(lambda s: s.rung == ROS_MESSAGE and not s.far, WARN, 'ros_message: {reason}',
        ('each frame is copied; make sure that all publishers of this topic are publishers of '
         'this package on this host'),
        see='see [the rungs](topics_and_links.md#the-three-rungs)'),
    Row(lambda s: s.full_s >= STALLED_S and s.slow, WARN, '{rung}: no frame comes, because '
        '{slow.what}: '
        'this node holds all {window} frame(s) that it may hold: {holds}', '{slow.advice}',
        see='use a smaller model, a lower rate or a quicker callback; the advice says which'),
    Row(lambda s: s.full_s >= STALLED_S, WARN, ('{rung}: no frame comes, because this node '
                                                'holds all {window} frame(s) that it may '
                                                'hold: {holds}'),
        'release frames sooner, and keep no arrays of their pixels; or let this node hold '
        'more frames'),
    Row(lambda s: s.window < s.asked, WARN, ('{rung}: this node may hold {window} frame(s) at '
                                             'a time, {asked} were asked for'),
        ("raise the publisher's 'slots'; or end other consumers, then deactivate and activate "
         'this node')),
    well='{rung}: {reason}',
)  # fmt: skip
# The reasons why a publisher of frames refuses consumers in other processes, each with advice.
_REFUSALS = {
    'not_allowed': "the consumer's user may not connect: set parameter 'shared_memory_group' to "
    'a group that includes this user',
    'constraints': 'change the requirement that the refusal names; the node of the consumer has '
    'this requirement',
    'slots': "the pool's slots are all promised to other consumers: raise 'slots'",
    'connections': 'too many consumers are connected: end some of them',
    'version': 'the consumer has another version of this package: install the same version '
    'for producer and consumer',
}
_STALLED = Row(
    lambda s: s.stalled, WARN, ('{stalled.name} gets no more frames, because it holds all '
                                '{stalled.window} frame(s) that it may hold: {holds}'),
    'see why {stalled.name} releases none: it is too slow, or does not call release()',
)  # fmt: skip
_WITHOUT_SLOTS = Row(
    lambda s: s.starved, WARN, ('{starved.name} gets frames only as messages, which are '
                                'copies: {starved.without_slots}'),
    "raise 'slots', or let consumers hold fewer frames",
)  # fmt: skip
_RIVALS = Row(
    lambda s: s.rivals, WARN, ("'{topic}' has another publisher ({rivals}): consumers get the "
                               'frames of both, mixed'),
    ('start one of the publishers in another namespace (--ros-args -r __ns:=/NAME) or with '
     'another ROS_DOMAIN_ID'),
)  # fmt: skip
_NO_PICTURE = Row(
    lambda s: s.link.turned_away, WARN, ('{link.turned_away} plain reader(s) of image_raw get '
                                         'no picture: {link.withheld}'),
    ("name the reader in the camera's parameter participants, such as 'viewer: NV12': the "
     'camera must then give that format'),
    see='see [layouts that the CPU cannot read](cameras.md#layouts-that-the-cpu-cannot-read)',
)  # fmt: skip
PUBLISHER_LINK = Part(
    'link',
    *(
        Row(lambda s, reason=reason: s.refused[reason], WARN,
            f'consumers were refused {{refused[{reason}]}} time(s) lately: {{why[{reason}]}}',
            advice, see=f'key `refused_{reason}`')
        for reason, advice in _REFUSALS.items()
    ),
    Row(lambda s: s.internal, WARN, ('a consumer lost its connection because of a fault '
                                     'in this package: {last_internal_error}'),
        'the consumer connects again; please report this line'),
    Row(lambda s: s.broken, WARN, 'peers broke a rule of the protocol {broken} time(s) lately',
        'run the same version of this package at both ends'),
    _STALLED,
    _WITHOUT_SLOTS,
    Row(lambda s: s.failed, WARN, '{failed} frame(s) could not be published as a message lately',
        'the log says why; consumers that need no message still get these frames'),
    _RIVALS,
    _NO_PICTURE,
    Row(lambda s: s.unannounced, WARN, ("the file that announces the socket can't be written: "
                                        '{unannounced}'), UNANNOUNCED),
    Row(lambda s: s.link.image_readers, OK, ('{link.image_readers} plain image_raw reader(s): '
                                             'each frame is converted, which is a copy')),
    Row(lambda s: s.trusted, OK, ('consumers ({trusted}) can write to the buffers; the '
                                  'heap cannot prevent it')),
    well='no plain image_raw reader: no frame is converted',
)  # fmt: skip


def cpu_reader(name: str) -> BufferConstraints:
    """Return the constraints of a node that reads pixels with the CPU; *name* is its name."""
    formats, costs = tuple((fourcc, LINEAR) for fourcc in READABLE), tuple(READABLE.values())
    return BufferConstraints(name, formats=formats, costs=costs, cpu_access=CpuAccess.READ)


def subscribe_frames(
    node: Node,
    parameters: NodeParameters,
    ledger: CopyLedger,
    qos: QoSProfile,
    *,
    held: int,
    constraints: BufferConstraints | None = None,
    slow: TooSlow | None = None,
) -> AdaptedSubscription[Frame]:
    """
    Make a subscription of ``image_raw`` as the node's parameters allow.

    :param held: how many frames the node may hold at the same time.
    :param constraints: what the node requires of buffers; ``None``: the subscription has no part
        in the negotiation of buffers until the caller calls the subscription's ``take_part``.
    :param slow: the work that is too slow when the node holds *held* frames, and advice for the
        user. Diagnostics report both while the node holds this many frames.
    :raises ConfigError: ``shared_memory_users`` names a user that doesn't exist.
    """
    options: dict[str, Any] = {}
    if parameters['shared_memory']:
        options['remote'] = SharedMemoryLinks(
            node.get_name(), held=held, allowed_uids=user_ids(parameters['shared_memory_users'])
        )
    return AdaptedSubscription(
        node,
        frame_adapter('rgb8', ledger, holder=f'{node.get_name()}:from_ros'),
        'image_raw',
        subscription_qos(node, 'image_raw', qos),
        holder=node.get_name(),
        copy_free_required=parameters['copy_free'] == 'required',
        held=held,
        consumer=None if constraints is None else Consumer(constraints),
        slow=slow,
        **options,
    )


def subscription_status(
    subscription: AdaptedSubscription[Frame], errors: RecentCount, untaken: str = ''
) -> Status:
    """
    Report the rung by which frames come, the reason for it, and messages that were lost.

    :param errors: counts this subscription's recent conversion errors; pass the same object in
        each call.
    :param untaken: why the accelerator can take none of the frames; empty: it takes them.
    """
    link = subscription.statistics()
    values: dict[str, object] = {
        'rung': link.rung,
        'reason': link.reason,
        'received': link.received,
        'dropped_newest_wins': link.dropped,
        'conversions': link.conversions,
        'conversion_errors': link.conversion_errors,
        'duplicates_dropped': link.duplicates,
    }
    if len(link.routes) > 1:
        values['routes'] = '; '.join(f'{rung}: {reason}' for rung, reason in link.routes)
    if link.asked:
        values |= {'window': link.window, 'window_asked': link.asked}
    holds = describe_in_hand(link.in_hand)
    if holds:
        values['holds'] = holds
    return SUBSCRIBER_LINK.status(
        values,
        rung=link.rung,
        reason=link.reason,
        # With ``copy_free: required``, a publisher without a copy-free link is refused, even while
        # another publisher of the topic has a link; so look at the routes of all publishers.
        refused=REFUSED in (link.rung, *(rung for rung, _ in link.routes)),
        far=all(
            OTHER_HOST in reason for reason in (link.reason, *(why for _, why in link.routes))
        ),
        untaken=untaken,
        failed=errors.see(link.conversion_errors),
        full_s=link.full_s,
        slow=link.slow,
        window=link.window,
        asked=link.asked,
        holds=holds,
    )


def group_ids(name: str) -> list[int]:
    """Return a list with the id of group *name* (a name or id); empty if *name* is empty."""
    if not name:
        return []
    try:
        number = whole_number(name, HIGHEST_ID)
        return [grp.getgrnam(name).gr_gid if number is None else number]
    except (KeyError, ValueError):  # ValueError: the name can't be any group's name
        raise ConfigError(
            f"parameter 'shared_memory_group': there is no group {shown(name)}; see /etc/group"
        ) from None


def user_ids(names: Sequence[str]) -> list[int]:
    """Return the user ids of *names*, each of which is a user's name or id."""
    ids = []
    for name in names:
        try:
            number = whole_number(name, HIGHEST_ID)
            ids.append(pwd.getpwnam(name).pw_uid if number is None else number)
        except (KeyError, ValueError):
            raise ConfigError(
                f"parameter 'shared_memory_users': there is no user {shown(name)}; see /etc/passwd"
            ) from None
    return ids


def check_topic(parameter: str, name: str, wild: str = '') -> None:
    """
    Raise ConfigError if *name*, the value of *parameter*, can't be a topic's name.

    :param wild: a character that stands for any part of a name.
    """
    plain = name.replace(wild, 'a') if wild else name
    try:
        validate_full_topic_name(expand_topic_name(plain, 'node', '/'))
    except (InvalidTopicNameException, ValueError):
        raise ConfigError(
            f"parameter '{parameter}': {shown(name)} can't be a topic's name; use letters, digits "
            "and underscores, no digit first, with one '/' between two parts"
        ) from None


class FrameServer:
    """
    Serves a publisher's frames to other processes, as the node's parameters allow.

    ``server`` is ``None`` if parameter ``shared_memory`` is false.

    :raises ConfigError: the group that ``shared_memory_group`` names doesn't exist, or the folder
        for the socket can't be used.
    """

    def __init__(
        self, node: Node, parameters: NodeParameters, publisher: AdaptedPublisher[Frame]
    ) -> None:
        self._publisher = publisher
        self._recent = {
            name: RecentCount()
            for name in ('conversion_errors', 'internal_errors', 'protocol_errors', *_REFUSALS)
        }
        self.server: SharedMemoryServer | None = None
        groups, logger = group_ids(parameters['shared_memory_group']), node.get_logger()
        self._rivals = Rivals(node, publisher)
        self._warn = Seldom(lambda text: logger.warning(text))
        if parameters['shared_memory']:
            self.server = serve_frames(
                node, publisher, allowed_gids=groups, quarantine_timeout_s=parameters['quarantine']
            )

    def peers(self) -> list[dict[str, Any]]:
        """Return the consumers in other processes, for the frame log."""
        consumers = () if self.server is None else self.server.statistics().consumers
        return [
            {'name': consumer.name, 'pid': consumer.pid, 'rung': SHARED_MEMORY}
            for consumer in consumers
        ]

    @property
    def troubles(self) -> tuple[object, ...]:
        """
        Values, of which one changes when :meth:`status` has a new warning to report.

        A new warning about other publishers of the topic changes none of them.
        """
        publisher, counters = self._publisher, self.server and self.server.counters
        return (
            publisher.messages.errors,
            publisher.messages.withheld,
            publisher.announcer.unannounced,
            counters and counters.troubles,
        )

    def status(self) -> Status:
        """Report the link of each consumer, and why consumers lately got no frames."""
        link = self._publisher.statistics()
        server = None if self.server is None else self.server.statistics()
        here = self._publisher.in_process_peers()
        seen: dict[str, Any] = {
            'link': link,
            'topic': self._publisher.topic,
            'rivals': ', '.join(self._rivals.look()),
            'unannounced': self._publisher.announcer.unannounced,
            'failed': self._recent['conversion_errors'].see(link.conversion_errors),
            'refused': dict.fromkeys(_REFUSALS, 0),
            'internal': 0,
            'broken': 0,
            'trusted': '',
            # Leave out the readers of the unixfd socket: a reader for which no slot is left is
            # disconnected, and the status of that socket reports this.
            'starved': next(
                (p for p in here if p.without_slots and not p.name.startswith(READER)), None
            ),
        }
        holders: list[Any] = [peer for peer in here if peer.window]
        if server is not None:
            holders += server.consumers
            seen |= {
                'refused': {
                    reason: self._recent[reason].see(server.refused.get(reason, 0))
                    for reason in _REFUSALS
                },
                'why': {reason: server.last_refusal.get(reason, reason) for reason in _REFUSALS},
                'internal': self._recent['internal_errors'].see(server.internal_errors),
                'last_internal_error': server.last_internal_error,
                'broken': self._recent['protocol_errors'].see(
                    sum(server.protocol_errors.values())
                ),
                'trusted': ', '.join(c.name for c in server.consumers if c.trusted_writer),
            }
        stalled = next((h for h in holders if full_s(h.window, h.in_hand) >= STALLED_S), None)
        seen |= {'stalled': stalled, 'holds': describe_in_hand(stalled.in_hand) if stalled else ''}
        look = SimpleNamespace(**seen)
        for row in (_STALLED, _WITHOUT_SLOTS, _RIVALS, _NO_PICTURE):
            if row.when(look):
                text = f'{row.sentence}; {row.advice}'.format_map(seen)
                # Log again only if the text before the colon changes. The text after it says how
                # long frames have been held, which grows with each call.
                self._warn(text, text.partition(': ')[0])
        return PUBLISHER_LINK.status(Figures(lambda: self._values(link, server)), **seen)

    def _values(
        self, link: PublisherStatistics, server: ServerStatistics | None
    ) -> dict[str, object]:
        values: dict[str, object] = {
            'published': link.published,
            'in_process_subscriptions': link.in_process_subscriptions,
            'image_readers': link.image_readers,
            'conversions': link.conversions,
            'conversions_skipped': link.conversions_skipped,
            'conversion_errors': link.conversion_errors,
        }
        if link.withheld:
            values |= {
                'readers_without_picture': link.turned_away,
                'no_picture_because': link.withheld,
            }
        for peer in self._publisher.in_process_peers():
            rung = 'unixfd' if peer.name.startswith(READER) else IN_PROCESS
            values[f'consumer {peer.name}'] = (
                f'{rung}, sent {peer.sent}, dropped {peer.dropped}, refused because of its quota: '
                f'{peer.refused}'
            ) + _holds(len(peer.in_hand), peer.in_hand, peer.window, peer.asked)
        if server is None:
            return values
        values['shared_memory_consumers'] = len(server.consumers)
        for consumer in server.consumers:
            values[f'consumer {consumer.name}'] = (
                f'{SHARED_MEMORY}, pid {consumer.pid}, sent {consumer.sent}, dropped '
                f'{consumer.dropped}'
            ) + _holds(consumer.held, consumer.in_hand, consumer.window, consumer.asked)
        values |= {f'refused_{reason}': count for reason, count in server.refused.items()}
        values |= {
            f'protocol_error_{reason}': count for reason, count in server.protocol_errors.items()
        }
        values['leases_taken_back'] = server.taken_back
        if server.internal_errors:
            values['internal_errors'] = (
                f'{server.internal_errors}, last: {server.last_internal_error}'
            )
        return values


def _holds(held: int, in_hand: Sequence[tuple[int, float]], window: int, asked: int) -> str:
    """Describe how many frames a consumer holds, for how long, and how many it may hold."""
    if not window:
        return ''
    which = f' ({describe_in_hand(in_hand)})' if full_s(window, in_hand) >= STALLED_S else ''
    return f', holds {held} of {window}{which}' + (
        f', asked for {asked}' if window < asked else ''
    )


_PEERS = ('command', 'release', 'stopped', 'internal', 'not_allowed', 'readers')
UNIXFD = Part(
    'unixfd',
    Row(
        lambda s: s.unfit,
        WARN,
        'GStreamer readers get no frames: {unfit}',
        "change the camera's pixel_format or heap",
    ),
    Row(
        lambda s: s.slots,
        WARN,
        'readers were turned away {slots} time(s) lately, because no slot was left for them',
        "raise 'slots', or lower 'unixfd_window'",
    ),
    Row(
        lambda s: s.broken,
        WARN,
        'readers were disconnected {broken} time(s) lately: {last}',
        'see which programs open the socket: only unixfdsrc of GStreamer 1.24 or newer should '
        'open it',
    ),
    well='{readers} reader(s) at {path}',
)


def socket_path(named: str) -> Path | None:
    """Return the path of GStreamer's socket from parameter ``unixfd``; ``None``: no socket."""
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
    One camera's socket for GStreamer's ``unixfdsrc``.

    In the negotiation of buffers, all its readers together are one participant.

    :param key: names the camera's frames among those that this process publishes.
    :param framerate: returns the camera's frames per second; 0: unknown.
    :raises ConfigError: the socket can't be made at its path.
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
        """Report the connected readers, and why readers were lately refused or disconnected."""
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
        """Close the socket and end all streams. Idempotent."""
        MEETING.remove_consumer(self._key, self._consumer)
        self.server.close()
