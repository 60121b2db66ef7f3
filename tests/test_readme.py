"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from models import tiny_classifier
from pictures import write_numbered

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_python_lines_run_and_give_a_row_for_each_photo(tmp_path):
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code is not None
    write_numbered(tmp_path / "photos", 3, kinds=("JPEG",))
    (tmp_path / "photos" / "0000.jpg").rename(tmp_path / "photos" / "a.jpg")
    tiny_classifier(tmp_path / "model.onnx")
    ended = subprocess.run([sys.executable, "-c", code[1]], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "finished 3 0"
    assert len(ended.stdout.splitlines()) == 4
