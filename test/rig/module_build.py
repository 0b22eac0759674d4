"""Building the virtual Metis module outside the source tree, once per content."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from .cache import appearing, keep_newest
from .errors import RigError, RigUnavailable
from .packages import Kernel

MODULE_SOURCES = Path(__file__).resolve().parent / 'module'
MODULE_NAME = 'metis_virtual'


def sources(folder: Path = MODULE_SOURCES) -> list[Path]:
    """Return the files that make the module, in a stable order."""
    return sorted(path for path in folder.iterdir() if path.suffix in ('.c', '.h') or path.name == 'Kbuild')


def cache_key(kernel: Kernel, files: list[Path]) -> str:
    """Return a key that changes with the kernel, with the name and with the content of any source."""
    digest = hashlib.sha256(kernel.version.encode())
    for path in files:
        content = path.read_bytes()
        digest.update(b'\0%s\0%d\0' % (path.name.encode(), len(content)))
        digest.update(content)
    return digest.hexdigest()[:32]


def build(kernel: Kernel, cache: Path, folder: Path = MODULE_SOURCES) -> Path:
    """Return the built module; it is made again only when its sources or the kernel changed."""
    files = sources(folder)
    home = cache / 'modules' / cache_key(kernel, files)
    module = home / f'{MODULE_NAME}.ko'
    if module.is_file():
        home.touch()
        return module
    missing = [tool for tool in (kernel.compiler, 'make') if not shutil.which(tool)]
    if missing:
        raise RigUnavailable(f"building the rig's kernel module needs {' and '.join(missing)}: apt-get install {' '.join(missing)}")
    with appearing(home) as scratch:
        for path in files:
            shutil.copyfile(path, scratch / path.name)
        # CONFIG_DEBUG_INFO_BTF_MODULES= : otherwise the build wants pahole.
        options = ['CONFIG_DEBUG_INFO_BTF_MODULES=', 'W=1', 'KCFLAGS=-Werror']
        command = ['make', '-C', str(kernel.headers), f'-j{os.cpu_count() or 1}', f'M={scratch}', *options, 'modules']
        result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if result.returncode:
            raise RigError(f"the rig's kernel module did not build for {kernel.version}:\n{result.stdout}")
        (scratch / 'build.log').write_text(result.stdout, encoding='utf-8')
    keep_newest((cache / 'modules').iterdir(), 4)
    return module
