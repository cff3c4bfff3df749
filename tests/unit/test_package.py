"""The package as a whole: its public names, its layers, and what importing it does."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tokenfeed

SOURCE = Path(tokenfeed.__file__).parent

# From the ground up: a module may import from its own layer and from those before it.
LAYERS = [
    "version",
    "types",
    "errors",
    "kernels",
    "storage",
    "format",
    "store",
    "plan",
    "runs",
    "loader",
    "text",
    "torch",
    "jax",
    "preparation",
    "observe",
    "integrations",
    "ui",
    "cli",
    "__main__",
]


def test_public_names():
    assert sorted(tokenfeed.__all__) == [
        "Cost",
        "Loader",
        "Permutation",
        "Plan",
        "Remote",
        "Run",
        "Stage",
        "Store",
        "Tokenizer",
        "Writer",
        "__version__",
        "combine",
        "errors",
        "mix",
        "open",
        "prepare",
        "seal",
        "stream",
    ]
    for name in tokenfeed.__all__:
        assert hasattr(tokenfeed, name)


def test_completion_shows_what_is_public_and_nothing_else():
    names = dir(tokenfeed)
    assert set(names) == {*tokenfeed.__all__, "jax", "observe", "plan", "text", "torch"}
    code = "import tokenfeed; tokenfeed.observe.publish; tokenfeed.text.TextFiles"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = tokenfeed.nonsense
    with pytest.raises(AttributeError, match=r"no attribute 'compress': choose a plain dtype .* such as uint16"):
        _ = tokenfeed.compress
    with pytest.raises(AttributeError, match=r"no attribute 'curriculum': list the samples .*Listed\.write"):
        _ = tokenfeed.curriculum


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "tokenfeed" else [f"tokenfeed.{alias.name}" for alias in node.names]
            assert node.level == 0, f"{path} has a relative import"
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("tokenfeed.")}
    return found


def test_imports_point_downward():
    upward = {}
    for path in sorted(SOURCE.rglob("*.py")):
        layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if layer != "__init__":
            upward[str(path.relative_to(SOURCE))] = imported_layers(path) - set(LAYERS[: LAYERS.index(layer) + 1])
    assert {path: layers for path, layers in upward.items() if layers} == {}


def test_no_file_is_long():
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}


def test_windows_is_refused_with_the_way_out():
    """Before anything is imported that Windows lacks, such as `fcntl`."""
    code = """
import sys
sys.platform = "win32"
sys.modules |= {"fcntl": None, "resource": None, "numba": None}
try:
    import tokenfeed
except ImportError as error:
    assert type(error).__name__ == "PlatformError" and "WSL" in str(error), repr(error)
else:
    raise AssertionError("imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_takes_no_heavy_package_along_and_no_action():
    """In a fresh process: nothing but NumPy and Numba is needed, no thread is started, the road from text waits."""
    code = """
import sys, threading
before = threading.active_count()
import tokenfeed
heavy = {"torch", "jax", "ray", "pyarrow", "typer", "rich", "msgpack", "obstore", "tiktoken"}
heavy |= {"urllib3", "huggingface_hub", "tokenfeed.text", "tokenfeed.preparation", "tokenfeed.runs.run"}
heavy &= set(sys.modules)
assert not heavy, heavy
assert threading.active_count() == before
import tokenfeed.text.sources.files, tokenfeed.text.tokenizer.tokenizer
heavy = {"pyarrow", "tiktoken", "rustbpe", "rich", "torch"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
