"""A Result as one file and back, without pickle: arrays in an npz archive, with a page of JSON among them."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from bilevax.shards import Alone, Shards

FORMAT = 1
PAGE = "page"  # the JSON


class SavedState(NamedTuple):
    """The leaves of each shard of a state that was read from files; whatever goes on from it knows their structure."""

    parts: dict[int, tuple[Any, ...]]


def _plain(tree: PyTree, arrays: dict[str, Any], name: str) -> Any:
    """The structure of a tree of dictionaries, lists and tuples as JSON; its leaves join the arrays by a number."""
    if tree is None:
        return None
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _plain(part, arrays, name) for key, part in tree.items()}}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_plain(part, arrays, name) for part in tree]}
    if hasattr(tree, "dtype"):
        number = f"{name}.{len(arrays)}"
        arrays[number] = np.asarray(tree)
        return number
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path): leaf for path, leaf in leaves if hasattr(leaf, "dtype")}
    return _plain(named, arrays, name)


def _tree(plain: Any, arrays: Any) -> PyTree:
    if plain is None or isinstance(plain, str):
        return plain if plain is None else jnp.asarray(arrays[plain])
    ((kind, parts),) = plain.items()
    if kind == "dict":
        return {key: _tree(part, arrays) for key, part in parts.items()}
    return (list if kind == "list" else tuple)(_tree(part, arrays) for part in parts)


def pack(fields: dict[str, Any], trees: dict[str, PyTree], states: dict[str, list[np.ndarray]]) -> memoryview:
    """The content of a file with fields that JSON knows, trees, and the leaves of states."""
    arrays: dict[str, Any] = {}
    structures = {name: _plain(tree, arrays, name) for name, tree in trees.items()}
    for name, leaves in states.items():
        for k, leaf in enumerate(leaves):
            arrays[f"{name}.{k:08d}"] = leaf
    page = json.dumps({"bilevax result": FORMAT, "fields": fields, "trees": structures, "states": list(states)})
    content = io.BytesIO()
    arrays[PAGE] = np.frombuffer(page.encode(), np.uint8)
    np.savez(content, allow_pickle=False, **arrays)
    return content.getbuffer()


def unpack(content: bytes, path: Path) -> tuple[dict[str, Any], dict[str, PyTree], dict[str, SavedState]]:
    """What was packed; any other file is refused by its name."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        page = json.loads(arrays.pop(PAGE).tobytes())
        if page["bilevax result"] != FORMAT:
            raise ValueError(f"it is of format {page['bilevax result']}, this version reads {FORMAT}")
        trees = {name: _tree(plain, arrays) for name, plain in page["trees"].items()}
        states = {
            name: SavedState({0: tuple(arrays[key] for key in sorted(arrays) if key.startswith(f"{name}."))})
            for name in page["states"]
        }
        return page["fields"], trees, states
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"the file {path} is not a result that bilevax saved, or it is damaged: {error}.") from None


def restore(saved: SavedState, like: Any, shards: Alone | Shards) -> Any:
    """The state, in the structure of `like` (shapes and types alone); refused where it is of another one."""
    kinds = lambda leaves, axes=0: [(leaf.shape[axes:], str(leaf.dtype)) for leaf in leaves]
    right = kinds(jax.tree.leaves(like), int(isinstance(shards, Shards)))
    parts = saved.parts
    if isinstance(shards, Shards) and kinds(parts.get(0, ()), 1) == right:  # all in one file
        parts = {k: tuple(leaf[k] for leaf in parts[0]) for k in shards.own_numbers}
    if any(kinds(leaves) != right for leaves in parts.values()):
        raise ValueError("resume holds a state of other shapes or types than this algorithm has on this problem.")
    return shards.put_together(parts, like)
