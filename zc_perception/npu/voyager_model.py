"""What Voyager's compiler says of a model: ``model.json``, which the runtime loads, and ``manifest.json`` beside it.

``model.json`` has the tensors as they lie in memory; only ``manifest.json`` tells what of that is padding, and scale and zero point.

Source: files of SDK 1.3 to 1.6 (``model.json`` version 4.0, ``manifest.json`` version 1.1) and the SDK's own reader of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zc_perception.errors import ConfigError

Padding = tuple[tuple[int, int], ...]
_KNOWN_VERSION = 4
_MAJOR = re.compile('[0-9]{1,9}')


@dataclass(frozen=True)
class VoyagerTensor:
    """One input or output.

    :param shape: as it lies in memory, NHWC, padding included.
    :param padding: elements before and after each axis; ``None`` where nobody says.
    :param scale: real value = (raw - zero_point) · scale; ``None`` where nobody says.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    padding: Padding | None = None
    scale: float | None = None
    zero_point: int | None = None

    @property
    def inner_shape(self) -> tuple[int, ...] | None:
        """Shape without padding, if that is known."""
        if self.padding is None:
            return None
        return tuple(size - before - after for size, (before, after) in zip(self.shape, self.padding, strict=True))


@dataclass(frozen=True)
class VoyagerModel:
    """A compiled model.

    :param preprocess_graph: an ONNX file that has to run on the host before the NPU; empty for none.
    """

    path: Path
    inputs: tuple[VoyagerTensor, ...]
    outputs: tuple[VoyagerTensor, ...]
    preprocess_graph: str = ''


def _load(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"compiled model '{path}' can't be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, Mapping):
        raise ConfigError(f"compiled model '{path}' is no JSON object; give the model.json that Voyager's compiler wrote")
    return values


def _wrong(path: Path, key: str, value: object, allowed: str) -> ConfigError:
    shown = 'missing' if value is None else f'{value!r:.80}'
    return ConfigError(f"{path}: key '{key}' is {shown}; it must be {allowed}; compile the model again, or give another model.json")


def _integers(path: Path, key: str, value: Any, low: int, allowed: str) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value or not all(type(n) is int and n >= low for n in value):
        raise _wrong(path, key, value, allowed)
    return tuple(value)


def _tensors(path: Path, kind: str, values: Any) -> list[VoyagerTensor]:
    if not isinstance(values, list) or not values:
        raise _wrong(path, kind, values, 'a list of at least one tensor')
    tensors = []
    for index, value in enumerate(values):
        key = f'{kind}[{index}]'
        if not isinstance(value, Mapping):
            raise _wrong(path, key, value, 'an object with name, shape and dtype')
        shape = _integers(path, f'{key}.shape', value.get('shape'), 1, 'a list of positive sizes')
        dtype = value.get('dtype', 'int8')
        if not isinstance(dtype, str) or dtype == '':
            raise _wrong(path, f'{key}.dtype', dtype, 'the name of a type')
        tensors.append(VoyagerTensor(str(value.get('name', f'{kind[:-1]}{index}')), dtype, shape))
    return tensors


def _padding(path: Path, key: str, value: Any, shape: tuple[int, ...]) -> Padding:
    numbers = _integers(path, key, value, 0, 'numbers of elements before and after each axis')
    if len(numbers) == 4 and len(shape) == 4:  # early SDKs: top, left, bottom, right
        top, left, bottom, right = numbers
        numbers = (0, 0, top, bottom, left, right, 0, 0)
    numbers = numbers + (0,) * (2 * len(shape) - len(numbers))
    pairs = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    if len(pairs) != len(shape) or any(size <= before + after for size, (before, after) in zip(shape, pairs, strict=False)):
        raise _wrong(path, key, value, f'less than the shape {list(shape)}, two numbers for each axis')
    return pairs


def _quantisation(path: Path, key: str, value: Any) -> tuple[float, int]:
    good = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2
    if good:
        scale, zero_point = value
        good = type(scale) in (int, float) and math.isfinite(scale) and scale > 0 and type(zero_point) is int
    if not good:
        raise _wrong(path, key, value, 'a scale above 0 and a whole zero point')
    return float(scale), zero_point


def _add(path: Path, values: Mapping[str, Any], tensors: list[VoyagerTensor], padding_key: str, quantisation_key: str) -> None:
    """Complete *tensors* by what the two lists of ``manifest.json`` say of them, in the same order. Each list may be absent or shorter."""
    for key in (padding_key, quantisation_key):
        if not isinstance(values.get(key) or [], list):
            raise _wrong(path, key, values[key], 'a list with one entry for each tensor')
    paddings, quantisations = values.get(padding_key) or [], values.get(quantisation_key) or []
    for index, tensor in enumerate(tensors):
        padding, (scale, zero_point) = tensor.padding, (tensor.scale, tensor.zero_point)
        if index < len(paddings):
            padding = _padding(path, f'{padding_key}[{index}]', paddings[index], tensor.shape)
        if index < len(quantisations):
            scale, zero_point = _quantisation(path, f'{quantisation_key}[{index}]', quantisations[index])
        tensors[index] = VoyagerTensor(tensor.name, tensor.dtype, tensor.shape, padding, scale, zero_point)


def _find_manifest(path: Path) -> Path | None:
    """``manifest.json`` beside *path*, or in the folder above, where it names *path*'s own folder (``lib_export/model.json``)."""
    beside, above = path.with_name('manifest.json'), path.parent.parent / 'manifest.json'
    if beside.is_file():
        return beside
    if above.is_file() and Path(str(_load(above).get('model_lib_file'))).parts[-2:] == (path.parent.name, path.name):
        return above
    return None


def read_voyager_model(path: Path) -> VoyagerModel | None:
    """What is known of a compiled model before it is loaded.

    :param path: ``model.json``.
    :returns: ``None`` for a file that only the runtime can read: not JSON by its name, or of a version newer than those known here.
    :raises ConfigError: names the file, the key and what it must be.
    """
    if path.suffix != '.json':
        return None
    values = _load(path)
    if 'model_lib_file' in values:
        raise ConfigError(f"'{path}' is the compiler's manifest; give the model.json that it names ({values['model_lib_file']})")
    version = str(values.get('version', ''))
    major = version.partition('.')[0]
    if _MAJOR.fullmatch(major) and int(major) > _KNOWN_VERSION and ('inputs' not in values or 'outputs' not in values):
        return None
    inputs, outputs = _tensors(path, 'inputs', values.get('inputs')), _tensors(path, 'outputs', values.get('outputs'))
    manifest = _find_manifest(path)
    graph = ''
    if manifest is not None:
        known = _load(manifest)
        _add(manifest, known, inputs, 'n_padded_ch_inputs', 'quantize_params')
        _add(manifest, known, outputs, 'n_padded_ch_outputs', 'dequantize_params')
        graph = str(known.get('preprocess_graph') or '')
    return VoyagerModel(path, tuple(inputs), tuple(outputs), graph)
