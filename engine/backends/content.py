"""What a model file is: its spec, and one digest over the ONNX file and the external data it names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelError
from ..spec import METADATA_KEY, ModelSpec

if TYPE_CHECKING:
    import onnx

CHUNK_BYTES = 1 << 20


def model_content(path: Path) -> str:
    """SHA-256 (hex) of the ONNX bytes, then of each external data file's name and bytes, by name.

    A file without external data has the digest that ``sha256sum`` prints. Raises ModelError when the
    file is missing or no ONNX file, or its external data is missing or outside the model's folder.
    """
    digest = hashlib.sha256()
    _add_file(digest, path, path)
    for location in external_locations(path):
        digest.update(location.encode())
        _add_file(digest, path.parent / location, path)
    return digest.hexdigest()


def model_spec(path: Path) -> ModelSpec:
    """Spec of an exported ONNX file, without its weights; raises ModelError where it has none."""
    text = next((entry.value for entry in _read(path).metadata_props if entry.key == METADATA_KEY), None)
    if text is None:
        raise ModelError(f"{path} has no vdali metadata. Export it first: vdali export {path} --task ...")
    return ModelSpec.loads(text, file=str(path))


def external_locations(path: Path) -> list[str]:
    """Names of the external data files, relative to the folder of the ONNX file, sorted.

    Raises ModelError as ``model_content`` does.
    """
    import onnx

    model = _read(path)
    locations = {
        entry.value
        for tensor in tensors_of(model.graph)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    folder = path.parent.resolve()
    for location in locations:
        if not (folder / location).resolve().is_relative_to(folder):
            raise ModelError(f"{path} keeps weights in '{location}', outside its own folder. Put them next to it.")
    return sorted(locations)


def tensors_of(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Constant tensors of a graph: initializers and attributes, subgraphs included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from tensors_of(attribute.g)
            for subgraph in attribute.graphs:
                yield from tensors_of(subgraph)


def _read(path: Path) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(path, load_external_data=False)
    except (OSError, DecodeError) as error:
        raise ModelError(f"Cannot read {path} as an ONNX file: {error}. Export the model again.") from error


def _add_file(digest: hashlib._Hash, path: Path, model: Path) -> None:
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        part = "the model" if path == model else f"external data of {model}"
        raise ModelError(f"Cannot read {path}, {part}: {error.strerror}. Put it there or export again.") from error
