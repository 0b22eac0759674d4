"""Which accelerator: the named one, or the first of ``axl``, ``cpu`` that fits, with the reasons of the others."""

from __future__ import annotations

from dataclasses import dataclass

from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.accelerator import Accelerator
from zc_perception.npu.axl import AxlAccelerator
from zc_perception.npu.cpu import CpuAccelerator
from zc_perception.npu.manifest import ModelManifest

ACCELERATORS = ('auto', 'axl', 'cpu')


@dataclass(frozen=True)
class AcceleratorOptions:
    """What the accelerators' parameters say.

    :param device: axl: the device node; empty for the first card.
    :param import_cache: axl: keep imports.
    :param timeout_s: axl: after which the driver gives a job up.
    :param threads: cpu: threads of ONNX Runtime.
    """

    device: str = ''
    import_cache: bool = True
    timeout_s: float = 1.0
    threads: int = 0


def _open(name: str, options: AcceleratorOptions, ledger: CopyLedger) -> Accelerator:
    if name == 'axl':
        return AxlAccelerator(options.device, import_cache=options.import_cache, timeout_s=options.timeout_s)
    return CpuAccelerator(ledger, options.threads)


def open_accelerator(name: str, manifest: ModelManifest, options: AcceleratorOptions, ledger: CopyLedger) -> tuple[Accelerator, list[str]]:
    """Open an accelerator and load the model.

    :param name: one of :data:`ACCELERATORS`.
    :returns: it, and for ``auto`` one sentence for each better one that didn't fit.
    :raises ConfigError: the model can't run there.
    :raises AcceleratorError: the device can't be used.
    """
    reasons: list[str] = []
    candidates = [name] if name != 'auto' else [a for a in ACCELERATORS if a != 'auto']
    for candidate in candidates:
        accelerator: Accelerator | None = None
        try:
            accelerator = _open(candidate, options, ledger)
            accelerator.load(manifest)
            return accelerator, reasons
        except (AcceleratorError, ConfigError) as error:
            if accelerator is not None:
                accelerator.close()
            if candidate == candidates[-1]:
                if reasons:
                    raise ConfigError(f'no accelerator fits: {"; ".join([*reasons, f"{candidate}: {error}"])}') from error
                raise
            reasons.append(f"accelerator '{candidate}' doesn't fit: {error}")
    raise AssertionError('unreachable: the last candidate returns or raises')
