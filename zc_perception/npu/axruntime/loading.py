"""Putting a model on the device in the best way that works: which tensors are dma-bufs is found out by trial runs.

Sources disagree on ``output_dmabuf``: the SDK's documentation recommends it, others met errors with it (``facts``: nv12_axelera). So it is
tried before the first frame, and left out where it fails.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from zc_perception.errors import AcceleratorError, AllocationError, ConfigError, DeviceLostError, ZcError
from zc_perception.memory.heaps import Heap
from zc_perception.npu.axruntime.calls import RuntimeCalls
from zc_perception.npu.axruntime.session import InstanceOptions, OpenModel
from zc_perception.npu.axruntime.tensors import InputSlot, OutputSlot, Tensor
from zc_perception.npu.constraints import LATE_CALLS
from zc_perception.npu.manifest import TensorSpec


def why_no_heap(name: str, error: AllocationError) -> str:
    """What to say of a dma-heap that can't be used: which node it is, and what it needs."""
    node = f'/dev/{name}'
    match error.__cause__:
        case FileNotFoundError():
            return f'there is no {node}; enable CONFIG_DMABUF_HEAPS_SYSTEM in the kernel, and give a container the node (--device {node})'
        case PermissionError() as refusal:
            rights = f'let its group read it in a udev rule and add the user to that group, and give a container the node (--device {node})'
            return f"{node} can't be used: {refusal.strerror}; {rights}"
    return f"{node} can't be used: {error}"


@dataclass(frozen=True)
class LoadPlan:
    """What is to be loaded, and how.

    :param heap: where dma-bufs for tensors come from; ``None``: nowhere, because of ``no_heap``.
    :param output_dmabuf: ``auto``, ``true`` or ``false``.
    :param jobs: how many are in flight at most.
    :param named: the manifest's outputs; empty: the runtime's own description counts.
    """

    model: OpenModel
    input: Tensor
    outputs: Sequence[Tensor]
    named: Sequence[TensorSpec]
    options: InstanceOptions
    heap: Heap | None
    no_heap: str
    output_dmabuf: str
    jobs: int

    @property
    def late(self) -> int:
        """How many calls later a result comes."""
        return LATE_CALLS if self.options.double_buffer else 0

    def attempts(self) -> list[tuple[bool, bool]]:
        """Input and output in dma-bufs or not, the best first.

        :raises ConfigError: dma-bufs are wanted, and there are none.
        """
        if self.heap is None:
            if self.output_dmabuf == 'true':
                raise ConfigError(f'output_dmabuf: true needs a dma-heap: {self.no_heap}; or set output_dmabuf to auto')
            return [(False, False)]
        return {
            'auto': [(True, True), (True, False), (False, False)],
            'true': [(True, True)],
            'false': [(True, False), (False, False)],
        }[self.output_dmabuf]


class LoadedModel:
    """An instance on the device, with the memory of its tensors: an input and an output slot for each job that may be open.

    :raises ZcError: this way doesn't work.
    """

    def __init__(self, plan: LoadPlan, options: InstanceOptions) -> None:
        self._plan = plan
        self.options = options
        self.late = plan.late
        self.notices: tuple[str, ...] = ()
        self.inputs: list[InputSlot] = []
        self.outputs: list[OutputSlot] = []
        try:
            for _ in range(plan.jobs):
                self.inputs.append(InputSlot(plan.input, plan.heap if options.input_dmabuf else None))
                self.outputs.append(OutputSlot(plan.outputs, plan.named, plan.heap if options.output_dmabuf else None))
            self.calls = RuntimeCalls(plan.model.load_instance(options), plan.late)
            self._try()
        except BaseException:
            self.close()
            raise

    def _try(self) -> None:
        """Once through with an empty tensor, so that a way that doesn't work fails now."""
        for _ in range(self.late + 1):
            self.calls.run(None, self.inputs[0], self.outputs[0])

    def reload(self) -> None:
        """A new instance in place of one that nobody trusts any more.

        :raises ZcError: the device doesn't take it.
        """
        self.calls.restart(self._plan.model.load_instance(self.options))

    def close(self, *, lent: Collection[OutputSlot] = ()) -> None:
        """Take it off the device, then give its tensors' memory back, but for results that are *lent*."""
        self._plan.model.close_instance()
        for filled in self.inputs:
            filled.close()
        for results in self.outputs:
            if results not in lent:
                results.close()


def load_best(plan: LoadPlan) -> LoadedModel:
    """The first of the plan's attempts that works, with a notice for each better one that didn't.

    :raises ConfigError: the runtime refuses the model or an option.
    :raises AcceleratorError: the device can't take it.
    """
    notices = []
    if plan.heap is None:
        notices.append(f'tensors are in host memory, which the runtime copies, because no dma-heap can be used: {plan.no_heap}')
    attempts = plan.attempts()
    refused = {(True, True): 'output_dmabuf: results go to host memory', (True, False): 'input_dmabuf: tensors are in host memory'}
    for attempt in attempts:
        options = replace(plan.options, input_dmabuf=attempt[0], output_dmabuf=attempt[1])
        try:
            loaded = LoadedModel(plan, options)
        except DeviceLostError:
            raise
        except ZcError as error:
            if attempt == attempts[-1]:
                if plan.output_dmabuf == 'true':
                    kind = ConfigError if isinstance(error, ConfigError) else AcceleratorError
                    raise kind(f'output_dmabuf: true does not work here; set output_dmabuf to auto ({error})') from error
                raise
            notices.append(f'the runtime refused {refused[attempt]}, which it copies ({error})')
            continue
        if plan.late:
            notices.append(f'double_buffer: each result comes {plan.late} frames late; set it to false where latency counts more')
        loaded.notices = tuple(notices)
        return loaded
    raise AssertionError('unreachable: the last attempt returns or raises')
