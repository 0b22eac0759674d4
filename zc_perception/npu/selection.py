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
Choose the accelerator that parameter ``accelerator`` names; ``auto``: the first that fits.

:mod:`zc_perception.npu.kinds` lists the accelerators; each class declares its engines and its
place in the order of ``auto``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zc_perception.errors import AcceleratorError, ConfigError, NoDeviceError, one_line
from zc_perception.memory.ledger import CopyLedger
from zc_perception.npu.accelerator import Accelerator, close_accelerator
from zc_perception.npu.kinds import ACCELERATORS, AUTO
from zc_perception.npu.manifest import ModelManifest
from zc_perception.shipped_files import shipped_file


@dataclass(frozen=True)
class Selection:
    """
    The chosen accelerator, with the model loaded.

    :param manifest: the model's variant for this accelerator.
    :param reasons: for each accelerator that ``auto`` tried before this one, one sentence why it
        didn't fit.
    :param reopen: opens the same accelerator again and loads the model, after the device was lost.
    :param without_card: whether an accelerator before this one didn't fit because the machine has
        no card; then *reasons* are not reported as faults.
    """

    accelerator: Accelerator
    manifest: ModelManifest
    reasons: tuple[str, ...]
    reopen: Callable[[], Accelerator]
    without_card: bool = False


def auto_order() -> tuple[str, ...]:
    """
    Return the accelerators that ``auto`` tries, ordered by their classes' ``AUTO``.

    An accelerator whose package can't be imported is left out.
    """
    places: dict[str, int] = {}
    for name in ACCELERATORS.names:
        with suppress(ConfigError):
            place: int | None = ACCELERATORS.load(name).AUTO
            if place is not None:
                places[name] = place
    return tuple(sorted(places, key=places.__getitem__))


def candidates(name: str) -> tuple[str, ...]:
    """Return the accelerators to try for a value of parameter ``accelerator``, best first."""
    return auto_order() if name == AUTO else (name,)


def engines_of(name: str) -> tuple[str, ...]:
    """
    Return the engines that accelerator *name* runs, best first.

    For ``auto`` these are the engines of all accelerators that ``auto`` tries.

    :raises ConfigError: there is no accelerator of that name, or its package is broken.
    """
    return tuple(
        engine.name for one in candidates(name) for engine in ACCELERATORS.load(one).ENGINES
    )


def _variant(name: str, manifest: ModelManifest) -> ModelManifest:
    engines = engines_of(name)
    variant = manifest.for_engines(engines)
    if variant is None:
        has = ', '.join(v.engine for v in manifest.variants)
        given = 'a model.yaml' if manifest.path == manifest.file else manifest.path.name
        raise ConfigError(
            f"model '{manifest.name}' (engine {has}) can't run on {name}; "
            f'add a variant with engine: {" or ".join(engines)} to {given} '
            f'(see {shipped_file("docs/models.md")})'
        )
    if variant.missing:
        raise ConfigError(variant.missing)
    return variant


def _open_loaded(
    name: str, manifest: ModelManifest, values: Mapping[str, Any], ledger: CopyLedger
) -> tuple[Accelerator, ModelManifest]:
    kind: type[Accelerator] = ACCELERATORS.load(name)
    variant = None if kind.DEVICE_FIRST else _variant(name, manifest)
    accelerator = kind.open(kind.own(values), ledger)
    try:
        variant = variant or _variant(name, manifest)
        accelerator.load(variant)
    except BaseException:
        close_accelerator(accelerator)
        raise
    return accelerator, variant


def _alternatives(failed: str, manifest: ModelManifest) -> str:
    others = [
        name
        for name in auto_order()
        if name != failed and manifest.for_engines(engines_of(name)) is not None
    ]
    if not others:
        return f"model '{manifest.name}' runs on no other accelerator"
    return f"model '{manifest.name}' also runs on accelerator: {' or '.join(others)}"


def open_accelerator(
    name: str, manifest: ModelManifest, values: Mapping[str, Any], ledger: CopyLedger
) -> Selection:
    """
    Open an accelerator and load the model's variant for it.

    :param name: ``auto``, or one of :data:`~zc_perception.npu.kinds.ACCELERATORS`.
    :param values: the inference node's parameters, by name; the accelerator's default replaces a
        missing one. :attr:`Selection.reopen` reads *values* again.
    :raises ConfigError: the model can't run on this accelerator (``auto``: on none); the message
        says why, and what to choose instead.
    :raises AcceleratorError: the device can't be used; the message says what to choose instead.
    """
    reasons: list[str] = []
    without_card = False
    for candidate in candidates(name):
        try:
            accelerator, variant = _open_loaded(candidate, manifest, values, ledger)
        except (AcceleratorError, ConfigError) as error:
            if name != AUTO:
                kind = AcceleratorError if isinstance(error, AcceleratorError) else ConfigError
                raise kind(f'{error}; {_alternatives(name, manifest)}') from error
            reasons.append(f"accelerator '{candidate}' doesn't fit: {error}")
            without_card |= isinstance(error, NoDeviceError)
            continue
        except (Exception, SystemExit) as error:
            # Another package may raise anything, such as ImportError for its library.
            if name != AUTO or candidate in ACCELERATORS.built_in:
                raise
            reasons.append(f"accelerator '{candidate}' doesn't fit: {one_line(error)}")
            continue

        def reopen(chosen: str = candidate, model: ModelManifest = variant) -> Accelerator:
            return _open_loaded(chosen, model, values, ledger)[0]

        return Selection(accelerator, variant, tuple(reasons), reopen, without_card)
    raise ConfigError(f'no accelerator fits: {"; ".join(reasons)}')
