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
Choose the way (rung) by which the publishers of a topic reach a subscription.

The rungs from the best to the worst are ``in_process`` (the same object), ``shared_memory`` (the
same memory) and ``ros_message`` (a copy). The first two are called direct links. Only *adapted*
publishers, those of this package, offer direct links; *plain* publishers send only messages.

This module only computes: a subscription passes a :class:`TopicView` and acts on the
:class:`Choice`.
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
    """The state of a subscription's shared-memory link to a publisher in another process."""

    CONNECTED = 'connected'
    CONNECTING = 'connecting'
    IMPOSSIBLE = 'impossible'
    GONE = 'gone'


@dataclass(frozen=True)
class LocalPublisher:
    """
    An adapted publisher (one of this package) of this process.

    :param mismatch: why the QoS doesn't match; empty if it matches.
    :param convertible: whether publisher and subscription have different custom types, so that
        only ROS messages can pass between them.
    :param misfit: why the subscription can't use the publisher's buffers and gets only ROS
        messages; empty if it can use them.
    """

    name: str
    mismatch: str = ''
    convertible: bool = False
    misfit: str = ''


@dataclass(frozen=True)
class RemotePublisher:
    """
    An adapted publisher (one of this package) of another process; its announcement has come.

    :param reason: why there is no connection yet; empty if no reason is known.
    :param listens: whether a process answered the latest attempt to connect to the publisher's
        socket.
    """

    publisher_id: str
    state: RemoteState
    reason: str = ''
    listens: bool = False


@dataclass(frozen=True)
class TopicView:
    """
    The publishers on a topic, as one subscription sees them.

    :param local: adapted publishers (those of this package) in this process.
    :param remote: announced publishers of other processes. An ended publisher is in this list only
        while the graph still counts it.
    :param unannounced: number of adapted publishers of other processes whose announcements may
        still come.
    :param unfound: number of adapted publishers of other processes whose announcements didn't
        come in time.
    :param plain: names of the nodes that publish only messages, in any process.
    :param strangers: a text for each publisher of another message type: its node and type.
    :param messages: whether the graph shows a publisher of messages, plain or adapted.
    :param copy_free_required: whether a copy is an error instead of a fallback.
    :param mismatch: why none of the publishers in other processes has a matching QoS; empty if one
        has.
    :param recognises: whether objects and messages have headers. Without them, an object that
        comes directly and by message would be delivered twice.
    :param heard: empty until a publisher without a direct link has sent a message that could be
        converted; then the names of all publishers that had no direct link when the
        message came.
    """

    local: Sequence[LocalPublisher] = ()
    remote: Sequence[RemotePublisher] = ()
    unannounced: int = 0
    unfound: int = 0
    plain: Sequence[str] = ()
    strangers: Sequence[str] = ()
    messages: bool = True
    copy_free_required: bool = False
    mismatch: str = ''
    recognises: bool = True
    heard: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choice:
    """
    The rung that :func:`choose` chose, and what the subscription must do for it.

    :param rung: the rung in use; the worst rung, if the direct links have different rungs.
    :param reason: why this rung is used; a text for logs and diagnostics.
    :param reader: whether the subscription needs a reader of messages.
    :param routes: for each publisher, its rung and the reason for that rung.
    :param by_message: whether the subscription takes all objects from messages.
    :param indirect: the publishers without a direct link.
    :param waiting: whether a publisher may get a direct link soon.
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
    Choose either direct links, or messages for all publishers.

    If every publisher has a direct link, choose direct links. If none has one, choose messages. If
    only some have one, choose direct links until a publisher without one has sent a message that
    can be converted; but if objects or messages have no headers, choose messages at once. Don't
    choose messages if copies are not allowed, or if no publisher sends messages (a camera without
    ROS sends none).
    """
    direct: list[tuple[str, str]] = []
    indirect: dict[str, str] = {}
    mismatches, waiting, ended = [], [], []
    for local in view.local:
        if local.mismatch:
            mismatches.append(f'{local.name}: {local.mismatch}')
        elif local.convertible:
            indirect[local.name] = (
                f"{local.name} publishes objects of a type that this subscription doesn't use, so "
                "only the publisher's messages can be read"
            )
        elif local.misfit:
            indirect[local.name] = (
                f"this subscription can't use the buffers of {local.name}: {local.misfit}"
            )
        else:
            direct.append((IN_PROCESS, f'{local.name} is in this process'))
    for remote in view.remote:
        label = f'publisher {remote.publisher_id[:8]}'
        if remote.state is RemoteState.CONNECTED:
            direct.append((SHARED_MEMORY, f'{label} is in another process of this host'))
        elif remote.state is RemoteState.CONNECTING:
            waiting.append(f'connecting to {label}{": " * bool(remote.reason)}{remote.reason}')
        elif remote.state is RemoteState.GONE:
            # The graph still shows an ended publisher for a while. Don't read messages because of
            # it: if the next publisher on the topic sees a reader of messages, it converts its
            # frames to messages.
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
        mismatches.append(f'a publisher in another process: {view.mismatch}')
    else:
        if view.unannounced:
            pending = True
            waiting.append(
                f'{view.unannounced} publisher(s) of this package have not announced '
                'themselves yet'
            )
        if view.unfound:
            indirect['unfound'] = (
                f'{view.unfound} publisher(s) of this package are not announced: make sure that '
                'this process gets their messages on TOPIC/_zc, and can read their folder of '
                'sockets'
            )
        for name in view.plain:
            indirect[name] = (
                f'{name} is a plain publisher: stop it, or start a publisher of this package '
                'in its place'
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
    if indirect and not direct and not view.messages:
        why += (
            '; nobody publishes messages on this topic instead, so no frame comes: change what '
            'this consumer asks for, or what the camera offers'
        )
        return Choice(UNMATCHED, why, indirect=who, waiting=pending)
    heard = bool(view.heard) and view.heard <= who
    if indirect and (heard or not direct or not view.recognises):
        routes = tuple(
            (ROS_MESSAGE, reason)
            for reason in (
                *indirect.values(),
                *(
                    f"{reason}, but this publisher's messages are read, because another publisher "
                    'has no direct link'
                    for _, reason in direct
                ),
            )
        )
        return Choice(ROS_MESSAGE, why, True, routes, True, who, pending)
    if direct:
        routes = (*direct, *((UNMATCHED, reason) for reason in indirect.values()))
        if indirect:
            why = f'{worst[1]}; no readable message has come from the other publishers yet: {why}'
            return Choice(worst[0], why, True, routes, False, who, pending)
        return Choice(*worst, routes=routes, waiting=pending)
    if waiting:
        return Choice(UNMATCHED, '; '.join(waiting), waiting=pending)
    if view.strangers:
        why = "which this node can't read: remap its topic to one of the type that it reads"
        why = f'{"; ".join(view.strangers)}, {why}'
        return Choice(UNMATCHED, why, indirect=frozenset(view.strangers))
    if mismatches:
        return Choice(
            UNMATCHED, f'QoS is incompatible: {"; ".join(mismatches)}; give both ends the same QoS'
        )
    return Choice(UNMATCHED, NO_PUBLISHER)
