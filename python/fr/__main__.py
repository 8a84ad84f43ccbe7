"""python -m fr script.py args...   runs the script as if `import fr` were its first line
python -m fr --build-adapter     builds the torch adapter now, not beside the first job"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> int | None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0] == "--build-adapter":
        from fr import adapter

        return adapter.main(*arguments[1:2])
    if arguments[0] == "-m":
        if len(arguments) < 2:
            print("fr: -m needs a module name", file=sys.stderr)
            return 2
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return None
    script = arguments[0]
    if not os.path.exists(script):
        print(f"fr: no such file: {script}", file=sys.stderr)
        return 2
    sys.argv = arguments
    # `python -m` put the current directory there; a script gets its own.
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return None


if __name__ == "__main__":
    sys.exit(main())
