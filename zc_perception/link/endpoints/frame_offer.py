"""What every publisher of frames does about its buffers: it agrees on them with the consumers of its process, passes them to other
processes, and announces them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from rclpy.node import Node
from sensor_msgs.msg import Image

from zc_perception.frame import Frame
from zc_perception.link.bus import BUS
from zc_perception.link.endpoints.publisher import AdaptedPublisher
from zc_perception.link.endpoints.qos import bus_key, uses_direct_links
from zc_perception.link.image_conversion import why_no_message
from zc_perception.link.meeting_point import MEETING
from zc_perception.link.shared_memory.server import QUARANTINE_S, SharedMemoryServer
from zc_perception.memory.pool import BufferPool
from zc_perception.negotiation.constraints import BufferConstraints, Size
from zc_perception.negotiation.session import BufferSession, Consumer, Outcome
from zc_perception.negotiation.settings import Allocator
from zc_perception.pixel.drm_format import drm_format_string

_SAY_AGAIN_S = 60.0
_SENTENCES = 64


class Report:
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


def serve_frames(
    node: Node,
    publisher: AdaptedPublisher[Frame],
    *,
    allowed_gids: Collection[int] = (),
    quarantine_timeout_s: float = QUARANTINE_S,
) -> SharedMemoryServer | None:
    """Pass the frames of *publisher* to other processes of this host from now on; ``None``: its node uses no direct links.

    :raises ConfigError: the folder for the socket can't be used.
    """
    if not uses_direct_links(node):
        return None
    logger = node.get_logger()
    server = SharedMemoryServer(
        node.get_fully_qualified_name(),
        publisher.publisher_id,
        allowed_gids=allowed_gids,
        quarantine_timeout_s=quarantine_timeout_s,
        history=publisher.history,
        # Each on a line of its own: rclpy raises when one line of code logs with two severities.
        report=Report(lambda text: logger.info(text)),
        warn=Report(lambda text: logger.warning(text)),
    )
    publisher.serve(server)
    return server


class FrameOffer:
    """The buffers of one publisher, offered to everybody who can use them. Misfits are named in the log, and get messages.

    :param publisher: of the frames in these buffers.
    :param server: passes them to other processes; ``None``: nobody does.
    :param changed: called after a consumer of this process has joined late.
    """

    def __init__(
        self,
        node: Node,
        publisher: AdaptedPublisher[Frame],
        server: SharedMemoryServer | None,
        changed: Callable[[], object] = lambda: None,
    ) -> None:
        self._node = node
        self._publisher = publisher
        self._server = server
        self._changed = changed
        self._key = bus_key(node, publisher.topic, Image)
        self.session: BufferSession | None = None
        publisher.judge_by(self._objection)

    def open(self) -> None:
        """Consumers of this process find it from now on."""
        MEETING.add_camera(self._key, self)

    def agree(
        self,
        producer: BufferConstraints,
        size: Size,
        allocator: Allocator,
        *,
        wanted_slots: int,
        stand_ins: Sequence[BufferConstraints] = (),
    ) -> BufferSession:
        """Agree with the consumers that are there, and allocate.

        :param producer: what it can make.
        :raises NegotiationError: producer and stand-ins don't agree.
        :raises AllocationError: no memory.
        """
        session = BufferSession(producer, size, wanted_slots=wanted_slots, stand_ins=stand_ins)
        with MEETING.lock:
            session.allocate(MEETING.consumers(self._key), allocator)
            self.session = session
        BUS.rematch(self._key)
        return session

    def begin(self, session: BufferSession, pool: BufferPool | None, heap: str) -> None:
        """Frames come from *pool*, on which *session* has agreed: promise it to consumers, and tell all subscriptions of it.

        :param heap: the name of the buffers' allocator.
        """
        layout = session.settings.layout
        if pool is not None:
            # Consumers of this process first: those of others ask again.
            self._publisher.use(pool)
            if self._server is not None:
                self._server.set_pool(pool, session.settings.heap)
        self._publisher.messages.withheld = why_no_message(layout)
        formats = [drm_format_string(layout.fourcc, layout.modifier, implicit=True)]
        self._publisher.announce(
            width=layout.width, height=layout.height, formats=formats, heap=heap
        )

    def say_agreement(self, session: BufferSession) -> None:
        """In the log: what was chosen, and who can't use it."""
        self._node.get_logger().info(f'buffers: {session.describe()}')
        for name, outcome in session.outcomes().items():
            if not outcome.has_buffers:
                self._say_refused(name, outcome)

    def _say_refused(self, name: str, outcome: Outcome) -> None:
        withheld = self._publisher.statistics().withheld
        way = (
            f'it gets no frames: {withheld}'
            if withheld
            else 'it gets messages, which are copies, or nothing where it allows no copies'
        )
        self._node.get_logger().warning(f'{name} {outcome}; {way}')

    def join(self, consumer: Consumer) -> None:
        """See :class:`~zc_perception.link.meeting_point.CameraEnd`."""
        session = self.session
        if session is not None:
            outcome = session.join(consumer)
            if not outcome.has_buffers:
                self._say_refused(consumer.constraints.participant, outcome)
            self._changed()

    def leave(self, consumer: Consumer) -> None:
        """See :class:`~zc_perception.link.meeting_point.CameraEnd`."""
        session = self.session
        if session is not None:
            session.leave(consumer)

    def _objection(self, consumer: Consumer) -> str:
        session = self.session
        return '' if session is None else session.objection(consumer)

    def withdraw(self) -> None:
        """There are no buffers any more; others may be agreed on."""
        with MEETING.lock:
            self.session = None

    def close(self) -> None:
        """Consumers of this process don't find it any more. A second call does nothing."""
        MEETING.remove_camera(self._key, self)
        self.withdraw()
