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

"""``gstreamer_node``: feeds frames to a GStreamer pipeline and publishes the pipeline's H.264."""

from __future__ import annotations

import array
from collections.abc import Callable, Mapping
import importlib
from typing import Any, ClassVar

from builtin_interfaces.msg import Time
from rclpy.qos import QoSProfile
from rclpy.type_support import check_for_type_support
from std_msgs.msg import Header as HeaderMessage

from zc_perception.camera.gstreamer.abi import load_gstreamer
from zc_perception.camera.gstreamer.pipeline import SINK
from zc_perception.errors import ConfigError, one_line
from zc_perception.frame import Frame
from zc_perception.link.endpoints import AdaptedSubscription
from zc_perception.link.endpoints.remote_links import TooSlow
from zc_perception.link.gstreamer import AccessUnit, complete, COPIED, FrameFeed
from zc_perception.link.rclpy_compat import name_before_remaps, publish, subscription_count
from zc_perception.memory.dmabuf import CpuAccess
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.nodes.declarations import NODES
from zc_perception.nodes.frame_links import subscribe_frames, subscription_status, user_ids
from zc_perception.nodes.params.qos_overrides import Endpoint, publisher_qos, subscription_qos
from zc_perception.nodes.perception_node import PerceptionNode
from zc_perception.observe.diagnostics import ERROR, Figures, OK, Part, Row, Status, WARN
from zc_perception.observe.metrics import RecentCount

_ENCODERS = {
    'x264enc': (
        'x264enc tune=zerolatency speed-preset=ultrafast bframes=0 key-int-max={gop} '
        'bitrate={kbit}'
    ),
    'openh264enc': 'openh264enc gop-size={gop} bitrate={bit} rate-control=bitrate',
}
# The pictures that x264enc and openh264enc both accept, and whose H.264 every viewer can show:
# NV12 or I420, with an even width and height.
_EVEN = '(int)[ 2, 2147483646, 2 ]'
_ENCODED = f'video/x-raw, format=(string){{ NV12, I420 }}, width={_EVEN}, height={_EVEN}'
_TAIL = f'h264parse config-interval=-1 ! appsink name={SINK}'
_KEY = 1
_MESSAGES = {
    'foxglove': ('foxglove_msgs', 'CompressedVideo'),
    'ffmpeg': ('ffmpeg_image_transport_msgs', 'FFMPEGPacket'),
}
_DEPTH = 60
_SLOW = TooSlow(
    "an element of the pipeline doesn't give frames back",
    (
        "replace this element by a quicker one, put 'queue leaky=downstream max-size-buffers=1' "
        "in front of the element, or raise 'window'"
    ),
)
GSTREAMER = Part(
    'gstreamer',
    Row(lambda s: s.dead, ERROR, ('the thread that feeds the pipeline has ended; its traceback '
                                  "is on the node's stderr"),
        'deactivate and activate the node, or start it again'),
    Row(lambda s: s.seen.failure, ERROR, '{seen.failure}', ('try the pipeline with '
                                                            'gst-launch-1.0 and videotestsrc; '
                                                            'the node starts the pipeline again '
                                                            'by itself'),
        "an element's error message"),
    Row(lambda s: s.seen.stuck, WARN, ('{seen.stuck} pipeline(s) did not come to an end, and '
                                       'still hold frames'),
        'restart the node; GST_DEBUG=3 shows which element waits'),
    Row(lambda s: s.bare, WARN, ('{bare} key frame(s) came without SPS and PPS lately: late '
                                 'subscribers see nothing'),
        "put 'h264parse config-interval=-1' in front of the sink"),
    Row(lambda s: s.reordered, WARN, ('{reordered} picture(s) came out of order lately, as '
                                      'B-frames do: Foxglove cannot show B-frames'),
        'set bframes=0 or b-frames=0 at the encoder'),
    Row(lambda s: s.unknown, WARN, ('{unknown} picture(s) were not published lately, '
                                    'because no frame has their time stamp'),
        'leave out elements that change time stamps, such as videorate'),
    Row(lambda s: s.lost, WARN, '{lost} frame(s) could not go into the pipeline lately',
        "see the capture node's log: the device that fills the frames may have failed"),
    Row(lambda s: s.idle, OK, "idle: nobody subscribes to the pipeline's H.264"),
    well='running: {seen.frames} frames',
)  # fmt: skip


class GStreamerNode(PerceptionNode):
    """
    Passes each frame of ``image_raw`` to a GStreamer pipeline, without a copy.

    If the pipeline ends in an appsink called ``zc_sink``, its H.264 is published on
    ``image_raw/foxglove`` and ``image_raw/ffmpeg``; the pipeline then gets frames only while one
    of these topics has a subscriber.
    """

    SPECS = NODES['gstreamer']
    CHECKS: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        'shared_memory_users': user_ids,
        'pipeline': complete,
    }
    ENDPOINTS = (
        Endpoint('image_raw', 'subscription', adapted=True),
        Endpoint('image_raw/foxglove', 'publisher'),
        Endpoint('image_raw/ffmpeg', 'publisher'),
    )

    def __init__(self, **node_options: Any) -> None:
        super().__init__('gstreamer', **node_options)
        self._feed: FrameFeed | None = None
        self._subscription: AdaptedSubscription[Frame] | None = None
        self._topics: dict[str, tuple[Any, type[Any]]] = {}
        self._pts = 0
        self._recent = {name: RecentCount() for name in ('lost', 'unknown', 'reordered', 'bare')}
        self._conversion_errors = RecentCount()
        subscription_qos(self, 'image_raw', QoSProfile(depth=2))
        self._begin()

    def _open(self) -> None:
        """
        Make the pipeline, the publishers of its H.264 output, and the subscription to frames.

        The subscription asks for formats that the pipeline accepts.
        """
        text = self._text()
        feed = self._feed = FrameFeed(
            text,
            name=self.get_name(),
            ledger=self.ledger,
            listeners=self._listeners,
            take=self._publish,
            warn=lambda text: self.get_logger().error(text),
        )
        if feed.has_sink:
            self._offer_topics()
        needs = BufferConstraints(
            self.get_name(),
            formats=feed.formats(),
            cpu_access=CpuAccess.READ if self._encodes else CpuAccess(0),
        )
        self._subscription = subscribe_frames(
            self,
            self.parameters,
            self.ledger,
            QoSProfile(depth=2),
            held=self.parameters['window'],
            constraints=needs,
            slow=_SLOW,
        )
        self._subscription.pause()

    @property
    def _encodes(self) -> bool:
        return not self.parameters['pipeline'].strip()

    def _text(self) -> str:
        """
        Return the pipeline's text, which is parameter ``pipeline``.

        If that is empty, return a pipeline with the encoder that parameter ``encoder`` names.
        """
        if not self._encodes:
            return str(self.parameters['pipeline'])
        wanted, gst = self.parameters['encoder'], load_gstreamer()
        names = [*_ENCODERS] if wanted == 'auto' else [wanted]
        name = next((each for each in names if gst.has_element(each)), '')
        if not name:
            raise ConfigError(
                f"parameter 'encoder' is '{wanted}', but GStreamer has no {' or '.join(names)} "
                'on this machine; install gstreamer1.0-plugins-ugly '
                '(x264enc) or gstreamer1.0-plugins-bad (openh264enc), or set parameter '
                "'pipeline' to a pipeline with the encoder of your hardware"
            )
        kbit = self.parameters['bit_rate']
        made = _ENCODERS[name].format(gop=self.parameters['gop_size'], kbit=kbit, bit=kbit * 1000)
        self.get_logger().info(
            f"{name} encodes on the CPU and copies each frame (the copy ledger counts this as "
            f"'{COPIED}'); for an encoder in hardware set parameter 'pipeline'"
        )
        return f'videoconvert ! videoscale ! {_ENCODED} ! {made} ! {_TAIL}'

    def _offer_topics(self) -> None:
        image, missing = self.resolve_topic_name('image_raw'), []
        for suffix, (package, name) in _MESSAGES.items():
            try:
                kind = getattr(importlib.import_module(f'{package}.msg'), name)
                check_for_type_support(kind)
            except Exception as error:  # an old or incomplete package can raise any exception
                gone = isinstance(error, ModuleNotFoundError)
                why = '' if gone else f', of which only parts are here: {one_line(error)}'
                missing.append(f'{package} ({image}/{suffix}){why}')
                continue
            topic = name_before_remaps(self, f'{image}/{suffix}')
            qos = publisher_qos(self, topic, QoSProfile(depth=_DEPTH))
            self._topics[suffix] = self.create_publisher(kind, topic, qos), kind
        if not self._topics:
            raise ConfigError(
                f'the pipeline ends in {SINK}, but no message package for H.264 is installed: '
                f'install one of {", ".join(missing)}'
            )
        if missing:
            self.get_logger().info(
                'these message packages are not installed, so their topics are not published: '
                f'{", ".join(missing)}'
            )

    def _listeners(self) -> int:
        """
        Return how many subscribers the H.264 topics have.

        If no such topics exist, return 1, so that the pipeline always gets frames.

        The thread that feeds frames to the pipeline calls this.
        """
        if not self._topics:
            return 1
        return sum(subscription_count(publisher) for publisher, _ in self._topics.values())

    def _publish(self, unit: AccessUnit) -> None:
        """Publish one picture's H.264; called on the thread that took it from the pipeline."""
        seconds, nanoseconds = divmod(unit.header.stamp_ns, 1_000_000_000)
        stamp = Time(sec=seconds, nanosec=nanoseconds)
        header = HeaderMessage(stamp=stamp, frame_id=unit.header.frame_id)
        data = array.array('B', unit.data)
        self._pts += 1
        for suffix, (publisher, kind) in self._topics.items():
            if not subscription_count(publisher):
                continue
            if suffix == 'foxglove':
                message = kind(timestamp=header.stamp, frame_id=header.frame_id, format='h264')
            else:
                message = kind(
                    header=header,
                    width=unit.width,
                    height=unit.height,
                    encoding='h264',
                    pts=self._pts,
                    flags=_KEY if unit.key else 0,
                )
            message.data = data
            publish(publisher, message)

    @property
    def feed(self) -> FrameFeed:
        """The object that runs the pipeline. It exists only while the node is configured."""
        if self._feed is None:
            raise self.lacks('pipeline')
        return self._feed

    def _activate(self) -> None:
        self._flowing = True
        assert self._subscription is not None
        self._subscription.resume()
        self.feed.start(self._subscription.queue)

    def _deactivate(self) -> None:
        if self._feed is not None:
            self._feed.stop()
        if self._subscription is not None:
            self._subscription.pause()

    def _cleanup(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()
        if self._subscription is not None:
            self._subscription.destroy()
            self._subscription = None
        publishers, self._topics = self._topics, {}
        for publisher, _ in publishers.values():
            self.destroy_publisher(publisher)

    def collect_diagnostics(self) -> list[Status]:
        """Return the statuses of the lifecycle, the pipeline and the frame subscription."""
        found = [self.lifecycle_status()]
        feed, subscription = self._feed, self._subscription
        if feed is not None and subscription is not None:
            found += [
                self._pipeline_status(feed),
                subscription_status(subscription, self._conversion_errors),
            ]
        return found

    def _pipeline_status(self, feed: FrameFeed) -> Status:
        seen = feed.statistics()
        if seen.mapped:
            self.warn_once(
                [
                    (
                        'an element of the pipeline reads frames with the CPU; the copy ledger '
                        f"counts this as '{COPIED}'"
                    )
                ]
            )
        self.warn_once(seen.warnings)
        booked = self.ledger.entries().get(COPIED)
        values = {
            'frames': seen.frames,
            'held': seen.held,
            'lost': seen.lost,
            'caps': seen.caps,
            'runs_failed': seen.failed,
            'stuck': seen.stuck,
            'read_by_cpu': seen.mapped,
            'read_frames': 0 if booked is None else booked.count,
            'read_bytes': 0 if booked is None else booked.bytes,
        }
        if feed.has_sink:
            values |= {
                'pictures': seen.units,
                'without_frame': seen.unknown,
                'reordered': seen.reordered,
                'key_frames_bare': seen.bare,
                'listeners': self._listeners(),
            }
        return GSTREAMER.status(
            Figures(lambda: values),
            seen=seen,
            dead=self.flowing and not feed.alive,
            idle=not self._listeners(),
            **{name: recent.see(getattr(seen, name)) for name, recent in self._recent.items()},
        )
