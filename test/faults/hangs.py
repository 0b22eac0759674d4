"""SIGSTOP: processes that neither go on nor end, and what the others do meanwhile."""

from __future__ import annotations

import signal
import time

from faults.harness import Trial, fault


@fault('inference stopped', 'a consumer that hangs holds its window and nothing else; when it goes on it detects on the newest frames')
def inference(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    for _ in range(trial.times(1, 5)):
        time.sleep(trial.random.uniform(0.0, 0.1))
        stage.inference.send(signal.SIGSTOP)
        received, began = witness.received, time.monotonic()
        while time.monotonic() - began < trial.times(1, 4):
            stage.read_logs()
            time.sleep(0.05)
        came = witness.received - received
        detected, newest_ns = witness.detections, witness.last_stamp_ns
        trial.must(came > 10 * trial.times(1, 4), 'pauses of the camera while a consumer hung')
        stage.inference.send(signal.SIGCONT)
        # One was in work, one in its hands and one waited for it; whatever comes behind these is new.
        stage.meanwhile(lambda: witness.last_detection_ns > newest_ns, 'a detection of a new frame')  # noqa: B023
        trial.must(witness.detections - detected <= 6, 'old frames that were run after a hang')
        trial.worst('detections until the first new one', float(witness.detections - detected))


@fault('capture stopped', 'a camera process that hangs makes nobody fall to messages or give up; frames go on where they stopped')
def capture(trial: Trial) -> None:
    stage, witness = trial.stage, trial.stage.witness
    for _ in range(trial.times(1, 4)):
        time.sleep(trial.random.uniform(0.0, 0.1))
        stage.capture.send(signal.SIGSTOP)
        time.sleep(trial.times(1, 5))
        assert witness.frames is not None
        trial.must(witness.frames.statistics().rung == 'shared_memory', 'falls from shared memory')
        stage.capture.send(signal.SIGCONT)
        witness.expect(3, 2)
        stage.read_logs()


@fault('everybody stopped', 'after all processes stood still at once, as a suspended machine does, all go on')
def everybody(trial: Trial) -> None:
    stage = trial.stage
    programs = [stage.capture, stage.inference]
    for _ in range(trial.times(1, 3)):
        for program in trial.random.sample(programs, 2):
            program.send(signal.SIGSTOP)
        time.sleep(trial.times(1, 4))
        for program in trial.random.sample(programs, 2):
            program.send(signal.SIGCONT)
        stage.witness.expect(3, 2)
        stage.read_logs()
