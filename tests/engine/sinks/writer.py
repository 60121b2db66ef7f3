"""A process that writes rows without end, for tests that kill it: ``writer.py OUT FORMAT COUNT``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from vdali.engine.batch import Failure, Rows, Sample
from vdali.engine.preprocess import Preprocess
from vdali.engine.sinks.open import open_sink
from vdali.engine.sinks.parquet import PartOptions
from vdali.engine.sinks.run_dir import OutputFormat, RunDirectory, RunStatus
from vdali.engine.spec import ModelSpec, Task

SPEC = ModelSpec(name="toy", task=Task.EMBED, preprocess=Preprocess(size=(8, 8), resize=(8, 8)))
WIDTH = 16
PART_ROWS = 64


def vector_of(number: int) -> list[float]:
    return [float(number + k) for k in range(WIDTH)]


def is_bad(number: int) -> bool:
    return number % 10 == 3


def open_run(out: Path, output_format: str) -> RunDirectory:
    return RunDirectory(
        out, spec=SPEC, fingerprint_parts={"inputs": "numbers"}, output_format=OutputFormat(output_format)
    )


def write_all(out: Path, output_format: str, count: int, batch: int = 8) -> None:
    """Write numbers 0 to ``count`` that are not done: those that end in 3 as failures, the others as rows."""
    with open_run(out, output_format) as run:
        if run.finished:
            return
        run.start({})
        sink = open_sink(run, PartOptions(rows=PART_ROWS))
        sys.stdout.write(f"opened {sink.done_count}\n")
        sys.stdout.flush()
        left = [i for i in range(count) if not sink.is_done(Sample(str(i), bytes))]
        for start in range(0, len(left), batch):
            numbers = left[start : start + batch]
            good = [i for i in numbers if not is_bad(i)]
            columns = {
                "embedding": np.array([vector_of(i) for i in good], np.float32).reshape(-1, WIDTH),
                "salvaged": np.zeros(len(good), bool),
            }
            bad = [Failure(str(i), "decode", "corrupt", "ends in 3") for i in numbers if is_bad(i)]
            sink.write(Rows([str(i) for i in good], columns), bad)
        sink.commit()
        run.finish(RunStatus.FINISHED)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
