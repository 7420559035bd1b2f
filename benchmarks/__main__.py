"""List the benchmarks, or run those that are named, one after the other.

python -m benchmarks              what there is
python -m benchmarks noop idle    run these
python -m benchmarks all          run all; takes a while, and the machine should be idle
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def benchmarks() -> dict[str, str]:
    """Return name → first line of its docstring, for every module here that is a command."""
    found = {}
    for path in sorted([*HERE.glob("*.py"), *HERE.glob("*/__main__.py")]):
        text = path.read_text()
        name = path.parent.name if path.stem == "__main__" else path.stem
        if path.parent != HERE or (path.stem != "__main__" and 'if __name__ == "__main__"' in text):
            found[name] = (ast.get_docstring(ast.parse(text)) or "").splitlines()[0]
    return found


def main() -> int:
    """Return 0 when everything that was asked for ran to its end."""
    known = benchmarks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], "all", *known], metavar="NAME")
    names = parser.parse_args().names
    if not names:
        for name, about in known.items():
            print(f"{name:14} {about}")
        return 0
    failed = [
        name
        for name in (known if "all" in names else names)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode
    ]
    if failed:
        print("failed:", ", ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
