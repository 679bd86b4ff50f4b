"""Run the README's Python blocks, each in a process and an empty folder of its own: ``python readme.py README.md``.

The package is the one that this Python has installed. Ends with the status of the first block that fails.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    blocks = re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(encoding="utf-8"), re.DOTALL)
    if not blocks:
        raise SystemExit(f"expected Python blocks in {sys.argv[1]}, found none")
    for number, block in enumerate(blocks, start=1):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, "-c", block], cwd=folder, check=False)
        if done.returncode:
            raise SystemExit(f"block {number} of {len(blocks)} ended with status {done.returncode}:\n{block}")
    print(f"{len(blocks)} blocks ran")
