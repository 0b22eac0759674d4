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
The inference node and its accelerator.

Which one it takes and what it says about it, its threads, its notices, its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import os
from pathlib import Path
import threading
from typing import Any

from nodes.fault_kit import AcceleratorFaults, FaultyAccelerator, fleet
from nodes.managed import status
from nodes.ros_kit import alone
import pytest
from rclpy.parameter import Parameter

from zc_perception.errors import ConfigError
from zc_perception.machine.system import HostTree
from zc_perception.nodes.inference import InferenceNode
from zc_perception.npu.axl import accelerator as axl_accelerator
from zc_perception.npu.manifest import ModelManifest
from zc_perception.npu.metis_card import choose_card


def test_the_real_time_knobs_turn_the_accelerator_s_threads_too(
    free_domain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    own = threading.Thread(target=stop.wait, name='of the accelerator')
    own.start()
    monkeypatch.setattr(FaultyAccelerator, 'hot_threads', lambda _: (own,))
    cpu = max(os.sched_getaffinity(0))
    try:
        with fleet(free_domain) as run:
            run.inference.set_parameters([Parameter('cpu_affinity', value=[str(cpu)])])
            assert own.native_id is not None and os.sched_getaffinity(own.native_id) == {cpu}
    finally:
        stop.set()
        own.join()


def test_notices_are_said_once_and_shown_always(
    free_domain: int, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], str]
) -> None:
    notice = 'the link is PCIe x1, not x4: use another slot'
    monkeypatch.setattr(FaultyAccelerator, 'notices', lambda _: (notice,))
    monkeypatch.setattr(FaultyAccelerator, 'facts', lambda _: {'pci_address': '0000:01:00.0'})
    with fleet(free_domain) as run:
        for _ in range(2):
            run.reader.last.clear()
            run.well('inference: accelerator')
            values = run.reader.values('inference: accelerator')
            assert values['notices'] == notice and values['pci_address'] == '0000:01:00.0'
        assert logged().count(notice) == 1
        assert int(values['submitted']) >= int(values['completed']) > 0 and values[
            'utilisation'
        ].endswith('%')


def test_the_node_ends_while_its_device_is_lost(free_domain: int) -> None:
    with fleet(free_domain) as run:
        run.accelerator.present = False
        run.until(lambda: run.inference.scheduler.state.recovering, 'a loss')
    assert not run.inference.scheduler._thread.is_alive() and not any(
        thread.name == 'inference' for thread in threading.enumerate()
    )


@pytest.mark.parametrize(
    ('parameters', 'message'),
    [
        ({'axl_ioctls': ['sumbit=70']}, "parameter 'axl_ioctls' has 'sumbit=70'"),
        ({'aipu_cores': 5}, "parameter 'aipu_cores' is 5; it must be an integer from 0 to 4"),
        (
            {'score_threshold': -0.5},
            "parameter 'score_threshold' is -0.5; it must be a number from 0 to 1, or -1",
        ),
        (
            {'nms_threshold': -0.01},
            "parameter 'nms_threshold' is -0.01; it must be a number from 0 to 1 (IoU), or -1",
        ),
        ({'double_buffer': 'yes'}, "parameter 'double_buffer' is 'yes'; it must be a boolean"),
        (
            {'accelerator': 'axel'},
            "parameter 'accelerator' is 'axel'; it must be one of auto, axl",
        ),
        ({'accelerator': 'cpu'}, "axruntime, onnx; 'cpu' is called 'onnx' now"),
        ({'accelerator': 'axruntime'}, "model 'road' (engine onnx) can't run on axruntime"),
    ],
)
def test_wrong_parameters_are_one_sentence(
    free_domain: int, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused, alone(free_domain, InferenceNode, parameters):
        pass
    assert message in str(refused.value) and '\n' not in str(refused.value)


def test_a_driver_without_our_ioctls_is_one_line_and_the_next_is_taken(
    free_domain: int, tmp_path: Any
) -> None:
    """/dev/null answers ENOTTY to everything, as the shipped driver does to our ioctls."""
    (tmp_path / 'model.yaml').write_text(
        'head: boxes\nclasses: [person]\ninput: {resize: none}\nvariants:\n  - {engine: axl, '
        'outputs: [{name: boxes, dtype: float32, shape: [8, 6]}]}\n  - {engine: opencv_hog}\n',
        encoding='utf-8',
    )
    with alone(
        free_domain, InferenceNode, {'model': str(tmp_path), 'accelerator_device': '/dev/null'}
    ) as node:
        said: list[str] = []
        node.get_logger = lambda: _Lines(said)
        node.start()
        assert (
            node.accelerator.capabilities().name == 'onnx' and node.manifest.engine == 'opencv_hog'
        )
        lines = [line for line in said if 'ENOTTY' in line]
        assert len(lines) == 1 and '\n' not in lines[0]
        assert (
            '/dev/null has no import and submit ioctls (ENOTTY)' in lines[0]
            and 'accelerator: axruntime' in lines[0]
        )


class _Lines:
    """Collects log lines."""

    def __init__(self, lines: list[str], debug: list[str] | None = None) -> None:
        self.info = self.warning = self.error = lambda text, **options: lines.append(text)
        self.debug = lambda text, **options: debug is not None and debug.append(text)


def test_a_machine_without_a_card_is_told_where_it_runs_and_nothing_of_cards(
    free_domain: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The reasons are at debug level and in diagnostics.

    A card that is there and of no use is reported, see the test above.
    """
    monkeypatch.setattr(
        axl_accelerator,
        'choose_card',
        lambda wanted, tree: choose_card(wanted, HostTree(tmp_path, tmp_path)),
    )
    for wanted, quiet in (('', True), ('01:00.0', False)):
        with alone(
            free_domain, InferenceNode, {'model': 'hog', 'accelerator_device': wanted}
        ) as node:
            said: list[str] = []
            debug: list[str] = []
            monkeypatch.setattr(node, 'get_logger', partial(_Lines, said, debug))
            node.start()
            assert [line for line in said if line.startswith('running on the CPU')] == [
                'running on the CPU (model hog, OpenCV HOG)'
            ]
            reasons = [line for line in (debug if quiet else said) if "doesn't fit" in line]
            assert (
                len(reasons) == 2
                and 'no Metis card' in reasons[0]
                and 'engine: axruntime' in reasons[1]
            )
            assert any('card' in line for line in said) is not quiet
            assert status(node, 'accelerator').values['why_no_better'] == '; '.join(reasons)


@pytest.mark.parametrize(
    ('model', 'words'),
    [('road', "camera 'synthetic' draws, and nothing in real pictures"), ('hog', 'head to foot')],
)
def test_log_and_diagnostics_say_what_a_shipped_model_finds(
    free_domain: int, monkeypatch: pytest.MonkeyPatch, model: str, words: str
) -> None:
    with alone(free_domain, InferenceNode, {'model': model, 'accelerator': 'onnx'}) as node:
        said: list[str] = []
        monkeypatch.setattr(node, 'get_logger', partial(_Lines, said))
        node.start()
        (line,) = [line for line in said if line.startswith(f'model {model} finds ')]
        assert words in line
        assert words in status(node, 'accelerator').values['model_finds']


def test_a_factory_whose_accelerator_refuses_the_model_leaves_nothing_open(
    free_domain: int,
) -> None:
    class Refusing(FaultyAccelerator):
        """Refuses each model."""

        def load(self, manifest: ModelManifest) -> None:
            raise ConfigError('not this model')

    made: list[Refusing] = []

    def make() -> Refusing:
        made.append(Refusing(AcceleratorFaults()))
        return made[-1]

    with (
        pytest.raises(ConfigError, match='not this model'),
        alone(free_domain, InferenceNode, accelerator_factory=make),
    ):
        pass
    assert made[0].closed
