"""Which way each publisher of a topic reaches a subscription, and what that takes. Pure: the endpoints ask, nobody is called.

The rungs from the best to the worst: ``in_process`` (the same object), ``shared_memory`` (the same memory), ``ros_message`` (a copy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

IN_PROCESS = 'in_process'
SHARED_MEMORY = 'shared_memory'
ROS_MESSAGE = 'ros_message'
UNMATCHED = 'unmatched'
REFUSED = 'refused'
NO_PUBLISHER = 'no publisher'
_ORDER = (IN_PROCESS, SHARED_MEMORY, ROS_MESSAGE, REFUSED)


class RemoteState(Enum):
    """How far rung 2 has come with a publisher of another process."""

    CONNECTED = 'connected'
    CONNECTING = 'connecting'
    IMPOSSIBLE = 'impossible'
    GONE = 'gone'


@dataclass(frozen=True)
class LocalPublisher:
    """An adapted publisher of this process. ``mismatch`` says why its QoS doesn't match; empty: it does.

    :param convertible: its objects have another custom type than the subscription. They reach it as ROS messages only.
    :param misfit: why its buffers can't be used here, so that its frames come as ROS messages only; empty: they can.
    """

    name: str
    mismatch: str = ''
    convertible: bool = False
    misfit: str = ''


@dataclass(frozen=True)
class RemotePublisher:
    """An adapted publisher of another process that has announced itself.

    :param reason: what is in the way; empty while nothing is.
    :param listens: the latest attempt to connect to its socket reached a process, which may be this publisher.
    """

    publisher_id: str
    state: RemoteState
    reason: str = ''
    listens: bool = False


@dataclass(frozen=True)
class TopicView:
    """Who publishes on the topic.

    :param local: adapted publishers of this process.
    :param remote: announced ones of other processes that are still there.
    :param unannounced: adapted publishers of other processes whose announcement hasn't come yet.
    :param plain: publishers of plain messages, here or elsewhere.
    :param copy_free_required: a copy is an error, not a fallback.
    :param mismatch: QoS mismatch of every publisher elsewhere; empty when one matches.
    """

    local: Sequence[LocalPublisher] = ()
    remote: Sequence[RemotePublisher] = ()
    unannounced: int = 0
    plain: int = 0
    copy_free_required: bool = False
    mismatch: str = ''


@dataclass(frozen=True)
class Choice:
    """What to do.

    :param rung: the most expensive way in use.
    :param reason: why, for people.
    :param reader: whether a reader of the plain message is needed.
    :param routes: each publisher's way and its reason.
    """

    rung: str
    reason: str
    reader: bool
    routes: tuple[tuple[str, str], ...] = ()


def choose(view: TopicView) -> Choice:
    """The best way for each publisher."""
    routes: list[tuple[str, str]] = []
    mismatches = []
    waiting = []
    ended = []
    for local in view.local:
        if local.mismatch:
            mismatches.append(f'{local.name}: {local.mismatch}')
        elif local.convertible:
            routes.append(
                (ROS_MESSAGE, f'{local.name} adapts another type: only the message is common')
            )
        elif local.misfit:
            routes.append(
                (ROS_MESSAGE, f"{local.name}'s buffers can't be used here: {local.misfit}")
            )
        else:
            routes.append((IN_PROCESS, f'{local.name} is in this process'))
    for remote in view.remote:
        label = f'publisher {remote.publisher_id[:8]}'
        if remote.state is RemoteState.CONNECTED:
            routes.append((SHARED_MEMORY, f'{label} is in another process of this host'))
        elif remote.state is RemoteState.CONNECTING:
            waiting.append(f'connecting to {label}{": " * bool(remote.reason)}{remote.reason}')
        elif remote.state is RemoteState.GONE:
            # The graph knows it for a while yet. To read messages for its sake would make its successor convert.
            ended.append(label)
        else:
            routes.append((ROS_MESSAGE, f'{label}: {remote.reason}'))
    if ended:
        waiting.append(
            f'{ended[0]} has ended'
            if len(ended) == 1
            else f'{len(ended)} publishers have ended, the latest is {ended[0]}'
        )
    if view.mismatch:
        mismatches.append(f'a publisher elsewhere: {view.mismatch}')
    else:
        if view.unannounced:
            waiting.append(f'{view.unannounced} adapted publisher(s) not announced yet')
        if view.plain:
            routes.append(
                (
                    ROS_MESSAGE,
                    f'{view.plain} plain publisher(s): start an adapted one in this process or on this host',
                )
            )
    if view.copy_free_required:
        routes = [
            (REFUSED, f'copy_free is required, but {why}') if rung == ROS_MESSAGE else (rung, why)
            for rung, why in routes
        ]
    if routes:
        rung, reason = max(routes, key=lambda route: _ORDER.index(route[0]))
        return Choice(rung, reason, any(r == ROS_MESSAGE for r, _ in routes), tuple(routes))
    if waiting:
        return Choice(UNMATCHED, '; '.join(waiting), False)
    if mismatches:
        return Choice(
            UNMATCHED,
            f'QoS is incompatible: {"; ".join(mismatches)}; make both ends the same',
            False,
        )
    return Choice(UNMATCHED, NO_PUBLISHER, False)
