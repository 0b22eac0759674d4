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

"""A user's own publisher of frames: loans, foreign buffers, all rungs, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import fcntl
import os
from pathlib import Path
import threading
from typing import Any
import zlib

import cv2
from link_ros import end, LinkProcess, Ros
from long_form import LONG
import numpy as np
from numpy.typing import NDArray
import pytest
from rclpy.clock import ClockType
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.time import Time as ClockTime
from sensor_msgs.msg import Image
from waiting import eventually

from zc_perception.errors import ConfigError, FormatError, LayoutError, NegotiationError, ZcError
from zc_perception.frame import Frame
from zc_perception.link.endpoints import frame_publisher, ROS_MESSAGE
from zc_perception.link.endpoints.frame_publisher import FramePublisher
from zc_perception.link.endpoints.frame_subscription import FrameSubscription
from zc_perception.memory import kernel_abi as abi
from zc_perception.memory.fence import SyncFile
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.pixel.fourcc import fourcc_code
from zc_perception.pixel.modifier import LINEAR

pytestmark = pytest.mark.usefixtures('dds_sockets', 'no_fd_leak')

WIDTH, HEIGHT = 48, 32
SEVEN_LATCHED = QoSProfile(depth=7, durability=DurabilityPolicy.TRANSIENT_LOCAL)
NV12 = (HEIGHT, WIDTH), (HEIGHT // 2, WIDTH // 2, 2)


def picture(shape: tuple[int, ...], value: int) -> NDArray[np.uint8]:
    rows = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    return (np.arange(np.prod(shape)).reshape(shape) * 7 + rows + value).astype(np.uint8)


def fill(planes: Sequence[NDArray[Any]], value: int) -> None:
    for plane in planes:
        plane[:] = picture(plane.shape, value)


class Cameras:
    def __init__(self, ros: Ros) -> None:
        self.ros = ros

    def publisher(self, *, name: str = 'camera', **options: Any) -> FramePublisher:
        values = {'width': WIDTH, 'height': HEIGHT, 'frame_id': 'optical', **options}
        return self.ros.own(FramePublisher(self.ros.node(name), 'image', **values))

    def subscription(
        self, callback: Callable[[Frame], Any] | None = None, **options: Any
    ) -> FrameSubscription:
        viewer = self.ros.node('viewer')
        return self.ros.own(FrameSubscription(viewer, 'image', callback, **options))

    def pair(self, **options: Any) -> tuple[FramePublisher, FrameSubscription]:
        """Return a publisher, and a subscription of this process that has found it."""
        publisher, subscription = self.publisher(**options), self.subscription()
        assert eventually(lambda: publisher.statistics().in_process_subscriptions == 1)
        return publisher, subscription

    def reader(self) -> list[Image]:
        found: list[Image] = []
        self.ros.node('plain').create_subscription(Image, 'image', found.append, 10)
        return found


@pytest.fixture
def cameras(here: Ros) -> Cameras:
    return Cameras(here)


Elsewhere = Callable[[int], dict[str, Any]]


@pytest.fixture
def elsewhere(start: Callable[[], LinkProcess]) -> Elsewhere:
    """Return what another process says of frame *number*, counted from 1."""
    there = start()
    there('open', [end('reader', 'adapted subscriber', depth=1, converts=False)])

    def frame(number: int) -> dict[str, Any]:
        missing = there('wait', {'reader': {'received': number}})
        assert not missing, missing
        return dict(there('state', ['reader'])['reader']['last'])

    return frame


def sent(publisher: FramePublisher, value: int, **header: Any) -> list[int]:
    with publisher.loan() as out:
        fill(out.planes, value)
        for name, each in header.items():
            setattr(out, name, each)
        checksums = [zlib.crc32(plane.tobytes()) for plane in out.planes]
    return checksums


@pytest.mark.parametrize('fmt', ['NV12', 'YU12', 'rgb8'])
def test_pixels_header_and_numbers_arrive_in_another_process(
    cameras: Cameras, elsewhere: Elsewhere, fmt: str
) -> None:
    publisher = cameras.publisher(format=fmt)
    assert eventually(lambda: publisher.statistics().shared_memory_consumers == 1)
    for value in range(3):
        planes = sent(publisher, value, stamp=1000 + value, frame_id=f'frame {value}')
        found = elsewhere(value + 1)
        assert found['planes'] == planes and found['sequence'] == value
        assert (found['stamp_ns'], found['frame_id']) == (1000 + value, f'frame {value}')
    assert publisher.statistics().conversions == 0


def test_the_stamp_is_whatever_names_a_time(cameras: Cameras) -> None:
    publisher, subscription = cameras.pair()
    received = 5_000_000_007
    sent(publisher, 1, stamp=received)
    with subscription.queue.get(60.0) as frame:
        message = frame.stamp
    for stamp in (message, ClockTime(nanoseconds=received, clock_type=ClockType.ROS_TIME)):
        sent(publisher, 1, stamp=stamp)
        with subscription.queue.get(60.0) as frame:
            assert frame.header.stamp_ns == received
    with publisher.loan() as out:
        out.stamp = message
        assert out.stamp == message and out.stamp is not message
        for stamp in (1.5, 'now', None, True, -1, 2**31 * 10**9):
            with pytest.raises(ConfigError, match='stamp'):
                out.stamp = stamp


@pytest.mark.parametrize(('fmt', 'encoding'), [('bgr8', 'bgr8'), ('NV12', 'rgb8')])
def test_plain_subscribers_get_pictures_as_they_are_and_chroma_formats_as_rgb8(
    cameras: Cameras, fmt: str, encoding: str
) -> None:
    found = [cameras.reader() for _ in range(3)]
    publisher = cameras.publisher(format=fmt)
    assert eventually(lambda: publisher.statistics().image_readers == 3)
    sent(publisher, 5, stamp=1_000_000_002)
    assert eventually(lambda: all(found))
    message = found[0][0]
    assert found == [[message]] * 3
    stamp = message.header.stamp
    assert (message.encoding, stamp.sec, stamp.nanosec) == (encoding, 1, 2)
    pixels = picture((HEIGHT, WIDTH, 3), 5)
    if fmt == 'NV12':
        rows = [picture(shape, 5).reshape(-1, WIDTH) for shape in NV12]
        pixels = cv2.cvtColor(np.concatenate(rows), cv2.COLOR_YUV2RGB_NV12)
    assert bytes(message.data) == pixels.tobytes() and message.header.frame_id == 'optical'
    assert publisher.ledger.count('to_ros') == 1, 'they share one conversion'


def test_when_consumers_hold_every_buffer_the_frame_is_dropped_and_said_and_the_next_one_goes_out(
    cameras: Cameras, logged: Callable[[], str]
) -> None:
    publisher, subscription = cameras.pair(slots=2)
    sent(publisher, 0)
    kept = subscription.queue.get(60.0)
    sent(publisher, 1)  # waits in the subscription's queue
    with publisher.loan() as out:
        assert out.dropped
        fill(out.planes, 2)
    assert publisher.statistics().dropped == 1
    for words in ('frame 2 was dropped, because no buffer was free', 'viewer', "raise 'slots'"):
        assert words in logged()
    with kept, kept.map() as planes:
        unchanged = np.array_equal(planes[0], picture((HEIGHT, WIDTH), 0))
        assert unchanged, 'what is thrown away is written nowhere'
    sent(publisher, 3)
    number = 0
    while number != 3:  # the gap is the frame that was dropped
        with subscription.queue.get(60.0) as frame:
            number = frame.data.sequence


def test_any_thread_may_publish_and_numbers_stay_in_order(cameras: Cameras) -> None:
    numbers: list[int] = []
    publisher = cameras.publisher()
    cameras.subscription(lambda frame: numbers.append(frame.data.sequence), depth=5)
    assert eventually(lambda: publisher.get_subscription_count() == 1)

    def publish(value: int) -> None:
        for _ in range(100):
            sent(publisher, value)

    threads = [threading.Thread(target=publish, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    statistics = publisher.statistics()
    assert statistics.published + statistics.dropped == 400
    assert eventually(lambda: numbers and numbers[-1] >= 390)
    assert numbers == sorted(set(numbers)) and numbers[-1] < 400


def test_frames_that_are_out_stay_readable_when_the_publisher_ends(cameras: Cameras) -> None:
    publisher, subscription = cameras.pair()
    sent(publisher, 4)
    frame = subscription.queue.get(60.0)
    loan = publisher.loan()
    out = loan.__enter__()
    publisher.destroy()
    publisher.destroy()
    fill(out.planes, 6)
    loan.__exit__(None, None, None)
    with frame, frame.map() as planes:
        assert np.array_equal(planes[0], picture((HEIGHT, WIDTH), 4))
    assert publisher.statistics().published == 1
    with publisher.loan() as out:
        assert out.dropped, 'nobody gets what is published after the end'
    assert publisher.statistics().dropped == 0


def test_it_ends_with_its_node_and_leaves_nothing(here: Ros) -> None:
    folder = Path(os.environ['ZC_RUNTIME_DIR'])

    def life() -> None:
        node = here.node('camera')
        publisher = FramePublisher(node, 'image', width=WIDTH, height=HEIGHT, slots=3)
        sent(publisher, 1)
        assert list(folder.glob('*.sock'))
        here.executor.remove_node(node)
        node.destroy_node()

    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    life()
    # Threads may be ending: the lookout's, for example.
    assert eventually(lambda: not any('shared-memory' in name for name in names()))
    threads = names()
    for _ in range(3):
        life()
    assert eventually(lambda: names() <= threads), names() - threads
    assert not [path.name for path in folder.iterdir() if path.suffix in ('.sock', '.json')]


def test_consumers_follow_publishers_that_are_made_again_with_other_sizes(
    cameras: Cameras, elsewhere: Elsewhere
) -> None:
    subscription = cameras.subscription()
    for life in range(40 if LONG else 4):
        width, height = (side * (life % 8 + 1) for side in (WIDTH, HEIGHT))
        publisher = cameras.publisher(width=width, height=height)
        told = publisher.statistics
        assert eventually(lambda: told().shared_memory_consumers == 1)  # noqa: B023
        assert eventually(lambda: told().in_process_subscriptions == 1)  # noqa: B023
        checksums = sent(publisher, life)
        with subscription.queue.get(60.0) as frame, frame.map() as planes:
            assert np.array_equal(planes[0], picture((height, width), life))
            del planes
        assert elsewhere(life + 1)['planes'] == checksums
        assert publisher.statistics().conversions == 0
        publisher.destroy()


def test_a_consumer_that_can_t_use_the_buffers_is_named_and_gets_messages(
    cameras: Cameras, logged: Callable[[], str]
) -> None:
    publisher = cameras.publisher(format='NV12')
    picky = BufferConstraints('picky', formats=((fourcc_code('YUYV'), LINEAR),))
    subscription = cameras.subscription(constraints=picky)
    assert eventually(lambda: 'picky refused' in logged()) and 'NV12' in logged()
    assert eventually(lambda: publisher.statistics().image_readers == 1)
    assert eventually(lambda: subscription.statistics().rung == ROS_MESSAGE)


NO_FRAME_ID = [
    ('\udce4bc', r"frame_id is '\\udce4bc'; it cannot be encoded as UTF-8"),
    ('x' * 256, 'frame_id has 256 bytes; at most 255 can be sent'),
    ('a\0b', r"frame_id is 'a\\x00b'; remove the character"),
    (7, 'frame_id is 7; it must be text'),
]


def test_an_error_in_the_loan_as_of_a_frame_id_sends_nothing_and_gives_the_buffer_back(
    cameras: Cameras,
) -> None:
    publisher, subscription = cameras.pair(slots=2)
    for frame_id, words in NO_FRAME_ID:
        with pytest.raises(ConfigError, match=words), publisher.loan() as out:
            fill(out.planes, 9)
            out.frame_id = frame_id  # type: ignore[assignment]
    sent(publisher, 1, frame_id='ä' * 127)
    with subscription.queue.get(60.0) as frame, frame.map() as planes:
        assert frame.data.sequence == 0 and planes[0][0, 0] == picture((HEIGHT, WIDTH), 1)[0, 0]
        assert frame.header.frame_id == 'ä' * 127
        del planes
    statistics = publisher.statistics()
    assert (statistics.discarded, statistics.dropped, statistics.published) == (4, 0, 1)


def test_a_loan_is_for_one_block(cameras: Cameras) -> None:
    publisher, subscription = cameras.pair()
    loan = publisher.loan()
    for _ in range(2):
        with contextlib.suppress(ConfigError), loan as out:
            fill(out.planes, 1)
        with pytest.raises(ConfigError, match=r'call loan\(\) anew for each with block'), loan:
            pass
    within = publisher.loan()
    with pytest.raises(ConfigError, match='a loan is for one frame'), within, within:
        pass
    found = publisher.statistics()
    assert (found.published, found.discarded) == (1, 1)
    with subscription.queue.get(60.0) as frame:
        assert frame.sequence == 0


class Library:
    """A library with its own memory, and NV12 images whose planes have unusual offsets."""

    offsets = (128, 128 + 64 * 40)

    def __init__(self) -> None:
        self.fds: list[int] = []
        # A publisher seals its buffers: nobody can map them for writing later.
        self._maps: list[NDArray[np.uint8]] = []
        self.back: list[str] = []
        for _ in range(3):
            self.more()

    def more(self) -> int:
        fd = os.memfd_create('library', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 8192)
        fcntl.fcntl(fd, abi.F_ADD_SEALS, abi.F_SEAL_SHRINK | abi.F_SEAL_GROW)
        self.fds.append(fd)
        self._maps.append(np.memmap(os.fdopen(os.dup(fd), 'r+b'), np.uint8, 'r+'))
        return fd

    def draw(self, index: int, value: int) -> list[int]:
        memory, checksums = self._maps[index], []
        for shape, offset, step in zip(NV12, self.offsets, ((64, 1), (64, 2, 1)), strict=True):
            plane = np.ndarray(shape, np.uint8, memory, offset, step)
            plane[:] = picture(shape, value)
            checksums.append(zlib.crc32(plane.tobytes()))
        return checksums

    def released(self, name: str) -> Callable[[], None]:
        return lambda: self.back.append(name)

    def close(self) -> None:
        self._maps.clear()
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def library(no_fd_leak: None) -> Iterator[Library]:
    made = Library()
    yield made
    made.close()


OWN = {'offsets': Library.offsets, 'strides': [64, 64], 'modifier': LINEAR}


def of(library: Library, **options: Any) -> dict[str, Any]:
    return {**OWN, 'fds': library.fds, **options}


def test_buffers_of_a_library_arrive_here_and_in_another_process_and_come_back_once(
    library: Library, cameras: Cameras, elsewhere: Elsewhere
) -> None:
    for _ in range(2):  # so that two consumers have buffers
        library.more()
    publisher, subscription = cameras.pair(**of(library))
    assert eventually(lambda: publisher.statistics().shared_memory_consumers == 1)
    for value in range(6):
        index = value % len(library.fds)
        checksums, fd = library.draw(index, value), library.fds[index]
        told = {'stamp': 42, 'frame_id': 'mine', 'released': library.released(str(value))}
        assert publisher.publish_fd(fd, **told)
        found = elsewhere(value + 1)
        with subscription.queue.get(60.0) as frame:
            with frame.map() as planes:
                assert [zlib.crc32(plane.tobytes()) for plane in planes] == checksums
            header = frame.header.stamp_ns, frame.header.frame_id, frame.data.sequence
            assert header == (42, 'mine', value) and len(library.back) == value
            inodes = [buffer.identity.inode for buffer in frame.data.buffers]
            assert inodes == found['inodes'] == [os.fstat(fd).st_ino], 'the very memory'
        assert found['planes'] == checksums and found['sequence'] == value
        assert eventually(lambda: len(library.back) > value)  # noqa: B023 - it is called here
    assert library.back == [*'012345'] and publisher.ledger.entries() == {}
    assert publisher.publish_fd(library.fds[1]), 'nobody asked to be told'
    subscription.queue.get(60.0).release()


def test_a_buffer_that_a_consumer_holds_is_not_sent_again(
    library: Library, cameras: Cameras, logged: Callable[[], str]
) -> None:
    publisher, subscription = cameras.pair(**of(library))
    assert publisher.publish_fd(library.fds[0], released=library.released('first'))
    frame = subscription.queue.get(60.0)
    assert not publisher.publish_fd(library.fds[0], released=library.released('too early'))
    assert 'consumers still hold its buffer' in logged() and 'viewer' in logged()
    assert library.back == [] and publisher.statistics().dropped == 1
    frame.release()
    assert library.back == ['first', 'too early']


def test_planes_may_have_a_descriptor_each(cameras: Cameras, library: Library) -> None:
    """The descriptors are duplicates of one buffer's, or belong to a buffer per plane."""
    whole = [(fd, os.dup(fd)) for fd in library.fds]
    apart = [(library.fds[0], library.fds[1]), (library.fds[2], library.more())]
    subscription = cameras.subscription()
    for sets, offsets, buffers in ((whole, library.offsets, 1), (apart, (), 2)):
        publisher = cameras.publisher(**of(library, fds=sets, offsets=offsets))
        assert eventually(lambda: publisher.get_subscription_count() == 1)  # noqa: B023
        assert publisher.publish_fds(sets[1])
        with subscription.queue.get(60.0) as frame:
            assert len(frame.data.buffers) == buffers
        with pytest.raises(LayoutError, match='an image has 1 descriptor'):
            publisher.publish_fd(library.fds[0])
        publisher.destroy()
    for _, duplicate in whole:
        os.close(duplicate)


def test_a_callback_may_publish_the_next_frame_raise_or_end_the_publisher(
    library: Library, cameras: Cameras, logged: Callable[[], str]
) -> None:
    """Without a consumer, each frame is released inside of publish_fd(), so calls could nest."""
    publisher, left = cameras.publisher(**of(library)), [2000]

    def again() -> None:
        left[0] -= 1
        if left[0]:
            assert publisher.publish_fd(library.fds[left[0] % 3], released=again)
        else:
            publisher.publish_fd(library.fds[0], released=lambda: [][0])
            publisher.destroy()

    assert publisher.publish_fd(library.fds[0], released=again)
    assert left == [0] and "'released' of a buffer raised IndexError" in logged()
    assert publisher.statistics().published == 2001


@pytest.mark.parametrize(
    ('options', 'error', 'words'),
    [
        ({'format': 'rgb_8'}, FormatError, "'rgb_8' is not known; did you mean 'rgb8'"),
        ({'width': 47}, LayoutError, 'width 47 is not a multiple of 2'),
        ({'slots': 1}, ConfigError, 'slots 1 is not a whole number in 2 .. 64'),
        ({'frame_id': '\udce4bc'}, ConfigError, r"frame_id is '\udce4bc'; it cannot be encoded"),
        ({'trusted_gids': [99999999999]}, ConfigError, 'trusted_gids has 99999999999; give a'),
        ({'trusted_gids': [True]}, ConfigError, 'trusted_gids has True'),
        ({'trusted_gids': 'video'}, ConfigError, "trusted_gids has 'video'"),
        ({'colorimetry': 'bt710'}, FormatError, "'bt710' is not known; write the matrix: bt601"),
        ({'colorimetry': 'rgb full'}, FormatError, 'have no conversion'),
        ({'image_encoding': 'rgb9'}, ConfigError, "'rgb9' is not one of rgb8"),
        ({'heap': 'cloud'}, ConfigError, "heap 'cloud' is not known"),
        ({'participants': ['a b c']}, ConfigError, 'participants'),
        ({'participants': ['later: YUYV'], 'format': 'NV12'}, NegotiationError, 'later'),
        ({'modifier': 0}, ConfigError, 'fds'),
        ({'qos': SEVEN_LATCHED}, ConfigError, 'depth 7 would keep 7 of 8 buffers'),
        ({**OWN, 'modifier': None}, ConfigError, 'modifier=0'),
        ({**OWN, 'strides': [64]}, ConfigError, 'NV12 has 2 plane(s), and there are 1 stride(s)'),
        ({**OWN, 'strides': [40, 64]}, LayoutError, 'stride 40 is less than the 48 bytes'),
        ({**OWN, 'offsets': ()}, LayoutError, 'overlap'),
        ({**OWN, 'offsets': (0, 9000)}, LayoutError, 'plane 1'),
        ({**OWN, 'fds': [3]}, ConfigError, "'fds' has 1 image(s), but must have 2 to 64"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(
    cameras: Cameras, library: Library, options: dict[str, Any], error: type[ZcError], words: str
) -> None:
    """With ``offsets``, the buffers are a library's."""
    with pytest.raises(error) as refused:
        cameras.publisher(**{'fds': library.fds, **options} if 'offsets' in options else options)
    assert words in str(refused.value)
    # The links of an earlier test may still be ending.
    assert eventually(
        lambda: not any(each.name.startswith('shared-memory') for each in threading.enumerate())
    )


class SignalledByWriting(SyncFile):
    """A real sync_file needs a driver; a pipe, too, becomes readable when it signals."""

    def check(self) -> None:
        assert self.wait(0.0), 'nobody waited'


@pytest.mark.parametrize('way', ['loan', 'descriptor'])
def test_a_frame_with_a_fence_is_read_when_the_device_has_written(
    cameras: Cameras, library: Library, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(frame_publisher, 'fence_from_fd', SignalledByWriting)
    publisher, subscription = cameras.pair(**(of(library) if way == 'descriptor' else {}))
    reading, writing = os.pipe()
    if way == 'descriptor':
        library.draw(0, 3)
        publisher.publish_fd(library.fds[0], fence=reading)
    else:
        with publisher.loan() as out:
            fill(out.planes, 3)
            out.set_fence(reading)
            out.set_fence(reading)  # the last fence counts, the first one is closed
    frame = subscription.queue.get(60.0)
    assert frame is not None
    pending = frame.data.acquire_fence
    assert isinstance(pending, SignalledByWriting) and pending.fileno() not in (reading, writing)
    assert not pending.wait(0.0)
    signal = threading.Timer(0.2, os.write, (writing, b'1'))
    signal.start()
    with frame.map() as planes:
        assert pending.wait(0.0), 'the block began before the signal'
        assert np.array_equal(planes[0], picture((HEIGHT, WIDTH), 3))
    frame.release()
    signal.join(60.0)
    os.close(reading)
    os.close(writing)


def test_a_fence_that_is_no_sync_file_is_refused_and_the_frame_goes_out_without(
    cameras: Cameras, library: Library
) -> None:
    lender = cameras.publisher(name='lender')
    giver = cameras.publisher(name='giver', **of(library))
    reading, writing = os.pipe()
    for fence, words in ((reading, 'must be a sync_file'), (10_000, '10000'), ('x', "'x'")):
        with pytest.raises(ConfigError, match=words):
            giver.publish_fd(library.fds[0], fence=fence)  # type: ignore[arg-type]
        with lender.loan() as out, pytest.raises(ConfigError, match=words):
            out.set_fence(fence)  # type: ignore[arg-type]
    os.close(reading)
    os.close(writing)
    assert lender.statistics().published == 3
    assert giver.publish_fd(library.fds[0]) and giver.statistics().dropped == 0
