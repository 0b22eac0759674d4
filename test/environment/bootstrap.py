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
Makes the environment in which the package runs and is tested, on a machine without ROS.

    python3 test/environment/bootstrap.py [--distro jazzy
kilted] [--venv PATH]

ROS 2 comes as wheels; interface packages without a wheel are built with the real generators; the
package is installed editable, with its console scripts in ``.venv/bin/``. Parts that are up to
date are kept, so a second call takes a moment and needs no network. After an interruption, call it
again: a layer is recorded only when it is complete, and an environment without a recorded wheel
layer is made anew.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from environment import prerequisites  # noqa: E402
from environment.console import own_environment, run_logged, step  # noqa: E402
from environment.errors import SetupError  # noqa: E402
from environment.layers import keys, Layer, read_record, stale_layers, write_record  # noqa: E402
from environment.paths import BUILD, locked, ROOT  # noqa: E402

HERE = Path(__file__).resolve().parent
INTERFACES = ROOT / 'test/interfaces'
VENV_OF_DISTRO = {'jazzy': '.venv', 'kilted': '.venv-kilted'}
PACKAGE = 'zc_perception'

# Without this ament_index finds nothing: the wheels set LD_LIBRARY_PATH, but not
# AMENT_PREFIX_PATH.
_PREFIX_PTH = (
    'import os, sys; '
    "prefixes = [path for path in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if "
    'path]; '
    'sys.prefix in prefixes or os.environ.update(AMENT_PREFIX_PATH=os.pathsep.join([*prefixes, '
    'sys.prefix]))\n'
)
# Compile all files now: every node is a process, and would compile again where
# PYTHONDONTWRITEBYTECODE is set, as in many containers. A file that does not compile is a template
# or a test file, and is skipped.
_COMPILE = (
    'import compileall, re, sys; '
    "compileall.compile_dir(sys.argv[1], quiet=2, workers=0, rx=re.compile('/tests?/'))"
)
_PIP_ADVICE = (
    'The wheels come from the package index for which pip is configured. Check the network and '
    'that configuration '
    '(pip config list), then call make again.'
)


@dataclass(frozen=True)
class Environment:
    distro: str
    venv: Path

    @property
    def name(self) -> str:
        return self.venv.name

    @property
    def build(self) -> Path:
        return BUILD / 'environment' / self.venv.name.lstrip('.')

    @property
    def python(self) -> Path:
        return self.venv / 'bin/python'

    @property
    def record(self) -> Path:
        """The file with the keys of the complete layers."""
        return self.venv / 'zc_layers.json'

    @property
    def log(self) -> Path:
        return self.build / 'set-up.log'

    @property
    def requirements(self) -> tuple[Path, Path]:
        return HERE / 'requirements.txt', HERE / f'requirements-{self.distro}.txt'

    def layers(self) -> tuple[Layer, ...]:
        definitions = sorted(path for path in INTERFACES.glob('*/**/*') if path.is_file())
        manifests = tuple(
            ROOT / name for name in ('setup.py', 'setup.cfg', 'pyproject.toml', 'package.xml')
        )
        folders = (PACKAGE + '/native', 'client/src', 'client/include')
        compiled = sorted(path for folder in folders for path in (ROOT / folder).glob('*.[ch]'))
        return (
            Layer('wheels', (Path(__file__).resolve(), *self.requirements), self.install_wheels),
            Layer('interfaces', (HERE / 'rosidl_build.py', *definitions), self.build_interfaces),
            Layer('package', (*manifests, *compiled), self.install_package),
        )

    def install_wheels(self) -> None:
        with step(f'{self.name}: creating the environment (Python {sys.version.split()[0]})'):
            discard(self.venv)
            self.venv.mkdir(parents=True)
            # Write this file first: it marks the folder as ours even if the next step is
            # interrupted.
            write_record(self.record, {})
            run_logged([sys.executable, '-m', 'venv', str(self.venv)], self.log, ROOT)
        with step(f'{self.name}: installing ROS 2 {self.distro} and the tools (wheels)'):
            files = [argument for file in self.requirements for argument in ('-r', str(file))]
            # Don't compile here: pip would use one process only.
            self.pip('install', '--no-compile', *files)
            run_logged(
                [str(self.python), '-c', _COMPILE, str(self.site_packages())], self.log, ROOT
            )
            (self.site_packages() / 'zc_ament_prefix.pth').write_text(
                _PREFIX_PTH, encoding='ascii'
            )

    def build_interfaces(self) -> None:
        packages = sorted(path.parent for path in INTERFACES.glob('*/package.xml'))
        with step(f'{self.name}: building {", ".join(path.name for path in packages)}'):
            build = ['--build', str(self.build / 'interfaces')]
            command = [
                str(self.python),
                str(HERE / 'rosidl_build.py'),
                *build,
                *map(str, packages),
            ]
            run_logged(command, self.log, ROOT)

    def install_package(self) -> None:
        with step(f'{self.name}: installing {PACKAGE}'):
            # Without PEP 517, pip would use the script folder that setup.cfg sets for colcon.
            self.pip(
                'install', '--no-build-isolation', '--no-deps', '--use-pep517', '--editable', '.'
            )
            self.register_package()

    def register_package(self) -> None:
        """Put the source tree into the ament index, which pip leaves out."""
        marker = self.venv / 'share/ament_index/resource_index/packages' / PACKAGE
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        share = self.venv / 'share' / PACKAGE
        share.mkdir(exist_ok=True)
        for name in ('package.xml', 'config', 'docs', 'examples', 'launch'):
            (share / name).unlink(missing_ok=True)
            (share / name).symlink_to(ROOT / name)

    def pip(self, *arguments: str) -> None:
        quiet = {
            'PIP_DISABLE_PIP_VERSION_CHECK': '1',
            'PIP_NO_INPUT': '1',
            'PIP_PROGRESS_BAR': 'off',
        }
        command = [str(self.python), '-m', 'pip', *arguments]
        run_logged(command, self.log, ROOT, extra=quiet, advice=_PIP_ADVICE)

    def site_packages(self) -> Path:
        query = "import sysconfig; print(sysconfig.get_path('purelib'))"
        return Path(
            subprocess.check_output(
                [self.python, '-c', query], env=own_environment(), text=True
            ).strip()
        )

    def base(self) -> str:
        """Return the inputs of all layers: the interpreter, and the folder in scripts."""
        return f'{sys.version_info} {sys.base_prefix} {self.venv}'

    def stale(self) -> list[Layer]:
        recorded = read_record(self.record) if os.access(self.python, os.X_OK) else {}
        return stale_layers(self.layers(), keys(self.layers(), self.base()), recorded)

    def update(self) -> None:
        """Build stale layers, bottom first, and record each layer when it is complete."""
        # Only one apt-get can run at a time. A process that waited finds everything installed.
        with locked(
            BUILD / 'environment/packages.lock',
            'waiting for another set-up, which installs packages',
        ):
            prerequisites.ensure(self.log)
        expected = keys(self.layers(), self.base())
        stale = self.stale()
        record = {
            layer.name: expected[layer.name] for layer in self.layers() if layer not in stale
        }
        for layer in stale:
            layer.build()
            record[layer.name] = expected[layer.name]
            write_record(self.record, record)


def discard(venv: Path) -> None:
    """Remove an old or half-made environment; refuse to remove anything else."""
    if not venv.exists():
        return
    ours = (
        (venv / 'zc_layers.json').exists()
        or (venv / 'pyvenv.cfg').exists()
        or not any(venv.iterdir())
    )
    if not ours:
        raise SetupError(
            f'{venv} exists and is no Python environment: remove it, or give another --venv'
        )
    shutil.rmtree(venv)


def set_up(environment: Environment) -> None:
    prerequisites.check_python()
    if not environment.stale():
        return
    started = time.monotonic()
    lock = environment.build / 'lock'
    with locked(lock, f'waiting for another set-up of {environment.name} (it holds {lock})'):
        environment.log.unlink(missing_ok=True)
        environment.update()
    print(f'{environment.name} is ready ({time.monotonic() - started:.0f} s)', flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--distro', choices=sorted(VENV_OF_DISTRO), default='jazzy')
    parser.add_argument(
        '--venv', type=Path, help='default: .venv for jazzy, .venv-kilted for kilted'
    )
    options = parser.parse_args()
    # Raise an exception on SIGTERM, so that a running pip or compiler is ended too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    venv = options.venv or ROOT / VENV_OF_DISTRO[options.distro]
    try:
        set_up(Environment(options.distro, Path(os.path.abspath(venv))))
    except SetupError as error:
        print(f'\n{error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\ninterrupted; the next call goes on from here', file=sys.stderr)
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main())
