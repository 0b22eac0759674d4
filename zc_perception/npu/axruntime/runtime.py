"""What both interfaces of the Voyager runtime have in common: the vendor's Python binding (``binding``) and its C library (``session``).

A session owns the runtime's context and the device that was chosen. A model that it opens owns one connection to each core that the model
shall run on, and each connection at most one instance, that is, the model on that core. One thread runs an instance, and no other thread
uses its connection: cards were reported to hang when several threads shared one. A connection has as many sub-devices as the model takes
frames at once, which is one: a model of one frame on a connection of four leaves three cores with nothing to do.

Setting up and giving back may happen on the threads of several cores. They take the session's lock, so that the context has one user.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from zc_perception.errors import AcceleratorError
from zc_perception.npu.axruntime.releases import mismatches
from zc_perception.npu.axruntime.tensors import Pack, Tensor
from zc_perception.npu.metis_card import INDEX, card_at, driver_version, place_of

TOOLS = {'lspci': 'pciutils', 'lsmod': 'kmod'}
"""Programs that the runtime calls to look for cards, and the packages that they are in."""
_LAST = (1 << 32, 0, 0, 0)


@dataclass(frozen=True)
class Device:
    """A card's chip, as the runtime names it: ``metis-0:1:0``, or ``metis-0-1-0`` with later drivers.

    :param info: the runtime's own description of it, which it wants back to connect: an address in C, an object in Python.
    """

    name: str
    sub_devices: int
    board: str
    firmware: str
    info: Any
    board_controller: str = ''


@dataclass(frozen=True)
class InstanceOptions:
    """How a model is to run on one connection; the runtime's own names."""

    aipu_cores: int
    num_sub_devices: int
    input_dmabuf: bool
    output_dmabuf: bool
    double_buffer: bool

    def numbers(self) -> dict[str, int]:
        """As both interfaces want them: 0 and 1 for booleans."""
        return {name: int(value) for name, value in vars(self).items()}


class Runner(Protocol):
    """A model on a device."""

    def run(self, inputs: Any, outputs: Any) -> None:
        """One frame; blocks until the device has taken it and given a result. The arguments are what the session's ``pack`` made.

        :raises DeviceLostError: the connection to the device is gone.
        :raises AcceleratorError: the run failed.
        """


class Connection(Protocol):
    """Some of the card's cores, reserved for this process."""

    def load_instance(self, options: InstanceOptions) -> Runner:
        """Put the model on the device; an earlier instance is given back first.

        :raises ConfigError: the runtime refuses the options.
        :raises AcceleratorError: the device can't take it.
        """

    def close_instance(self) -> None:
        """Take the model off the device."""


class OpenedModel(Protocol):
    """A compiled model, and the connections that it will run on."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """As they lie in memory."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """As they lie in memory."""

    @property
    def properties(self) -> Mapping[str, str]:
        """What the compiler says of the model, for diagnostics. Which keys there are is subject to change."""

    @property
    def connections(self) -> Sequence[Connection]:
        """One for each core."""

    @property
    def batch(self) -> int:
        """How many frames it takes at once."""


class Session(Protocol):
    """One interface of the runtime, with a device."""

    @property
    def device(self) -> Device:
        """The one that was chosen."""

    @property
    def pack(self) -> Pack:
        """Makes the arguments of :meth:`Runner.run`."""

    @property
    def release(self) -> str:
        """The runtime's release, such as ``1.8.0``; empty where nobody says."""

    def open_model(self, file: Path, cores: int) -> OpenedModel:
        """Load a compiled model and connect to *cores* cores; the one before is closed.

        :raises ConfigError: the file isn't a compiled model, or its tensors can't be used.
        :raises AcceleratorError: the device is in use or doesn't answer.
        """

    def close_model(self) -> None:
        """Close the open model, if there is one."""

    def facts(self) -> Mapping[str, Any]:
        """For diagnostics."""

    def close(self) -> None:
        """Everything, the context last. A second call does nothing."""


def choose_device(devices: Sequence[Device], wanted: str) -> Device:
    """The device that a parameter means.

    :param wanted: a name as ``axdevice`` lists them, with dashes or colons, or what says the same to the accelerator ``axl``: the card's
        device node, its PCI address, an index in the order of these; empty: the first that the runtime lists.
    :raises AcceleratorError: there is none such; the message says which there are.
    """
    if not wanted:
        return devices[0]
    if INDEX.fullmatch(wanted):
        found = sorted(devices, key=lambda device: place_of(device.name) or _LAST)[int(wanted) :][:1]
    else:
        name = os.path.basename(os.path.realpath(wanted)) if wanted.startswith('/') else wanted
        place = (card_at(wanted).place if wanted.startswith('/') else None) or place_of(name)
        found = [device for device in devices if device.name == name]
        found = found or [device for device in devices if place is not None and place_of(device.name) == place]
    if not found:
        raise AcceleratorError(
            f"could not find device '{wanted}', found {', '.join(device.name for device in devices)}; set accelerator_device to "
            f'one of them, its device node, its PCI address or an index below {len(devices)}, or leave it empty'
        )
    return found[0]


def no_device(text: str, release: str) -> AcceleratorError:
    """The exception for a runtime that sees no card."""
    lines = mismatches(release, driver_version())
    lines += [
        f'the runtime looks for cards with {tool}, which is not here: install package {package} (in a container, in its image)'
        for tool, package in TOOLS.items()
        if shutil.which(tool) is None
    ]
    return AcceleratorError(
        f"the Voyager runtime found no Metis device ({text}): see 'axdevice' and 'lspci -d 1f9d:', load the metis driver, "
        + ''.join(f'{line}; ' for line in lines)
        + 'or use accelerator: cpu'
    )


def in_use(refusal: Exception, device: Device, devices: Sequence[Device]) -> AcceleratorError:
    """The exception for a device whose cores others have."""
    others = [other.name for other in devices if other is not device]
    return AcceleratorError(
        f"{refusal}: 'fuser -v /dev/metis*' says who has it; stop that one, or leave it fewer cores (aipu_cores)"
        + (f', or use another device: {", ".join(others)}' if others else '')
    )
