"""Accelerators: the Metis card (on PCI, driver, node, rights, ioctls, PCIe link, IOMMU), the Voyager SDK's runtime, and the model.

The model is loaded for real, in a process of its own, on the accelerator that the inference node would choose.

Sources: ``Documentation/ABI/testing/sysfs-bus-pci`` and ``sysfs-kernel-iommu_groups``; failure modes of the ZED X → Metis document; Voyager
SDK, *API Reference* of ``axruntime.h`` and installation; ``docs/voyager.md``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from zc_perception.doctor import answers
from zc_perception.doctor.needs import node_need
from zc_perception.errors import ZcError
from zc_perception.machine.finding import Finding, Need, Status, ok, skip, told
from zc_perception.machine.heaps import first_dmabuf, rights_advice
from zc_perception.machine.host_tree import HostTree
from zc_perception.machine.needs import Needs, NodeNeed
from zc_perception.machine.system import DENIED, System
from zc_perception.npu.axl.abi import parse_ioctl_numbers
from zc_perception.npu.axl.device import AxlDevice
from zc_perception.npu.axl.probe import Importable, probe_shipped_attach
from zc_perception.npu.axruntime.releases import mismatches, needs_toolchain
from zc_perception.npu.axruntime.runtime import TOOLS
from zc_perception.npu.metis_card import (
    NEEDED,
    VENDOR,
    LinkRate,
    MetisCard,
    choose_card,
    driver_version,
    find_cards,
    found_cards,
    read_iommu,
    read_link,
)
from zc_perception.shipped_files import shipped_file

_TAKE_A_CARD = ('auto', 'axl', 'axruntime')
_NO_CARD = 'there is no Metis card'
_UNUSED = 'the parameter file uses no Metis card'
_UDEV = 'KERNEL=="metis-*", GROUP="video", MODE="0660"'
_OTHER_DRIVER = 'use accelerator: axruntime (Voyager SDK) or cpu, install a driver with the import ioctls, or give its numbers in axl_ioctls'


def wanted_cards(needs: Needs, tree: HostTree) -> list[MetisCard]:
    """The cards that the inference nodes would take; all of them where nobody says."""
    if not needs.known:
        return find_cards(tree)
    found = []
    for inference in needs.inferences:
        if inference.kind in _TAKE_A_CARD:
            with suppress(ZcError):
                found.append(choose_card(inference['accelerator_device'], tree))
    return list(dict.fromkeys(found))


def numbers_of(needs: Needs) -> Mapping[str, int]:
    """The driver's ioctl numbers that the parameter file gives.

    :raises ConfigError: they can't be understood.
    """
    entries = next(
        (inference['axl_ioctls'] for inference in needs.inferences if inference['axl_ioctls']), ()
    )
    return parse_ioctl_numbers(entries) if entries else {}


def open_card(system: System, needs: Needs, card: MetisCard) -> AxlDevice:
    """A card's node, with the ioctl numbers that the parameter file gives.

    :raises ZcError: it can't be opened.
    """
    return system.opener(AxlDevice)(card.path, numbers_of(needs) or None, tree=system.host)


def card_need(needs: Needs) -> Need:
    """Who needs a Metis card, whatever talks to it."""
    both = (needs.accelerator('axl'), needs.accelerator('axruntime'))
    return next(need for need in Need if need in both)


def _of_each_card(
    look: Callable[[System, Needs, MetisCard], Finding],
) -> Callable[[System, Needs], Iterator[Finding]]:
    """A check that looks at the cards one by one. Without a card it does not apply: only :func:`metis_cards` complains of that."""

    def check(system: System, needs: Needs) -> Iterator[Finding]:
        cards = [] if card_need(needs) is Need.UNUSED else wanted_cards(needs, system.host)
        if not cards:
            yield skip(
                _UNUSED
                if card_need(needs) is Need.UNUSED
                else f'{_NO_CARD} to look at; see metis.cards'
            )
        for card in cards:
            yield look(system, needs, card)

    return check


def _pci_devices(system: System) -> list[tuple[str, str, str]]:
    """Address, device id and driver of everything of the vendor."""
    found = []
    for address in system.names('sys/bus/pci/devices'):
        if system.read('sys/bus/pci/devices', address, 'vendor') == VENDOR:
            driver = system.host.pci(address) / 'driver'
            device = system.read('sys/bus/pci/devices', address, 'device').removeprefix('0x')
            found.append((address, device, driver.resolve().name if driver.exists() else ''))
    return found


def metis_cards(system: System, needs: Needs) -> Iterator[Finding]:
    """PCI devices, with or without a driver and a node; and the card that the parameter file names."""
    need = card_need(needs)
    devices, cards = _pci_devices(system), find_cards(system.host)
    if need is Need.UNUSED:
        yield skip(
            _UNUSED,
            pci=[address for address, _, _ in devices],
            nodes=[card.path for card in cards],
        )
        return
    nodes = {card.pci_address: card for card in cards}
    for address, device, driver in devices:
        figures = {
            'pci_id': f'1f9d:{device}',
            'driver': driver,
            'node': system.shown(nodes[address].path) if address in nodes else '',
        }
        if not driver:
            advice = 'load the driver (modprobe metis) and see dmesg | grep -i -e metis -e axl'
            yield Finding(
                need.missing, f'{address} (1f9d:{device}) has no driver', advice, address, figures
            )
        elif address not in nodes:
            advice = 'look at ls -l /dev/metis*, and give the container its device node (--device)'
            yield Finding(
                need.missing,
                f"driver '{driver}' has {address}, but there is no device node /dev/metis-* for it",
                advice,
                address,
                figures,
            )
        else:
            yield ok(
                f"{address} (1f9d:{device}), driver '{driver}', node {figures['node']}",
                address,
                **figures,
            )
    for card in cards:
        if card.pci_address not in {address for address, _, _ in devices}:
            where = (
                f'PCI device {card.pci_address} is not of vendor 1f9d'
                if card.pci_address
                else 'sysfs does not show the PCI device'
            )
            yield ok(
                f'{system.shown(card.path)}, whose {where}',
                card.name,
                node=system.shown(card.path),
                pci=card.pci_address,
            )
    if not devices and not cards:
        advice = (
            'if the machine has a card, check its power and slot (lspci -d 1f9d:), then rescan PCI '
            '(echo 1 > /sys/bus/pci/rescan); without a card use accelerator: cpu'
        )
        yield Finding(
            need.missing,
            f'{_NO_CARD}: nothing of vendor 1f9d on PCI, and no {system.dev}/metis-*',
            advice,
        )
    for wanted in dict.fromkeys(
        i['accelerator_device']
        for i in needs.inferences
        if i['accelerator_device'] and i.kind in _TAKE_A_CARD
    ):
        try:
            choose_card(wanted, system.host)
        except ZcError as error:
            yield Finding(
                need.missing,
                f"accelerator_device '{wanted}': {error}",
                'set accelerator_device to a card that was found',
                wanted,
            )


@_of_each_card
def metis_access(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Opening a node for reading and writing."""
    shown, number = system.shown(card.path), system.open_node(card.path)
    figures = {'errno': number}
    if number == 0:
        return ok(f'{shown} can be opened', card.name, **figures)
    if number in DENIED:
        return Finding(
            card_need(needs).missing,
            f'this user may not open {shown}',
            rights_advice(_UDEV, shown),
            card.name,
            figures,
        )
    advice = f'the card may be off or resetting; see dmesg | grep -i -e metis -e axl, and {found_cards(system.host)}'
    return Finding(
        card_need(needs).missing,
        f"{shown} can't be opened: {os.strerror(number)}",
        advice,
        card.name,
        figures,
    )


@_of_each_card
def metis_driver(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Name and version of the module behind the card, where it tells."""
    folder = system.host.pci(card.pci_address) / 'driver' if card.pci_address else Path('/nowhere')
    if not folder.exists():
        return skip('sysfs does not show its driver', card.name)
    driver, module = folder.resolve().name, folder / 'module'
    name = module.resolve().name if module.exists() else driver
    version = system.read('sys/module', name, 'version')
    text = f"driver '{driver}'{f', module {name}' if name != driver else ''}{f' {version}' if version else ', which tells no version'}"
    return ok(text, card.name, driver=driver, module=name, version=version)


def metis_ioctls(system: System, needs: Needs) -> Iterator[Finding]:
    """What QUERY says, or which generation the driver is of."""
    if needs.accelerator('axl') is Need.UNUSED and card_need(needs) is not Need.UNUSED:
        yield skip('the parameter file uses no accelerator axl')
    else:
        yield from _ioctls(system, needs)


@_of_each_card
def _ioctls(system: System, needs: Needs, card: MetisCard) -> Finding:
    need = needs.accelerator('axl')
    try:
        with closing(open_card(system, needs, card)) as device:
            answer = device.query()
    except ZcError as error:
        return Finding(
            need.missing, f'{card.name} does not answer: {error}', 'see metis.access', card.name
        )
    figures = {
        'level': answer.level, 'max_in_flight': answer.max_in_flight, 'stride_align': answer.stride_align,
        'offset_align': answer.offset_align, 'formats': len(answer.formats),
    }  # fmt: skip
    if answer.level >= 2:
        limits = f'{answer.max_in_flight} jobs in flight, strides of {answer.stride_align} bytes'
        return ok(
            f'import, submit and query: {len(answer.formats)} formats, {limits}',
            card.name,
            **figures,
        )
    if answer.level == 1:
        text = 'the driver has only ioctls 64 to 66: it takes LINEAR images without padding in one buffer, and one job at a time'
        return Finding(
            Status.WARN,
            text,
            'a newer driver takes padded images and several jobs',
            card.name,
            figures,
        )
    text = 'the driver has no import and submit ioctls (ENOTTY), as the shipped driver'
    return Finding(need.missing, text, _OTHER_DRIVER, card.name, figures)


@_of_each_card
def metis_attach(system: System, needs: Needs, card: MetisCard) -> Finding:
    """The shipped driver's attach ioctl, which accelerator axruntime's dma-buf tensors go through."""
    with first_dmabuf(system) as buffer:
        if buffer is None:
            return skip('there is no dma-buf to try it with; see memory.heaps', card.name)
        probe = probe_shipped_attach(card.path, buffer, tree=system.host)
    figures = {'answer': probe.answer.value, 'errno': probe.number, 'heap': buffer.heap}
    if probe.answer is Importable.YES:
        return ok(f'a page of {buffer.heap} was attached and detached', card.name, **figures)
    if probe.answer is Importable.UNKNOWN and needs.accelerator('axruntime') is not Need.REQUIRED:
        return skip(probe.text, card.name, **figures)
    advice = (
        'enable the IOMMU for the card, or use a contiguous heap; see memory.heaps and metis.iommu'
    )
    return Finding(card_need(needs).missing, probe.text, advice, card.name, figures)


def _rate(rate: LinkRate) -> dict[str, object]:
    return {'gts': rate.gts, 'width': rate.width}


@_of_each_card
def metis_link(system: System, needs: Needs, card: MetisCard) -> Finding:
    """8 GT/s x4, or what is wrong with it."""
    link = read_link(card.pci_address, system.host)
    figures = {'now': _rate(link.now), 'card': _rate(link.card), 'port': _rate(link.port)}
    trouble = link.diagnosis()
    if not trouble:
        return ok(f'{link.now} (at least {NEEDED} is needed)', card.name, **figures)
    found, _, advice = trouble.partition('; ')
    # One that can't be read, as in virtual machines, may be good.
    status = Status.WARN if link.problem else card_need(needs).missing
    return Finding(status, found, advice, card.name, figures)


@_of_each_card
def metis_iommu(system: System, needs: Needs, card: MetisCard) -> Finding:
    """Behind an IOMMU scattered pages are one range of addresses for the card."""
    iommu = read_iommu(card.pci_address, system.host)
    figures = {'group': iommu.group, 'type': iommu.kind, 'iommu': iommu.unit}
    if iommu.translates:
        return ok(
            f'{iommu.text}: the card can use buffers of scattered pages', card.name, **figures
        )
    if iommu.translates is None:
        return skip(
            f'{iommu.text}; the import of each buffer tells whether the card can use it',
            card.name,
            **figures,
        )
    enable = ('boot without iommu=pt (iommu.passthrough=0)' if iommu.group else
              'enable the IOMMU (intel_iommu=on, amd_iommu=on, iommus in the device tree)')  # fmt: skip
    advice = f'leave heap at auto, which takes a CMA heap then (see memory.heaps), or {enable}'
    return Finding(
        Status.WARN,
        f'{iommu.text}, so it can use only physically contiguous buffers',
        advice,
        card.name,
        figures,
    )


TOOLCHAIN = 'riscv64-unknown-elf-gcc'
_INSTALL = (
    'install the Voyager runtime (Python package axelera-runtime, or /opt/axelera/runtime-*), activate it (AXELERA_RUNTIME_DIR) or set '
    'axruntime_library; without it use accelerator: axl or cpu'
)


def _installed(system: System) -> list[str]:
    names = [name for name in system.names('opt/axelera') if name.startswith('runtime-')]
    return [f'/opt/axelera/{name}' for name in names]


def voyager_runtime(system: System, needs: Needs) -> Iterator[Finding]:
    """Loaded as the accelerator loads it, with a driver that it takes and the programs that it calls."""
    need = needs.accelerator('axruntime')
    if need is Need.UNUSED:
        yield skip('the parameter file uses no accelerator axruntime', releases=_installed(system))
        return
    libraries = dict.fromkeys(
        inference['axruntime_library'] for inference in needs.inferences
    ) or ('',)
    for library in libraries:
        answer = system.ask(answers.describe_voyager, library)
        figures = {
            **answer,
            'releases': _installed(system),
            'activated': system.environment.get('AXELERA_RUNTIME_DIR', ''),
        }
        if 'error' in answer:
            releases = (
                f'; installed: {", ".join(_installed(system))}' if _installed(system) else ''
            )
            found = str(answer['error']).rpartition('; ')[0] or str(answer['error'])
            yield Finding(need.missing_extra, f'{found}{releases}', _INSTALL, library, figures)
            continue
        yield ok(f'{answer["path"]}, API {answer["api_version"]}', library, **figures)
        for mismatch in mismatches(str(answer['release']), driver_version(system.host)):
            found, _, advice = mismatch.partition(': ')
            yield Finding(
                need.missing_extra,
                found,
                advice,
                f'{library} driver'.strip(),
                {'release': answer['release']},
            )
        for tool, package in TOOLS.items():
            if (
                need is Need.REQUIRED
                and shutil.which(tool, path=system.environment.get('PATH', '')) is None
            ):
                found = f'the runtime looks for cards with {tool}, which is not on PATH'
                yield Finding(
                    Status.WARN,
                    found,
                    f'install package {package}; in a container, in its image',
                    f'{library} {tool}'.strip(),
                )


def voyager_toolchain(system: System, needs: Needs) -> Iterator[Finding]:
    """Before release 1.8 the runtime compiles part of each model when it loads it."""
    need = needs.accelerator('axruntime')
    if need is Need.REQUIRED:
        answers = [
            system.ask(answers.describe_voyager, inference['axruntime_library'])
            for inference in needs.inferences
        ]
        releases = [str(answer.get('release', '')) for answer in answers]
        if releases and not any(map(needs_toolchain, releases)):
            yield skip(
                f'runtime {", ".join(dict.fromkeys(releases))} needs none: the compiled model has all'
            )
            return
    if need is not Need.REQUIRED and not _installed(system):
        yield skip('only accelerator axruntime needs it')
        return
    found = shutil.which(TOOLCHAIN, path=system.environment.get('PATH', ''))
    if found:
        yield ok(f'{TOOLCHAIN} is {found}', path=found)
    else:
        advice = f'activate the SDK, so that {TOOLCHAIN} is on PATH of the node; a systemd unit has a PATH of its own'
        yield Finding(
            need.missing,
            f'{TOOLCHAIN} is not on PATH: models fail to load with "Failed to create executor"',
            advice,
            '',
            {'path': ''},
        )


def _inferences(needs: Needs) -> tuple[NodeNeed, ...]:
    """Without a parameter file: what the inference node does by itself."""
    return needs.inferences or (node_need('inference', {}),)


def _question(inference: NodeNeed) -> str:
    return json.dumps(dict(inference.values))


def model_manifest(system: System, needs: Needs) -> Iterator[Finding]:
    """Found, valid, with the files of its engines."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            page = shipped_file('docs/models.md')
            advice = f'set model to a shipped one, or the path of a model.yaml (see {page})'
            yield Finding(Status.FAIL, str(answer['error']), advice, inference.node)
            continue
        engines = ', '.join(answer['engines'])
        figures = {key: answer[key] for key in ('name', 'manifest', 'engines', 'classes', 'input')}
        yield ok(
            f'model {answer["name"]}: engine {engines}, {answer["classes"]} classes',
            inference.node,
            **figures,
        )


def model_load(system: System, needs: Needs) -> Iterator[Finding]:
    """On which accelerator, and why on none that is better."""
    for inference in _inferences(needs):
        answer = system.ask(answers.try_model, _question(inference))
        if answer.get('stage') == 'manifest':
            yield skip('there is no such model; see model.manifest', inference.node)
            continue
        if 'error' in answer:
            yield told(Status.FAIL, answer['error'], inference.node, accelerator=inference.kind)
            continue
        figures = {
            key: answer[key] for key in ('accelerator', 'device', 'copy_free', 'engine', 'reasons')
        }
        device = f' ({answer["device"]})' if answer['device'] else ''
        found = f'model {answer["name"]} runs on {answer["accelerator"]}{device}, engine {answer["engine"]}'
        if answer[
            'reasons'
        ]:  # a model without a variant for a card, or no card, is no fault of the machine
            found += '; no better accelerator fits (--verbose says why)'
        yield ok(found, inference.node, **figures)
