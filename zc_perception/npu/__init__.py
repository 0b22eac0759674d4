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
Accelerators behind one interface, their models' manifests, and the scheduler of frames.

Nothing in this package imports ROS. Read first:

* :mod:`~zc_perception.npu.accelerator`: :class:`Accelerator` and :class:`Job`, what each
  accelerator must implement.
* :mod:`~zc_perception.npu.scheduler`: :class:`Scheduler`, the one thread that takes frames,
  submits them and hands results over in order, so that the accelerator stays busy.
  :mod:`~zc_perception.npu.recovering_device` brings a lost device back.
* :mod:`~zc_perception.npu.manifest`: what ``model.yaml`` says about a model.
  :mod:`~zc_perception.npu.selection` chooses the accelerator.

The accelerators: :mod:`~zc_perception.npu.axl`, whose card reads the camera's dma-buf;
:mod:`~zc_perception.npu.axruntime`, through Axelera's Voyager runtime;
:mod:`~zc_perception.npu.onnx`, with ONNX Runtime. In each package, read the module ``kind`` first.
:mod:`~zc_perception.npu.metis_card` finds the Metis cards that ``axl`` and ``axruntime`` use, and
reads their state. :mod:`~zc_perception.npu.engine_thread` has the thread that runs the model for
accelerators whose driver signals no fences.
"""
