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
Fetches and unpacks Debian packages without installing them, as any user.

    fetch(["busybox-static"], Path("build/packages"))
    resolve_dependency("linux-image-6.12-amd64", "linux-image-")
    fetch_with_dependencies(["python3.11"], Path("build/packages"), "arm64")
    fetch(["gstreamer1.0-tools"], Path("build/packages"), suite="trixie")

apt checks signatures and hashes. It uses the system's package lists first. If they are empty or
outdated, private lists are fetched into the user's cache. Packages of another architecture or
release of Debian always use private lists of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
import os
from pathlib import Path
import platform
import re
import shutil
import subprocess
import tarfile
from typing import TypeVar

from environment.errors import SetupError
from environment.paths import cache_folder, locked, scratch_folder

_T = TypeVar('_T')
_NETWORK_OPTIONS = ('-o', 'Acquire::Retries=3', '-o', 'Acquire::http::Timeout=30')
_TIME_LIMIT_S = 1800.0
_KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'


class AptError(SetupError):
    """Apt is missing, or failed with the system's package lists and with private ones."""


def fetch(names: Sequence[str], into: Path, architecture: str = '', suite: str = '') -> list[Path]:
    """Download the newest ``names``; return the ``.deb`` files in that order."""
    into.mkdir(parents=True, exist_ok=True)

    def download(options: Sequence[str]) -> list[Path]:
        with scratch_folder(into) as scratch:
            command = ['apt-get', '--quiet', *options, *_NETWORK_OPTIONS, 'download', *names]
            _run(command, cwd=scratch)
            debs = []
            for name in names:
                package = re.split('[:=/]', name)[0]  # without architecture or version
                debs += (found := list(scratch.glob(f'{package}_*.deb')))
                if len(found) != 1:
                    raise AptError(f'apt left {len(found)} files for {package}, not one')
            return [deb.replace(into / deb.name) for deb in debs]

    return _with_lists(download, f'downloading {" ".join(names)}', architecture, suite)


def fetch_with_dependencies(
    names: Sequence[str], into: Path, architecture: str = ''
) -> list[Path]:
    """Download ``names`` with dependencies: for this architecture only those not installed."""
    (into / 'archives/partial').mkdir(parents=True, exist_ok=True)
    private = (f'-oDir::Cache={into}', '-oDebug::NoLocking=1', '-oAPT::Sandbox::User=root')

    def download(options: Sequence[str]) -> list[Path]:
        command = ['apt-get', '--quiet', *options, *private, *_NETWORK_OPTIONS]
        _run([*command, '--yes', '--no-install-recommends', '--download-only', 'install', *names])
        return sorted((into / 'archives').glob('*.deb'))

    return _with_lists(download, f'downloading {" ".join(names)} with dependencies', architecture)


def resolve_dependency(
    meta: str, prefix: str, architecture: str = '', optional: bool = False
) -> str:
    """
    Return the dependency of ``meta`` with this prefix; empty if *optional* and absent.

    :param meta: a package, or several that are separated by spaces, of which some may not exist.
    """

    def look_up(options: Sequence[str]) -> str:
        listing = _run(['apt-cache', *options, 'depends', *meta.split()])
        # The first "Depends:" that begins with the prefix.
        pattern = rf'^\s*\|?Depends: ({re.escape(prefix)}[^\s<>]*)\s*$'
        match = re.search(pattern, listing, re.MULTILINE)
        if not match and not (optional and listing):
            found = ', '.join(re.findall(r'Depends: (\S+)', listing)) or 'nothing'
            raise AptError(f'{meta} depends on no {prefix}*, but on {found}')
        return match[1] if match else ''

    return _with_lists(look_up, f'looking up what {meta} depends on', architecture)


def unpack(deb: Path, into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    _run(['dpkg-deb', '--extract', str(deb), str(into)])


def unpack_member(deb: Path, pattern: str, target: Path) -> None:
    """Write the first file of ``deb`` whose path matches the shell pattern to ``target``."""
    with subprocess.Popen(
        [_tool('dpkg-deb'), '--fsys-tarfile', str(deb)], stdout=subprocess.PIPE
    ) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode='r|') as archive:
                for member in archive:
                    if member.isreg() and fnmatch(member.name, pattern):
                        target.write_bytes(archive.extractfile(member).read())
                        return
        except tarfile.TarError as error:
            raise AptError(f'{deb} cannot be read: {error}. Delete it and try again') from error
        finally:
            process.kill()
    raise AptError(
        f'{deb.name} has no file whose path matches {pattern!r}; the package has been rearranged'
    )


def _with_lists(
    action: Callable[[Sequence[str]], _T], purpose: str, architecture: str = '', suite: str = ''
) -> _T:
    """
    Call ``action`` with apt options for existing lists; if it fails, with private lists.

    Existing lists are the system's, or ours of another architecture or release. Private lists are
    fetched before the second call.
    """
    _tool('apt-get')
    name = '-'.join(part for part in ('apt', suite, architecture) if part)
    options = _private_options(cache_folder() / name, architecture, suite)
    try:
        return action(options if architecture or suite else ())
    except AptError as error:
        first = error
    lock = cache_folder() / f'{name}.lock'
    try:
        with locked(lock, f'waiting for another fetch of the package lists (it holds {lock})'):
            _run(['apt-get', '--quiet', *options, *_NETWORK_OPTIONS, 'update'])
        return action(options)
    except AptError as error:
        raise AptError(
            f'{purpose} failed.\nWith the package lists that were there: {first}\nWith lists '
            f'fetched now: {error}\nCheck the network and the sources in /etc/apt, and try again.'
        ) from error


def _private_options(folder: Path, architecture: str = '', suite: str = '') -> list[str]:
    """
    Return options that keep apt's state in ``folder``, which the user can write to.

    For another architecture or release, apt sees a machine without installed packages.
    """
    for part in ('state/lists/partial', 'cache/archives/partial'):
        (folder / part).mkdir(parents=True, exist_ok=True)
    installed = Path('/var/lib/dpkg/status')
    settings: dict[str, object] = {}
    if architecture or suite:
        installed = folder / 'nothing_installed'
        installed.touch()
    if architecture:
        settings = {'APT::Architecture': architecture, 'APT::Architectures': architecture}
    if suite:
        sources = folder / 'sources.list'
        sources.write_text(f'deb [signed-by={_KEYRING}] {_mirror()} {suite} main\n')
        settings |= {
            'Dir::Etc::sourcelist': sources,
            'Dir::Etc::sourceparts': '/dev/null',
            'Acquire::Languages': 'none',
        }
    # apt's sandbox user can't write to a home or a working tree.
    settings |= {
        'Dir::State': folder / 'state', 'Dir::State::Lists': folder / 'state/lists',
        'Dir::State::status': installed, 'Dir::Cache': folder / 'cache',
        'APT::Sandbox::User': 'root',
    }  # fmt: skip
    return [argument for key, value in settings.items() for argument in ('-o', f'{key}={value}')]


def _mirror() -> str:
    """Return the URL of this machine's Debian mirror, which also has other releases."""
    release = platform.freedesktop_os_release()
    suite = release.get('VERSION_CODENAME', '')
    listed = _run(['apt-get', 'indextargets', '--format', '$(REPO_URI) $(RELEASE) $(COMPONENT)'])
    found = [
        line.split()[0] for line in listed.splitlines() if line.split()[1:] == [suite, 'main']
    ]
    if release.get('ID') != 'debian' or not found or not Path(_KEYRING).is_file():
        raise AptError(
            'packages of another release of Debian come only to a Debian machine whose apt has '
            'the source main of its own release; this is '
            f'{release.get("PRETTY_NAME", "another system")}'
        )
    return found[0]


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    """Run ``command`` and return its output; on failure raise with the end of its messages."""
    environment = {**os.environ, 'LC_ALL': 'C'}
    try:
        result = subprocess.run(
            [_tool(command[0]), *command[1:]],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise AptError(f'{command[0]} did not end within {_TIME_LIMIT_S:.0f} s') from error
    if result.returncode:
        messages = [line for line in result.stderr.splitlines() if line.strip()][-4:]
        raise AptError(
            ' | '.join(messages) or f'{command[0]} ended with status {result.returncode}'
        )
    return result.stdout


def _tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise AptError(
            f'{name} is not on this machine, so Debian packages cannot be fetched. Use a Debian '
            'or Ubuntu machine (a container of one will do).'
        )
    return path
