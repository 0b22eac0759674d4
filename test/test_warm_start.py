"""Programs that are forked behave as those that an interpreter was started for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_start
from warm_start import Started

SEEN = 'import os, sys; print(__name__, sys.argv[1:], os.getcwd(), os.environ["X"], os.getsid(0) == os.getpid(), "rclpy" in sys.modules)'


def cold(words: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False, **options
    )  # type: ignore[call-overload]


def test_it_has_its_own_arguments_environment_folder_and_session(tmp_path: Path) -> None:
    script = tmp_path / 'seen.py'
    script.write_text(SEEN)
    for words in ([sys.executable, '-c', SEEN], [sys.executable, str(script)], [str(script)]):
        done = warm_start.run(
            [*words, 'a', 'b'],
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, 'X': '7'},
            start_new_session=True,
        )
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            f"__main__ ['a', 'b'] {tmp_path} 7 True True\n",
            '',
        )


def test_modules_are_run_as_well(tmp_path: Path) -> None:
    (tmp_path / 'seen_module.py').write_text(SEEN)
    done = warm_start.run(
        [sys.executable, '-m', 'seen_module', 'c'],
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, 'X': '8'},
    )
    assert done.stdout == f"__main__ ['c'] {tmp_path} 8 False True\n", done.stderr


@pytest.mark.parametrize(
    'code',
    [
        'import sys; sys.exit(3)',
        'import sys; sys.exit("in words")',
        'raise SystemExit',
        'import os, signal; os.kill(os.getpid(), signal.SIGKILL)',
        'import os, signal; os.kill(os.getpid(), signal.SIGTERM)',
        'import atexit; atexit.register(print, "last"); print("first")',
        'import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print("waited for"))).start()',
        'import sys; print(sys.stdin.read(), end=""); print("wrong", file=sys.stderr)',
    ],
)
def test_it_ends_as_an_interpreter_does(code: str) -> None:
    words = [sys.executable, '-c', code]
    forked, started = (
        warm_start.run(words, timeout=120, stdin=subprocess.DEVNULL),
        cold(words, stdin=subprocess.DEVNULL),
    )
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_a_failure_has_its_traceback() -> None:
    done = warm_start.run([sys.executable, '-c', '1/0'], timeout=120)
    assert (
        done.returncode == 1
        and done.stderr.startswith('Traceback')
        and done.stderr.endswith('ZeroDivisionError: division by zero\n')
    )


def test_it_is_spoken_to_and_interrupted(no_fd_leak: None) -> None:
    code = 'import sys, time\nprint(input().upper(), flush=True)\ntime.sleep(600)'
    with Started(
        [sys.executable, '-c', code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdin.write('hello\n')
        process.stdin.flush()
        assert process.stdout.readline() == 'HELLO\n'
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT and 'KeyboardInterrupt' in process.stderr.read()
