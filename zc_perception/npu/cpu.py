"""The ``cpu`` accelerator: real detectors on real pixels, for machines without an NPU.

It reads the frame's buffer through the CPU mapping once per frame; that pass is booked as ``tensor``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tensor import PlanesToTensor
from zc_perception.errors import AcceleratorError, ConfigError, message_of
from zc_perception.frame import Frame
from zc_perception.machine.system import System
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import (
    Accelerator,
    Capabilities,
    ImportHandle,
    Outputs,
    reads_by_cpu,
    with_frames,
)
from zc_perception.npu.engine_rules import EngineRules, Values
from zc_perception.npu.manifest import DTYPES, INPUT, ModelManifest, TensorSpec, check_head
from zc_perception.npu.worked_job import WorkedJob
from zc_perception.parameters import ParameterSpec
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.conversion import ToLuma
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.samples import Planes
from zc_perception.rules import Place

_JOBS = 2
_ONNX_TYPES = {'float32': 'tensor(float)', 'uint8': 'tensor(uint8)', 'int8': 'tensor(int8)'}
# What heads are given of an output; those of any other type as float32.
_GIVEN_TYPES = {**{f'tensor({name})': name for name in DTYPES}, 'tensor(float)': 'float32'}


class OnnxRules(EngineRules):
    """Engine ``onnx``: an ONNX file, whose input has a size of its own."""

    def input_size(self, given: Values, file: Path | None, place: Place) -> tuple[int, int] | None:
        dtype = given.get('dtype', 'float32')
        if dtype != 'float32' and given.get('scale') is None:
            raise place.at('scale').missing(
                f'{INPUT.keys["scale"].rule.words}, as the values are {dtype}'
            )
        return super().input_size(given, file, place)


ONNX = OnnxRules('onnx', file='the weights', needs_file=True, takes_frames=False)
OPENCV_HOG = EngineRules('opencv_hog', needs_file=False)


class Engine(Protocol):
    """Something that turns a frame's planes into raw outputs."""

    def run(self, planes: Planes, layout: ImageLayout, colorimetry: Colorimetry) -> Outputs:
        """Blocking; one thread. The outputs are the caller's.

        :raises FormatError: a format or a colorimetry that has no conversion.
        """

    def geometry(self, width: int, height: int) -> Letterbox:
        """Between a frame of that size and the outputs."""


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


class HogEngine:
    """OpenCV's HOG people detector on the frame's luma.

    :raises ConfigError: this OpenCV has none (version 5 dropped it).
    """

    def __init__(self) -> None:
        if not hasattr(cv2, 'HOGDescriptor'):
            raise ConfigError(
                f"model 'hog' needs OpenCV 4, this is {cv2.__version__}: pip install 'opencv-python-headless<5'"
            )
        self._hog = cv2.HOGDescriptor()
        self._hog.setSVMDetector(
            np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), np.float32)
        )
        self._converter: tuple[ImageLayout, Colorimetry, ToLuma] | None = None

    def geometry(self, width: int, height: int) -> Letterbox:
        return Letterbox.fit(width, height, width, height, stretch=True)

    def run(self, planes: Planes, layout: ImageLayout, colorimetry: Colorimetry) -> Outputs:
        """See :class:`Engine`. One output (n, 6): x0, y0, x1, y1, score, class.

        The SVM's distance d > 0 has no upper bound; the score is 1 - exp(-d), so that it lies in 0..1 as subscribers expect.
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
            # OpenCV ends the process over pictures that are smaller than its window.
            return [RawTensor(np.zeros((0, 6), np.float32))]
        boxes, weights = self._hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)
        rows = np.zeros((len(boxes), 6), np.float32)
        if len(boxes):
            corners = np.asarray(boxes, np.float32)
            rows[:, :2] = corners[:, :2]
            rows[:, 2:4] = corners[:, :2] + corners[:, 2:]
            rows[:, 4] = -np.expm1(-np.asarray(weights, np.float32).reshape(-1))
        return [RawTensor(rows)]


@dataclass
class CpuResult:
    """What an engine yielded: memory of the process, which nobody else writes."""

    raw: Outputs

    def begin_reading(self) -> None:
        """Nothing is to be done."""

    end_reading = begin_reading


CpuJob = WorkedJob[CpuResult]
_CONSTRAINTS = reads_by_cpu('cpu accelerator')


class CpuAccelerator(Accelerator):
    """Runs one engine in a worker thread of its own, ``cpu-accelerator``, one frame after the other.

    :meth:`submit` only queues the frame. The thread maps it, runs the engine and signals the job's fence. Jobs that were given up before
    the thread has come to them are skipped.

    :param ledger: books the pass over each frame's pixels.
    :param threads: threads of ONNX Runtime; 0 for one per core.
    """

    ENGINES = (ONNX, OPENCV_HOG)
    PARAMETERS = (
        ParameterSpec(
            'threads', 0, 'Number of threads of ONNX Runtime. 0: one per core.', '', 0, 64
        ),
    )
    AUTO = 90

    @classmethod
    def foreseen(cls, values: Mapping[str, Any], system: System) -> BufferConstraints:
        return with_frames(_CONSTRAINTS, values['in_flight'], _JOBS)

    @classmethod
    def open(cls, values: Mapping[str, Any], ledger: CopyLedger) -> CpuAccelerator:
        return cls(ledger, values['threads'])

    def __init__(self, ledger: CopyLedger, threads: int = 0) -> None:
        self._ledger = ledger
        self._threads = threads
        self._engine: Engine | None = None
        self._name = 'no model'
        self._jobs: queue.SimpleQueue[CpuJob | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._closing = False

    def capabilities(self) -> Capabilities:
        return Capabilities(
            'cpu',
            self._name,
            copy_free=False,
            max_in_flight=_JOBS,
            may_hang=False,
            on_card=False,
        )

    def constraints(self) -> BufferConstraints:
        return _CONSTRAINTS

    def load(self, manifest: ModelManifest) -> None:
        if manifest.engine not in (ONNX.name, OPENCV_HOG.name):
            raise ConfigError(
                f"model '{manifest.name}' (engine {manifest.engine}) can't run on the cpu accelerator"
            )
        if manifest.engine == ONNX.name:
            weights = OnnxEngine(manifest, self._threads)
            check_head(manifest, weights.run_blank())
            self._engine = weights
        else:
            self._engine = HogEngine()
        self._name = (
            f'ONNX Runtime, {manifest.name}' if manifest.engine == ONNX.name else 'OpenCV HOG'
        )
        self._closing = False
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name='cpu-accelerator', daemon=True)
            self._worker.start()

    def facts(self) -> Mapping[str, object]:
        return {'threads': self._threads or 'one per core'}

    def submit(self, handle: ImportHandle, frame: Frame) -> CpuJob:
        if self._engine is None or self._worker is None:
            raise AcceleratorError('the cpu accelerator has no model loaded')
        job = CpuJob(
            frame, self._engine.geometry(frame.data.width, frame.data.height), lambda result: None
        )
        self._jobs.put(job)
        return job

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, error = None, AcceleratorError('the accelerator was closed')
            frame = None if self._closing else job.begin_reading()
            if (
                frame is not None
            ):  # else it was given up before it began, and would only keep the next one waiting
                try:
                    with frame.map() as planes:
                        self._ledger.book('tensor', sum(p.nbytes for p in planes))
                        assert self._engine is not None
                        result = CpuResult(
                            self._engine.run(planes, frame.data.layout, frame.data.colorimetry)
                        )
                except AcceleratorError as failure:
                    error = AcceleratorError(str(failure))
                except Exception as failure:
                    # Only the text: the traceback would keep views of the frame's pixels alive.
                    error = AcceleratorError(f'{type(failure).__name__}: {failure}')
            del frame
            job.end_reading()
            job.finish(result, error if result is None else None)
            del job

    def close(self) -> None:
        self._closing = True
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join(timeout=5.0)
            self._worker = None
