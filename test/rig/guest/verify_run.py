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
Let ``zc_verify`` check sabotaged graphs and graphs of several processes, in the guest.

The cases are those of verify_graphs.py, sabotage.py, two_processes and two_processes_started.
Writes ``$RIG_OUT/verify.json``: by case ``zc_verify``'s verdict, and this test's own observations.
Importing ROS and starting nodes take long here, so they run in parallel; but not during a verdict,
because a probe of memmove is hit by all processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

from long_form import LONG
from waiting import until
import yaml

from .graph_variants import IN_FLIGHT, SINGLE, SLOW, SLOW_FPS, SPLIT
from .harness import at_rest, left_behind
from .kernel_api import bufinfo, NPU, parameters, use_one_cpu
from .verifier import AFTERWARDS, forker, guarded, judged, Outcome, record

TEST = Path(__file__).resolve().parents[2]

# Arguments: a file of parameters. Starts both nodes as separate processes, until SIGINT.
_TWO_NODES = """
import pathlib, signal, subprocess, sys
folder = pathlib.Path(sys.executable).parent
arguments = ['--ros-args', '--params-file', sys.argv[1]]
nodes = [
    subprocess.Popen([folder / name, *arguments], stdin=subprocess.DEVNULL, start_new_session=True)
    for name in ('capture_node', 'inference_node')
]
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: [node.send_signal(signal.SIGINT) for node in nodes])
sys.exit(max(abs(node.wait()) for node in nodes))
"""
ATTACHED, STARTED = 'two_processes', 'two_processes_started'
_PATIENCE_S = 300.0


def _command(folder: Path, camera: Mapping[str, Any], **inference: Any) -> list[str]:
    capture: dict[str, Any] = {'controls': {}}
    for name, value in camera.items():
        group, _, rest = name.rpartition('.')
        (capture[group] if group else capture)[rest] = value
    model = str(TEST / 'rig' / 'models' / 'virtual_metis.yaml')
    inference |= {'accelerator': 'axl', 'model': model, 'in_flight': IN_FLIGHT}
    nodes = {
        '/capture': {'ros__parameters': capture},
        '/inference': {'ros__parameters': inference},
    }
    path = folder / f'nodes_on_{Path(camera["device"]).name}.yaml'
    path.write_text(yaml.safe_dump(nodes))
    return [sys.executable, '-c', _TWO_NODES, str(path)]


def _attached() -> dict[str, str]:
    """Return the exporters of all buffers that the card is attached to, results included."""
    return {str(inode): info.exporter for inode, info in bufinfo().items() if NPU in info.attached}


def _attached_to(out: Path) -> Outcome:
    """
    Attach to nodes that run before ``zc_verify`` starts, which has to find them.

    They start as ``split_process.launch.py`` starts them, with a card that reads rows only at
    multiples of 64 bytes; frames that come as messages are an error.
    """
    log = out / f'{ATTACHED}.log'
    command = _command(out, SPLIT, copy_free='required', max_rate=float(SLOW_FPS), timeout=60.0)
    with parameters(stride_align=64), log.open('w') as file:
        nodes = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

        def is_imported() -> bool:
            assert nodes.poll() is None, 'the nodes ended'
            return 'videobuf2_dma_contig' in _attached().values()

        try:
            until(is_imported, 'a frame is imported', _PATIENCE_S, lambda: time.sleep(0.1))
            use_one_cpu()
            outcome = judged(out / ATTACHED, [])
            outcome['attached'] = _attached()
        finally:
            nodes.send_signal(signal.SIGINT)
            status = nodes.wait(60)
    return outcome | {'nodes_exit': status, 'log': log.read_text().splitlines()}


def _cases(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    if not LONG:
        forker()
    imports = threading.Thread(target=import_module, args=['rig.guest.verify_graphs'])
    imports.start()
    if STARTED in names:
        # zc_verify starts the nodes, and ends them.
        words = ['--wait', str(_PATIENCE_S), '--', *_command(out, {**SLOW, 'device': SINGLE})]
        outcome = guarded(lambda: judged(out / STARTED, words))
        yield STARTED, outcome | {'left_on_device': at_rest()}
    imports.join()
    if ATTACHED in names:
        yield ATTACHED, guarded(lambda: _attached_to(out)) | {'left_on_device': at_rest()}
    use_one_cpu()
    from . import verify_graphs
    from .sabotage import SABOTAGES

    try:
        yield from verify_graphs.sabotaged(names, out) if SABOTAGES.keys() & set(names) else ()
    except Exception:
        yield 'sabotaged', {'error': traceback.format_exc()}
    for name, graph in verify_graphs.GRAPHS.items():
        if name in names:
            yield name, guarded(lambda name=name, graph=graph: graph(out / name))  # type: ignore
    yield AFTERWARDS, left_behind()


def main(names: Sequence[str]) -> None:
    """Run the cases; the host's test checks the outcomes."""
    out = Path(os.environ['RIG_OUT'])
    missing = set(names) - set(record(_cases(names, out), out / 'verify.json'))
    if missing:
        print(f'not run: {", ".join(sorted(missing))}', flush=True)
