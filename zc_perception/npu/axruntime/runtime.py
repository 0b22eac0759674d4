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
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

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

    def __str__(self) -> str:
        return ', '.join(f'{name}={number}' for name, number in self.numbers().items())


class Runner(Protocol):
    """A model on a device."""

    def run(self, inputs: Any, outputs: Any) -> None:
        """One frame; blocks until the device has taken it and given a result. The arguments are what the session's ``pack`` made.

        :raises DeviceLostError: the connection to the device is gone.
        :raises AcceleratorError: the run failed.
        """

    def close(self) -> None:
        """Take the model off the device. A second call does nothing."""


class Connection(ABC):
    """Some of the card's cores, reserved for this process.

    :param lock: the session's.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._instance: Runner | None = None

    def load_instance(self, options: InstanceOptions) -> Runner:
        """Put the model on the device; an earlier instance is given back first.

        :raises ConfigError: the runtime refuses the options.
        :raises AcceleratorError: the device can't take it.
        """
        with self._lock:
            self.close_instance()
            self._instance = self._load(options)
            return self._instance

    @abstractmethod
    def _load(self, options: InstanceOptions) -> Runner: ...

    def close_instance(self) -> None:
        """Take the model off the device."""
        with self._lock:
            if self._instance is not None:
                self._instance.close()
                self._instance = None

    def close(self) -> None:
        """Close the instance, then the connection: its cores are free for others. A second call does nothing."""
        self.close_instance()
        self._disconnect()

    @abstractmethod
    def _disconnect(self) -> None: ...


class OpenedModel:
    """A compiled model, and the connections that it will run on.

    :ivar inputs: as they lie in memory.
    :ivar outputs: the same.
    :ivar properties: what the compiler says of the model, for diagnostics. Which keys there are is subject to change.
    :ivar connections: one for each core.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    properties: Mapping[str, str]

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    @property
    def batch(self) -> int:
        """How many frames the model takes at once; as many sub-devices each connection has."""
        return self.inputs[0].shape[0]

    def close(self) -> None:
        """Close the connections; the device is free for others then. A second call does nothing."""
        for connection in self.connections:
            connection.close()


class Session(ABC):
    """One interface of the runtime, with a device. It owns the runtime's context and the model that is open.

    :ivar runtime: the package or library that is used.
    :ivar api_version: what that says of itself, for diagnostics.
    :ivar release: the runtime's release, such as ``1.8.0``; empty where nobody says.
    :ivar devices: what the runtime lists.
    :ivar device: the one that was chosen.
    :ivar lock: taken by whoever sets something up or gives it back.
    """

    interface: ClassVar[str]
    pack: Pack
    """Makes the arguments of :meth:`Runner.run`."""
    runtime: str
    api_version: str
    release: str
    devices: Sequence[Device]
    device: Device

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._model: OpenedModel | None = None

    def open_model(self, file: Path, cores: int) -> OpenedModel:
        """Load a compiled model and connect to *cores* cores; the one before is closed.

        :raises ConfigError: the file isn't a compiled model, or its tensors can't be used.
        :raises AcceleratorError: the device is in use or doesn't answer.
        """
        with self.lock:
            self.close_model()
            self._model = self._open(file, cores)
            return self._model

    @abstractmethod
    def _open(self, file: Path, cores: int) -> OpenedModel: ...

    def close_model(self) -> None:
        """Close the open model, if there is one."""
        with self.lock:
            if self._model is not None:
                self._model.close()
                self._model = None

    def facts(self) -> Mapping[str, Any]:
        """For diagnostics."""
        return {
            'interface': self.interface,
            'runtime': self.runtime,
            'runtime_api': self.api_version,
            'device': self.device.name,
            'board': self.device.board,
            'firmware': self.device.firmware,
            'sub_devices': self.device.sub_devices,
        }

    def close(self) -> None:
        """Close everything, the context last. A second call does nothing."""
        self.close_model()
        self._close_context()

    @abstractmethod
    def _close_context(self) -> None: ...


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
