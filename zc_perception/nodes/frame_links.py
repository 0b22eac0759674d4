"""How the nodes use the links: the parameters that say what is allowed, the publisher's server, what diagnostics show."""

from __future__ import annotations

import grp
import pwd
import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile

from zc_perception.errors import ConfigError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import REFUSED, UNMATCHED, AdaptedPublisher, AdaptedSubscription, SharedMemoryLinks
from zc_perception.link.image_conversion import frame_adapter
from zc_perception.link.shared_memory.server import SharedMemoryServer
from zc_perception.memory.ledger import CopyLedger
from zc_perception.memory.pool import BufferPool
from zc_perception.nodes.parameters import NodeParameters, ParameterSpec
from zc_perception.observe.diagnostics import Level, Status

PUBLISHER_SPECS = (
    ParameterSpec('shared_memory', True, 'Let other processes of this host have frames as the same memory.'),
    ParameterSpec('shared_memory_group', '', 'Group whose members may connect, besides this user and root.'),
    ParameterSpec('quarantine', 2.0, "Longest job of a consumer's device, which a dead consumer leaves behind.", 's', 0.0, 60.0),
)
SUBSCRIPTION_SPECS = (
    ParameterSpec('shared_memory', True, 'Take frames of other processes on this host as the same memory.'),
    ParameterSpec('shared_memory_users', [], 'Users whose publishers are trusted, besides this one and root.'),
    ParameterSpec('copy_free', 'preferred', 'required: plain messages, a copy, are an error instead.', choices=('preferred', 'required')),
)
# What consumers of this process hold counts as promised, under one name that nobody else has.
_LOCAL = 'consumers in this process'
_SAY_AGAIN_S = 60.0
_SENTENCES = 64


def subscribe_frames(
    node: Node,
    parameters: NodeParameters,
    ledger: CopyLedger,
    qos: QoSProfile,
    *,
    callback: Callable[[Frame], None] | None = None,
    held: int = 1,
) -> AdaptedSubscription[Frame]:
    """A subscription of ``image_raw`` as the node's parameters allow.

    :param held: frames that the node holds at the same time.
    :raises ConfigError: a user that doesn't exist.
    """
    options: dict[str, Any] = {}
    if parameters['shared_memory']:
        options['remote'] = SharedMemoryLinks(node.get_name(), held=held, allowed_uids=user_ids(parameters['shared_memory_users']))
    return AdaptedSubscription(
        node,
        frame_adapter('rgb8', ledger, holder=f'{node.get_name()}:from_ros'),
        'image_raw',
        qos,
        callback=callback,
        holder=node.get_name(),
        copy_free_required=parameters['copy_free'] == 'required',
        **options,
    )


def subscription_status(subscription: AdaptedSubscription[Frame]) -> Status:
    """Which rung, why, and what it cost."""
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
    level = {REFUSED: Level.ERROR, UNMATCHED: Level.WARN}.get(link.rung, Level.OK)
    return Status('link', level, f'{link.rung}: {link.reason}', values)


def group_ids(name: str) -> list[int]:
    """The number of a group, given by name or number; none for an empty name.

    :raises ConfigError: no such group.
    """
    if not name:
        return []
    try:
        return [int(name) if name.isdigit() else grp.getgrnam(name).gr_gid]
    except KeyError:
        raise ConfigError(f"parameter 'shared_memory_group': there is no group '{name}'; see /etc/group") from None


def user_ids(names: Sequence[str]) -> list[int]:
    """Numbers of users, given by name or number.

    :raises ConfigError: no such user.
    """
    ids = []
    for name in names:
        try:
            ids.append(int(name) if name.isdigit() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            raise ConfigError(f"parameter 'shared_memory_users': there is no user '{name}'; see /etc/passwd") from None
    return ids


class _Report:
    """Logs a sentence, and the same one again only after a minute: who is refused tries on, twice a second."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._said: dict[str, float] = {}

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._said.get(text, -_SAY_AGAIN_S) < _SAY_AGAIN_S:
            return
        self._said[text] = now
        if len(self._said) > _SENTENCES:
            del self._said[min(self._said, key=self._said.__getitem__)]
        self._log(text)


class FrameServer:
    """A publisher's end of the links to other processes, as the node's parameters allow.

    :raises ConfigError: a group that doesn't exist, or a folder for the socket that can't be used.
    """

    def __init__(self, node: Node, parameters: NodeParameters, publisher: AdaptedPublisher[Frame]) -> None:
        self._publisher = publisher
        self._server: SharedMemoryServer | None = None
        groups = group_ids(parameters['shared_memory_group'])
        if parameters['shared_memory']:
            self._server = SharedMemoryServer(
                node.get_fully_qualified_name(),
                publisher.publisher_id,
                allowed_gids=groups,
                quarantine_timeout_s=parameters['quarantine'],
                report=_Report(node.get_logger().info),
            )
            publisher.serve(self._server)

    def offer(self, pool: BufferPool, local_slots: int) -> None:
        """Frames come from *pool*, of which consumers of this process need *local_slots*."""
        if self._server is not None:
            pool.set_quota(_LOCAL, max(0, min(local_slots, pool.unpromised)))
            self._server.set_pool(pool)

    def status(self) -> Status:
        """Who gets frames how."""
        link = self._publisher.statistics()
        values: dict[str, object] = {
            'published': link.published,
            'in_process_subscriptions': link.in_process_subscriptions,
            'image_readers': link.image_readers,
            'conversions': link.conversions,
            'conversions_skipped': link.conversions_skipped,
            'conversion_errors': link.conversion_errors,
        }
        trusted = self._add_consumers(values)
        if link.image_readers:
            text = f'{link.image_readers} plain image_raw reader(s): frames are converted, a copy each'
            return Status('link', Level.OK, text, values)
        if trusted:
            return Status('link', Level.OK, f'{trusted} can write to the buffers, which this heap cannot prevent', values)
        return Status('link', Level.OK, 'no plain reader: nothing is converted', values)

    def _add_consumers(self, values: dict[str, object]) -> str:
        """Names of consumers that could write to the pixels."""
        if self._server is None:
            return ''
        server = self._server.statistics()
        values['shared_memory_consumers'] = len(server.consumers)
        for consumer in server.consumers:
            values[f'consumer {consumer.name}'] = (
                f'pid {consumer.pid}, sent {consumer.sent}, dropped {consumer.dropped}, holds {consumer.held} of {consumer.window}'
            )
        values |= {f'refused_{reason}': count for reason, count in server.refused.items()}
        values |= {f'protocol_error_{reason}': count for reason, count in server.protocol_errors.items()}
        values['leases_taken_back'] = server.taken_back
        if server.internal_errors:
            values['internal_errors'] = f'{server.internal_errors}, last: {server.last_internal_error}'
        return ', '.join(consumer.name for consumer in server.consumers if consumer.trusted_writer)
