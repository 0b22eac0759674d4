"""Which accelerator: the named one, or the first of ``axl``, ``axruntime``, ``cpu`` that fits, with the reasons of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zc_perception.errors import AcceleratorError, ConfigError, NoDeviceError, nearest
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.axl import abi as axl_abi
from zc_perception.npu.cpu import CpuAccelerator
from zc_perception.npu.manifest import ModelManifest

# What each accelerator runs, best first.
ENGINES_OF: Mapping[str, tuple[str, ...]] = {'axl': ('axl',), 'axruntime': ('axruntime',), 'cpu': ('onnx', 'opencv_hog')}
ACCELERATORS = ('auto', *ENGINES_OF)
OUTPUT_DMABUF = ('auto', 'true', 'false')


@dataclass(frozen=True)
class AcceleratorOptions:
    """What the accelerators' parameters say.

    :param device: axl, axruntime: the card's name, device node, PCI address or index; empty for the first.
    :param import_cache: axl: keep imports.
    :param timeout_s: axl, axruntime: after which the driver gives a job up.
    :param threads: cpu: threads of ONNX Runtime.
    :param ioctl_numbers: axl: numbers by name, for a driver that uses others.
    :param aipu_cores: axruntime: cores that the model uses; 0: as it was compiled.
    :param double_buffer: axruntime: transfers overlap with computing; results come two calls late.
    :param output_dmabuf: axruntime: results in dma-bufs; one of :data:`OUTPUT_DMABUF`.
    :param library: axruntime: path of its library; empty: the system's.
    """

    device: str = ''
    import_cache: bool = True
    timeout_s: float = 1.0
    threads: int = 0
    ioctl_numbers: Mapping[str, int] = field(default_factory=dict)
    aipu_cores: int = 1
    double_buffer: bool = False
    output_dmabuf: str = 'auto'
    library: str = ''


@dataclass(frozen=True)
class Selection:
    """An accelerator with a model loaded.

    :param manifest: the model's variant for this accelerator.
    :param reasons: one sentence for each better accelerator that didn't fit.
    :param without_card: whether there is no card on this machine, so that those sentences tell of nothing that is wrong.
    :param reopen: opens the same accelerator anew and loads the model, for when the device was lost.
    """

    accelerator: Accelerator
    manifest: ModelManifest
    reasons: tuple[str, ...]
    reopen: Callable[[], Accelerator]
    without_card: bool = False


def parse_ioctl_numbers(entries: Sequence[str]) -> dict[str, int]:
    """Numbers from texts such as ``submit=65`` or ``submit=0x41``.

    :raises ConfigError: names the parameter, the entry and what is allowed.
    """
    known = axl_abi.IOCTL_NUMBERS
    numbers: dict[str, int] = {}
    for entry in entries:
        name, _, text = (part.strip() for part in entry.partition('='))
        allowed = f"'name=number' with a number from 0 to 255 and a name of {', '.join(known)}"
        if name not in known:
            raise ConfigError(f"parameter 'axl_ioctls' has '{entry}'; it must be {allowed}{nearest(name, known)}")
        try:
            number = int(text, 0)
        except ValueError:
            number = -1
        if not 0 <= number <= 255:
            raise ConfigError(f"parameter 'axl_ioctls' has '{entry}'; it must be {allowed}")
        if name in numbers:
            raise ConfigError(f"parameter 'axl_ioctls' names '{name}' twice; leave one out")
        numbers[name] = number
    try:
        axl_abi.requests(numbers)
    except ValueError as error:
        raise ConfigError(f"parameter 'axl_ioctls': {error}") from None
    return numbers


def _open(name: str, options: AcceleratorOptions, ledger: CopyLedger) -> Accelerator:
    if name == 'axl':
        # Each where it is wanted alone, which keeps a start short.
        from zc_perception.npu.axl.accelerator import AxlAccelerator

        return AxlAccelerator(
            options.device, import_cache=options.import_cache, timeout_s=options.timeout_s, numbers=options.ioctl_numbers or None
        )
    if name == 'axruntime':
        from zc_perception.npu.axruntime.accelerator import AxRuntimeAccelerator

        return AxRuntimeAccelerator(
            ledger,
            device=options.device,
            library=options.library,
            aipu_cores=options.aipu_cores,
            double_buffer=options.double_buffer,
            output_dmabuf=options.output_dmabuf,
            timeout_s=options.timeout_s,
        )
    return CpuAccelerator(ledger, options.threads)


def _variant(name: str, manifest: ModelManifest) -> ModelManifest:
    """What *name* would run.

    :raises ConfigError: the manifest has nothing for it, or its file isn't there.
    """
    engines = ENGINES_OF[name]
    variant = manifest.for_engines(engines)
    if variant is None:
        has = ', '.join(v.engine for v in manifest.variants)
        raise ConfigError(
            f"model '{manifest.name}' (engine {has}) can't run on {name}; "
            f'add a variant with engine: {" or ".join(engines)} to {manifest.path.name} (see docs/models.md)'
        )
    if variant.missing:
        raise ConfigError(variant.missing)
    return variant


def _open_loaded(name: str, manifest: ModelManifest, options: AcceleratorOptions, ledger: CopyLedger) -> tuple[Accelerator, ModelManifest]:
    # A Metis card that can't be used is worth saying before a model that doesn't fit. Others look for nothing, or take the card for
    # themselves as soon as they are opened.
    variant = None if name == 'axl' else _variant(name, manifest)
    accelerator = _open(name, options, ledger)
    try:
        variant = variant or _variant(name, manifest)
        accelerator.load(variant)
    except BaseException:
        accelerator.close()
        raise
    return accelerator, variant


def _alternatives(failed: str, manifest: ModelManifest) -> str:
    others = [name for name, engines in ENGINES_OF.items() if name != failed and manifest.for_engines(engines) is not None]
    if not others:
        return f"model '{manifest.name}' runs on no other accelerator"
    return f"model '{manifest.name}' also runs on accelerator: {' or '.join(others)}"


def open_accelerator(name: str, manifest: ModelManifest, options: AcceleratorOptions, ledger: CopyLedger) -> Selection:
    """Open an accelerator and load the model's variant for it.

    :param name: one of :data:`ACCELERATORS`.
    :raises ConfigError: the model can't run there, or nowhere; the message says why, and what could be chosen instead.
    :raises AcceleratorError: the device can't be used; the message says what could be chosen instead.
    """
    reasons: list[str] = []
    without_card = False
    candidates = [name] if name != 'auto' else list(ENGINES_OF)
    for candidate in candidates:
        try:
            accelerator, variant = _open_loaded(candidate, manifest, options, ledger)
        except (AcceleratorError, ConfigError) as error:
            if name != 'auto':
                kind = AcceleratorError if isinstance(error, AcceleratorError) else ConfigError
                raise kind(f'{error}; {_alternatives(name, manifest)}') from error
            reasons.append(f"accelerator '{candidate}' doesn't fit: {error}")
            without_card |= isinstance(error, NoDeviceError)
            continue

        def reopen(chosen: str = candidate, model: ModelManifest = variant) -> Accelerator:
            return _open_loaded(chosen, model, options, ledger)[0]

        return Selection(accelerator, variant, tuple(reasons), reopen, without_card)
    raise ConfigError(f'no accelerator fits: {"; ".join(reasons)}')
