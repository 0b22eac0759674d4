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
Hide the differences between rclpy versions (Humble to Rolling), and help to write CDR bytes.

No other file depends on the version of rclpy.

Publishing a message as bytes takes a quarter of the time of publishing a message object, because
rclpy reads the object field by field. The bytes are CDR in the wire format of XCDR1,
little-endian. Alignment is relative to the end of the four bytes of encapsulation. Before a
publisher uses bytes, :func:`understood` tests whether this middleware and this version of the
message's package read them correctly.
Source: OMG DDS-XTypes 1.3, 7.4.1 (XCDR1) and DDSI-RTPS 2.5, 10.2 (encapsulation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
import contextlib
import copy
import importlib.util
import inspect
import struct
import threading
from typing import Any
import weakref

from rcl_interfaces.msg import SetParametersResult
import rclpy
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import Executor
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.lifecycle import LifecycleNodeMixin
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSPolicyKind, QoSProfile
from rclpy.qos_overriding_options import _declare_qos_parameters, QoSOverridingOptions
from rclpy.serialization import deserialize_message
from rclpy.task import Future
from rclpy.topic_endpoint_info import TopicEndpointInfo

from zc_perception.errors import one_line, printable

try:
    from rclpy.exceptions import InvalidHandle
except ImportError:  # rclpy before Jazzy defines the class in another module
    from rclpy.handle import InvalidHandle

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # rclpy of Humble defines the class in another module
    from rclpy.qos_event import SubscriptionEventCallbacks

# Exceptions that rclpy raises after a shutdown, when executors have no guard condition any more
# and the nodes' handles are destroyed.
_GONE = (InvalidHandle, AttributeError, RuntimeError)
_TYPE_DESCRIPTION = 'start_type_description_service'


def refuses_guard_conditions(executor: Executor | None) -> bool:
    """
    Say whether an executor refuses guard conditions, as EventsExecutor does.

    EventsExecutor (``rclpy.experimental``) raises an error for a guard condition; wake the
    executor by ``create_task`` instead.
    """
    return executor is not None and type(executor).__name__ == 'EventsExecutor'


def call_soon(executor: Executor, function: Callable[[], object]) -> None:
    """
    Run *function* on the executor's thread; don't run it if the executor is shutting down.

    Any thread may call this. If *function* is a method, its object is referenced only weakly,
    because the executor keeps finished tasks until it wakes up the next time.
    """
    if inspect.ismethod(function):
        method = weakref.WeakMethod(function)
        function = lambda: (found := method()) and found()  # noqa: E731
    with contextlib.suppress(*_GONE):
        executor.create_task(function)


def wake_up(executor: Executor) -> None:
    """
    Wake the executor, so that it continues its coroutines. Any thread may call this.

    An executor that waits doesn't notice when the result for a coroutine is ready.
    """
    call_soon(executor, lambda: None)


def trigger(guard: Any) -> None:
    """Trigger a guard condition that may be destroyed at the same time."""
    try:  # noqa: SIM105  # runs for every frame; contextlib.suppress is slower
        guard.trigger()
    except InvalidHandle:
        pass


def _says_shut_down(error: RuntimeError) -> bool:
    """Say whether an RCLError means that ROS was shut down, which a signal can do at any time."""
    return 'context is invalid' in str(error)


def subscription_count(publisher: Any) -> int:
    """
    Return the number of a publisher's readers; 0 after the publisher or ROS has ended.

    This is called for every frame, so it doesn't use the publisher's own method, which takes six
    times as long because it protects the handle. No protection is needed: the call holds the
    interpreter's lock, so no other thread can destroy the publisher during the call.
    """
    try:
        return int(publisher.handle.get_subscription_count())
    except InvalidHandle:
        return 0
    except RuntimeError as error:
        if not _says_shut_down(error) and 'pointer is invalid' not in str(error):
            raise
        return 0


def publisher_count(node: Node, topic: str) -> int:
    """
    Return the number of publishers of a topic, given by its full name.

    The node's own method takes several times as long, because it resolves the name first.
    """
    with node.handle:
        return int(node.handle.get_count_publishers(topic))


def publishers_of(node: Node, topic: str) -> list[TopicEndpointInfo]:
    """
    Return information about the publishers of a topic, given by its full name.

    The node's own method remaps the name first. But a full name is already the result of the
    node's remaps. If the remaps exchange two topics, the method would look up the other topic.
    """
    with node.handle:
        found = _rclpy.rclpy_get_publishers_info_by_topic(node.handle, topic, False)
    return [TopicEndpointInfo(**each) for each in found]


def name_before_remaps(node: Node, topic: str) -> str:
    """
    Return a name that the node's remaps turn into *topic*, a full name.

    rclpy remaps every name that it gets, also a full name that is already the result of a remap.
    If the remaps exchange two topics, the returned name is the other topic's name. If the remaps
    turn no name into *topic*, return *topic*, which rclpy then remaps.
    """
    name, seen = topic, {topic}
    while (remapped := node.resolve_topic_name(name)) != topic:
        if remapped in seen:
            return topic
        seen.add(remapped)
        name = remapped
    return name


def publish(publisher: Any, message: Any) -> None:
    """Publish *message*, unless the publisher is destroyed or ROS is shut down."""
    try:
        publisher.publish(message)
    except InvalidHandle:
        pass
    except RuntimeError as error:
        if not _says_shut_down(error):
            raise


def understood(
    ros_type: type[Any],
    samples: Iterable[Any],
    write: Callable[..., bytes],
    make: Callable[..., Any],
) -> bool:
    """
    Say whether the middleware can read the bytes that *write* makes of each sample.

    Each message that the middleware reads must equal the one that *make* makes of the same sample.
    """
    try:
        return all(
            deserialize_message(write(*sample), ros_type) == make(*sample) for sample in samples
        )
    except Exception:  # each middleware raises its own kinds of error
        return False


def create_reader(
    node: Node,
    ros_type: type[Any],
    topic: str,
    callback: Callable[..., Any],
    qos: QoSProfile,
    **options: Any,
) -> Any:
    """
    Make a subscription that any thread may destroy, even while its node is spun.

    By default, a subscription of rclpy has an event handler. If that handler is destroyed just
    after an executor has collected its wait set, the executor raises InvalidHandle, and ``spin``
    ends. So this subscription has no event handler.
    """
    quiet = SubscriptionEventCallbacks(use_default_callbacks=False)
    return node.create_subscription(
        ros_type, topic, callback, qos, event_callbacks=quiet, **options
    )


def when_destroyed(entity: Any, call: Callable[[], object]) -> None:
    """Run *call* after rclpy destroyed the publisher or subscription *entity*, or its node."""

    def destroyed() -> None:
        # The entity and this function refer to each other. ``del`` ends this cycle, so that both
        # are freed without the garbage collector.
        del entity.destroy
        entity.destroy()
        call()

    entity.destroy = destroyed


def bytes_of(field: Any) -> Any:
    """
    Return a message's ``uint8[]`` field in the CPU's memory, so that NumPy can read it.

    An ``array.array`` is returned as it is. From Lyrical on, the field may be a
    ``rosidl_buffer.Buffer``, if a reader of the topic asks for memory of a vendor's backend. A
    Buffer is copied, because it has no buffer protocol and its bytes may be in a device's memory.
    """
    return field.to_array() if hasattr(field, 'backend_type') else field


def parameter_overrides(node: Node) -> dict[str, Any]:
    """
    Return the parameters that the command line and YAML files set for *node*.

    :raises RuntimeError: this version of rclpy has no attribute ``Node._parameter_overrides``.
        Without this error, parameter files would be ignored silently.
    """
    try:
        return dict(node._parameter_overrides)
    except AttributeError:
        raise RuntimeError(_unknown_rclpy('Node._parameter_overrides')) from None


def _unknown_rclpy(name: str) -> str:
    return (
        f"this rclpy has no '{name}', which zc_perception needs: use ROS 2 Humble to "
        'Kilted, or a newer release of zc_perception'
    )


def send_through(service: Any, sent: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """
    Put *sent* in place of a service's function that sends responses; return the old function.

    An executor then calls *sent* with each response and its header. From Lyrical on (rclpy 10), a
    service has ``send_response`` and ``_send_response``. As no document says which of them an
    executor calls, *sent* replaces both.

    :raises RuntimeError: the service has neither method.
    """
    names = [name for name in ('_send_response', 'send_response') if hasattr(service, name)]
    if not names:
        raise RuntimeError(_unknown_rclpy('Service.send_response'))
    send: Callable[[Any, Any], None] = getattr(service, names[0])
    for name in names:
        setattr(service, name, sent)
    return send


def guard_parameter_services(node: Node) -> None:
    """
    Make parameter services refuse requests that rclpy can't read, such as an unknown value type.

    Otherwise, the exception that rclpy raises for such a request would end the executor.
    """
    for service in node.services:
        if service.srv_name.rpartition('/')[2] in ('set_parameters', 'set_parameters_atomically'):
            service.callback = _refusing(service.callback)


def _refusing(callback: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def guarded(request: Any, response: Any) -> Any:
        try:
            return callback(request, response)
        except Exception as error:
            reason = (
                "a parameter can't be read, so it and the parameters after it aren't set: "
                f'{one_line(error)}'
            )
            refused = SetParametersResult(successful=False, reason=reason)
            if hasattr(response, 'result'):
                response.result = refused
            else:
                response.results = [
                    *response.results,
                    *[refused] * (len(request.parameters) - len(response.results)),
                ]
            return response

    return guarded


def init_without_signal_handlers(context: rclpy.Context, args: list[str] | None) -> None:
    """Initialise *context* without rclpy's signal handlers; the program handles signals itself."""
    rclpy.init(
        args=args, context=context, signal_handler_options=rclpy.signals.SignalHandlerOptions.NO
    )


def begin_lifecycle(node: Any, lock: threading.RLock, refused: Callable[[str], object]) -> None:
    """
    Give a :class:`rclpy.lifecycle.LifecycleNodeMixin` its state machine and standard services.

    A transition that a client of ``change_state`` requests runs on its own thread, with *lock*
    held. So the executor serves other callbacks during the transition, ``get_state`` included. But
    an EventsExecutor runs the transition itself, because it doesn't resume waiting coroutines.

    :param refused: called with the reason when the current state doesn't have the requested
        transition, and with an empty text when a transition failed. rclpy itself logs nothing if a
        transition's label is unknown, and raises an error, which would end the executor, if a
        transition's id is unknown.
    """
    LifecycleNodeMixin.__init__(node, callback_group=ReentrantCallbackGroup())
    machine = node._state_machine
    for name in (
        'get_state',
        'get_available_states',
        'get_available_transitions',
        'get_transition_graph',
    ):
        asked = getattr(node, f'_service_{name}', None)  # Humble offers no get_transition_graph
        if asked is not None:
            asked.callback = _while_there(machine, asked.callback)
    service = node._service_change_state
    change_state = service.callback

    def change(request: Any, response: Any) -> None:
        label = request.transition.label
        try:
            with lock, machine:
                there = [transition[1] for transition in machine.available_transitions]
                if label and label not in there:
                    response.success = False
                    refused(
                        f"there is no transition '{printable(label)}' from this state; possible: "
                        f'{", ".join(there) or "none"}'
                    )
                    return
                change_state(request, response)
                if not response.success:
                    refused('')
        except Exception as error:
            response.success = False
            refused(f'this state has no such transition ({" ".join(str(error).split())})')

    async def serve(request: Any, response: Any) -> Any:
        executor = node.executor
        if refuses_guard_conditions(executor):
            change(request, response)
            return response
        done = Future(executor=executor)

        def run() -> None:
            change(request, response)
            done.set_result(True)
            wake_up(executor)

        threading.Thread(target=run, name=f'transition of {node.get_name()}', daemon=True).start()
        await done
        return response

    def answer(response: Any, header: Any) -> None:
        with contextlib.suppress(*_GONE):  # the node may be destroyed during the transition
            send(response, header)

    service.callback = serve
    send = send_through(service, answer)


def _while_there(machine: Any, callback: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Make *callback* do nothing once *machine* is destroyed; a call would crash Python."""

    def guarded(request: Any, response: Any) -> Any:
        with contextlib.suppress(InvalidHandle), machine:
            return callback(request, response)
        return response

    return guarded


def lifecycle_state(node: Any) -> str:
    """Return the label of the node's state; ``finalized`` if its state machine was destroyed."""
    try:
        machine = node._state_machine
        with machine:
            return str(machine.current_state[1])
    except _GONE:
        return 'finalized'


def end_lifecycle(node: Any) -> None:
    """Destroy the publisher and services of the state machine, if the node has one. Idempotent."""
    with contextlib.suppress(*_GONE):
        node._state_machine.destroy_when_not_in_use()


def declare_qos_overrides(node: Node, kind: type[Any], topic: str, qos: QoSProfile) -> None:
    """
    Declare ``qos_overrides.TOPIC.(publisher|subscription).*`` and copy the user's values to *qos*.

    rclpy does both only when it creates an endpoint with :class:`QoSOverridingOptions`. This
    function can be called earlier, for endpoints that are created later or several times.

    :param kind: ``Publisher`` or ``Subscription``.
    :raises Exception: a value that is not allowed; rclpy has several exception classes for this.
    """
    policies = (
        QoSPolicyKind.HISTORY,
        QoSPolicyKind.DEPTH,
        QoSPolicyKind.RELIABILITY,
        QoSPolicyKind.DURABILITY,
    )
    prefix, given = f'qos_overrides.{topic}.{kind.__name__.lower()}.', parameter_overrides(node)
    overridden = [policy for policy in policies if prefix + policy.name.lower() in given]
    _declare_qos_parameters(kind, node, topic, qos, QoSOverridingOptions(overridden))
    # Declare the policies without a user's value as well, so that tools show them. This call
    # writes the parameters' values into the QoS that it gets. If an earlier endpoint of this topic
    # declared the parameters, their values are that endpoint's defaults, which may differ from the
    # defaults in *qos*. So pass a copy of *qos*.
    shown = [policy for policy in policies if policy not in overridden]
    _declare_qos_parameters(kind, node, topic, copy.copy(qos), QoSOverridingOptions(shown))


ResponseSender = Callable[[Any], None]


def answer_later(service: Any, take: Callable[[Any, ResponseSender], None]) -> None:
    """
    Let a service's requests be answered from any thread at any time.

    rclpy sends the response that the service's callback returns. A callback that waits would block
    the executor, and a coroutine that waits would keep the executor in a busy loop. So this
    function replaces the service's ``send_response``, and *take* decides when to send. An executor
    that doesn't call ``send_response`` sends the response as the callback returned it.

    :param take: called with each response, which it fills, and with the function that sends the
        response; runs on the executor, right after the service's callback.
    """

    def sent(response: Any, header: Any) -> None:
        def answer(filled: Any) -> None:
            with contextlib.suppress(*_GONE):  # the node may be destroyed before the answer
                send(filled, header)

        take(response, answer)

    send = send_through(service, sent)


def has_logger_service() -> bool:
    """Say whether nodes can offer a service for their log level; they can't in Humble."""
    return 'enable_logger_service' in inspect.signature(Node.__init__).parameters


def without_type_description(given: list[Parameter]) -> list[Parameter]:
    """
    Return *given* and a parameter that switches off the node's type description service.

    rclpy never finalises this service (seen in Jazzy and Kilted): after a node was destroyed, the
    service stays in the graph, with 100 KiB of memory, as long as the process has another node. If
    *given* has that parameter already, or rclpy has no such service (Humble), return *given*.
    """
    if importlib.util.find_spec('rclpy.type_description_service') is None or any(
        p.name == _TYPE_DESCRIPTION for p in given
    ):
        return given
    return [*given, Parameter(_TYPE_DESCRIPTION, value=False)]


ENCAPSULATION = b'\0\1\0\0'
STAMP = struct.Struct('<iI')
COUNT = struct.Struct('<I')


def cdr_string(text: str) -> bytes:
    """Return *text* as a CDR string; the caller puts it at an offset that is a multiple of 4."""
    encoded = text.encode(errors='replace') + b'\0'
    return COUNT.pack(len(encoded)) + encoded
