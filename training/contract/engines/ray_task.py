"""The function that Ray runs on a node.

Ray gets it by value, because the node may lack the project. Therefore it imports nothing of the project before it has
found the job's folder.
"""

from typing import Any


def make_rank(order: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of `ray_node.answer`, or why this node cannot make a rank (`refused`)."""
    import importlib
    import socket

    node = socket.gethostname()
    try:
        with open(f"{order['signs']}/token", encoding="ascii") as stream:
            token = stream.read()
    except OSError:
        token = ""
    if token != order["token"]:
        unseen = f"node {node} does not see {order['folder']}; the root must be on a file system that all nodes share"
        return {"refused": unseen}
    try:
        module = importlib.import_module("training.contract.engines.ray_node")
    except ImportError as error:
        return {"refused": f"node {node} lacks this version of pedigree: {error}; install it there"}
    return module.answer(order, node)
