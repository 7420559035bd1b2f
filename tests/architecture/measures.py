"""Figures of the code base: import cycles, modules with a single importer, duplicate class names.

``python -m tests.architecture.measures`` prints them; `test_measures` holds them.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from tests.architecture.tree import PACKAGES, ROOT, python_files

#: Class names that a framework prescribes.
FRAMEWORK_NAMES = frozenset({"Meta", "Command", "Config", "Migration"})
#: Prefixes of modules that a registry imports by name: handlers, policies, views, verbs of the CLI.
REGISTERED = (
    "scheduler.core.handlers.",
    "scheduler.core.policies.",
    "placement.policies.",
    # The gateway binds their handlers to `contract.routes`; `facades.registry` lists facades.
    "scheduler.runtime.gateway.endpoints.",
    "facades.",
    # Composition roots start them: the web process and the workers of each role.
    "scheduler.runtime.gateway.app",
    "scheduler.runtime.loop.scheduler_loop",
    "scheduler.runtime.node.worker",
    "scheduler.runtime.fleets.keeper",
    # The registry of handlers and the worker's processes load them by name.
    "rollout.handlers.",
    "rollout.worker.handler_process",
    "rollout.worker.worker",
    # The registry of predictors makes them.
    "placement.boosted",
    # Readers of traces: the table of formats names them. The command loads each of its programs by name.
    "simulator.foreign.",
    "simulator.trace_cli",
    # Areas of a node door: its table names them.
    "scheduler.runtime.node.door.",
    "tangram_web.dashboard.views.",
    # Django loads template tags by name; the site map and the table of verbs register the others.
    "tangram_web.dashboard.templatetags.",
    "tangram_web.operations.verbs.",
    "tangram_web.operations.views",
    "tangram_web.configuration.views",
    # URL tables name them.
    "tangram_web.accounts.views",
    "tangram_web.audit.api.views",
    "tangram_web.live.consumers",
    "tangram_web.metrics.views",
    "tangram_web.pools.api.configuration",
    "tangram_web.records.api.views",
    "tangram_web.simulations.views",
    "tangram_web.webhooks.views",
    # The registry of managers: ledgers, drivers, and the backends that a node's setting names.
    "managers.cpu.ledger",
    "managers.cpu.containers.driver",
    "managers.cpu.process.driver",
    "managers.gpu.driver",
    "managers.gpu.ledger.chunk_ledger",
    "managers.quota.call_driver",
    "managers.quota.ledger.api",
    # Configurations of fleets name them.
    "placement.policies.",
    # The table of worker roles, and Django's table of commands, load them by name.
    "tangram_web.job_schedule",
    "tangram_web.journal_consumers",
    "tangram_web.management.commands.",
    "tangram_client.cli.",
    # The libraries that they are plugins of import them by name.
    "tangram_client.integrations.",
    # Tests and benchmarks start them, which are no part of the product.
    "managers.llm.fake.",
    "simulator.fleets.",
    # The tables of baselines and of workloads of `sim` name them.
    "simulator.baselines.",
    "simulator.workloads.",
)

#: Written by `tests.architecture.sync_client`.
GENERATED = frozenset({"tangram_client._sync_calls"})


@dataclass(slots=True)
class Module:
    """One module, what it imports of ours, and the classes it defines."""

    name: str
    is_package: bool
    lines: int
    imports: set[str] = field(default_factory=set)
    classes: list[str] = field(default_factory=list)


@cache
def modules() -> dict[str, Module]:
    """Return the product's modules by dotted name, with the modules of ours that each imports."""
    found: dict[str, Module] = {}
    trees: dict[str, ast.Module] = {}
    for path in python_files(*PACKAGES):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text()
        trees[name] = ast.parse(text)
        found[name] = Module(name, is_package, text.count("\n"))
    for name, tree in trees.items():
        module = found[name]
        module.imports = set(_imported(tree, found)) - {name}
        module.classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return found


def _imported(tree: ast.Module, known: Iterable[str]) -> Iterator[str]:
    names = frozenset(known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in names:
                    yield inner
                elif node.module in names:
                    yield node.module


def cycles() -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan's algorithm)."""
    graph = {name: sorted(module.imports) for name, module in modules().items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component: list[str] = []
            while not component or component[-1] != name:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def single_importers() -> dict[str, str]:
    """Return the modules with exactly one importer, and that importer.

    Benchmarks and examples import as the product does; tests do not count. Registered and generated
    modules are left out.
    """
    importers: dict[str, set[str]] = defaultdict(set)
    for name, module in modules().items():
        for other in module.imports:
            importers[other].add(name)
    for path in python_files("benchmarks", "examples"):
        for other in _imported(ast.parse(path.read_text()), modules()):
            importers[other].add(str(path))
    return {
        name: next(iter(importers[name]))
        for name, module in sorted(modules().items())
        if len(importers[name]) == 1
        and not module.is_package
        and not name.startswith((*REGISTERED, *GENERATED))
    }


def duplicate_classes() -> dict[str, list[str]]:
    """Return the class names that several modules define, without those a framework prescribes."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, module in sorted(modules().items()):
        for each in module.classes:
            if each not in FRAMEWORK_NAMES:
                places[each].append(name)
    return {each: where for each, where in sorted(places.items()) if len(where) > 1}


def product_lines() -> int:
    """Return the lines of the product's Python files, without migrations and generated modules."""
    return sum(module.lines for name, module in modules().items() if name not in GENERATED)


def figures() -> dict[str, int]:
    """Return each figure by name."""
    return {
        "modules": len(modules()),
        "product_lines": product_lines(),
        "import_cycles": len(cycles()),
        "single_importers": len(single_importers()),
        "duplicate_class_names": len(duplicate_classes()),
    }


def report() -> str:
    """Return all figures as text."""
    single, twice, circles = single_importers(), duplicate_classes(), cycles()
    return "\n".join(
        [
            f"modules {len(modules())}, lines {product_lines()}",
            f"import cycles {len(circles)}",
            *(f"  {' '.join(each)}" for each in circles),
            f"modules with a single importer {len(single)}",
            *(f"  {name} <- {importer}" for name, importer in single.items()),
            f"duplicate class names {len(twice)}",
            *(f"  {name}: {' '.join(where)}" for name, where in twice.items()),
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(report() + "\n")
