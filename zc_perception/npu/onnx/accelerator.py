"""Accelerator ``onnx``: a worker thread that runs real detectors on real pixels.

It reads the frame's buffer through the CPU mapping once per frame; that pass is booked as ``tensor``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from zc_perception.detection.letterbox import Letterbox
from zc_perception.errors import AcceleratorError, ConfigError
from zc_perception.frame import Frame
from zc_perception.memory.ledger import CopyLedger
from zc_perception.negotiation.constraints import BufferConstraints
from zc_perception.npu.accelerator import Capabilities, ImportHandle, Outputs
from zc_perception.npu.manifest import ModelManifest, check_head
from zc_perception.npu.onnx.hog import HogEngine
from zc_perception.npu.onnx.kind import CONSTRAINTS, JOBS, ONNX, OPENCV_HOG, Onnx, parse_providers
from zc_perception.npu.onnx.session import CPU, OnnxEngine
from zc_perception.npu.worked_job import HostResult, WorkedJob
from zc_perception.pixel.colorimetry import Colorimetry
from zc_perception.pixel.layout import ImageLayout
from zc_perception.pixel.samples import Planes


class Engine(Protocol):
    """Something that turns a frame's planes into raw outputs."""

    def run(self, planes: Planes, layout: ImageLayout, colorimetry: Colorimetry) -> Outputs:
        """Blocking; one thread. The outputs are the caller's.

        :raises FormatError: a format or a colorimetry that has no conversion.
        """

    def geometry(self, width: int, height: int) -> Letterbox:
        """Between a frame of that size and the outputs."""


OnnxJob = WorkedJob[HostResult]


class OnnxAccelerator(Onnx):
    """Runs one engine in a worker thread of its own, ``onnx-accelerator``, one frame after the other.

    :meth:`submit` only queues the frame. The thread maps it, runs the engine and signals the job's fence. Jobs that were given up before
    the thread has come to them are skipped.

    :param ledger: books the pass over each frame's pixels.
    :param values: as :meth:`own` of :class:`Onnx` has them.
    """

    def __init__(self, ledger: CopyLedger, values: Mapping[str, Any] | None = None) -> None:
        self._ledger = ledger
        self._values = Onnx.own(values or {})
        self._engine: Engine | None = None
        self._name = 'no model'
        self._facts: Mapping[str, object] = {}
        self._notices: Sequence[str] = ()
        self._jobs: queue.SimpleQueue[OnnxJob | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._closing = False

    def capabilities(self) -> Capabilities:
        return Capabilities(
            'onnx', self._name, copy_free=False, max_in_flight=JOBS, may_hang=False, on_card=False
        )

    def constraints(self) -> BufferConstraints:
        return CONSTRAINTS

    def load(self, manifest: ModelManifest) -> None:
        if manifest.engine not in (ONNX.name, OPENCV_HOG.name):
            raise ConfigError(
                f"model '{manifest.name}' (engine {manifest.engine}) can't run on the onnx accelerator"
            )
        if manifest.engine == ONNX.name:
            weights = OnnxEngine(manifest, self._values['threads'], self._values['providers'])
            check_head(manifest, weights.run_blank())
            self._engine = weights
            self._describe(weights, manifest.name)
        else:
            self._engine = HogEngine()
            self._name, self._facts, self._notices = 'OpenCV HOG', {}, ()
        self._closing = False
        if self._worker is None:
            self._worker = threading.Thread(
                target=self._work, name='onnx-accelerator', daemon=True
            )
            self._worker.start()

    def _describe(self, engine: OnnxEngine, model: str) -> None:
        nodes, first = engine.nodes, engine.provider
        self._name = f'ONNX Runtime{"" if first == CPU else f" on {first}"}, {model}'
        share = f'{nodes[CPU]} of {nodes.total()}'
        self._facts = {
            'threads': self._values['threads'] or 'one per core',
            'provider': first,
            'nodes_on_cpu': share if nodes else 'this ONNX Runtime does not tell',
        }
        asked = ', '.join(name for name, _ in parse_providers(self._values['providers']))
        self._notices = ()
        if asked not in ('', CPU) and nodes[CPU]:
            self._notices = (
                f'{share} nodes of model {model} run on the CPU, as {asked} does not take them',
            )

    def facts(self) -> Mapping[str, object]:
        return self._facts

    def notices(self) -> Sequence[str]:
        return self._notices

    def submit(self, handle: ImportHandle, frame: Frame) -> OnnxJob:
        if self._engine is None or self._worker is None:
            raise AcceleratorError('the onnx accelerator has no model loaded')
        job = OnnxJob(
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
                        result = HostResult(
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
