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
The ``onnx`` accelerator: run models with ONNX Runtime or OpenCV, in its own thread.

:class:`OnnxEngine` runs a model file with ONNX Runtime. :class:`HogEngine` runs OpenCV's people
detector, which needs no model file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
import re
from types import ModuleType
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tiles import Part, Parts
from zc_perception.errors import AcceleratorError, ConfigError, message_of, nearest
from zc_perception.frame import Frame
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Capabilities, ImportHandle, Outputs
from zc_perception.npu.engine_thread import Engine, EngineJob, EngineThread, TensorEngine
from zc_perception.npu.manifest import check_head, DTYPES, ModelInput, ModelManifest, TensorSpec
from zc_perception.npu.model_file import BESIDES
from zc_perception.npu.onnx.kind import CONSTRAINTS, JOBS, ONNX, Onnx, OPENCV_HOG, parse_providers
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import Planes, ToLuma
from zc_perception.pixel.layout import ImageLayout


class HogEngine(Engine):
    """
    Run OpenCV's HOG people detector on the luma of each frame.

    :raises ConfigError: the installed OpenCV has no HOG detector (version 5 dropped it).
    """

    def __init__(self) -> None:
        if not hasattr(cv2, 'HOGDescriptor'):
            raise ConfigError(
                f"model 'hog' needs OpenCV 4, but this is OpenCV {cv2.__version__}: pip install "
                "'opencv-python-headless<5'"
            )
        self._hog = cv2.HOGDescriptor()
        self._hog.setSVMDetector(
            np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), np.float32)
        )
        self._converter: tuple[ImageLayout | Part, Colorimetry, ToLuma] | None = None

    def geometry(self, width: int, height: int) -> Letterbox:
        return Letterbox.fit(width, height, width, height, stretch=True)

    def run(self, planes: Planes, layout: ImageLayout | Part, colorimetry: Colorimetry) -> Outputs:
        """
        Run the detector on one frame, see :meth:`Engine.run`.

        The only output has shape (n, 6); a row is x0, y0, x1, y1, score, class. The detector gives
        each box a weight w > 0 without upper bound. Subscribers expect scores in 0..1, so the
        score is 1 - exp(-w).
        """
        if self._converter is None or self._converter[:2] != (layout, colorimetry):
            self._converter = (
                layout,
                colorimetry,
                ToLuma(layout.fourcc, layout.width, layout.height, colorimetry),
            )
        luma = self._converter[2].convert(planes)
        window_width, window_height = self._hog.winSize
        if luma.shape[1] < window_width or luma.shape[0] < window_height:
            # If a picture is smaller than the detector's winSize, OpenCV aborts the process.
            if isinstance(layout, Part):
                raise AcceleratorError(
                    f"parts of {layout.width}x{layout.height} pixels are smaller than the "
                    f"{window_width}x{window_height} that model hog needs; set 'tiles' to "
                    "fewer tiles, or 'roi' to a larger region"
                )
            return [RawTensor(np.zeros((0, 6), np.float32))]
        boxes, weights = self._hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)
        rows = np.zeros((len(boxes), 6), np.float32)
        if len(boxes):
            corners = np.asarray(boxes, np.float32)
            rows[:, :2] = corners[:, :2]
            rows[:, 2:4] = corners[:, :2] + corners[:, 2:]
            rows[:, 4] = -np.expm1(-np.asarray(weights, np.float32).reshape(-1))
        return [RawTensor(rows)]


CPU = 'CPUExecutionProvider'
# NumPy's names of ONNX's types, where the two names differ.
_NAMES = {'float': 'float32', 'double': 'float64'}
# The package to install for each provider that the plain onnxruntime package lacks.
_PACKAGES = {
    'OpenVINO': 'onnxruntime-openvino',
    'CUDA': 'onnxruntime-gpu',
    'Tensorrt': 'onnxruntime-gpu',
    'QNN': 'onnxruntime-qnn',
    'VitisAI': "AMD's Ryzen AI or Vitis AI",
}
# For each extra input in BESIDES: the function that returns its value. With these values, the
# model returns boxes in pixels of its picture input.
_BESIDES: Mapping[str, Callable[[ModelInput], tuple[int, int]]] = dict(
    zip(
        BESIDES,
        (lambda n: (n.width, n.height), lambda n: (n.height, n.width), lambda n: (1, 1)),
        strict=True,
    )
)
_NO_OPERATOR = re.compile('not a registered function/op|No Op registered for')
_ELSEWHERE = re.compile('[Ee]xternal (data path|initializer)|cannot get file size')
_TOO_NEW = re.compile(r'[Oo]pset (\d+) is under development|model (IR version: \d+)')
# ONNX Runtime's error messages start with a code and a source line, which don't help users.
_PLACE = re.compile(r'(\[ONNXRuntimeError\] : \d+ : \w+ : )?(/\S+:\d+ .*?\) )?')
# ONNX Runtime's name of the device memory of each provider that doesn't compute in host memory.
_MEMORIES = {
    'CUDAExecutionProvider': 'cuda',
    'TensorrtExecutionProvider': 'cuda',
    'NvTensorRTRTXExecutionProvider': 'cuda',
    'CANNExecutionProvider': 'cann',
}


def _dtype(onnx: str) -> str:
    """Return NumPy's name of an element type such as ``tensor(float)``."""
    name = onnx.removeprefix('tensor(').removesuffix(')')
    return _NAMES.get(name, name)


class OnnxEngine(TensorEngine):
    """
    One model that ONNX Runtime runs.

    :param entries: the value of parameter ``providers``.
    :param threads: the number of CPU threads; 0: one per core.
    :ivar provider: the provider that runs most of the nodes (operators) of the model's graph.
    :ivar nodes: how many nodes of the graph each provider runs; empty if this release of ONNX
        Runtime doesn't report it.
    :raises ConfigError: onnxruntime isn't installed or lacks a provider, or the file is no ONNX
        model, or it doesn't fit its manifest.
    """

    def __init__(
        self, manifest: ModelManifest, threads: int = 0, entries: Sequence[str] = ()
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise ConfigError(
                f"model '{manifest.name}' needs ONNX Runtime: pip install onnxruntime, or use "
                'model: hog'
            ) from error
        super().__init__(manifest.input)
        self._file = manifest.file
        self._session = self._open(onnxruntime, parse_providers(entries), threads)
        self.nodes = self._count_nodes()
        self.provider = max(self.nodes, key=self.nodes.__getitem__, default=self._providers[0])
        self._name, self._besides = self._inputs(manifest.input)
        self._tensors = self._specs(manifest)
        self._bound: _Bound | None = None
        if self.provider in _MEMORIES:
            number = self._session.get_provider_options()[self.provider].get('device_id', '0')
            blank = np.zeros(self._input.shape, self._input.dtype)
            self._bound = _Bound(
                onnxruntime.OrtValue,
                self._session,
                self._name,
                {self._name: blank, **self._besides},
                (_MEMORIES[self.provider], int(number)),
            )

    def _open(
        self, onnxruntime: ModuleType, providers: list[tuple[str, dict[str, str]]], threads: int
    ) -> Any:
        there = onnxruntime.get_available_providers()
        for name, _ in providers:
            if name not in there:
                package = _PACKAGES.get(name.removesuffix('ExecutionProvider'))
                raise ConfigError(
                    f"parameter 'providers' has '{name}', which this ONNX Runtime "
                    f'({onnxruntime.__version__}) lacks; it has {", ".join(there)}'
                    + (
                        f'; install {package} in place of onnxruntime'
                        if package
                        else nearest(name, there)
                    )
                )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # Worker threads that spin while they wait would take the CPU from the camera's thread.
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        options.add_session_config_entry('session.record_ep_graph_assignment_info', '1')
        try:
            # Switch off ONNX Runtime's fallback, which would silently run the model on the CPU.
            session = onnxruntime.InferenceSession(
                str(self._file), options, providers=providers or [(CPU, {})], enable_fallback=0
            )
        except Exception as error:  # onnxruntime has no common base class of its errors
            text = _PLACE.sub('', message_of(error), count=1)
            new = _TOO_NEW.search(text)
            if new is not None:
                text = (
                    f'it has {new[2] or f"opset {new[1]}"}, which is too new for ONNX Runtime '
                    f'{onnxruntime.__version__}: pip install -U onnxruntime, or export the model '
                    'with an older opset (yolo export … opset=17)'
                )
            elif _NO_OPERATOR.search(text):
                text += ': export it without this operator'
            elif _ELSEWHERE.search(text):
                text = (
                    'its weights are in another file; copy that file, too, into the folder of '
                    f'the model: {text}'
                )
            raise ConfigError(f"model file '{self._file}' can't be loaded: {text}") from error
        self._providers: list[str] = session.get_providers()
        for name, given in providers:
            if name not in self._providers:
                raise ConfigError(
                    f"parameter 'providers' has '{name}', which can't be used on this machine "
                    f'with options {given}: ONNX Runtime left it out and wrote the reason to '
                    'stderr; remove the cause, or remove the provider from the parameter'
                )
        return session

    def _count_nodes(self) -> Counter[str]:
        nodes: Counter[str] = Counter()
        # ONNX Runtime has this method from release 1.24 on.
        if hasattr(self._session, 'get_provider_graph_assignment_info'):
            for part in self._session.get_provider_graph_assignment_info():
                nodes[part.ep_name] += len(part.get_nodes())
        return nodes

    def _inputs(self, network: ModelInput) -> tuple[str, dict[str, NDArray[Any]]]:
        """Return the name of the picture's input, and the values for the other inputs by name."""
        inputs = {given.name: _dtype(given.type) for given in self._session.get_inputs()}
        besides = {
            name: np.array([_BESIDES[name](network)], inputs[name])
            for name in _BESIDES
            if name in inputs
        }
        return next(name for name in inputs if name not in besides), besides

    def _specs(self, manifest: ModelManifest) -> list[TensorSpec | None]:
        """Return, for each output of the model file, its entry in the manifest, or ``None``."""
        outputs = {output.name: output for output in self._session.get_outputs()}
        names = list(outputs)
        for index, spec in enumerate(manifest.tensors):
            if spec.name not in names:
                raise ConfigError(
                    f"{manifest.path}: key 'outputs[{index}].name' is '{spec.name}', but the "
                    f'model file has no such output; it has {", ".join(names)}'
                )
            shape, kind = (outputs[spec.name].shape or spec.shape, _dtype(outputs[spec.name].type))
            dtype = kind if kind in DTYPES else 'float32'
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
                        f"{manifest.path}: key 'outputs[{index}].{key}' is {value}, the model "
                        f"file's is {real}; write what the model file has, or leave out the key"
                    )
        given = {spec.name: spec for spec in manifest.tensors}
        return [given.get(name) for name in names]

    def infer_blank(self) -> Outputs:
        """
        Run the model on zeros, see :meth:`TensorEngine.infer_blank`.

        :raises ConfigError: ONNX Runtime can't run the model.
        """
        try:
            return super().infer_blank()
        except Exception as error:  # onnxruntime has no common base class of its errors
            raise ConfigError(
                f"model file '{self._file}' can't be run: {message_of(error)}; export it again"
            ) from error

    def infer(self, tensor: NDArray[Any]) -> Outputs:
        outputs: Sequence[NDArray[Any]] = (
            self._bound.run(tensor)
            if self._bound is not None
            else self._session.run(None, {self._name: tensor, **self._besides})
        )
        return [_raw(values, spec) for values, spec in zip(outputs, self._tensors, strict=True)]


class _Bound:
    """
    Run a session whose inputs lie in the device's memory; the inputs are allocated only once.

    Each output is copied once, from the device's memory to the host's.

    :param values: ONNX Runtime's class of values in a device's memory, ``OrtValue``.
    :param picture: the name of the input that gets the frame's picture.
    :param place: ONNX Runtime's name of the memory, and the device's number.
    """

    def __init__(
        self,
        values: Any,
        session: Any,
        picture: str,
        inputs: Mapping[str, NDArray[Any]],
        place: tuple[str, int],
    ) -> None:
        self._session, self._place = session, place
        self._binding = session.io_binding()
        self._inputs = {
            name: values.ortvalue_from_numpy(given, *place) for name, given in inputs.items()
        }
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        self._picture = self._inputs[picture]
        self._outputs = [output.name for output in session.get_outputs()]

    def run(self, tensor: NDArray[Any]) -> Sequence[NDArray[Any]]:
        """Run the model on the picture *tensor*; return its outputs, which the caller owns."""
        self._picture.update_inplace(tensor)
        # Bind the outputs again, because their sizes may differ from those of the last run.
        self._binding.clear_binding_outputs()
        for name in self._outputs:
            self._binding.bind_output(name, *self._place)
        self._session.run_with_iobinding(self._binding)
        outputs: Sequence[NDArray[Any]] = self._binding.copy_outputs_to_cpu()
        return outputs


def _raw(values: NDArray[Any], spec: TensorSpec | None) -> RawTensor:
    """Return an output for the heads; convert element types that heads can't read to float32."""
    if values.dtype not in DTYPES:
        values = values.astype(np.float32)
    return RawTensor(values) if spec is None else spec.raw(values)


# The longest time for loading a model. Some providers compile the model for their device first,
# which takes minutes.
_LOAD_TIMEOUT_S = 600.0


class OnnxAccelerator(Onnx):
    """
    Run models in the thread ``onnx-accelerator``, which this class owns.

    :param ledger: counts the bytes of each frame that the CPU reads.
    :param values: parameters by name; one that is missing has its default value.
    """

    def __init__(self, ledger: CopyLedger, values: Mapping[str, Any] | None = None) -> None:
        self._values = Onnx.own(values or {})
        self._name = 'no model'
        self._threads = {'threads': self._values['threads'] or 'one per core'}
        self._facts: Mapping[str, object] = self._threads
        self._notices: Sequence[str] = ()
        self._thread = EngineThread('onnx-accelerator', ledger, Parts(self._values))

    def capabilities(self) -> Capabilities:
        return Capabilities(
            'onnx', self._name, copy_free=False, max_in_flight=JOBS, may_hang=False, on_card=False
        )

    def constraints(self) -> BufferConstraints:
        return CONSTRAINTS

    def load(self, manifest: ModelManifest) -> None:
        if manifest.engine not in (ONNX.name, OPENCV_HOG.name):
            raise ConfigError(
                f"model '{manifest.name}' (engine {manifest.engine}) can't run on the onnx "
                'accelerator'
            )
        self._thread.load(lambda: self._made(manifest), _LOAD_TIMEOUT_S)

    def _made(self, manifest: ModelManifest) -> Engine:
        if manifest.engine == OPENCV_HOG.name:
            self._name, self._facts, self._notices = 'OpenCV HOG', self._threads, ()
            return HogEngine()
        engine = OnnxEngine(manifest, self._values['threads'], self._values['providers'])
        check_head(manifest, engine.infer_blank())
        nodes, first, model = engine.nodes, engine.provider, manifest.name
        self._name = f'ONNX Runtime{"" if first == CPU else f" on {first}"}, {model}'
        share = f'{nodes[CPU]} of {nodes.total()}'
        self._facts = {
            **self._threads,
            'provider': first,
            'nodes_on_cpu': share if nodes else 'not reported by this ONNX Runtime',
        }
        asked = ', '.join(name for name, _ in parse_providers(self._values['providers']))
        by_cpu = f'{share} nodes of model {model} run on the CPU, as {asked} does not support them'
        self._notices = (by_cpu,) if asked not in ('', CPU) and nodes[CPU] else ()
        return engine

    def facts(self) -> Mapping[str, object]:
        return self._facts

    def notices(self) -> Sequence[str]:
        return self._notices

    def submit(self, handle: ImportHandle, frame: Frame) -> EngineJob:
        return self._thread.submit(frame)

    def close(self) -> None:
        self._thread.close()
