"""What the source never does: whatever data brings along, none of it is run."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import tokenfeed

SOURCE = Path(tokenfeed.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# Modules that run code or trust what they unpack. Archives are read by `text/sources/tar.py`, which cannot unpack them.
MODULES_REFUSED = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "dbm", "code"}
MODULES_REFUSED |= {"tarfile", "zipfile", "xml", "yaml", "telnetlib", "ftplib", "pty", "codeop", "commands"}
CALLS_REFUSED = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
ATTRIBUTES_REFUSED = {
    *("os.system", "os.popen", "os.execv", "os.execve", "os.execvp", "os.spawnl", "os.startfile", "tempfile.mktemp"),
    *(
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
        "np.fromregex",
        "torch.load",
        "ssl._create_unverified_context",
    ),
}
KEYWORDS_REFUSED = {("allow_pickle", True), ("shell", True), ("verify", False), ("check_hostname", False)}

EXCEPTIONS = {
    # A pipe between `prepare` and the workers it started itself, which nobody else can write to.
    "preparation/engines/pool.py": ["pickle"],
    "preparation/engines/__init__.py": ["pickle"],
    # The function that the user names by `map=`. Stores and plans hold its name and a digest, never its source.
    "preparation/mapping.py": ["exec", "compile"],
}


def offences(tree: ast.AST) -> list[str]:
    """What a module does that none may do."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name.split(".")[0] in MODULES_REFUSED]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [node.module] if node.module.split(".")[0] in MODULES_REFUSED else []
            found += [f"{node.module}.{name.name}" for name in node.names]
            found = [each for each in found if each.split(".")[0] in MODULES_REFUSED or each in ATTRIBUTES_REFUSED]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ATTRIBUTES_REFUSED:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS_REFUSED:
                found.append(node.func.id)
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Constant) and (keyword.arg, keyword.value.value) in KEYWORDS_REFUSED:
                    found.append(f"{keyword.arg}={keyword.value.value}")
            if ast.unparse(node.func) in ("np.load", "numpy.load") and _may_unpickle(node):
                found.append(ast.unparse(node))
    return found


def _may_unpickle(call: ast.Call) -> bool:
    """NumPy's default is False since 1.16; whoever says anything must say False."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "allow_pickle"]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in given)


def test_nothing_that_data_brings_along_is_run():
    found = {str(module.relative_to(SOURCE)): offences(ast.parse(module.read_text())) for module in MODULES}
    assert {module: each for module, each in found.items() if each} == EXCEPTIONS


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "import os\nos.system('x')",
        "from os import system",
        "eval('1')",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)",
        "subprocess.run('x', shell=True)",
        "import tarfile",
        "import xml.etree",
        "tempfile.mktemp()",
        "def f():\n    exec('x')",
    ],
)
def test_what_is_refused_is_found(code):
    assert offences(ast.parse(code))


def test_pages_bind_to_loopback():
    """Every socket that listens names its address, and it is loopback."""
    hosts = re.compile(r'0\.0\.0\.0|host=""|\(\("", ?\w+\)|"::"')
    for module in MODULES:
        assert not hosts.search(module.read_text()), module


def test_declared_licence_files():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (SOURCE.parents[1] / "LICENSE").read_text()
