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
REP 2007 type adaptation for rclpy: the vocabulary of rclcpp's ``TypeAdapter``.

An adapted object goes by one of two rules. A *leased* type (:class:`Leased`;
:class:`~zc_perception.frame.Frame` is one) gives every subscriber a lease of its own, which ends
with the callback unless that shares it. An object of any other type is handed over as it is, one
object for all, like the shared pointer to const of rclcpp: it must not change after publishing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

CustomT = TypeVar('CustomT')
_LEASED_METHODS = ('deliver', 'lend', 'borrowed', 'release', 'released')


class Leased(Protocol):
    """What a custom type offers if its objects hold something that has to be given back."""

    @property
    def released(self) -> bool:
        """Whether the object was given back."""

    @property
    def borrowed(self) -> bool:
        """Whether it ends with the callback."""

    def deliver(self, holder: str) -> Any | None:
        """
        Return another object over the same thing with a lease of its own.

        ``None`` when *holder* is at its quota.
        """

    def lend(self) -> None:
        """Mark it as ending with the callback that it is handed to."""

    def release(self) -> None:
        """
        Give it back.

        :raises BufferError: a view of its memory still exists. Then it has to end by itself;
            ``release_when_unseen`` is called if the type has that.
        """


@dataclass(frozen=True)
class TypeAdapter(Generic[CustomT]):
    """
    Says how objects of a type of yours become ROS messages and come back.

    ::

        from std_msgs.msg import String
        from zc_perception import TypeAdapter

        TEXT = TypeAdapter( str, String, to_ros=lambda text: String(data=text), to_custom=lambda
            message: message.data
        )

    The topic's type is always the ROS type, as in REP 2007. Within a process objects pass as they
    are, and nothing is converted.

    **Owner.** All subscribers in a process get the very same object, so it must not change after
    it was published. A type that has the methods of :class:`Leased`, as :class:`Frame` has, gives
    each subscriber a lease of its own instead. If a callback keeps a view of the memory,
    ``release`` raises BufferError and is not called again. A type whose views may be kept has the
    method ``release_when_unseen`` too, which is called then.

    **Threads.** A publisher calls *to_ros* on a thread of its own. A subscription calls
    *to_custom* on its node's executor. A publisher that gets a ROS message calls *to_custom* in
    ``publish``.

    **Errors.** What these two functions raise is logged and counted in ``statistics()``, and the
    object is dropped. What *to_custom* raises within ``publish`` goes to the caller.

    :param custom_type: the type that your publishers and subscriptions handle.
    :param ros_type: the message type of the topic.
    :param to_ros: makes a message of an object. It is called once for an object, and only while
        there is a reader of messages. It may return the same message each time, with new values.
    :param to_custom: makes an object of a message. It is called only while a publisher has no
        direct link to here.
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
        """
        Return for links what *holder* gets, a lease of its own or the very object.

        ``None``: it is at its quota.
        """
        return item.deliver(holder) if self.leased else item  # type: ignore[attr-defined]

    def release(self, item: CustomT) -> None:
        """End for links an object that no subscriber will get."""
        if self.leased:
            item.release()  # type: ignore[attr-defined]

    def end(self, item: CustomT) -> BufferError | None:
        """
        End for links an object that a subscriber had.

        If a view of its memory was kept, say so; then it ends with the last view, if its type can
        do that (``release_when_unseen``, as frames can).
        """
        try:
            self.release(item)
        except BufferError as error:
            end_later = getattr(item, 'release_when_unseen', None)
            if end_later is not None:
                end_later()
            return error
        return None
