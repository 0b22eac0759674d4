"""The ``cpu`` accelerator: real detectors on real pixels, for machines without an NPU.

It reads the frame's buffer through the CPU mapping once per frame; that pass is booked as ``tensor``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from zc_perception.detection.letterbox import Letterbox
from zc_perception.detection.raw_tensor import RawTensor
from zc_perception.detection.tensor import Nv12ToTensor
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.dmabuf import CpuAccess, DmaBuf
from zc_perception.memory.fence import EventFence
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints, Caching
from zc_perception.npu.accelerator import Capabilities, ImportHandle, Outputs
from zc_perception.npu.manifest import ModelManifest
from zc_perception.pixel.fourcc import NV12
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.modifier import LINEAR


class Engine(Protocol):
    """Something that turns NV12 planes into raw outputs."""

    def run(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> Outputs:
        """Blocking; one thread."""

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
            raise ConfigError(f"model '{manifest.name}' needs ONNX Runtime: pip install onnxruntime, or use model: hog") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # Spinning workers would take the core from the camera's thread.
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        try:
            self._session = onnxruntime.InferenceSession(str(manifest.file), options, providers=['CPUExecutionProvider'])
        except Exception as error:  # onnxruntime has no common base class of its errors
            raise ConfigError(f"model file '{manifest.file}' can't be loaded: {' '.join(str(error).split())}") from error
        self._input = manifest.input
        self._name = self._session.get_inputs()[0].name
        shape = self._session.get_inputs()[0].shape
        if shape != [1, 3, self._input.height, self._input.width]:
            raise ConfigError(f"{manifest.path}: input is {self._input.width}x{self._input.height}, the file's is {shape} (N, C, H, W)")
        self._converter: tuple[Letterbox, Nv12ToTensor] | None = None

    def geometry(self, width: int, height: int) -> Letterbox:
        """See :class:`Engine`."""
        return Letterbox.fit(width, height, self._input.width, self._input.height, stretch=self._input.resize == 'stretch')

    def _tensor_converter(self, width: int, height: int) -> Nv12ToTensor:
        if self._converter is None or (self._converter[0].source_width, self._converter[0].source_height) != (width, height):
            box, spec = self.geometry(width, height), self._input
            self._converter = box, Nv12ToTensor(box, pad=spec.pad, low=spec.low, high=spec.high, bgr=spec.bgr)
        return self._converter[1]

    def run(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> Outputs:
        """See :class:`Engine`."""
        tensor = self._tensor_converter(luma.shape[1], luma.shape[0]).convert(luma, chroma)
        outputs: Sequence[NDArray[np.float32]] = self._session.run(None, {self._name: tensor})
        return [RawTensor(values) for values in outputs]


class HogEngine:
    """OpenCV's HOG people detector on the luma plane.

    :raises ConfigError: this OpenCV has none (version 5 dropped it).
    """

    def __init__(self) -> None:
        if not hasattr(cv2, 'HOGDescriptor'):
            raise ConfigError(f"model 'hog' needs OpenCV 4, this is {cv2.__version__}: pip install 'opencv-python-headless<5'")
        self._hog = cv2.HOGDescriptor()
        self._hog.setSVMDetector(np.asarray(cv2.HOGDescriptor.getDefaultPeopleDetector(), np.float32))

    def geometry(self, width: int, height: int) -> Letterbox:
        """See :class:`Engine`."""
        return Letterbox.fit(width, height, width, height, stretch=True)

    def run(self, luma: NDArray[np.uint8], chroma: NDArray[np.uint8]) -> Outputs:
        """See :class:`Engine`. One output (n, 6): x0, y0, x1, y1, score, class.

        The SVM's distance d > 0 has no upper bound; the score is 1 - exp(-d), so that it lies in 0..1 as subscribers expect.
        """
        boxes, weights = self._hog.detectMultiScale(luma, winStride=(8, 8), scale=1.05)
        rows = np.zeros((len(boxes), 6), np.float32)
        if len(boxes):
            corners = np.asarray(boxes, np.float32)
            rows[:, :2] = corners[:, :2]
            rows[:, 2:4] = corners[:, :2] + corners[:, 2:]
            rows[:, 4] = -np.expm1(-np.asarray(weights, np.float32).reshape(-1))
        return [RawTensor(rows)]


class CpuJob:
    """One frame on its way through an engine."""

    def __init__(self, frame: Frame, letterbox: Letterbox) -> None:
        self.fence = EventFence()
        self.letterbox = letterbox
        self.frame: Frame | None = frame
        self.result: Outputs = ()

    def outputs(self) -> Outputs:
        """See :class:`Job`."""
        self.fence.check()
        return self.result

    def abandon(self) -> EventFence:
        """See :class:`Job`."""
        return self.fence

    def close(self) -> None:
        """See :class:`Job`."""
        self.fence.close()


class CpuAccelerator:
    """Runs one engine in a worker thread of its own.

    :param ledger: books the pass over each frame's pixels.
    :param threads: threads of ONNX Runtime; 0 for one per core.
    """

    def __init__(self, ledger: CopyLedger, threads: int = 0) -> None:
        self._ledger = ledger
        self._threads = threads
        self._engine: Engine | None = None
        self._name = 'no model'
        self._jobs: queue.SimpleQueue[CpuJob | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self.imports = 0
        self.trial_imports = 0

    def capabilities(self) -> Capabilities:
        """See :class:`Accelerator`."""
        return Capabilities('cpu', self._name, copy_free=False, max_in_flight=2)

    def constraints(self) -> BufferConstraints:
        """See :class:`Accelerator`."""
        return BufferConstraints('cpu accelerator', formats=((NV12, LINEAR),), cpu_access=CpuAccess.READ, caching=Caching.CACHED)

    def trial_import(self, layout: ImageLayout, buffers: tuple[DmaBuf, ...]) -> Callable[[], None] | None:
        """See :class:`Accelerator`. There is nothing to import, and nothing is mapped before the first frame."""
        return None

    def load(self, manifest: ModelManifest) -> None:
        """See :class:`Accelerator`."""
        if manifest.engine not in ('onnx', 'opencv_hog'):
            raise ConfigError(f"model '{manifest.name}' (engine {manifest.engine}) can't run on the cpu accelerator")
        self._engine = OnnxEngine(manifest, self._threads) if manifest.engine == 'onnx' else HogEngine()
        self._name = f'ONNX Runtime, {manifest.name}' if manifest.engine == 'onnx' else 'OpenCV HOG'
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name='cpu-accelerator', daemon=True)
            self._worker.start()

    def import_frame(self, frame: Frame) -> ImportHandle:
        """See :class:`Accelerator`."""
        return ImportHandle()

    def release(self, handle: ImportHandle) -> None:
        """See :class:`Accelerator`."""

    def tidy(self) -> None:
        """See :class:`Accelerator`. It keeps nothing between frames."""

    def submit(self, handle: ImportHandle, frame: Frame) -> CpuJob:
        """See :class:`Accelerator`."""
        if self._engine is None or self._worker is None:
            raise AcceleratorError('the cpu accelerator has no model loaded')
        job = CpuJob(frame, self._engine.geometry(frame.data.width, frame.data.height))
        self._jobs.put(job)
        return job

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            error: Exception | None = None
            frame, job.frame = job.frame, None
            try:
                assert self._engine is not None and frame is not None
                with frame.map() as planes:
                    self._ledger.book('tensor', sum(p.nbytes for p in planes))
                    job.result = self._engine.run(planes[0], planes[1])
            except Exception as failure:
                # Only the text: the traceback would keep views of the frame's pixels alive.
                error = AcceleratorError(f'{type(failure).__name__}: {failure}')
            del frame
            job.fence.signal(error)
            del job

    def close(self) -> None:
        """See :class:`Accelerator`."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join(timeout=5.0)
            self._worker = None
