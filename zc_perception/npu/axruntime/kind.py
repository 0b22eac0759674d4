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
Declare accelerator axruntime, and read what Voyager's compiler writes about a model's input.

The compiler writes ``model.json``, which the runtime loads, and ``manifest.json``.
``model.json`` has the input's shape with padding; only ``manifest.json`` says how much of it is
padding. The runtime gives all other values after it has loaded the model. Source: files of SDK
1.3 to 1.6 (``model.json`` version 4.0, ``manifest.json`` version 1.1) and the SDK's code that
reads them.

Every node imports this module when it starts; therefore only :meth:`AxRuntime.open` imports the
module that implements the accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
import importlib
import json
from pathlib import Path
import re
from typing import Any

from zc_perception.errors import ConfigError, message_of
from zc_perception.machine.checks import Check
from zc_perception.machine.system import System
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Accelerator, reads_by_cpu, with_frames
from zc_perception.npu.manifest import COMPILED, EngineRules, INPUT, Values
from zc_perception.npu.metis_card import CARD, CARD_CHECKS
from zc_perception.parameters import ParameterSpec
from zc_perception.rules import Place

_KNOWN_VERSION = 4
_MAJOR = re.compile('[0-9]{1,9}')
_PADDING = 'n_padded_ch_inputs'


@dataclass(frozen=True)
class CompiledInput:
    """
    A compiled model's first input.

    :param shape: the shape in memory, NHWC, with padding.
    :param inner_shape: the shape without padding; ``None`` if it is unknown.
    :param preprocess_graph: an ONNX file to run on the host before the NPU; empty: none.
    """

    shape: tuple[int, ...]
    inner_shape: tuple[int, ...] | None = None
    preprocess_graph: str = ''


def _load(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"compiled model '{path}' can't be read: {message_of(error)}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"compiled model '{path}' is no JSON object; give the model.json that Voyager's "
            'compiler wrote'
        )
    return values


def _wrong(path: Path, key: str, value: object, allowed: str) -> ConfigError:
    shown = 'missing' if value is None else f'{value!r:.80}'
    return ConfigError(
        f"{path}: key '{key}' is {shown}; it must be {allowed}; compile the model again, or "
        'give another model.json'
    )


def _numbers(value: object, low: int) -> tuple[int, ...]:
    """Return *value* as a tuple if it is a list of whole numbers >= *low*, else an empty tuple."""
    return (
        tuple(value)
        if isinstance(value, list) and all(type(n) is int and n >= low for n in value)
        else ()
    )


def _find_manifest(path: Path) -> Path | None:
    """
    Return ``manifest.json`` beside *path*, or else from the folder above.

    The file in the folder above counts only if it names *path* with its folder, for example
    ``lib_export/model.json``.
    """
    beside, above = path.with_name('manifest.json'), path.parent.parent / 'manifest.json'
    if beside.is_file():
        return beside
    if above.is_file() and Path(str(_load(above).get('model_lib_file'))).parts[-2:] == (
        path.parent.name,
        path.name,
    ):
        return above
    return None


def _without_padding(path: Path, listed: object, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """
    Return *shape* without its padding; ``None`` if *listed* is empty or missing.

    :param listed: the padding of each input, as ``manifest.json`` lists it.
    """
    if not listed:
        return None
    numbers = _numbers(listed[0], 0) if isinstance(listed, list) else ()
    if len(numbers) == 4:  # early SDKs list top, left, bottom, right
        top, left, bottom, right = numbers
        numbers = (0, 0, top, bottom, left, right)
    around = [sum(numbers[slice(2 * axis, 2 * axis + 2)]) for axis in range(len(shape))]
    if not 0 < len(numbers) <= 2 * len(shape) or any(
        size <= both for size, both in zip(shape, around, strict=True)
    ):
        raise _wrong(
            path,
            _PADDING,
            listed,
            (
                'for each input a list with two numbers for each axis, whose sum is less than the '
                f'size of this axis in {list(shape)}'
            ),
        )
    return tuple(size - both for size, both in zip(shape, around, strict=True))


def read_compiled_input(path: Path) -> CompiledInput | None:
    """
    Read a compiled model's :class:`CompiledInput` from its files, without loading the model.

    :param path: ``model.json``.
    :returns: ``None`` if only the runtime can read the file: it isn't a ``.json`` file, or its
        version is newer than 4 and it has no key ``inputs``.
    :raises ConfigError: the file is wrong; the message names the key and the values allowed.
    """
    if path.suffix != '.json':
        return None
    values = _load(path)
    if 'model_lib_file' in values:
        raise ConfigError(
            f"'{path}' is the compiler's manifest; give the model.json that it names "
            f'({values["model_lib_file"]})'
        )
    major, inputs = str(values.get('version', '')).partition('.')[0], values.get('inputs')
    if _MAJOR.fullmatch(major) and int(major) > _KNOWN_VERSION and inputs is None:
        return None
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    shape = _numbers(first.get('shape'), 1) if isinstance(first, Mapping) else ()
    if not shape:
        raise _wrong(
            path,
            'inputs',
            inputs,
            'a list of tensors, of which the first has a shape of positive sizes',
        )
    if len(shape) != 4:
        raise ConfigError(
            f'{path}: the first input has shape {list(shape)}; a frame needs 1 x height x '
            'width x channels'
        )
    manifest = _find_manifest(path)
    if manifest is None:
        return CompiledInput(shape)
    known = _load(manifest)
    return CompiledInput(
        shape,
        _without_padding(manifest, known.get(_PADDING), shape),
        str(known.get('preprocess_graph') or ''),
    )


class VoyagerRules(EngineRules):
    """Rules for manifests of engine ``axruntime``: the compiled model gives the input's size."""

    def input_size(self, given: Values, file: Path | None, place: Place) -> tuple[int, int] | None:
        """
        Return the input's size, see :meth:`EngineRules.input_size`.

        If *file* is ``None``, the file is missing, so the model can't run. Then the size (0, 0) is
        returned, which nothing uses.
        """
        super().input_size(given, file, place)
        compiled = None if file is None else read_compiled_input(file)
        if compiled is None:
            return (0, 0) if file is None else None
        inner = compiled.inner_shape
        if compiled.preprocess_graph and 'range' not in given:
            raise ConfigError(
                f"{file}: graph '{compiled.preprocess_graph}' has to run before the model, and "
                'this package does not run it; compile the model without the graph, or set '
                f"'{place.at('range').key}' of {place.path.name} to the values that the graph "
                'makes of pixel values 0 and 255'
            )
        height, width = (inner or compiled.shape)[1:3]
        for name, size in (('width', width), ('height', height)):
            value = given.get(name, size if inner else None)
            if value is None:
                raise place.at(name).missing(
                    f'{INPUT.keys[name].rule.words}; no manifest.json beside {file} gives it'
                )
            if value != size if inner else value > size:
                raise place.at(name).refuse(
                    value, f'{"" if inner else "at most "}{size}, as {file} says'
                )
        return (width, height) if inner else None


AXRUNTIME = VoyagerRules(
    'axruntime',
    file="the model.json or .axm of Voyager's compiler",
    files=('*.axm', COMPILED),
    needs_file=True,
    takes_frames=False,
)


OUTPUT_DMABUF = ('auto', 'true', 'false')
LATE_CALLS = 2
"""With double buffering, a frame's result comes this many calls after the frame's own call."""
CONSTRAINTS = reads_by_cpu('axruntime accelerator')
JOBS = 2
# Two frames wait inside the runtime until later calls return their results. So the accelerator
# must accept a third frame while these two are not completed.
_JOBS_DOUBLE_BUFFERED = LATE_CALLS + 1


def jobs(values: Mapping[str, Any]) -> int:
    """Return the number of jobs that the accelerator accepts before the first has completed."""
    each = _JOBS_DOUBLE_BUFFERED if values['double_buffer'] else JOBS
    cores: int = values['aipu_cores']
    return max(1, cores) * each


class AxRuntime(Accelerator):
    """Declare axruntime; :mod:`~zc_perception.npu.axruntime.accelerator` implements it."""

    ENGINES = (AXRUNTIME,)
    PARAMETERS = (
        CARD,
        ParameterSpec(
            'axruntime_library',
            '',
            (
                'Path of libaxruntime.so. Empty: the Python package axelera.runtime, or else the '
                "system's library."
            ),
        ),
        ParameterSpec(
            'aipu_cores',
            1,
            'Number of cores that run the model, each on different frames. 0 means 1.',
            '',
            0,
            4,
        ),
        ParameterSpec(
            'double_buffer',
            False,
            (
                'Let transfers overlap with computing: this gives more frames per second, but '
                'results come two frames later. Set in_flight to 3.'
            ),
        ),
        ParameterSpec(
            'output_dmabuf',
            'auto',
            'Whether results are written to dma-bufs. auto: only if a trial run works.',
            choices=OUTPUT_DMABUF,
        ),
    )
    CHECKS = (
        *CARD_CHECKS,
        Check(
            'metis.attach',
            "whether Axelera's driver can attach a dma-buf of a heap",
            'zc_perception.npu.axruntime.checks:metis_attach',
        ),
        Check(
            'voyager.runtime',
            'whether the runtime loads, fits the driver, and finds the programs that it calls',
            'zc_perception.npu.axruntime.checks:voyager_runtime',
        ),
        Check(
            'voyager.toolchain',
            'whether the compiler exists that a runtime before release 1.8 needs to load a model',
            'zc_perception.npu.axruntime.checks:voyager_toolchain',
        ),
    )
    AUTO = 20

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints:
        return with_frames(CONSTRAINTS, values['in_flight'], jobs(values))

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> Accelerator:  # noqa: A003
        module = importlib.import_module('zc_perception.npu.axruntime.accelerator')
        accelerator: Accelerator = module.AxRuntimeAccelerator(ledger, values)
        return accelerator
