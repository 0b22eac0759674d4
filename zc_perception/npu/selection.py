"""Which accelerator: the named one, or the first of ``axl``, ``axruntime``, ``cpu`` that fits, with the reasons of the others.

:data:`BUILT_IN` is where this package's accelerators are registered, one line each. Accelerators of other packages come by entry points of
the group ``zc_perception.accelerators``: the name is the accelerator's, the value ``module:Class`` a class derived from
:class:`~zc_perception.npu.accelerator.Accelerator`. They are used when a parameter names them; ``auto`` leaves them out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zc_perception.errors import AcceleratorError, ConfigError, NoDeviceError, nearest
from zc_perception.kinds import ACCELERATOR_GROUP, load_entry_point, offered
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.accelerator import Accelerator, AcceleratorOptions
from zc_perception.npu.manifest import ModelManifest
from zc_perception.shipped_files import shipped_file


@dataclass(frozen=True)
class Registered:
    """An accelerator of this package.

    :param engines: what it runs, best first, as its class says.
    :param place: ``module:Class``, imported when it is wanted, which keeps a start short.
    """

    engines: tuple[str, ...]
    place: str

    def load(self) -> type[Accelerator]:
        """The class."""
        module, _, name = self.place.partition(':')
        found: type[Accelerator] = getattr(importlib.import_module(module), name)
        return found


BUILT_IN: Mapping[str, Registered] = {
    'axl': Registered(('axl',), 'zc_perception.npu.axl.accelerator:AxlAccelerator'),
    'axruntime': Registered(
        ('axruntime',), 'zc_perception.npu.axruntime.accelerator:AxRuntimeAccelerator'
    ),
    'cpu': Registered(('onnx', 'opencv_hog'), 'zc_perception.npu.cpu:CpuAccelerator'),
}
"""In the order of ``auto``."""
ACCELERATORS = ('auto', *BUILT_IN)


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


def other_accelerators() -> tuple[str, ...]:
    """Names of the accelerators that other packages offer."""
    return tuple(name for name in offered(ACCELERATOR_GROUP) if name not in ACCELERATORS)


def _class_of(name: str) -> type[Accelerator]:
    """
    :raises ConfigError: there is none of that name, or its package is broken.
    """
    if name in BUILT_IN:
        return BUILT_IN[name].load()
    found = load_entry_point(ACCELERATOR_GROUP, name)
    if found is None:
        known = (*ACCELERATORS, *other_accelerators())
        raise ConfigError(
            f"accelerator '{name}' is not known; it must be one of {', '.join(known)}{nearest(name, known)}"
        )
    if not (isinstance(found, type) and issubclass(found, Accelerator)):
        raise ConfigError(
            f"accelerator '{name}' is {found!r}, which is no class derived from zc_perception.npu.accelerator.Accelerator"
        )
    return found


def engines_of(name: str) -> tuple[str, ...]:
    """Engines of manifests that an accelerator runs, best first; ``auto``: all of this package's.

    :raises ConfigError: there is none of that name, or its package is broken.
    """
    if name == 'auto':
        return tuple(engine for entry in BUILT_IN.values() for engine in entry.engines)
    return BUILT_IN[name].engines if name in BUILT_IN else _class_of(name).engines


def _variant(name: str, manifest: ModelManifest) -> ModelManifest:
    """What *name* would run.

    :raises ConfigError: the manifest has nothing for it, or its file isn't there.
    """
    engines = engines_of(name)
    variant = manifest.for_engines(engines)
    if variant is None:
        has = ', '.join(v.engine for v in manifest.variants)
        raise ConfigError(
            f"model '{manifest.name}' (engine {has}) can't run on {name}; "
            f'add a variant with engine: {" or ".join(engines)} to {manifest.path.name} '
            f'(see {shipped_file("docs/models.md")})'
        )
    if variant.missing:
        raise ConfigError(variant.missing)
    return variant


def _open_loaded(
    name: str, manifest: ModelManifest, options: AcceleratorOptions, ledger: CopyLedger
) -> tuple[Accelerator, ModelManifest]:
    # A Metis card that can't be used is worth saying before a model that doesn't fit. Others look for nothing, or take the card for
    # themselves as soon as they are opened.
    variant = None if name == 'axl' else _variant(name, manifest)
    accelerator = _class_of(name).open(options, ledger)
    try:
        variant = variant or _variant(name, manifest)
        accelerator.load(variant)
    except BaseException:
        accelerator.close()
        raise
    return accelerator, variant


def _alternatives(failed: str, manifest: ModelManifest) -> str:
    others = [
        name
        for name, entry in BUILT_IN.items()
        if name != failed and manifest.for_engines(entry.engines) is not None
    ]
    if not others:
        return f"model '{manifest.name}' runs on no other accelerator"
    return f"model '{manifest.name}' also runs on accelerator: {' or '.join(others)}"


def open_accelerator(
    name: str, manifest: ModelManifest, options: AcceleratorOptions, ledger: CopyLedger
) -> Selection:
    """Open an accelerator and load the model's variant for it.

    :param name: one of :data:`ACCELERATORS`, or one that another package offers.
    :raises ConfigError: the model can't run there, or nowhere; the message says why, and what could be chosen instead.
    :raises AcceleratorError: the device can't be used; the message says what could be chosen instead.
    """
    reasons: list[str] = []
    without_card = False
    candidates = [name] if name != 'auto' else list(BUILT_IN)
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
