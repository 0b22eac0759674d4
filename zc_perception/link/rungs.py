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
Choose the way by which the publishers of a topic reach a subscription, and what that takes.

It is pure: endpoints ask, and it calls nothing.

The rungs from the best to the worst: ``in_process`` (the same object), ``shared_memory`` (the same
memory), ``ros_message`` (a copy). The first two are direct.
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
    """
    An adapted publisher of this process.

    ``mismatch`` says why its QoS doesn't match; empty: it does.

    :param convertible: its objects have another custom type than the subscription. They reach it
        as ROS messages only.
    :param misfit: why its buffers can't be used here, so that its frames come as ROS messages
        only; empty: they can.
    """

    name: str
    mismatch: str = ''
    convertible: bool = False
    misfit: str = ''


@dataclass(frozen=True)
class RemotePublisher:
    """
    An adapted publisher of another process that has announced itself.

    :param reason: what is in the way; empty while nothing is.
    :param listens: the latest attempt to connect to its socket reached a process, which may be
        this publisher.
    """

    publisher_id: str
    state: RemoteState
    reason: str = ''
    listens: bool = False


@dataclass(frozen=True)
class TopicView:
    """
    The publishers on the topic.

    :param local: adapted publishers of this process.
    :param remote: announced ones of other processes that are still there.
    :param unannounced: adapted publishers of other processes whose announcement hasn't come yet.
    :param unfound: those whose announcement doesn't come.
    :param plain: the nodes of publishers of plain messages, here or elsewhere.
    :param copy_free_required: a copy is an error, not a fallback.
    :param mismatch: QoS mismatch of every publisher elsewhere; empty when one matches.
    :param recognises: messages can be told from what comes directly.
    :param heard: the publishers without a direct link when one of them had sent a readable
        message.
    """

    local: Sequence[LocalPublisher] = ()
    remote: Sequence[RemotePublisher] = ()
    unannounced: int = 0
    unfound: int = 0
    plain: Sequence[str] = ()
    copy_free_required: bool = False
    mismatch: str = ''
    recognises: bool = True
    heard: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choice:
    """
    What to do.

    :param rung: the way in use; of direct links the worst.
    :param reason: why, for people.
    :param reader: whether a reader of the plain message is needed.
    :param routes: each publisher's way and its reason.
    :param by_message: whether all frames are read by messages.
    :param indirect: the publishers without a direct link.
    :param waiting: whether a publisher may have a direct link soon.
    """

    rung: str
    reason: str
    reader: bool = False
    routes: tuple[tuple[str, str], ...] = ()
    by_message: bool = False
    indirect: frozenset[str] = frozenset()
    waiting: bool = False


def choose(view: TopicView) -> Choice:
    """
    Choose direct links while every publisher has one, else messages for all of them.

    If some have one and others don't, the change comes once one of the others has sent something
    readable. If copies are not allowed, it never comes.
    """
    direct: list[tuple[str, str]] = []
    indirect: dict[str, str] = {}
    mismatches, waiting, ended = [], [], []
    for local in view.local:
        if local.mismatch:
            mismatches.append(f'{local.name}: {local.mismatch}')
        elif local.convertible:
            indirect[local.name] = f'{local.name} adapts another type: only the message is common'
        elif local.misfit:
            indirect[local.name] = f"{local.name}'s buffers can't be used here: {local.misfit}"
        else:
            direct.append((IN_PROCESS, f'{local.name} is in this process'))
    for remote in view.remote:
        label = f'publisher {remote.publisher_id[:8]}'
        if remote.state is RemoteState.CONNECTED:
            direct.append((SHARED_MEMORY, f'{label} is in another process of this host'))
        elif remote.state is RemoteState.CONNECTING:
            waiting.append(f'connecting to {label}{": " * bool(remote.reason)}{remote.reason}')
        elif remote.state is RemoteState.GONE:
            # The graph still shows the ended publisher for a while. Reading messages because of it
            # would make its successor convert.
            ended.append(label)
        else:
            indirect[label] = f'{label}: {remote.reason}'
    pending = bool(waiting)
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
            pending = True
            waiting.append(f'{view.unannounced} adapted publisher(s) not announced yet')
        if view.unfound:
            indirect['unfound'] = (
                f'{view.unfound} adapted publisher(s) are not announced: see that their '
                'topic /_zc and their folder of sockets reach this process'
            )
        for name in view.plain:
            indirect[name] = (
                f'{name} is a plain publisher: stop it, or start an adapted one in its place'
            )
    who = frozenset(indirect)
    why = '; '.join(indirect.values())
    worst = max(direct, key=lambda route: _ORDER.index(route[0]), default=(UNMATCHED, ''))
    if indirect and view.copy_free_required:
        why = f'copy_free is required, but {why}'
        routes = (*direct, *((REFUSED, reason) for reason in indirect.values()))
        if not direct:
            return Choice(REFUSED, why, False, routes, indirect=who)
        return Choice(worst[0], f'{worst[1]}; {why}', False, routes, indirect=who)
    heard = bool(view.heard) and view.heard <= who
    if indirect and (heard or not direct or not view.recognises):
        routes = tuple(
            (ROS_MESSAGE, reason)
            for reason in (
                *indirect.values(),
                *(f'{reason}, and read by messages like the others' for _, reason in direct),
            )
        )
        return Choice(ROS_MESSAGE, why, True, routes, True, who, pending)
    if direct:
        routes = (*direct, *((UNMATCHED, reason) for reason in indirect.values()))
        if indirect:
            why = f'{worst[1]}; nothing readable has come by message yet, although {why}'
            return Choice(worst[0], why, True, routes, False, who, pending)
        return Choice(*worst, routes=routes, waiting=pending)
    if waiting:
        return Choice(UNMATCHED, '; '.join(waiting), waiting=pending)
    if mismatches:
        return Choice(
            UNMATCHED, f'QoS is incompatible: {"; ".join(mismatches)}; make both ends the same'
        )
    return Choice(UNMATCHED, NO_PUBLISHER)
