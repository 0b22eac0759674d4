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
Adapt your own types to ROS messages, as REP 2007 and rclcpp's ``TypeAdapter`` do.

A type is *leased* if it has the methods of :class:`Leased`, as :class:`~zc_perception.frame.Frame`
has. :class:`TypeAdapter` says how objects of leased and of other types are passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

CustomT = TypeVar('CustomT')
_LEASED_METHODS = ('deliver', 'lend', 'borrowed', 'release', 'released')


class Leased(Protocol):
    """The methods of a custom type whose objects hold a resource, such as a camera's buffer."""

    @property
    def released(self) -> bool:
        """Whether the object was released."""

    @property
    def borrowed(self) -> bool:
        """Whether the link releases the object when the callback returns."""

    def deliver(self, holder: str) -> Any | None:
        """
        Return another object for the same content, with its own lease for *holder*.

        Return ``None`` if *holder* has as many leases as its quota allows.
        """

    def lend(self) -> None:
        """Mark the object as borrowed: the link releases it when the callback returns."""

    def release(self) -> None:
        """
        Give the object's resource back, so that its owner can use it again.

        :raises BufferError: a view of the object's memory still exists. The link then calls
            ``release_when_unseen`` if the type has this method.
        """


@dataclass(frozen=True)
class TypeAdapter(Generic[CustomT]):
    """
    Two functions that convert objects of your own type to ROS messages and back.

    ::

        from std_msgs.msg import String
        from zc_perception import TypeAdapter

        TEXT = TypeAdapter(
            str,
            String,
            to_ros=lambda text: String(data=text),
            to_custom=lambda message: message.data,
        )

    The topic's type is always the ROS type, as in REP 2007. Within a process, objects are passed
    as they are, and nothing is converted.

    **Owner.** All subscribers in a process get the same object, like a shared pointer to const in
    rclcpp: do not change it after it was published. If the type has the methods of
    :class:`Leased`, as :class:`Frame` has, each subscriber gets its own lease instead, which ends
    with the callback unless the callback keeps the object. If a callback keeps only a view of the
    memory, ``release`` raises BufferError. The link then calls ``release_when_unseen`` once, if
    the type has this method.

    **Threads.** A publisher calls *to_ros* on its own thread. A subscription calls *to_custom* on
    its node's executor. A publisher that gets a ROS message calls *to_custom* in ``publish``.

    **Errors.** An exception of *to_ros* or *to_custom* is logged and counted in ``statistics()``,
    and the object is dropped. But an exception of *to_custom* in ``publish`` goes to the caller.

    :param custom_type: the type that your publishers and subscriptions handle.
    :param ros_type: the message type of the topic.
    :param to_ros: makes a message from an object. It is called once for each object while a
        reader of messages exists; with transient_local QoS also while none exists. It may return
        the same message each time, with new values.
    :param to_custom: makes an object from a message. A subscription calls it only while a
        publisher has no direct link to the subscription.
    """

    custom_type: type[CustomT]
    ros_type: type[Any]
    to_ros: Callable[[CustomT], Any]
    to_custom: Callable[[Any], CustomT]
    leased: bool = field(init=False)
    """Whether objects of the custom type are :class:`Leased`."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, 'leased', all(hasattr(self.custom_type, name) for name in _LEASED_METHODS)
        )

    def deliver(self, item: CustomT, holder: str) -> CustomT | None:
        """For links: return ``item.deliver(holder)`` if the type is leased, otherwise *item*."""
        return item.deliver(holder) if self.leased else item  # type: ignore[attr-defined]

    def release(self, item: CustomT) -> None:
        """For links: release an object that no subscriber gets."""
        if self.leased:
            item.release()  # type: ignore[attr-defined]

    def end(self, item: CustomT) -> BufferError | None:
        """
        For links: release an object after a subscriber's callback.

        If the subscriber kept a view of the object's memory, return the BufferError. The object
        is then released when its last view ends, if its type has ``release_when_unseen``.
        """
        try:
            self.release(item)
        except BufferError as error:
            end_later = getattr(item, 'release_when_unseen', None)
            if end_later is not None:
                end_later()
            return error
        return None
