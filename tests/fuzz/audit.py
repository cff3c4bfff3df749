"""Looks at what tokenfeed is made of and depends on; asks nobody: `make audit`.

Every dependency is pinned, installed as pinned, and of a licence that goes with Apache-2.0; nothing is imported that is
not declared; no stray file would be in the wheel; ranges begin after versions with known holes; every pin has a
checksum. Where `pip-audit` is installed and its database can be reached, known vulnerabilities are looked up as well;
where not, that is said, and is no failure.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tokenfeed"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LICENCES = re.compile(
    r"\b(MIT|0?BSD|Apache|ISC|Zlib|CC0|PSF|Python Software Foundation|Unlicense|BSL|Boost|MPL|Mozilla Public License)\b"
)
COPYLEFT = re.compile(r"\b(A?GPL|General Public License)", re.IGNORECASE)
BROUGHT_ALONG = {"llvmlite": "numba", "regex": "tiktoken"}
"""Imported, and declared by what needs a certain version of it."""
THE_USERS_OWN = {
    "torchdata",
    "transformers",
    "trl",
    "datasets",
    "lightning",
    "torchtitan",
    "nanochat",
}
"""Imported when somebody asks for that adapter, who has it then; development declares what tests need."""
IN_A_WHEEL = {".py", ".js", ".css", ".html", ".svg", ".typed", ".ico", ".png", ".npy"}
SECONDS = 8
FLOORS = {
    "pyarrow": ("23.0.1", "CVE-2023-47248, code in IPC and Parquet files; CVE-2026-25087, IPC files"),
    "orjson": ("3.11.6", "CVE-2024-27454 and CVE-2025-67221, JSON nested without end"),
    "torch": ("2.6", "CVE-2025-32434, code in checkpoints"),
    "ray": ("2.54.1", "CVE-2025-62593, code by DNS rebinding"),
}
"""Least versions without known holes, which pyproject.toml must ask for; what else is known pip-audit tells."""
WITHOUT_HASH = {"torch"}


def pins() -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def declared(groups: Iterable[str]) -> set[str]:
    """The dependencies, and those of extras."""
    optional = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *(each for group in groups for each in optional[group])]
    return {canonicalize_name(Requirement(each).name) for each in listed} - {"tokenfeed"}  # an extra of extras


def with_all_they_need(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Installed distributions, and what they need in turn on this machine."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(name, frozenset[str]()) for name in names]
    while waiting:
        name, extras = waiting.pop()
        if name in found and not extras:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for text in found[name].requires or ():
            needed = Requirement(text)
            marks = [{"extra": extra} for extra in extras or {""}]
            if needed.marker is None or any(needed.marker.evaluate(mark) for mark in marks):
                other = canonicalize_name(needed.name)
                if other not in found:
                    waiting.append((other, frozenset(needed.extras)))
    return found


def check_pins(names: set[str]) -> Iterator[str]:
    """Every distribution that may be there is pinned, and is there as pinned."""
    pinned = pins()
    for name in sorted(names - pinned.keys()):
        yield f"{name} is declared in pyproject.toml and not pinned in constraints.txt"
    for name, found in sorted(with_all_they_need(names).items()):
        version = found.version.partition("+")[0]
        if name not in pinned:
            yield f"{name} {version} is installed, needed, and not pinned in constraints.txt"
        elif pinned[name].partition("+")[0] != version:
            yield f"{name} is pinned to {pinned[name]}, and {version} is installed"


def check_floors() -> Iterator[str]:
    """Ranges of pyproject.toml begin after the versions with known holes."""
    optional = PROJECT["optional-dependencies"]
    listed = [*PROJECT["dependencies"], *(each for name, group in optional.items() if name != "dev" for each in group)]
    asked = {canonicalize_name(Requirement(each).name): Requirement(each).specifier for each in listed}
    for name, (floor, why) in FLOORS.items():
        least = [Version(each.version) for each in asked[name] if each.operator in (">=", "==", "~=")]
        if not least or max(least) < Version(floor):
            yield f"pyproject.toml asks for {name}{asked[name]}; versions below {floor} have {why}"


def check_hashes() -> Iterator[str]:
    """constraints-hashes.txt has the versions of constraints.txt, each with a checksum."""
    lines = [line for line in (ROOT / "constraints-hashes.txt").read_text().splitlines() if not line.startswith("#")]
    hashed = {}
    for line in lines:
        match = re.fullmatch(r"([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)", line)
        if match is None:
            yield f"constraints-hashes.txt: {line!r} is not NAME==VERSION --hash=sha256:…"
        else:
            hashed[canonicalize_name(match[1])] = match[2]
    for name, version in pins().items():
        if name not in WITHOUT_HASH and hashed.get(name) != version:
            found = hashed.get(name)
            yield f"{name} is pinned to {version}; constraints-hashes.txt has {found}: run tests/fuzz/hashes.py"


def licence_of(found: metadata.Distribution) -> str:
    """What a distribution says of its licence, in one way or another."""
    about = found.metadata
    told = about.get("License-Expression") or ""
    told += " ".join(each for each in about.get_all("Classifier") or () if each.startswith("License ::"))
    told += (about.get("License") or "")[:300]
    if not LICENCES.search(told):
        for file in found.files or ():
            if re.search(r"LICEN[CS]E|COPYING", file.name, re.IGNORECASE) and file.locate().is_file():
                told += file.locate().read_text(errors="replace")[:1500]
    return told


def check_licences(names: set[str]) -> Iterator[str]:
    for name, found in sorted(with_all_they_need(names).items()):
        told = licence_of(found)
        if not LICENCES.search(told) or (COPYLEFT.search(told) and " OR " not in told):
            yield f"{name}: is its licence compatible with Apache-2.0? It says {told[:80]!r}"


def check_imports(names: set[str]) -> Iterator[str]:
    """What the source imports is of Python, of tokenfeed, or declared."""
    providers = metadata.packages_distributions()
    for module in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            imported = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                imported = [node.module or ""]
            for top in {each.partition(".")[0] for each in imported} - sys.stdlib_module_names - {"tokenfeed"}:
                given = {canonicalize_name(each) for each in providers.get(top, [top])}
                if not given & (names | THE_USERS_OWN) and BROUGHT_ALONG.get(top) not in names:
                    yield f"{module.relative_to(ROOT)} imports {top}, which pyproject.toml does not declare"


def check_wheel() -> Iterator[str]:
    """What a wheel would hold: files that git knows, or would take."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "src/tokenfeed"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in listed:
        path = ROOT / name
        if path.suffix not in IN_A_WHEEL:
            yield f"{name} would be in the wheel: what is it?"
        elif path.is_symlink() or path.stat().st_size > 1 << 20:
            yield f"{name} would be in the wheel: it is a link, or larger than 1 MiB"
        elif b"PRIVATE KEY-----" in path.read_bytes():
            yield f"{name} holds a private key"


def check_installed() -> Iterator[str]:
    """That what is pinned fits together; what else somebody has installed beside it is his."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    pinned = pins()
    for line in done.stdout.splitlines() if done.returncode else ():
        if canonicalize_name(line.partition(" ")[0]) in pinned:
            yield line


def look_up_vulnerabilities() -> tuple[list[str], str]:
    """(what was found, what was not looked up and why)."""
    program = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
    if program is None:
        return [], "pip-audit is not installed (pip install pip-audit)"
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "5"]
    try:
        done = subprocess.run(
            [program, "-r", str(ROOT / "constraints.txt"), *options],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        told = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return [], "pip-audit could not reach its database"
    found = [f"{each['name']} {each['version']}: {one['id']}" for each in told for one in each.get("vulns", ())]
    skipped = sum("skip_reason" in each for each in told)
    return (
        found,
        f"{skipped} of {len(told)} dependencies are not in the database that can be reached" if skipped else "",
    )


def main() -> int:
    extras = [name for name in PROJECT["optional-dependencies"] if name != "dev"]
    shipped, every = declared(extras), declared([*extras, "dev"])
    checks = {
        "pinned": check_pins(every),
        "licences": check_licences(every),
        "imports": check_imports(shipped),
        "wheel": check_wheel(),
        "pip check": check_installed(),
        "floors": check_floors(),
        "hashes": check_hashes(),
    }
    failed = False
    for name, problems in checks.items():
        found = list(problems)
        failed |= bool(found)
        print(f"{name:10} {'ok' if not found else f'{len(found)} problems'}")
        for problem in found:
            print(f"  {problem}")
    vulnerable, unknown = look_up_vulnerabilities()
    for each in vulnerable:
        print(f"  {each}")
    if unknown:
        print(f"KNOWN VULNERABILITIES WERE NOT LOOKED UP: {unknown}. Run `make audit` where there is a network.")
    else:
        print(f"known vulnerabilities: {len(vulnerable)}")
    return 1 if failed or vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
