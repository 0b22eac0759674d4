"""A model's file in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tensor import PlanesToTensor
from zc_perception.errors import ConfigError, message_of
from zc_perception.npu.accelerator import Outputs
from zc_perception.npu.manifest import DTYPES, ModelManifest, TensorSpec
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.samples import Planes

_ONNX_TYPES = {'float32': 'tensor(float)', 'uint8': 'tensor(uint8)', 'int8': 'tensor(int8)'}
# What heads are given of an output; those of any other type as float32.
_GIVEN_TYPES = {**{f'tensor({name})': name for name in DTYPES}, 'tensor(float)': 'float32'}


class OnnxEngine:
    """ONNX Runtime on the CPU.

    :raises ConfigError: onnxruntime isn't installed, or the file isn't a model that fits its manifest.
    """

    def __init__(self, manifest: ModelManifest, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError(
                f"model '{manifest.name}' needs ONNX Runtime: pip install onnxruntime, or use model: hog"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # Spinning workers would take the core from the camera's thread.
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        try:
            self._session = onnxruntime.InferenceSession(
                str(manifest.file), options, providers=['CPUExecutionProvider']
            )
        except Exception as error:  # onnxruntime has no common base class of its errors
            raise ConfigError(
                f"model file '{manifest.file}' can't be loaded: {message_of(error)}"
            ) from error
        self._file, self._input = manifest.file, manifest.input
        self._check_input(manifest)
        self._name = self._session.get_inputs()[0].name
        self._tensors = self._specs(manifest)
        self._converter: tuple[ImageLayout, Colorimetry, PlanesToTensor] | None = None

    def _check_input(self, manifest: ModelManifest) -> None:
        inputs, wanted = self._session.get_inputs(), manifest.input
        if len(inputs) != 1:
            raise ConfigError(
                f"model file '{manifest.file}' has {len(inputs)} inputs ({', '.join(i.name for i in inputs)}); it needs one"
            )
        size = (
            (3, wanted.height, wanted.width)
            if wanted.layout == 'nchw'
            else (wanted.height, wanted.width, 3)
        )
        shape, kind = inputs[0].shape, inputs[0].type
        # A size that the file leaves open has a name, or none.
        fits = len(shape) == 4 and all(
            not isinstance(has, int) or has == want
            for has, want in zip(shape, (1, *size), strict=True)
        )
        if not fits:
            axes = 'N, C, H, W' if wanted.layout == 'nchw' else 'N, H, W, C'
            raise ConfigError(
                f"{manifest.path}: input is {wanted.width}x{wanted.height}, the file's is {shape} (it must be {axes})"
            )
        if kind != _ONNX_TYPES[wanted.dtype]:
            named = {onnx: ours for ours, onnx in _ONNX_TYPES.items()}.get(kind)
            hint = (
                f'set input.dtype: {named}'
                if named
                else f'export the model with one of {", ".join(_ONNX_TYPES)}'
            )
            raise ConfigError(
                f"{manifest.path}: key 'input.dtype' is {wanted.dtype}, the file's input is {kind}; {hint}"
            )

    def _specs(self, manifest: ModelManifest) -> list[TensorSpec | None]:
        """What the manifest says of each output of the file."""
        outputs = {output.name: output for output in self._session.get_outputs()}
        names = list(outputs)
        for index, spec in enumerate(manifest.tensors):
            if spec.name not in names:
                raise ConfigError(
                    f"{manifest.path}: key 'outputs[{index}].name' is '{spec.name}', which the file doesn't have; it has {', '.join(names)}"
                )
            shape, dtype = (
                outputs[spec.name].shape or spec.shape,
                _GIVEN_TYPES.get(outputs[spec.name].type, 'float32'),
            )
            open_sizes = [
                want if isinstance(has, str) or has is None else has
                for has, want in zip(shape, spec.shape, strict=False)
            ]
            for key, value, real, fits in (
                (
                    'shape',
                    list(spec.shape),
                    list(shape),
                    not spec.shape
                    or (len(shape) == len(spec.shape) and open_sizes == [*spec.shape]),
                ),
                ('dtype', spec.dtype, dtype, spec.dtype in ('', dtype)),
            ):
                if not fits:
                    raise ConfigError(
                        f"{manifest.path}: key 'outputs[{index}].{key}' is {value}, the file's is {real}; it must be that, or left out"
                    )
        given = {spec.name: spec for spec in manifest.tensors}
        return [given.get(name) for name in names]

    def run_blank(self) -> Outputs:
        """What the model yields for an input of zeros.

        :raises ConfigError: it can't be run.
        """
        width, height = self._input.width, self._input.height
        shape = (1, 3, height, width) if self._input.layout == 'nchw' else (1, height, width, 3)
        try:
            return self._infer(np.zeros(shape, self._input.dtype))
        except Exception as error:  # onnxruntime has no common base class of its errors
            raise ConfigError(
                f"model file '{self._file}' can't be run: {message_of(error)}; export it anew"
            ) from error

    def geometry(self, width: int, height: int) -> Letterbox:
        return Letterbox.fit(
            width,
            height,
            self._input.width,
            self._input.height,
            stretch=self._input.resize == 'stretch',
        )

    def _convert(
        self, planes: Planes, layout: ImageLayout, colorimetry: Colorimetry
    ) -> NDArray[Any]:
        spec = self._input
        # Tuples compare their members by identity first, and the layout of a pool's slots is one object.
        if self._converter is None or self._converter[:2] != (layout, colorimetry):
            box = self.geometry(layout.width, layout.height)
            converter = PlanesToTensor(
                box,
                layout.fourcc,
                colorimetry,
                pad=spec.pad,
                low=spec.low,
                high=spec.high,
                bgr=spec.bgr,
            )
            self._converter = layout, colorimetry, converter
        tensor: NDArray[Any] = self._converter[2].convert(planes)
        if spec.dtype != 'float32':
            limits = np.iinfo(spec.dtype)
            tensor = (
                np.rint(tensor / spec.scale + spec.zero_point)
                .clip(limits.min, limits.max)
                .astype(spec.dtype)
            )
        return (
            tensor if spec.layout == 'nchw' else np.ascontiguousarray(tensor.transpose(0, 2, 3, 1))
        )

    def run(self, planes: Planes, layout: ImageLayout, colorimetry: Colorimetry) -> Outputs:
        return self._infer(self._convert(planes, layout, colorimetry))

    def _infer(self, tensor: NDArray[Any]) -> Outputs:
        outputs: Sequence[NDArray[Any]] = self._session.run(None, {self._name: tensor})
        return [_raw(values, spec) for values, spec in zip(outputs, self._tensors, strict=True)]


def _raw(values: NDArray[Any], spec: TensorSpec | None) -> RawTensor:
    """An output as heads take it; other types of number become float32."""
    if values.dtype not in DTYPES:
        values = values.astype(np.float32)
    return RawTensor(values) if spec is None else spec.raw(values)
