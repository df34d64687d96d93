"""The modules that a module imports, found without running them: from the source text, within Tidal's packages."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import tidal
import tidal_builders

# Names and folders of Tidal's top-level packages that builds import.
PACKAGES = tuple((each.__name__, Path(each.__path__[0])) for each in (tidal, tidal_builders))


def import_closure(
    roots: Collection[str], *, leave_out: Collection[str] = (), packages: Mapping[str, Path]
) -> dict[str, Path]:
    """The modules that some modules import, directly and indirectly, with the modules themselves.

    Imports inside functions count; those under `if TYPE_CHECKING` do not, because they are never run. Packages of
    imported modules count too. Modules outside `packages` are ignored.

    Args:
        roots: Dotted names of the modules to start from.
        leave_out: Dotted names of modules and packages that are neither listed nor followed.
        packages: Folders of the top-level packages by name.

    Returns:
        File of each module by its dotted name.
    """
    found: dict[str, Path] = {}
    pending = list(roots)
    while pending:
        name = pending.pop()
        parent = name.rpartition(".")[0]
        if name in found or any(name == each or name.startswith(f"{each}.") for each in leave_out):
            continue
        path = _file(name, packages)
        if path is None:  # a name inside a module, or a module of another distribution
            if parent:
                pending.append(parent)
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else parent
        pending += [parent] if parent else []
        pending += _imported(ast.parse(path.read_bytes()), package)
    return found


def _file(name: str, packages: Mapping[str, Path]) -> Path | None:
    top, *rest = name.split(".")
    if top not in packages:
        return None
    base = packages[top].joinpath(*rest)
    candidates = (base / "__init__.py", base.with_suffix(".py") if rest else base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Dotted names of what a module imports; of `from a import b` both, because `b` may be a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.If) and _type_checking(node.test):
        for statement in node.orelse:
            yield from _imported(statement, package)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imported(child, package)


def _type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
