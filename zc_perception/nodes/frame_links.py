"""How the nodes use the links: the parameters that say what is allowed, the publisher's server, what diagnostics show."""

from __future__ import annotations

import grp
import pwd
import time
from collections.abc import Sequence
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.errors import ConfigError, shown
from zc_perception.frame import Frame
from zc_perception.link.endpoints import (
    IN_PROCESS,
    REFUSED,
    ROS_MESSAGE,
    SHARED_MEMORY,
    UNMATCHED,
    AdaptedPublisher,
    AdaptedSubscription,
    PublisherStatistics,
    SharedMemoryLinks,
)
from zc_perception.link.endpoints.discovery import Rivals
from zc_perception.link.endpoints.frame_offer import Report, serve_frames
from zc_perception.link.endpoints.publisher import UNANNOUNCED
from zc_perception.link.endpoints.remote_links import OTHER_HOST
from zc_perception.link.endpoints.windows import (
    STALLED_S,
    TooSlow,
    describe_full,
    describe_in_hand,
    full_s,
)
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.rungs import NO_PUBLISHER
from zc_perception.link.shared_memory.server import ServerStatistics, SharedMemoryServer
from zc_perception.link.shared_memory.unix_socket import HIGHEST_ID
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.negotiation.session import Consumer
from zc_perception.nodes.params.node_parameters import NodeParameters
from zc_perception.nodes.params.qos_overrides import subscription_qos
from zc_perception.observe.diagnostics import Figures, Level, Status
from zc_perception.observe.recent import RecentCount
from zc_perception.parameters import ParameterSpec, whole_number
from zc_perception.pixel.modifier import LINEAR
from zc_perception.pixel.readable import READABLE

PUBLISHER_SPECS = (
    ParameterSpec('shared_memory', True, 'Share frames with other processes of this host as the same memory.'),
    ParameterSpec('shared_memory_group', '', 'Group whose members may connect, besides this user and root.'),
    ParameterSpec('quarantine', 2.0, "Buffers of a dead consumer are not used again for this time, where no fence tells when its device is "
                  "done. Set it to the longest job of a consumer's device.", 's', 0.0, 60.0),
)  # fmt: skip
SUBSCRIPTION_SPECS = (
    ParameterSpec('shared_memory', True, 'Take frames of other processes on this host as the same memory.'),
    ParameterSpec('shared_memory_users', [], 'Users whose publishers are trusted, besides this user and root.'),
    ParameterSpec('copy_free', 'preferred', 'required: frames that can only come as plain messages, which is a copy, are an error.',
                  choices=('preferred', 'required')),
)  # fmt: skip
CONVERTIBLE = 'publish an encoding and a size that the log names'
"""What to do about messages that can't be converted."""
_UNLESS_IT_PASSES = "if that doesn't pass, see the publisher's log and diagnostics, and compare both ends: ros2 topic info -v"
_NARROW = (
    "raise the publisher's 'slots'; or end other consumers, then deactivate and activate this node"
)
_FULL = 'release frames sooner, and keep no arrays of their pixels; or let it hold more'
# Those rungs that are no good, and what to do about them.
_LINK_VERDICTS = {
    REFUSED: (
        Level.ERROR,
        "run that publisher in this process, or on this host with shared_memory, or set 'copy_free' to 'preferred'",
    ),
    UNMATCHED: (
        Level.WARN,
        'start the camera, or compare topic name, namespace and QoS of both ends: ros2 topic info -v',
    ),
    ROS_MESSAGE: (
        Level.WARN,
        'each frame is copied; see that nothing but an adapted publisher of this host publishes here',
    ),
}
# Why consumers of other processes are refused for good, and what to do about it.
_REFUSALS = {
    'not_allowed': "its user may not connect: put it into 'shared_memory_group'",
    'constraints': 'change what stands against it, at the node that the message names',
    'slots': "the pool has no slots left to promise: raise 'slots'",
    'connections': 'too many consumers are connected: end some',
    'version': 'it speaks another version: install the same one at both ends',
}
_APART = 'start one of them in another namespace (--ros-args -r __ns:=/NAME) or with another ROS_DOMAIN_ID'
_LINEAR_NEEDED = "name the reader in the camera's parameter participants, such as 'viewer: NV12': the camera must give that then"
_SAY_AGAIN_S = 60.0


def cpu_reader(name: str) -> BufferConstraints:
    """What a node called *name* needs of buffers whose pixels its CPU reads."""
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
    """A subscription of ``image_raw`` as the node's parameters allow.

    :param held: frames that the node holds at the same time.
    :param constraints: what the node needs of the buffers; ``None``: whoever calls says it later, by ``take_part``.
    :param slow: what is too slow if the node holds as many as it may.
    :raises ConfigError: a user that doesn't exist.
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


def subscription_status(subscription: AdaptedSubscription[Frame], errors: RecentCount) -> Status:
    """Which rung, why, and what it cost.

    :param errors: remembers, from look to look, messages that could not be converted.
    """
    link = subscription.statistics()
    failed = errors.see(link.conversion_errors)
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
    level, advice = _LINK_VERDICTS.get(link.rung, (Level.OK, ''))
    if link.rung == UNMATCHED and link.reason != NO_PUBLISHER:
        advice = _UNLESS_IT_PASSES
    if link.rung == ROS_MESSAGE and OTHER_HOST in link.reason:
        level, advice = Level.OK, ''  # no memory reaches that far: nothing could be better
    if link.asked:
        values |= {'window': link.window, 'window_asked': link.asked}
    if link.in_hand:
        values['holds'] = describe_in_hand(link.in_hand)
    if failed:
        text = f'{failed} message(s) could not be converted lately; {link.rung}: {link.reason}'
        return Status('link', Level.WARN, text, values, CONVERTIBLE)
    if level is Level.OK and link.full_s >= STALLED_S:
        why = describe_full(link.window, link.in_hand, link.slow, 'this node')
        text = f'{link.rung}: no frame comes, because {why}'
        return Status('link', Level.WARN, text, values, link.slow.advice if link.slow else _FULL)
    if level is Level.OK and link.window < link.asked:
        text = f'{link.rung}: this node may hold {link.window} frame(s) at a time, {link.asked} were asked for'
        return Status('link', Level.WARN, text, values, _NARROW)
    return Status('link', level, f'{link.rung}: {link.reason}', values, advice)


def group_ids(name: str) -> list[int]:
    """The number of a group, given by name or number; none for an empty name."""
    if not name:
        return []
    try:
        number = whole_number(name, HIGHEST_ID)
        return [grp.getgrnam(name).gr_gid if number is None else number]
    except (KeyError, ValueError):  # ValueError: a name that none can have
        raise ConfigError(
            f"parameter 'shared_memory_group': there is no group {shown(name)}; see /etc/group"
        ) from None


def user_ids(names: Sequence[str]) -> list[int]:
    """Numbers of users, given by name or number."""
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


class FrameServer:
    """A publisher's end of the links to other processes, as the node's parameters allow. ``server`` is ``None`` where they don't.

    :raises ConfigError: a group that doesn't exist, or a folder for the socket that can't be used.
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
        self._warn = Report(lambda text: logger.warning(text))
        self._warned: dict[str, float] = {}
        if parameters['shared_memory']:
            self.server = serve_frames(
                node, publisher, allowed_gids=groups, quarantine_timeout_s=parameters['quarantine']
            )

    def peers(self) -> list[dict[str, Any]]:
        """Consumers in other processes, for the frame log."""
        consumers = () if self.server is None else self.server.statistics().consumers
        return [
            {'name': consumer.name, 'pid': consumer.pid, 'rung': SHARED_MEMORY}
            for consumer in consumers
        ]

    def status(self) -> Status:
        """Who gets frames how, and who lately didn't."""
        link = self._publisher.statistics()
        server = None if self.server is None else self.server.statistics()
        values = Figures(lambda: self._values(link, server))
        trusted = (
            ''
            if server is None
            else ', '.join(
                consumer.name for consumer in server.consumers if consumer.trusted_writer
            )
        )
        rivals = self._rivals.look()
        trouble = self._trouble(link, server)
        if rivals:
            text = f"'{self._publisher.topic}' has another publisher ({', '.join(rivals)}): consumers get the frames of both, mixed"
            self._warn(f'{text}; {_APART}')
            trouble = trouble or (text, _APART)
        if link.turned_away:
            text = (
                f'{link.turned_away} plain reader(s) of image_raw get no picture: {link.withheld}'
            )
            self._warn(f'{text}; {_LINEAR_NEEDED}')
            trouble = trouble or (text, _LINEAR_NEEDED)
        if self._publisher.unannounced:
            trouble = trouble or (
                "the announcement beside the socket can't be written: "
                f'{self._publisher.unannounced}',
                UNANNOUNCED,
            )
        if trouble:
            return Status('link', Level.WARN, trouble[0], values, trouble[1])
        if link.image_readers:
            text = f'{link.image_readers} plain image_raw reader(s): frames are converted, a copy each'
            return Status('link', Level.OK, text, values)
        if trusted:
            return Status(
                'link',
                Level.OK,
                f'{trusted} can write to the buffers, which this heap cannot prevent',
                values,
            )
        return Status('link', Level.OK, 'no plain reader: nothing is converted', values)

    def _trouble(
        self, link: PublisherStatistics, server: ServerStatistics | None
    ) -> tuple[str, str] | None:
        """What went wrong lately, and what to do about it."""
        failed = self._recent['conversion_errors'].see(link.conversion_errors)
        if server is not None:
            internal = self._recent['internal_errors'].see(server.internal_errors)
            broken = self._recent['protocol_errors'].see(sum(server.protocol_errors.values()))
            lately = {
                reason: self._recent[reason].see(server.refused.get(reason, 0))
                for reason in _REFUSALS
            }
            for reason, count in lately.items():
                if count:
                    return (
                        f'{count} time(s) a consumer was refused lately: {server.last_refusal.get(reason, reason)}',
                        _REFUSALS[reason],
                    )
            if internal:
                text = f'a consumer lost its connection to a fault of this package: {server.last_internal_error}'
                return text, 'it connects again; please report this line'
            if broken:
                return (
                    f'{broken} time(s) a peer broke a rule of the protocol lately',
                    'run the same version of this package at both ends',
                )
        stalled = [
            (peer.name, peer.window, peer.in_hand)
            for peer in self._publisher.in_process_peers()
            if peer.window
        ]
        stalled += [
            (peer.name, peer.window, peer.in_hand)
            for peer in (() if server is None else server.consumers)
        ]
        for name, window, in_hand in stalled:
            if full_s(window, in_hand) >= STALLED_S:
                text = (
                    f'{name} gets no more frames, because it has all {window} that it may hold: '
                    f'{describe_in_hand(in_hand)}'
                )
                self._warn_stalled(name, text)
                return (
                    text,
                    f'the log of {name} says whether it is too slow, or has to release them',
                )
        for peer in self._publisher.in_process_peers():
            if peer.without_slots:
                text = f'{peer.name} gets no frames but as messages, which are copies: {peer.without_slots}'
                self._warn_stalled(peer.name, text)
                return text, "raise 'slots', or let consumers hold fewer frames"
        if failed:
            return (
                f'{failed} frame(s) could not be published as a message lately',
                'the log says why; other consumers still get them',
            )
        return None

    def _warn_stalled(self, name: str, text: str) -> None:
        """In the log, each consumer again after a minute."""
        now = time.monotonic()
        if now - self._warned.get(name, -_SAY_AGAIN_S) >= _SAY_AGAIN_S:
            self._warned = {
                other: at for other, at in self._warned.items() if now - at < _SAY_AGAIN_S
            } | {name: now}
            self._warn(text)

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
            values[f'consumer {peer.name}'] = (
                f'{IN_PROCESS}, sent {peer.sent}, dropped {peer.dropped}, refused by its quota {peer.refused}'
            ) + _holds(len(peer.in_hand), peer.in_hand, peer.window, peer.asked)
        if server is None:
            return values
        values['shared_memory_consumers'] = len(server.consumers)
        for consumer in server.consumers:
            values[f'consumer {consumer.name}'] = (
                f'{SHARED_MEMORY}, pid {consumer.pid}, sent {consumer.sent}, dropped {consumer.dropped}'
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
    """How many frames a consumer holds of how many, and which."""
    if not window:
        return ''
    which = f' ({describe_in_hand(in_hand)})' if full_s(window, in_hand) >= STALLED_S else ''
    return f', holds {held} of {window}{which}' + (
        f', asked for {asked}' if window < asked else ''
    )
