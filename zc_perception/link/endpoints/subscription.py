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
Subscribe to objects that come directly, or that a type adapter makes of messages.

All objects go through one queue.

**Owner.** The node owns the subscription. The subscription owns its queue, its links to other
processes, its reader of messages while it has one, and its reader of announcements. The queue owns
the objects that wait in it; the callback owns the object that it was called with.

**Two ways.** The subscription takes either all objects directly or all from messages
(:func:`~zc_perception.link.rungs.choose`): directly if every publisher has a direct link (within
the process, or by shared memory), from messages if none has one. If only some have one, the
subscription still takes objects directly, but also reads messages, to find out whether a publisher
without a direct link sends messages. When such a publisher sends a message that can be converted,
the subscription changes to messages (``_judge``). After that it ignores objects that come
directly.

**Threads.** A publisher of this process puts its objects into the queue on its own thread, through
the bus. Objects of other processes are fetched from their sockets by the thread that takes objects
from the queue: the user's thread or, if there is a callback, the executor (``_drain``). Messages
come on the executor (``_on_message``). The bus wakes the executor, and so does a thread of the
links, which waits for the sockets. Twice a second the thread of :mod:`~zc_perception.lookout`
checks which nodes publish (``_look``). That thread changes nothing: only the executor makes and
destroys readers of messages (``update_rung``). Any thread may call ``statistics``, ``pause``,
``resume``, ``hold`` and ``destroy``.

**Locks**, in the order in which they are taken: ``_drain_lock`` is held while the callback runs,
and is reentrant, so that the callback may destroy its own subscription; ``_rung_lock`` is held
while the way is chosen; ``_message_lock`` is held while messages are taken and while the way
changes; then comes the queue's own lock. To queue an object that came directly, only the queue's
lock is taken. While the subscription takes objects from messages, it ignores objects that come
directly from other processes, and only remembers their headers. It does so under
``_message_lock``: otherwise, an object that comes while the subscription changes to direct links
could be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
import copy
from dataclasses import dataclass, replace
import inspect
import os
import threading
import time
import traceback
from typing import Any, Generic, TypeVar

from rclpy.callback_groups import (
    CallbackGroup,
    MutuallyExclusiveCallbackGroup,
    ReentrantCallbackGroup,
)
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from zc_perception.frame_queue import KeepLastQueue
from zc_perception.link.announcement import Announcement, announcement_topic, host_id
from zc_perception.link.bus import BUS, BusPublisher, BusSubscription, MEETING
from zc_perception.link.changeover import Changeover, Key, message_key, REMEMBERED
from zc_perception.link.endpoints.discovery import (
    Announcements,
    FILES_S,
    GraphSigns,
    PublisherGraph,
)
from zc_perception.link.endpoints.executor_turns import coroutine_turn, ExecutorWake, NodeWatch
from zc_perception.link.endpoints.qos import (
    ANNOUNCEMENTS_QOS,
    bus_key,
    link_qos,
    uses_direct_links,
)
from zc_perception.link.endpoints.remote_links import (
    OTHER_HOST,
    SharedMemoryLinks,
    SLOW_CALLBACK,
    STALLED_S,
    TooSlow,
    Window,
    WindowWarnings,
)
from zc_perception.link.image_conversion import ImageToFrame
from zc_perception.link.rclpy_compat import (
    call_soon,
    create_reader,
    publisher_count,
    publishers_of,
    wake_up,
    when_destroyed,
)
from zc_perception.link.rungs import (
    Choice,
    choose,
    IN_PROCESS,
    LocalPublisher,
    NO_PUBLISHER,
    REFUSED,
    SHARED_MEMORY,
    TopicView,
    UNMATCHED,
)
from zc_perception.link.shared_memory.unix_socket import default_folder
from zc_perception.link.type_adapter import TypeAdapter
from zc_perception.log import Seldom
from zc_perception.negotiation.session import Consumer

T = TypeVar('T')
_RUNG_PERIOD_S = 0.5
# Wait this long for the announcement of a publisher that the graph shows: on a loaded machine, the
# announcement may come seconds after the publisher is in the graph. Until then make no reader of
# messages, because such a reader would make the publisher convert objects.
_GRACE_S = 10.0
# If no object with a message's frame_id and stamp comes directly within this time after the
# message, the message comes from a publisher without a direct link.
_JUDGED_AFTER_S = 0.5
# If a connection began or an object was dropped within this time before a message, the message's
# object may be missing although the message's publisher has a direct link.
_CALM_S = 2.0
# The largest number of messages that wait for the decision whether their publisher has a direct
# link. The number is small, because messages are large.
_JUDGED_AT_ONCE = 16
# Wait this long before a change from messages to direct links: messages sent earlier may still
# arrive, and must not be delivered after newer objects.
_RISES_S = 1.0
# Keep the reader of messages this long after it was last needed: messages may still wait in it.
_READER_LINGERS_S = 0.5
_NO_WINDOW = Window('', (0, 0), 0, 0)


@dataclass(frozen=True)
class SubscriptionStatistics:
    """
    A subscription's counters since its start, and its link.

    :param rung: the link in use: ``in_process`` (the same object), ``shared_memory`` (the same
        memory; some of the publishers may be in this process), ``ros_message`` (a copy),
        ``refused`` (only copies are possible, and they are not allowed) or ``unmatched`` (no
        publisher is connected).
    :param reason: why this link is in use; a text for people.
    :param received: number of objects that came.
    :param dropped: number of objects that you did not get, because newer ones replaced them or
        because you held as many as you may hold.
    :param conversions: number of messages that were converted to objects; for frames each is a
        copy.
    :param conversion_errors: number of messages that could not be converted.
    :param duplicates: number of objects that came both directly and by message, and were dropped
        the second time.
    :param routes: the rung of each publisher, and the reason for it; the rung is ``unmatched`` or
        ``refused`` if nothing is taken from the publisher.
    :param window: how many frames of a publisher you may hold at the same time; the smallest
        number if there are several publishers; 0 if no publisher has granted any.
    :param asked: how many frames you asked for; 0 when *window* is 0.
    :param in_hand: for each frame that you hold, its sequence number and for how many seconds you
        have held it; with several publishers, the frames of the publisher whose window
        has been full for longest.
    :param full_s: for how many seconds you have held as many frames as you may hold; 0 while you
        hold fewer.
    :param slow: which work of yours is so slow that you hold as many frames as you may hold, and
        advice; ``None``: no work is too slow.
    """

    rung: str
    reason: str
    received: int
    dropped: int
    conversions: int
    conversion_errors: int
    duplicates: int = 0
    routes: tuple[tuple[str, str], ...] = ()
    window: int = 0
    asked: int = 0
    in_hand: tuple[tuple[int, float], ...] = ()
    full_s: float = 0.0
    slow: TooSlow | None = None


class AdaptedSubscription(Generic[T]):
    """
    Subscribes to objects of your own type.

    Publishers in this process pass the objects themselves; other publishers send ROS messages.

    ::

        import rclpy
        from rclpy.qos import QoSProfile
        from std_msgs.msg import String
        from zc_perception import AdaptedSubscription, TypeAdapter

        TEXT = TypeAdapter(
            str, String, lambda text: String(data=text), lambda message: message.data
        )
        rclpy.init()
        node = rclpy.create_node('listener')
        texts = AdaptedSubscription(node, TEXT, 'chatter', QoSProfile(depth=10), callback=print)
        rclpy.spin(node)

    For camera frames, use the subclass :class:`FrameSubscription`. While every publisher has a
    direct link (within the process, or by shared memory), the subscription reads no messages, so
    that publishers convert no objects for it.

    **Owner.** The subscription ends with :meth:`destroy`, or with ``node.destroy_node()``. All
    subscribers in a process get the same object: do not change it. An object with a lease, such as
    a :class:`Frame`, is released when the callback returns.

    **Threads.** The callback runs on the node's executor, one object at a time and in order. It
    may be a coroutine function. Without a callback, a thread of yours takes objects from
    ``queue.get(timeout_s)``.

    **Errors.** An exception of the callback goes to the code that spins the node, as in rclpy. A
    message that the adapter can't convert is logged and counted.

    :param node: the node that the subscription belongs to.
    :param adapter: how a message becomes an object.
    :param topic: name of the topic, relative or absolute; remaps apply.
    :param qos: QoS as in rclpy; it must match the publisher's QoS by the rules of DDS.
    :param callback: called with each object; ``None``: you take objects from :attr:`queue`.
    :param callback_group: group of the callback; by default the node's default group.
    :param holder: your name in diagnostics; by default the node's name.
    :param remote: for frames, the links to publishers in other processes of this host; by default
        these publishers are read by messages only.
    :param copy_free_required: ``True``: never take messages. While there is no direct link,
        ``rung`` of :meth:`statistics` is then ``refused``, with the reason.
    :param consumer: what you need of the publishers' buffers, see :meth:`take_part`.
    :param held: for types with leases, how many objects of each publisher you hold at most at the
        same time, including those that you keep by ``keep()``. By default the number that
        *remote* was made with, or 1 without *remote*. While you hold that many, the newest objects
        wait, at most as many as the depth of *qos*.
    :param match_reliability: ``True``: if a publisher offers only best effort, read its messages
        with best-effort QoS, although *qos* is reliable.
    :param slow: your work on objects, with advice. If you hold the maximum number of objects,
        warnings then say that this work is too slow; by default they say that you keep frames.
        Warnings about a slow callback don't need *slow*.
    :raises ConfigError: *qos* is keep-last with depth 0, or the topic's name is too long for its
        announcements.
    """

    # Subclasses may set this function. It returns whether an object may leave the queue, see
    # KeepLastQueue.
    _gate: Callable[[T], bool] | None = None

    def __init__(
        self,
        node: Node,
        adapter: TypeAdapter[T],
        topic: str,
        qos: QoSProfile,
        *,
        callback: Callable[[T], Any] | None = None,
        callback_group: CallbackGroup | None = None,
        holder: str | None = None,
        remote: SharedMemoryLinks | None = None,
        copy_free_required: bool = False,
        consumer: Consumer | None = None,
        held: int | None = None,
        match_reliability: bool = False,
        slow: TooSlow | None = None,
    ) -> None:
        self._node = node
        self._slow = slow
        # Time at which the running callback began; 0: no callback is running.
        self._called_at = 0.0
        self._adapter = adapter
        self._callback = callback
        group = callback_group or node.default_callback_group
        # The callback gets objects in order and one at a time, but may run in parallel to other
        # callbacks of a reentrant group.
        self._group = (
            MutuallyExclusiveCallbackGroup()
            if isinstance(group, ReentrantCallbackGroup)
            else group
        )
        self._qos = qos
        self._wanted = link_qos(qos)
        if match_reliability:
            self._wanted = replace(self._wanted, reliable=False)
        self._match_reliability = match_reliability
        self._required = copy_free_required
        # rclpy remaps the name that it gets, so it must get this name, not the remapped one.
        self._name = topic
        self.topic: str = node.resolve_topic_name(topic)
        # Read the domain here, not in _look(), which holds _rung_lock: get_domain_id() takes the
        # context's lock. In Kilted, the context holds this lock while it ends its nodes, and
        # destroy() then takes _rung_lock: the two threads would wait for each other.
        self._domain = node.context.get_domain_id()
        announcements = announcement_topic(self.topic)
        self._key = bus_key(node, self.topic, adapter.ros_type)
        # This object converts messages to frames, whose buffers come from a pool of this object.
        # None: this subscription delivers other objects than frames.
        self._frame_maker = (
            adapter.to_custom if isinstance(adapter.to_custom, ImageToFrame) else None
        )
        self._waits_for_window = hasattr(adapter.custom_type, 'hand_out')
        leased: Any = adapter.custom_type
        gate = self._gate or (leased.hand_out if self._waits_for_window else None)
        self.queue: KeepLastQueue[T] = KeepLastQueue(
            self._wanted.depth, adapter.release, gate=gate
        )
        if remote is None:
            remote = SharedMemoryLinks('', off='this subscription does not use shared memory')
        self._is_coroutine = inspect.iscoroutinefunction(callback)
        drain: Callable[[], Any] = (
            coroutine_turn(node, self._drain_coroutine) if self._is_coroutine else self._drain
        )
        self._wake = None if callback is None else ExecutorWake(node, self._group, drain)
        self._drain_lock = threading.RLock()
        self._rung_lock = threading.Lock()
        self._message_lock = threading.Lock()
        self._changeover = Changeover(
            max(REMEMBERED, 2 * (self._wanted.depth or 0)), self._wanted.transient_local
        )
        # Whether the message type and the custom type both have a header. The header's frame_id
        # and stamp then show whether a message and an object have the same content.
        self._stamped = hasattr(adapter.custom_type, 'header') and hasattr(
            adapter.ros_type, 'header'
        )
        self._by_message = False
        # The time since which the subscription waits before it changes from messages to direct
        # links; 0: it doesn't wait.
        self._rising_since = 0.0
        # Messages that may come from a publisher without a direct link: (time of arrival, key,
        # message).
        self._unjudged: deque[tuple[float, Key, Any]] = deque()
        self._heard: frozenset[str] = frozenset()
        self._indirect: frozenset[str] = frozenset()
        self._nobody_direct = False
        self._disturbed_at = 0.0
        self._left_out = 0
        self._bus_subscription: BusSubscription[T] = BusSubscription(
            holder or node.get_fully_qualified_name(),
            self._wanted,
            self.queue,
            self._wake,
            self._changeover.direct if self._stamped else None,
            adapter.custom_type,
            held=(held or remote.held) if self._waits_for_window else None,
        )
        self._limit_messages()
        if not uses_direct_links(node):
            remote = SharedMemoryLinks('', off='use_intra_process_comms is false for this node')
        self._remote = remote
        self._graph = PublisherGraph(node, self.topic, self._wanted, adapter.ros_type)
        self._folder = default_folder()
        self._folder_ns = 0
        # The folder has changed. Until this time, look again for announcement files, because the
        # new file may not be read yet.
        self._folder_read_by = 0.0
        self._signs = GraphSigns(node, self.topic)
        self._announcements = Announcements()
        self._unreachable_since: float | None = None
        self._reader: Any = None
        self._reader_reliable = True
        self._reader_needed_at = 0.0
        self._direct = 0
        self._conversions = 0
        self._conversion_errors = 0
        self._choice = Choice(UNMATCHED, NO_PUBLISHER, False)
        self._said = UNMATCHED, NO_PUBLISHER
        logger = node.get_logger()
        self._complain = Seldom(lambda text: logger.error(text), 5.0)
        self._warn = Seldom(lambda text: logger.warning(text), 5.0)
        self._window_warnings = WindowWarnings(
            lambda text: logger.warning(f"'{self.topic}': {text}")
        )
        self._closed = False
        self._paused = False
        self._raised = False
        self._draining = False
        remote.open(
            self.queue, self._wanted, self._accept_direct, self._wake, self._remote_changed,
        )  # fmt: skip
        if consumer is not None:
            self.take_part(consumer)
        BUS.add_subscription(self._key, self._bus_subscription)
        self._announcement_reader = create_reader(
            node, String, announcements, self._on_announcement, ANNOUNCEMENTS_QOS
        )
        when_destroyed(self._announcement_reader, self.destroy)
        self._watch = NodeWatch(node, _RUNG_PERIOD_S, self._look)
        self.update_rung()

    def _look(self) -> None:
        """Look for changes of the topic's publishers; the executor then acts on them."""
        executor = self._node.executor
        with self._rung_lock:
            asleep = self._closed or self._paused or not self._restless()
            news = not asleep and self._is_news(choose(self._view()))
            news |= bool(self._unjudged)
            windows = () if self._closed else self._windows()
        # Warn about full windows here, on the watch's thread: the executor's thread can't, while
        # the user's callback blocks it.
        self._window_warnings.say(windows, self._too_slow())
        if news and executor is not None:
            call_soon(executor, self.update_rung)
        # Wake the executor after a callback has raised, because a multi-threaded executor raises
        # the exception only when it wakes up.
        if self._raised and self._wake is not None:
            self._raised = False
            self._wake()
        self._go_on()
        # Wake the executor while a coroutine runs: an executor that waits doesn't notice when the
        # result that the coroutine awaits is ready.
        if self._draining and executor is not None:
            wake_up(executor)

    def _too_slow(self) -> TooSlow | None:
        """Return the slow work because of which the consumer holds its frames; else ``None``."""
        called_at = self._called_at
        # A warning names this work only if a window has been full for STALLED_S. The callback may
        # have begun a little after the window became full, so a shorter time is enough here.
        runs = called_at and time.monotonic() - called_at >= STALLED_S / 2
        return SLOW_CALLBACK if runs else self._slow

    def _restless(self) -> bool:
        """
        Say whether to choose the rung again; this check is quicker than the choice.

        Return ``False`` only if nothing indicates a change, and either all objects come directly
        (not as messages) or there is no publisher.
        """
        local, choice, folder_ns = BUS.publishers(self._key), self._choice, 0
        if not self._remote.off:
            with contextlib.suppress(OSError):
                folder_ns = os.stat(self._folder).st_mtime_ns
        changed, now = self._signs.changed(folder_ns, *local), time.monotonic()
        if folder_ns != self._folder_ns:
            self._folder_ns, self._folder_read_by = folder_ns, now + FILES_S + _RUNG_PERIOD_S
            self._announcements.look_soon()
        direct = all(rung in (IN_PROCESS, SHARED_MEMORY) for rung, _ in choice.routes)
        calm = direct and bool(choice.routes or choice.reason == NO_PUBLISHER)
        return (
            changed
            or now < self._folder_read_by
            or not calm
            or choice.waiting
            or self._reader is not None
            or (choice.rung, choice.reason) != self._said
            or self._graph.undecided
            or any(publisher.without_slots(self._bus_subscription) for publisher in local)
        )

    def _is_news(self, choice: Choice) -> bool:
        if choice.reader:
            self._reader_needed_at = time.monotonic()
        return (
            choice != self._choice
            or (choice.rung, choice.reason) != self._said
            or choice.reader != (self._reader is not None)
        )

    def _on_announcement(self, message: String) -> None:
        announcement = Announcement.from_json(message.data)
        if announcement is not None:
            with self._rung_lock:
                self._announcements.add(announcement, connected=self._remote.connected())
            self.update_rung()

    def update_rung(self) -> None:
        """Choose the link to each publisher now; don't wait for the next call of :meth:`_look`."""
        with self._rung_lock:
            if self._closed or self._paused:
                return
            view = self._view()
            choice = choose(view)
            if self._judge(choice):
                self._heard = choice.indirect
                choice = choose(replace(view, heard=self._heard))
            self._move_to(choice)

    def pause(self) -> None:
        """Release the objects that wait, and make publishers send nothing until :meth:`resume`."""
        with self._rung_lock:
            if self._closed or self._paused:
                return
            self._paused = True
            BUS.rest(self._key, self._bus_subscription, True)
            self._remote.update((), ())
            self.queue.refuse()
            with self._message_lock:
                self._unjudged.clear()
            if self._reader is not None:
                self._node.destroy_subscription(self._reader)
                self._reader = None
            self._choice = Choice(UNMATCHED, 'paused', False)
            self._said = self._choice.rung, self._choice.reason

    def resume(self) -> None:
        """Receive objects again after :meth:`pause`."""
        with self._rung_lock:
            if self._closed or not self._paused:
                return
            self._paused = False
            self.queue.accept()
            BUS.rest(self._key, self._bus_subscription, False)
        self.update_rung()

    def take_part(self, consumer: Consumer) -> None:
        """
        Take part in the agreement on each publisher's buffers from now on; call this once.

        If a publisher's buffers don't suit *consumer*, messages are read, which are copies. If
        copies are not allowed, the publisher is refused. :meth:`statistics` returns the reason.
        """
        if self._frame_maker is not None:
            self._frame_maker.suit(consumer.constraints)
        self._bus_subscription.consumer = consumer
        self._remote.take_part(consumer)
        MEETING.add_consumer(self._key, consumer)

    def hold(self, held: int) -> None:
        """Set how many frames of each publisher you may hold at the same time from now on."""
        with self._rung_lock:
            if not self._closed:
                self._remote.hold(held)
                if self._waits_for_window:
                    self._bus_subscription.held = held
                    self._limit_messages()
                    BUS.settle(self._key)
        self.update_rung()

    def _limit_messages(self) -> None:
        """Let the consumer hold as many frames made of messages as direct frames."""
        held = self._bus_subscription.held
        if self._frame_maker is not None and held is not None:
            self._frame_maker.limit(held, self._wanted.depth, self._bus_subscription.go_on)

    def _windows(self) -> list[Window]:
        """Return a window for each directly linked publisher, and one for converted messages."""
        windows = list(self._remote.windows())
        for publisher in BUS.publishers(self._key):
            granted = publisher.granted(self._bus_subscription)
            if granted is not None and granted.number:
                in_hand = publisher.in_hand(self._bus_subscription)
                connection = 0, granted.serial
                windows.append(
                    Window(
                        publisher.publisher_id, connection, granted.number, granted.asked, in_hand
                    )
                )
        held = self._bus_subscription.held
        if self._reader is not None and held is not None:
            in_hand = () if self._frame_maker is None else self._frame_maker.in_hand()
            windows.append(Window('', (0, 0), held, held, in_hand))
        return windows

    def _remote_changed(self) -> None:
        """
        Make the executor choose the rungs again after a connection began or ended.

        The links' thread calls this. Readers of messages are made only on the executor's thread.
        """
        # Objects that were sent before this connection began don't come directly, so _judge() must
        # not expect them. But with transient_local, these objects come directly, too.
        if not self._wanted.transient_local:
            self._disturbed_at = time.monotonic()
        executor = self._node.executor
        if executor is not None and not self._closed:
            call_soon(executor, self.update_rung)

    def _view(self) -> TopicView:
        local = BUS.publishers(self._key)
        if any(publisher.without_slots(self._bus_subscription) for publisher in local):
            BUS.settle(self._key)  # assign slots again: another subscription may have ended
        count = self._graph.count(local)
        own_ids = {publisher.publisher_id for publisher in local}
        if not self._remote.off and self._announcements.incomplete(count.adapted):
            self._announcements.read_files(
                self._folder, self.topic, self._domain, own_ids, self._remote.connected()
            )
        announced = self._announcements.known(own_ids)
        # If the QoS of some publishers of this package doesn't match, we can't know which
        # announcements they sent. So connect to no publisher, and read messages: the middleware
        # sends messages only if the QoS matches.
        all_match = count.matching == count.adapted
        reachable = (
            [a for a in announced if a.host_id == host_id() and a.socket] if all_match else []
        )
        remote = self._remote.update(reachable, announced)
        self._announcements.judge(remote)
        present = self._announcements.present(remote, count.adapted)
        unannounced = max(0, count.adapted - len(present)) if count.matching else 0
        newest = slice(-count.matching, None)
        remote = present if all_match else remote[newest] if count.matching else ()
        patient = self._patient(unannounced)
        return TopicView(
            local=[self._local(publisher) for publisher in local],
            remote=remote,
            unannounced=unannounced if patient else 0,
            unfound=0 if patient else unannounced,
            plain=count.plain,
            strangers=count.strangers,
            messages=publisher_count(self._node, self.topic) > len(count.strangers),
            copy_free_required=self._required,
            mismatch=count.mismatch,
            recognises=self._stamped,
            heard=self._heard,
        )

    def _patient(self, unannounced: int) -> bool:
        """
        Say whether to wait longer, up to _GRACE_S, for missing announcements.

        :param unannounced: number of publishers whose announcements are missing.
        """
        if self._remote.off:
            return False
        now = time.monotonic()
        if unannounced == 0:
            self._unreachable_since = None
            return True
        if self._unreachable_since is None:
            self._unreachable_since = now
        return now - self._unreachable_since < _GRACE_S

    def _local(self, publisher: BusPublisher[Any]) -> LocalPublisher:
        other_type = (
            publisher.custom_type is not None
            and publisher.custom_type is not self._adapter.custom_type
        )
        misfit = publisher.misfit(self._bus_subscription) or publisher.without_slots(
            self._bus_subscription
        )
        return LocalPublisher(
            publisher.name, self._wanted.mismatch(publisher.qos), other_type, misfit
        )

    def _judge(self, choice: Choice) -> bool:
        """
        Say whether a publisher without a direct link has sent a message that can be converted.

        If a message's object doesn't come directly, a publisher without a direct link has sent the
        message. There are two exceptions. While a direct link is being connected, its publisher
        sends no object directly: return ``False``. If a connection began or a frame was dropped
        shortly before the message came, this may be why the object is missing: skip the message if
        other objects with the message's frame_id come directly.
        """
        left_out, now = self._remote.dropped(), time.monotonic()
        # A publisher reports a dropped frame with the next frame. While the window is full, no
        # frame comes, so assume then that frames were dropped.
        if left_out != self._left_out or any(
            window.full_s >= _JUDGED_AFTER_S for window in self._remote.windows()
        ):
            self._left_out, self._disturbed_at = left_out, now
        with self._message_lock:
            if self._by_message or not choice.indirect:
                self._unjudged.clear()
            if choice.waiting:
                return False
            # Remove the messages whose objects have come directly by now.
            self._unjudged = deque(
                each for each in self._unjudged if not self._changeover.came_directly(each[1])
            )
            while self._unjudged and now - self._unjudged[0][0] >= _JUDGED_AFTER_S:
                came_at, key, message = self._unjudged.popleft()
                calm = came_at - self._disturbed_at >= _CALM_S
                if not calm and self._changeover.sends_directly(key[0]):
                    continue
                if self._take(message):
                    self._change(by_message=True)
                    self._take_unjudged()
                    return True
        return False

    def _take_unjudged(self) -> None:
        """Convert and queue those of the waiting messages that are new; needs the message lock."""
        while self._unjudged:
            _, key, message = self._unjudged.popleft()
            if self._changeover.accept_message(key):
                self._take(message)

    def _change(self, *, by_message: bool) -> None:
        """Take objects from messages, or directly, from now on; the message lock must be held."""
        if by_message is self._by_message:
            return
        self._changeover.changed(by_message)
        self._disturbed_at = time.monotonic()
        self._by_message = self._bus_subscription.by_message = by_message
        if self._stamped:
            self._bus_subscription.headers = (
                self._changeover.ignored if by_message else self._changeover.direct
            )

    def _move_to(self, choice: Choice) -> None:
        now = time.monotonic()
        self._indirect = choice.indirect
        if self._by_message and not choice.by_message and self._reader is not None:
            # Wait before the change to direct links: messages that arrive late must not be
            # delivered after newer objects that come directly.
            self._rising_since = self._rising_since or now
            if self._stamped and now - self._rising_since < _RISES_S:
                return
        self._rising_since = 0.0
        with self._message_lock:
            self._change(by_message=choice.by_message)
            if choice.by_message:
                self._take_unjudged()
        self._nobody_direct = not choice.waiting and len(choice.routes) == len(choice.indirect)
        if choice.reader:
            self._reader_needed_at = now
            if self._reader is not None and self._reader_reliable is not self._reads_reliably():
                self._node.destroy_subscription(self._reader)
                self._reader = None
            if self._reader is None:
                self._reader = self._read()
        elif self._reader is not None and now - self._reader_needed_at >= _READER_LINGERS_S:
            self._node.destroy_subscription(self._reader)
            self._reader = None
        self._choice = choice
        # Log nothing before an executor spins the node. A wrong parameter may end the program
        # before that; the log then shows only the error of the parameter.
        if (choice.rung, choice.reason) != self._said and self._node.executor is not None:
            self._said = choice.rung, choice.reason
            text = f"'{self.topic}': link is {choice.rung}: {choice.reason}"
            # Each call has a line of its own, because rclpy raises when one line logs with two
            # severities.
            if any(rung == REFUSED for rung, _ in choice.routes):
                self._node.get_logger().error(text)
            elif choice.by_message and not all(OTHER_HOST in why for _, why in choice.routes):
                self._node.get_logger().warning(f'{text}; each frame is copied')
            elif choice.rung == UNMATCHED and choice.indirect:
                self._node.get_logger().warning(text)
            else:
                self._node.get_logger().info(text)

    def _read(self) -> Any:
        self._reader_reliable = self._reads_reliably()
        qos = copy.copy(self._qos)
        if not self._reader_reliable:
            qos.reliability = ReliabilityPolicy.BEST_EFFORT
        return create_reader(
            self._node,
            self._adapter.ros_type,
            self._name,
            self._on_message,
            qos,
            callback_group=self._group,
        )

    def _reads_reliably(self) -> bool:
        """
        Say whether to read messages with reliable QoS.

        Return ``False`` if *qos* is best effort, or if *match_reliability* is set and a publisher
        offers only best effort.
        """
        if self._qos.reliability == ReliabilityPolicy.BEST_EFFORT:
            return False
        endpoints = (
            publishers_of(self._node, self.topic) if self._match_reliability else ()
        )
        return all(
            endpoint.qos_profile.reliability != ReliabilityPolicy.BEST_EFFORT
            for endpoint in endpoints
        )

    def _accept_direct(self, header: Any) -> bool:
        """Return whether to take an object from another process; links ask for each object."""
        if self._by_message:
            # The thread that changes back to direct links holds this lock from its check of
            # *ignored* until the change is complete. Without the lock, an object that comes during
            # the change would be lost, or its message would be taken after newer objects.
            with self._message_lock:
                if self._by_message:
                    self._changeover.ignored.append(header)
                    return False
        changeover = self._changeover
        if not changeover.taken:  # this table is nearly always empty
            changeover.direct.append(header)
        elif not changeover.accept_direct(header):
            return False
        self._direct += 1
        return True

    def _on_message(self, message: Any) -> None:
        key = message_key(message) if self._stamped else None
        # First fetch the objects that wait in the sockets: they came before this message.
        self.queue.fetch()
        with self._message_lock:
            if key is None:
                if self._by_message:
                    self._take(message)
            elif self._by_message:
                if (
                    self._changeover.accept_message(key)
                    and self._take(message)
                    and self._nobody_direct
                ):
                    self._heard = self._choice.indirect
                if self._rising_since and self._changeover.is_level(key):
                    self._change(by_message=False)
            elif not self._indirect:
                if self._changeover.accept_last_message(key):
                    self._take(message)
            elif not self._changeover.came_directly(key):
                self._unjudged.append((time.monotonic(), key, message))
                if len(self._unjudged) > _JUDGED_AT_ONCE:
                    # Keep the oldest message, which _judge() checks next, and drop the second
                    # oldest.
                    del self._unjudged[1]
                    self.queue.dropped += 1
        if self._is_coroutine and self._wake is not None:
            self._wake()
        elif self._callback is not None:
            self._drain()

    def _take(self, message: Any) -> bool:
        """Convert a message and queue its object; return ``False`` if it can't be converted."""
        self.queue.make_room()
        if self._frame_maker is not None and self._frame_maker.all_in_use():
            # Type checkers can't know that T is Frame if there is a frame maker.
            self.queue.drop_oldest(self._frame_maker.made)  # type: ignore[arg-type]
        try:
            item = self._adapter.to_custom(message)
        except Exception as error:
            # Catch everything: users write adapters, and other programs send messages.
            self._conversion_errors += 1
            self._complain(
                f"'{self.topic}': a message could not be converted: {error}", 'not taken'
            )
            return False
        self._conversions += 1
        if hasattr(item, 'published_ns'):
            item.published_ns = time.monotonic_ns()
        self.queue.put(item)
        return True

    def _go_on(self) -> None:
        """Wake the executor if an object is queued that the callback can get now."""
        if self._wake is not None and len(self.queue) and not self.queue.shut:
            self._wake()

    def _drain(self) -> None:
        """
        Run the callback for each queued object, never for two at once, however many threads run.

        Objects that come while this method runs wait for its next call. So a callback that is
        slower than the camera doesn't block the executor.
        """
        with self._drain_lock:
            try:
                self.queue.fetch()
                for _ in range(len(self.queue)):
                    item = self.queue.get()
                    if item is None:
                        break
                    self._call(item)
                    del item
            except BaseException:
                self._raised = True
                raise
            finally:
                self._go_on()

    async def _drain_coroutine(self) -> None:
        """Await the callback for each queued object; do nothing if this method already runs."""
        self.queue.fetch()
        if self._draining:
            return
        self._draining = True
        try:
            for _ in range(len(self.queue)):
                item = self.queue.get()
                if item is None:
                    break
                await self._call_coroutine(item)
                del item
        finally:
            self._draining = False
            self._go_on()

    async def _call_coroutine(self, item: Any) -> None:
        assert self._callback is not None
        if self._adapter.leased:
            item.lend()
        self._called_at = time.monotonic()
        try:
            await self._callback(item)
        except BaseException as error:
            self._end(item, error)
            raise
        finally:
            self._called_at = 0.0
        self._end(item)

    def _call(self, item: Any) -> None:
        assert self._callback is not None
        if self._adapter.leased:
            item.lend()
        self._called_at = time.monotonic()
        try:
            self._callback(item)
        except BaseException as error:
            self._end(item, error)
            raise
        finally:
            self._called_at = 0.0
        self._end(item)

    def _end(self, item: Any, raised: BaseException | None = None) -> None:
        """Release an object after its callback, unless the callback kept it."""
        if self._adapter.leased and item.borrowed and not item.released:
            error = self._adapter.end(item)
            if error is not None:
                if raised is not None:
                    # The exception refers to the callback's variables, and so to the object's
                    # memory. rclpy keeps the exception in a reference cycle for an unknown time.
                    _forget_variables(raised)
                self._warn(f"'{self.topic}': {error}", 'not released')

    @property
    def choice(self) -> Choice:
        """The rung in use, and why."""
        return self._choice

    def statistics(self) -> SubscriptionStatistics:
        """Return the counters and the link in use; any thread may call this."""
        windows = self._windows()
        least = min(windows, key=lambda each: (each.granted, each.asked), default=_NO_WINDOW)
        fullest = max(windows, key=lambda each: each.full_s, default=_NO_WINDOW)
        return SubscriptionStatistics(
            self._choice.rung,
            self._choice.reason,
            self._bus_subscription.delivered + self._direct + self._conversions,
            self.queue.dropped
            + self._bus_subscription.refused
            + self._remote.dropped()
            + self._changeover.late,
            self._conversions,
            self._conversion_errors,
            self._changeover.duplicates,
            self._choice.routes,
            least.granted,
            least.asked,
            fullest.in_hand,
            fullest.full_s,
            self._too_slow() if fullest.full_s >= STALLED_S else None,
        )

    def destroy(self) -> None:
        """Unsubscribe, and release the objects that wait. Idempotent; the callback may call it."""
        with self._rung_lock:
            if self._closed:
                return
            self._closed = True
        BUS.remove_subscription(self._key, self._bus_subscription)
        if self._bus_subscription.consumer is not None:
            MEETING.remove_consumer(self._key, self._bus_subscription.consumer)
        self._remote.close()
        self._watch.stop()
        self._node.destroy_subscription(self._announcement_reader)
        if self._reader is not None:
            self._node.destroy_subscription(self._reader)
            self._reader = None
        if self._wake is not None:
            self._wake.close()
        with self._message_lock:
            self._unjudged.clear()
        # Release the queue's objects now: an executor's last task may keep the queue alive.
        self.queue.end()
        if self._frame_maker is not None:
            self._frame_maker.close()
        with self._drain_lock:
            # nothing to do: taking the lock has waited for a callback that ran on another thread
            pass


def _forget_variables(raised: BaseException) -> None:
    """Clear the local variables in tracebacks of *raised* and its causes; keep line numbers."""
    seen: set[int] = set()
    error: BaseException | None = raised
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
