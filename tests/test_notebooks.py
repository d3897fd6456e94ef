"""The notebooks run from top to bottom, in a kernel of their own, without a warning on standard error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat comes with the extra: pip install 'pie_p[dev]'")
nbclient = pytest.importorskip("nbclient", reason="nbclient comes with the extra: pip install 'pie_p[dev]'")

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["a-cluster-without-meters", "predict", "train-your-own"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib comes with the extra: pip install 'pie_p[plot]'")
    pytest.importorskip("xgboost", reason="xgboost comes with the extra: pip install 'pie_p[train-cpu]'")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(FOLDER)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs
    noise = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stderr")
    assert not re.search(r"warning|error|traceback", noise, re.IGNORECASE), noise


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
