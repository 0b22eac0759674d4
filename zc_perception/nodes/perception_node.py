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
Base class of the package's nodes: parameters, and the states of a managed (lifecycle) node.

Opening a camera, loading a model or joining a thread can take seconds. So transitions that
other processes request (``ros2 lifecycle``, a manager) run one at a time on a separate thread,
and the executor goes on serving the other nodes and ``get_state``. Transitions that the program
itself makes run in the calling thread, so that a user's mistake ends the program with one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import threading
from typing import Any, ClassVar
import weakref

from rcl_interfaces.msg import SetParametersResult
from rclpy.context import Context
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.parameter import Parameter

from zc_perception.errors import ConfigError, one_line, ZcError
from zc_perception.link.rclpy_compat import (
    begin_lifecycle,
    end_lifecycle,
    guard_parameter_services,
    InvalidHandle,
    lifecycle_state,
)
from zc_perception.log import ONCE, Seldom
from zc_perception.memory.ledger import CopyLedger
from zc_perception.nodes.declarations import NodeSpecs
from zc_perception.nodes.params.node_parameters import begin_node, NodeParameters
from zc_perception.nodes.params.qos_overrides import Endpoint
from zc_perception.observe.diagnostics import (
    DiagnosticsPublisher,
    ERROR,
    OK,
    Part,
    Row,
    Status,
    WARN,
)

PATIENCE_S = 15.0
"""
Seconds without progress after which an executor or a node counts as hanging.

A node may have a longer limit, see :attr:`PerceptionNode.patience_s`.
"""
UNCONFIGURED, INACTIVE, ACTIVE, FINALIZED = 'unconfigured', 'inactive', 'active', 'finalized'
LIFECYCLE = Part(
    'lifecycle',
    Row(lambda s: s.state == ACTIVE, OK, 'active'),
    Row(
        lambda s: s.failure,
        ERROR,
        '{state}: {failure}',
        'correct that, then: ros2 lifecycle set {node} configure',
        'the state, which transition failed, and why',
        'see [launch_and_lifecycle](launch_and_lifecycle.md)',
    ),
    Row(lambda s: s.stopped, OK, 'the node has ended'),
    Row(
        lambda s: s.state == FINALIZED,
        WARN,
        'the node was shut down',
        '{step}',
        see='restart the node',
    ),
    Row(
        lambda s: True,
        WARN,
        '{state}: no frames flow',
        '{step}',
        see=('`ros2 lifecycle set NODE` with the transition that NODE needs'),
    ),
    well='',
)


class _WholeOrNothing(type):
    """Metaclass: if a node's constructor fails, remove the node from the ROS graph."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        node = cls.__new__(cls)
        try:
            node.__init__(*args, **options)
        except BaseException as error:
            if (ends := getattr(node, '_ends', None)) is not None:
                ends.close()
            if (diagnostics := getattr(node, '_diagnostics', None)) is not None:
                diagnostics.stop()
            # AttributeError: rclpy's constructor failed, so the node lacks attributes;
            # InvalidHandle: the node is destroyed already.
            with contextlib.suppress(AttributeError, InvalidHandle):
                end_lifecycle(node)
                Node.destroy_node(node)
            if 'incompatible type' in str(error):  # rclpy has no class of its own for this error
                raise ConfigError(
                    'a remap gives one name to two topics of this process that have different '
                    f'types: {one_line(error)}'
                ) from error
            raise
        return node


_LEDGERS: weakref.WeakKeyDictionary[Context, CopyLedger] = weakref.WeakKeyDictionary()
_LEDGERS_LOCK = threading.Lock()


def process_ledger(context: Context) -> CopyLedger:
    """Return a ROS context's ledger; a ledger counts the bytes of pixels that the CPU touches."""
    with _LEDGERS_LOCK:
        ledger = _LEDGERS.get(context)
        if ledger is None:
            ledger = _LEDGERS[context] = CopyLedger()
        return ledger


class PerceptionNode(LifecycleNodeMixin, Node, metaclass=_WholeOrNothing):
    """
    A managed node with declared parameters.

    A subclass overrides :meth:`_open`, :meth:`_agree`, :meth:`_activate`, :meth:`_deactivate` and
    :meth:`_cleanup`, and calls :meth:`_begin` at the end of its constructor. Publishers and
    subscriptions that cost nothing while no frames flow may live as long as the node. Functions
    that a subclass adds to :attr:`_ends` run after :meth:`stop`, or when the constructor fails.

    :param ledger: counts the bytes of pixels that the CPU touches; ``None``: use the context's
        ledger.
    :param node_options: arguments of ``rclpy.node.Node``.
    """

    SPECS: NodeSpecs = NodeSpecs()
    PREFIXES: Sequence[str] = ()
    """Prefixes of parameters that are declared later; each ends in a dot."""
    CHECKS: ClassVar[Mapping[str, Callable[[Any], object]]] = {}
    """
    For some parameters, a function that raises ConfigError for a value that can't work.

    The function gets only values that the parameter's declaration allows, and opens no device.
    """
    ENDPOINTS: Sequence[Endpoint] = ()
    """The publishers and subscriptions whose QoS can be overridden by parameters."""

    def __init__(
        self, name: str, *, ledger: CopyLedger | None = None, **node_options: Any
    ) -> None:
        begin_node(self, name, **node_options)
        self.kind = name
        """The node's default name, such as ``capture``; it stays when the node is renamed."""
        self.ledger = ledger or process_ledger(self.context)
        self._ends = contextlib.ExitStack()
        self._opened = False
        self._flowing = False
        self._stopped = False
        self._error: Exception | SystemExit | None = None
        self._failure = ''
        self._stirred = 0
        self._warn_once = Seldom(lambda text: self.get_logger().warning(text), ONCE)
        self._err_once = Seldom(lambda text: self.get_logger().error(text), ONCE)
        self._diagnostics: DiagnosticsPublisher | None = None
        # Held during a transition: a thread that stops the node waits for the transition's end.
        self._transitions = threading.RLock()
        self.parameters = NodeParameters(
            self,
            self.SPECS,
            self._on_parameter_stirred,
            self.PREFIXES,
            check=self._check_parameter,
            changeable=self._not_changeable,
        )
        guard_parameter_services(self)
        begin_lifecycle(self, self._transitions, self._on_refused)

    # Methods that a subclass overrides.

    @classmethod
    def check_together(cls, values: Mapping[str, Any], node: str) -> None:
        """
        Raise ConfigError if values contradict each other or name a missing file or model.

        :meth:`_open` refuses the same values. This method opens no device.

        :param values: the values of all parameters, and the ``qos_overrides`` of the parameter
            file.
        :param node: the full name of the node that will get the values.
        """

    def _open(self) -> None:
        """
        Open the devices, files and links that the parameters name: first step of configuring.

        With ``autostart`` the constructor calls this, so that a user's mistake makes the
        constructor fail.

        :raises ZcError: a parameter, file or device can't be used; the caller then calls
            :meth:`_cleanup`.
        """

    def _agree(self) -> None:
        """Agree on buffers with other nodes: the second step of configuring."""

    def _activate(self) -> None:
        """Let frames flow; :attr:`flowing` becomes true afterwards."""

    def _deactivate(self) -> None:
        """
        Stop the flow of frames, free the node's buffers and release its leases; idempotent.

        :attr:`flowing` is false already, so that frames being processed are dropped silently.
        """

    def _cleanup(self) -> None:
        """Free everything that :meth:`_open` and :meth:`_agree` have made so far; idempotent."""

    def _check_parameter(self, name: str, value: Any) -> None:
        """Raise ConfigError for a new value that the declaration allows, but that can't work."""
        if name in self.CHECKS:
            self.CHECKS[name](value)

    def _on_parameter(self, name: str, value: Any) -> None:
        """React to a parameter's new value, after it was set."""

    def _on_parameter_stirred(self, name: str, value: Any) -> None:
        self._on_parameter(name, value)
        self.stir()

    def collect_diagnostics(self) -> Sequence[Status]:
        """Return the node's statuses for diagnostics."""
        return [self.lifecycle_status()]

    def signs(self) -> object:
        """Return a value that changes when a diagnostic level has changed or may soon change."""
        return object()

    def stir(self) -> None:
        """Mark that a diagnostic level may have changed. Any thread may call this."""
        self._stirred += 1

    def _describe(self) -> None:
        """Update the node's description in the frame log; called at most once a second."""

    # The program or container that owns the node uses the following methods.

    @property
    def state(self) -> str:
        """The name of the node's lifecycle state, such as ``active``."""
        return lifecycle_state(self)

    @property
    def flowing(self) -> bool:
        """Whether the node processes frames now; the node reads this for each frame."""
        return self._flowing

    @property
    def finished(self) -> bool:
        """Whether the node's work is done: its video or recording has ended."""
        return False

    def progress(self) -> int | None:
        """Return a growing count of finished work, to detect a hang; ``None``: no work now."""
        return None

    def given_up(self) -> str:
        """Return why only a restart of the node helps; empty: no restart is needed."""
        return ''

    @property
    def patience_s(self) -> float:
        """The node counts as hanging if :meth:`progress` stays the same for this many seconds."""
        return PATIENCE_S

    def lacks(self, what: str) -> AttributeError:
        """Return the error for code that needs *what* while the node isn't configured."""
        return AttributeError(
            f"node '{self.get_name()}' is {self.state}: it has no {what}; configure it"
        )

    def start(self) -> None:
        """
        Configure and activate the node, unless that is done already.

        Without ``autostart`` do nothing: a manager then makes the transitions.

        :raises ZcError: the node can't start; it is unconfigured then.
        """
        if not self.parameters['autostart']:
            return
        self.configure_now()
        with self._transitions:
            if self.state == INACTIVE and not self._stopped:
                self._pass(self.trigger_activate)

    def configure_now(self) -> None:
        """Configure the node in the calling thread, unless that is done already."""
        with self._transitions:
            if self.state == UNCONFIGURED and not self._stopped:
                self._pass(self.trigger_configure)

    def _pass(self, transition: Callable[[], Any]) -> None:
        self._error = None
        if transition() != TransitionCallbackReturn.SUCCESS:
            raise self._error or ConfigError(
                f"node '{self.get_name()}': {self._failure or 'it could not change its state'}"
            )

    def stop(self) -> None:
        """End all work and free everything, within one or two seconds. Idempotent."""
        try:
            with self._transitions:
                if self._stopped:
                    return
                self._stopped = True
                self._end()
                # rclpy raises if the context is shut down already.
                with contextlib.suppress(Exception):
                    if self.state in (UNCONFIGURED, INACTIVE, ACTIVE):
                        self.trigger_shutdown()
        finally:
            self._ends.close()

    def destroy_node(self) -> None:
        """Stop the node, and remove it from the ROS graph."""
        self.stop()
        if self._diagnostics is not None:
            self._diagnostics.stop()
        end_lifecycle(self)
        super().destroy_node()

    # Methods that rclpy calls, and their helpers.

    def _begin(self) -> None:
        """
        Finish the constructor: start diagnostics.

        If the node will configure itself (``autostart``), call :meth:`_open` before diagnostics
        start.
        """
        if self.parameters['autostart']:
            self._open_once()
        self._diagnostics = DiagnosticsPublisher(
            self,
            self.collect_diagnostics,
            before_publishing=self._describe,
            signs=self.signs,
            progress=self.progress,
        )

    def _open_once(self) -> None:
        if self._opened:
            return
        self._opened = True
        try:
            for name, check in self.CHECKS.items():
                check(self.parameters[name])
            before = dict(self.parameters)
            self._open()
            self.parameters.endpoints_declared = True
            # A device that takes long to open may have been opened with values that have changed
            # since then.
            for name, value in self.parameters.items():
                if value != before[name]:
                    self._on_parameter(name, value)
        except BaseException as error:
            self._free()
            if isinstance(error, ConfigError) and not str(error).startswith('node '):
                raise ConfigError(f"node '{self.get_name()}': {error}") from error
            raise

    def _free(self) -> None:
        self._opened = False
        self._cleanup()

    def _end(self) -> None:
        """Free everything that the node holds, in any state."""
        self._flowing = False
        try:
            self._deactivate()
        finally:
            self._free()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Configure the node when rclpy asks; after a user's mistake it stays unconfigured."""
        try:
            self._open_once()
            self._agree()
        except ZcError as error:
            self._note('configure', error)
            self._free()
            return TransitionCallbackReturn.FAILURE
        except (Exception, SystemExit) as error:  # of another package's camera or accelerator
            self._note('configure', error)
            return TransitionCallbackReturn.ERROR
        finally:
            self.stir()
        self._failure = ''
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Activate the node when rclpy asks."""
        return self._step('activate', self._flow)

    def _flow(self) -> None:
        self._activate()
        self._flowing = True

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Deactivate the node when rclpy asks."""
        self._flowing = False
        return self._step('deactivate', self._deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Clean up the node when rclpy asks."""
        return self._step('clean up', self._free)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Shut down the node when rclpy asks."""
        return self._step('shut down', self._end)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything after a failed transition, so that the node can be configured again."""
        try:
            self._end()
        except (Exception, SystemExit) as error:
            self.get_logger().error(f'the node could not close everything: {one_line(error)}')
        finally:
            self.stir()
        return TransitionCallbackReturn.SUCCESS

    def _step(self, name: str, work: Callable[[], None]) -> TransitionCallbackReturn:
        try:
            work()
        except (Exception, SystemExit) as error:
            self._note(name, error)
            return TransitionCallbackReturn.ERROR
        finally:
            self.stir()
        return TransitionCallbackReturn.SUCCESS

    def _note(self, step: str, error: Exception | SystemExit) -> None:
        text = one_line(error)
        self._error, self._failure = error, f'it could not {step}: {text}'

    def _on_refused(self, why: str) -> None:
        self.get_logger().error(f'the node is {self.state}: {why or self._failure}')

    def warn_once(self, sentences: Iterable[str], *, error: bool = False) -> None:
        """Log a warning or an error for each sentence that this node hasn't logged before."""
        for sentence in sentences:
            (self._err_once if error else self._warn_once)(sentence)

    def lifecycle_status(self) -> Status:
        """Report the lifecycle state, the last failed transition, and the next step."""
        state = self.state
        values = {
            'state': state,
            'autostart': self.parameters['autostart'],
            'last_failure': self._failure,
        }
        return LIFECYCLE.status(
            values,
            state=state,
            failure=self._failure,
            stopped=self._stopped,
            node=self.get_fully_qualified_name(),
            step=self.next_step(),
        )

    def next_step(self) -> str:
        """Return the command or advice that leads to the next state."""
        state = self.state
        if self._stopped or state == FINALIZED:
            return 'only a restart of the node helps'
        step = {UNCONFIGURED: 'configure', INACTIVE: 'activate'}.get(state)
        return (
            f'ros2 lifecycle set {self.get_fully_qualified_name()} {step}'
            if step
            else 'wait a moment'
        )

    def _not_changeable(self) -> str:
        """
        Return why parameters that need an unconfigured node can't be set now, and what to do.

        Empty: they can be set.
        """
        state = self.state
        if self._stopped or state == FINALIZED:
            return f'the node is {FINALIZED}: restart it with that value'
        if state == UNCONFIGURED and not self._opened:
            return ''
        name, steps = (
            self.get_fully_qualified_name(),
            {ACTIVE: 'deactivate, then the same with cleanup', INACTIVE: 'cleanup'}.get(state),
        )
        way = (
            f'ros2 lifecycle set {name} {steps}'
            if steps
            else "wait until the node is inactive, then call its transition 'cleanup'"
        )
        now = 'being started' if state == UNCONFIGURED else state
        return (
            f'the node is {now}: set the parameter while the node is unconfigured ({way}), or '
            'restart the node with the new value'
        )

    def set_parameters(self, parameter_list: list[Parameter]) -> list[SetParametersResult]:
        """Set each parameter separately, as rclpy does; give all reasons for each refusal."""
        return [self.set_parameters_atomically([parameter]) for parameter in parameter_list]

    def set_parameters_atomically(self, parameter_list: list[Parameter]) -> SetParametersResult:
        """
        Set all parameters or none, as rclpy does.

        Unlike rclpy, report all reasons for a refusal, not only the first. An integer is accepted
        for a floating-point number, as it is when the node starts. This method never raises for a
        client's request, because an exception would end the executor.
        """
        parameters = getattr(self, 'parameters', None)
        # This node has no `parameters` yet while rclpy's constructor sets rclpy's parameters.
        if parameters is None:
            return super().set_parameters_atomically(parameter_list)
        try:
            converted, reasons = parameters.judged(parameter_list)
            if reasons:
                return SetParametersResult(successful=False, reason='; '.join(reasons))
            return super().set_parameters_atomically(converted)
        except Exception as error:
            text = f'nothing was set: {one_line(error)}; please report this line'
            self.get_logger().error(text)
            return SetParametersResult(successful=False, reason=text)


@contextlib.contextmanager
def all_or_none(nodes: Sequence[PerceptionNode]) -> Iterator[None]:
    """Context manager: if the block raises, destroy *nodes*, also those that the block added."""
    try:
        yield
    except BaseException:
        for node in nodes:
            node.destroy_node()
        raise
