"""A stranger in the graph who announces more publishers than anybody has, beside a camera in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from link_process import LinkProcess
from link_ros import Ros, eventually
from rclpy.qos import DurabilityPolicy, QoSProfile
from std_msgs.msg import String

from zc_perception.link.announcement import Announcement, host_id
from zc_perception.link.endpoints.remote_links import SharedMemoryLinks


@pytest.fixture
def there(free_domain: int, tmp_path: Path) -> Iterator[LinkProcess]:
    with LinkProcess('single', free_domain, tmp_path) as process:
        yield process


def lie(publisher_id: str) -> String:
    return String(data=Announcement(publisher_id, host_id(), '/nowhere/x.sock', 64, 48, ('NV12',), 'memfd').to_json())


@pytest.mark.parametrize('names', ['many', 'its own'])
def test_who_is_connected_stays_connected(there: LinkProcess, here: Ros, tmp_path: Path, names: str) -> None:
    links, received = SharedMemoryLinks('sub'), []
    subscription = here.subscription(
        here.node('sub'), qos=QoSProfile(depth=5), remote=links, copy_free_required=True,
        callback=lambda frame: received.append(frame.data.sequence),
    )  # fmt: skip
    camera = {'name': 'camera', 'kind': 'adapted publisher', 'topic': 'image', 'qos': {'depth': 5}, 'converts': False}
    there('open', [camera])
    assert eventually(lambda: subscription.statistics().rung == 'shared_memory')
    (publisher_id,), (window,) = links.connected(), links.windows()
    latched = QoSProfile(depth=200, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    stranger, heard = here.node('stranger'), []
    here.node('witness').create_subscription(String, 'image/_zc', heard.append, latched)
    announcer = stranger.create_publisher(String, 'image/_zc', latched)
    assert eventually(lambda: announcer.get_subscription_count() == 2)
    heard.clear()
    for number in range(130):
        announcer.publish(lie(f'{number:032x}' if names == 'many' else publisher_id))
        time.sleep(0.001)
    assert eventually(lambda: len(heard) >= 130)
    for value in (1, 2):
        there('publish', {'camera': [value]})
        assert eventually(lambda value=value: received == list(range(1, value + 1))), subscription.statistics()
        time.sleep(0.6)  # it looks at the graph
    assert subscription.statistics().rung == 'shared_memory'
    stranger.destroy_publisher(announcer)
    # Nobody else publishes: the others are forgotten.
    assert eventually(lambda: set(links.statistics()) == {publisher_id}), links.statistics()
    assert links.windows() == [window], 'the same connection'
    there('publish', {'camera': [3]})
    assert eventually(lambda: received == [1, 2, 3]) and here.errors == []
