"""The headers come from packages, are kept in the cache, and are read as C reads them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from environment import uapi_headers
from environment.c_header import CHeader
from environment.errors import SetupError


@pytest.fixture
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree and a cache with nothing in them; returns the folder of the packages that can be fetched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(uapi_headers, "HEADERS", tmp_path / "build/headers")
    return tmp_path / "packages"


def serve(monkeypatch: pytest.MonkeyPatch, packages: Path) -> list[str]:
    """Stand in for apt; returns the list of what has been fetched."""
    fetched: list[str] = []

    def fetch(names: Sequence[str], into: Path) -> list[Path]:
        fetched.extend(names)
        return [make_deb(packages, name, into) for name in names]

    monkeypatch.setattr(uapi_headers, "fetch", fetch)
    return fetched


def make_deb(packages: Path, name: str, into: Path) -> Path:
    tree = packages / name
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "DEBIAN/control").write_text(f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@y>\nDescription: x\n")
    for header, (package, suffix) in uapi_headers.SOURCES.items():
        if package == name:
            path = tree / f"usr/include{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#define NAME {header}\n")
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", str(tree), str(into)], check=True, capture_output=True)
    (deb,) = into.glob(f"{name}_*.deb")
    return deb


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="packages can be made on Debian and Ubuntu only")
def test_headers_are_fetched_once_for_all_trees(isolated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = serve(monkeypatch, isolated)
    paths = uapi_headers.headers()
    assert sorted(fetched) == sorted({package for package, _ in uapi_headers.SOURCES.values()})
    assert {name: path.read_text() for name, path in paths.items()} == {n: f"#define NAME {n}\n" for n in uapi_headers.SOURCES}
    # A second tree of the same user, and then the first again: no network.
    monkeypatch.setattr(uapi_headers, "fetch", lambda *_: pytest.fail("fetched although cached"))
    monkeypatch.setattr(uapi_headers, "HEADERS", tmp_path / "other tree/headers")
    assert uapi_headers.headers().keys() == paths.keys()
    shutil.rmtree(tmp_path / "cache")
    assert uapi_headers.headers().keys() == paths.keys()


def test_a_failed_fetch_leaves_nothing_that_looks_like_a_header(isolated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object) -> list[Path]:
        raise SetupError("no network")

    monkeypatch.setattr(uapi_headers, "fetch", offline)
    with pytest.raises(SetupError, match="no network"):
        uapi_headers.headers()
    assert not list(tmp_path.rglob("*.h"))


MACROS = r"""
#define CODE(a, b) ((__u32)(a) | ((__u32)(b) << 8)) /* two characters */
#define AB CODE('A', 'B') /* [7:0] A little endian */
#define VENDOR_X 0x0f
#define MOD(vendor, val) \
	((((__u64)VENDOR_## vendor) << 56) | ((val) & 0x00ffffffffffffffULL))
#define X_ONE MOD(X, 1)
#define FIELD(name, value) ((__u64)(value) << name##_SHIFT)
#define DCC_SHIFT 13
#define DEPTH(x) ((x) == FIRST ? 5 : (x) > 1 || !(x) ? 6 : 7)
#define RESERVED ((1ULL << 56) - 1)
enum things {
	FIRST = 1,
	SECOND        = 0x10, /* sixteen */
};
/* index 0 = Y */
#define LAST ~0x1
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("AB", 0x4241),
        ("X_ONE", 0x0F00000000000001),
        ("MOD(X, RESERVED)", 0x0FFFFFFFFFFFFFFF),
        ("FIELD(DCC, 1) | FIELD(DCC, 2)", 3 << 13),
        ("DEPTH(FIRST)", 5),
        ("DEPTH(SECOND)", 6),
        ("DEPTH(0)", 6),
        ("LAST", 0xFFFFFFFFFFFFFFFE),
        ("2 + 3 * 4 - 1", 13),
        ("1 << 2 + 1", 8),
        ("7 & 3 == 3", 1),
    ],
)
def test_macros_are_what_they_are_in_c(expression: str, value: int) -> None:
    assert CHeader(MACROS).value(expression) == value


@pytest.mark.parametrize("expression", ["UNKNOWN", "1 2", "(1", "1 ? 2"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises((ValueError, IndexError)):
        CHeader(MACROS).value(expression)


def test_comments_are_kept() -> None:
    header = CHeader(MACROS)
    assert header.macros["AB"].comment == "[7:0] A little endian"
    assert header.preceding_comment("LAST", "index 0") == "/* index 0 = Y */"
    assert "SECOND" in header and "THIRD" not in header


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler: apt-get install gcc")
def test_a_compiler_agrees(tmp_path: Path) -> None:
    expressions = ["AB", "X_ONE", "FIELD(DCC, 3)", "DEPTH(SECOND)", "1 << 2 + 1", "7 & 3 == 3", "RESERVED"]
    prints = "".join(f'printf("%llu\\n", (unsigned long long)({expression}));' for expression in expressions)
    source = tmp_path / "macros.c"
    types = "#include <stdio.h>\ntypedef unsigned __u32; typedef unsigned long long __u64;\n"
    source.write_text(f"{types}{MACROS}\nint main(void) {{ {prints} return 0; }}\n")
    subprocess.run(["gcc", "-w", "-o", str(tmp_path / "macros"), str(source)], check=True, capture_output=True)
    output = subprocess.run([str(tmp_path / "macros")], check=True, capture_output=True, text=True).stdout
    header = CHeader(MACROS)
    assert [int(line) for line in output.split()] == [header.value(expression) for expression in expressions]
