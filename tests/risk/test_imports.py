import ast
import sys
from pathlib import Path

import pytest

import sb3_ora.risk

MODULES = sorted(Path(sb3_ora.risk.__file__).parent.glob("*.py"))


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_risk_needs_only_numpy_and_torch(path):
    allowed = set(sys.stdlib_module_names) | {"numpy", "torch"} | ({"gymnasium"} if path.name == "keys.py" else set())
    for name in imported(ast.parse(path.read_text())):
        assert name.split(".")[0] in allowed or name.startswith("sb3_ora.risk") or name == "sb3_ora.checks"


def test_every_public_name_exists():
    assert len(sb3_ora.risk.__all__) == len(set(sb3_ora.risk.__all__))
    for name in sb3_ora.risk.__all__:
        assert hasattr(sb3_ora.risk, name)
