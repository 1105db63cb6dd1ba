"""Walk a draft tree with the target's own draws: what is accepted, and what is emitted. Pure."""

from collections.abc import Callable, Collection
from collections.abc import Sequence as Items

from stridelm.types import ROOT, DraftTree


def walk(
    tree: DraftTree, draw: Callable[[int, list[int]], int], before: list[int], ends: Collection[int] = ()
) -> tuple[list[int], list[int]]:
    """The accepted nodes, root first, and the emitted tokens: one more than nodes were accepted, unless the last node
    holds one of the tokens that end a text. Nothing is drawn behind those.

    At each node the target draws the next token, seeing that node's own path; a child that holds it is accepted and
    the walk goes on there. The first draw that no child holds ends the walk, and is itself the last token emitted.
    So the tokens are those of drawing one at a time, whatever the tree proposes; with a tolerance, a draw may give
    one of a node's `proposals` in place of a token that is hardly better.
    """
    path: list[int] = []
    emitted: list[int] = []
    node = ROOT
    while True:
        token = draw(node, before + emitted)
        emitted.append(token)
        child = tree.child(node, token)
        if child is not None:
            path.append(child)
        if child is None or token in ends:
            return path, emitted
        node = child


def proposals(tree: DraftTree, node: int) -> list[int]:
    """The tokens of the children of a node, or of ROOT."""
    return [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == node]


def grammatical(tree: DraftTree, accepts: Callable[[list[int]], int]) -> DraftTree:
    """The nodes whose paths may follow the text. `accepts`: how many of some tokens may follow in a row."""
    inner, kept = set(tree.parents), set[int]()
    for leaf in range(len(tree)):
        if leaf not in inner:
            path = _path(tree, leaf)
            kept.update(path[: accepts([tree.tokens[node] for node in path])])
    return tree.only(sorted(kept))


def _path(tree: DraftTree, node: int) -> list[int]:
    """A node and its ancestors, root first."""
    path: list[int] = []
    while node != ROOT:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


def agreement(read: Items[int], tokens: Items[int]) -> int:
    """Length of the common beginning of two texts of the same type. They differ, if at all, near the end: compare from
    there."""
    length = min(len(read), len(tokens))
    while read[:length] != tokens[:length]:
        length -= 1
    return length


def follow(tree: DraftTree, tokens: Items[int]) -> list[int]:
    """The nodes of the tree that a text goes through."""
    path: list[int] = []
    node = ROOT
    for token in tokens:
        child = tree.child(node, token)
        if child is None:
            break
        path.append(child)
        node = child
    return path


def first_choices(tree: DraftTree, path: list[int]) -> list[bool]:
    """Along the path, for each level with children, whether the likeliest child was accepted."""
    stood: list[bool] = []
    for node in (ROOT, *path):
        children = [child for child, parent in enumerate(tree.parents) if parent == node]
        if not children:
            break
        stood.append(max(children, key=lambda child: tree.scores[child]) in path)
    return stood
