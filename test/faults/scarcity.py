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
Exhausted resources: descriptors (RLIMIT_NOFILE), address space (RLIMIT_AS), disk (tmpfs).

The running programs get errors from the kernel. prlimit(2) changes only the soft limits, from
outside, which needs no privilege.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
import resource
import shutil
import time

from descriptors import limited
from faults.harness import Absent, EVERYBODY, fault, Trial
from faults.holdings import frame_mappings
from faults.stage import own_sockets, Running
from faults.witness import Witness
from memory_link import RawPeer
from nodes.programs import BIN, parameters
from processes import ran
from waiting import until

from zc_perception.camera.replay.camera import open_source
from zc_perception.link.shared_memory.protocol import MessageType


def no_descriptor(pid: int) -> contextlib.AbstractContextManager[None]:
    """Make every new descriptor fail with EMFILE: the lowest free number is beyond the limit."""
    used: set[int] = _descriptors(pid)
    before: set[int] = set()
    while used != before:  # an ended process's descriptors are still being closed
        time.sleep(0.2)
        used, before = _descriptors(pid), used
    lowest = next(number for number in range(len(used) + 1) if number not in used)
    return limited(resource.RLIMIT_NOFILE, lowest, pid)


def _descriptors(pid: int) -> set[int]:
    return {int(name) for name in os.listdir(f'/proc/{pid}/fd')}


@fault('EMFILE in capture', ('without a descriptor left the camera serves whoever is in, and '
                             'lets in who waits as soon as it can'),
       bystanders=EVERYBODY)  # fmt: skip
def emfile_capture(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    path = stage.socket()
    for _ in range(trial.times(1, 5)):
        with contextlib.ExitStack() as ending:
            with no_descriptor(stage.capture.pid):
                peers = [ending.enter_context(RawPeer.connected(path)) for _ in range(3)]
                for peer in peers:
                    peer.hello(name='late')
                before = witness.received
                stage.meanwhile(lambda: witness.received >= before + 30, 'frames')  # noqa: B023
                quiet = all(peer.nothing_there() for peer in peers)
                trial.must(quiet, 'peers that were accepted without a descriptor')
            for peer in peers:
                welcome = peer.receive_type() == MessageType.WELCOME
                trial.must(welcome, 'peers that were not let in afterwards')
    stage.meanwhile(
        lambda: witness.number('capture: link', 'refused_descriptors'), 'it is counted'
    )


@fault(
    'EMFILE in inference',
    (
        'a consumer without a descriptor left lives on without frames, says why, and heals when '
        'there are some'
    ),
)
def emfile_inference(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    for _ in range(trial.times(1, 4)):
        # Release the old buffers first: otherwise their descriptors would leave room for the new
        # ones.
        assert witness.change('deactivate')
        pid = stage.inference.pid
        stage.meanwhile(lambda: not frame_mappings(pid), 'the old buffers are gone')  # noqa: B023
        with no_descriptor(pid):
            assert witness.change('activate')
            before = witness.received
            stage.meanwhile(lambda: witness.received >= before + 30, 'frames')  # noqa: B023
            trial.must(stage.inference.alive, 'consumers that ended')
            # Forget diagnostics from the time when the camera was off: they have another reason.
            witness.last = {}
            link = 'inference: link'
            stage.meanwhile(
                lambda: witness.level(link) and "'ulimit -n'" in witness.text(link),  # noqa: B023
                'the reason is said',
            )
            trial.note('what is said', witness.text(link))
        began = time.monotonic()
        witness.expect(1, 1)
        trial.worst('healed within, s', time.monotonic() - began)


HUGE = {
    'pattern': 'counter', 'width': 7680, 'height': 4320, 'framerate': 2.0, 'slots': 3,
    'heap': 'memfd', 'quarantine': 0.2,
}  # fmt: skip


@fault('ENOMEM in capture', ('a camera process without memory for its buffers lives on, says '
                             'why, and streams when there is some'),
       staged=False)  # fmt: skip
def enomem_capture(trial: Trial) -> None:
    with own_sockets(trial.folder), contextlib.ExitStack() as ending:
        witness = ending.enter_context(contextlib.closing(Witness(trial.domain, frames=False)))
        values = parameters(**HUGE, autostart=False)
        capture = ending.enter_context(Running('capture_node', *values, domain=trial.domain))
        capture.start('[capture]: ready')
        # Discovery would need memory of the middleware, not of the camera.
        witness.know_capture()
        for _ in range(trial.times(1, 4)):
            # Leave room for the threads' stacks, without which the C library aborts the process,
            # but not for a picture of 50 MB.
            pages = Path(f'/proc/{capture.pid}/statm').read_text(encoding='ascii').split()[0]
            room = int(pages) * os.sysconf('SC_PAGESIZE') + 30_000_000
            with limited(resource.RLIMIT_AS, room, capture.pid):
                # Either a transition or the camera's first frame fails first, depending on the
                # allocator's free memory; both report the reason.
                steps = ('configure', 'activate')
                part = 'camera' if all(witness.change(step) for step in steps) else 'lifecycle'
                until(
                    lambda part=part: witness.level(f'capture: {part}') == 2,
                    lambda: f'it is said: {witness.describe()}',
                )
                trial.note('what is said', witness.text(f'capture: {part}'))
                trial.must(capture.alive, 'programs that ended')
            began = time.monotonic()
            if part == 'lifecycle':
                assert all(witness.change(step) for step in steps), witness.describe()
            until(
                lambda: witness.text('capture: camera').startswith('streaming'),
                lambda: f'it streams: {witness.describe()}',
            )
            trial.worst('healed within, s', time.monotonic() - began)
            assert witness.change('deactivate') and witness.change('cleanup')
        trial.must(capture.end() == 0, 'programs that did not end with 0')
        trial.must_be_zero('tracebacks', capture.output.count('Traceback'))


def small_disk(folder: Path, options: str, afterwards: str = '') -> list[str]:
    """Return a command that runs another one with a private small tmpfs at *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    rights = '-m' if os.geteuid() == 0 else '-Urm'
    script = (
        f'mount -t tmpfs -o mode=0700,{options} tmpfs "$0" || exit 77; "$@"; code=$?; '
        f'{afterwards or ":"}; exit $code'
    )
    return ['unshare', rights, 'sh', '-c', script, str(folder)]


@fault('ENOSPC under a recorder', ('a full disk ends the recording with one line, and what '
                                   'there is can be played; the camera goes on'),
       bystanders=EVERYBODY, needs='mounts of a tmpfs')  # fmt: skip
def enospc_recorder(trial: Trial) -> None:
    disk, copy = trial.folder / 'd', trial.folder / 'copy'
    if shutil.which('unshare') is None:
        raise Absent('there is no unshare(1)')
    if (done := ran(*small_disk(disk, 'size=64k'), 'true')).returncode:
        raise Absent(f'no tmpfs can be mounted: {done.stderr.strip()}')
    wrapper = small_disk(disk, 'size=1m', f'cp -r "{disk}/a" "{copy}"')
    command = [*wrapper, str(BIN / 'zc_record')]
    values = parameters(path=f'{disk}/a', disk_floor=0)
    with Running(command, *values, domain=trial.stage.domain) as recorder:
        recorder.start()
        trial.stage.meanwhile(lambda: not recorder.alive, 'the recorder ends')
        trial.must(recorder.ended() == 1, 'exit codes other than 1')
        said = recorder.output
        trial.must('No space left on device' in said, f'ends without the reason: {said[-800:]}')
        trial.must_be_zero('tracebacks', said.count('Traceback'))
    with contextlib.closing(open_source(str(copy))) as recording:
        frames = sum(1 for _ in iter(recording.advance, None))
    trial.note('frames in the recording', frames)
    trial.must(frames > 5, 'recordings that can not be played')
