"""Who holds a camera's frames besides it, as its negotiation is going to hear of them: the inference node beside it, and stand-ins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from zc_perception.doctor.metis_checks import numbers_of
from zc_perception.doctor.needs import CameraNeed, InferenceNeed, Needs
from zc_perception.doctor.system import System
from zc_perception.errors import ZcError
from zc_perception.negotiation.constraints import NO_CPU, BufferConstraints
from zc_perception.npu.axl.device import AxlCapabilities
from zc_perception.npu.constraints import (
    AXRUNTIME_JOBS,
    AXRUNTIME_JOBS_DOUBLE_BUFFERED,
    CPU_JOBS,
    axruntime_constraints,
    cpu_constraints,
    with_frames,
)
from zc_perception.npu.metis_card import MetisCard, choose_card, read_iommu


def _namespace(node: str) -> str:
    return node.rpartition('/')[0]


def _beside(needs: Needs, camera: CameraNeed) -> list[InferenceNeed]:
    """The inference nodes of the camera's namespace. One that is in no camera's stands for those that each camera is going to have."""
    own = [inference for inference in needs.inferences if _namespace(inference.node) == _namespace(camera.node)]
    spaces = {_namespace(one.node) for one in needs.cameras}
    return own or [inference for inference in needs.inferences if _namespace(inference.node) not in spaces]


def _card(system: System, needs: Needs, inference: InferenceNeed) -> tuple[MetisCard, AxlCapabilities] | None:
    """The card that accelerator axl would take, and what its driver says; ``None``: it can't be asked, or has no ioctls for frames."""
    with suppress(ZcError):
        card = choose_card(inference.accelerator_device, system.host)
        device = system.open_card(card.path, numbers_of(needs), system.host)
        try:
            answer = device.query()
        finally:
            device.close()
        return (card, answer) if answer.level else None
    return None


def _of_accelerator(system: System, needs: Needs, inference: InferenceNeed) -> BufferConstraints:
    if inference.accelerator in ('axl', 'auto') and (found := _card(system, needs, inference)):
        card, capabilities = found
        iommu = read_iommu(card.pci_address, system.host)
        return with_frames(capabilities.constraints(card.path, iommu), inference.in_flight, capabilities.jobs)
    if inference.accelerator == 'axl':  # who looks for the card complains; it holds its frames all the same
        return BufferConstraints('axl', slots=inference.in_flight + 1)
    jobs = AXRUNTIME_JOBS_DOUBLE_BUFFERED if inference.double_buffer else AXRUNTIME_JOBS
    if inference.accelerator == 'cpu':
        return with_frames(cpu_constraints(), inference.in_flight, CPU_JOBS)
    return with_frames(axruntime_constraints(), inference.in_flight, jobs)


def accelerators(system: System, needs: Needs, camera: CameraNeed) -> list[BufferConstraints]:
    """Of the inference nodes that share the camera's process, as ``perception`` and the launch files start them.

    :raises NegotiationError: a number of frames that no pool has.
    """
    return [_of_accelerator(system, needs, inference) for inference in _beside(needs, camera)]


def counting_only(constraints: BufferConstraints) -> BufferConstraints:
    """What is left where formats and memory aren't known, or are another check's: slots, alignments and sizes."""
    return replace(
        constraints, formats=None, costs=None, placement=None, heaps=None, contiguous=False, devices=(), cpu_access=NO_CPU,
    )  # fmt: skip


def anywhere(constraints: BufferConstraints) -> BufferConstraints:
    """Without its wishes for memory, where it isn't known which there will be."""
    return replace(constraints, heaps=None, contiguous=False, devices=())
