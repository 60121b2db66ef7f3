"""Tar shards, WebDataset's among them: each member that is an image is a sample."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import partial

from ..batch import Failure, Sample
from .archive import PackedArchive, PlainArchive, open_archive
from .files import MAX_BYTES, is_retryable, reason_of
from .ids import SEPARATOR, id_from_bytes, member_id, shown
from .sniff import SNIFF_BYTES, count_not_image, has_image_extension, looks_like_image, side_reason
from .tar_format import BLOCK, Member, TarCutError, TarDamagedError, TarError, TarTailError, members, normal_name

MAX_LINKS = 8
"""Links that are followed from one to the next before a member counts as a dead link."""

_SHARD_KINDS: dict[type[TarError], tuple[str, bool]] = {
    TarCutError: ("shard_truncated", True),
    TarDamagedError: ("shard_damaged", True),
    TarTailError: ("shard_tail", False),
}


class TarSource:
    """Images of one tar shard in its order; the id is ``NAME::member/path``.

    A member is a sample when its name has an image extension or its first bytes are an image's.
    Members of a plain tar are read in place, when their sample is; those of a compressed one (gzip,
    bzip2, xz, zstd) are held by their samples. What cannot be read on is one failure of the shard,
    after its whole members.
    """

    def __init__(self, path: str | bytes | os.PathLike[str], *, name: bytes | None = None) -> None:
        typed = os.fsencode(path)
        self.ignored: Counter[str] = Counter()
        self._path = os.path.abspath(typed)
        self._name = typed if name is None else name

    def describe(self) -> str:
        return f"tar {shown(self._name)}"

    def __iter__(self) -> Iterator[Sample | Failure]:
        self.ignored = Counter()
        try:
            archive = open_archive(self._path)
        except OSError as error:
            yield self._lost("shard_unreadable", reason_of(error), is_retryable(error))
            return
        try:
            yield from self._entries(archive)
        except TarError as error:
            yield self._broken(error, archive)
        except OSError as error:
            yield self._lost("shard_unreadable", reason_of(error), is_retryable(error))
        finally:
            if isinstance(archive, PackedArchive):
                archive.close()

    def _entries(self, archive: PlainArchive | PackedArchive) -> Iterator[Sample | Failure]:
        shard = _Shard(member_id(self._name, b""), archive, self.ignored)
        for member in members(archive.take):
            if isinstance(archive, PlainArchive) and member.offset + member.size > archive.size:
                raise TarCutError(archive.size, f"member {shown(member.name)} is cut")
            entry = shard.visit(member)
            if entry is not None:
                yield entry
        if isinstance(archive, PackedArchive) and archive.cut:
            raise TarCutError(archive.position, "the compressed stream is cut")

    def _broken(self, error: TarError, archive: PlainArchive | PackedArchive) -> Failure:
        cut = isinstance(archive, PackedArchive) and archive.cut
        if error.offset < BLOCK and not cut:  # not one header
            return self._lost("shard_unreadable", f"is not a tar archive ({error})", isinstance(error, TarCutError))
        kind, retryable = _SHARD_KINDS[type(error)]
        return self._lost(kind, f"{error} at byte {error.offset}; members from there on are not read", retryable)

    def _lost(self, kind: str, reason: str, retryable: bool) -> Failure:
        return Failure(id_from_bytes(self._name), "source", kind, f"{shown(self._path)}: {reason}", retryable)


class _Shard:
    """One pass over a shard: which of its members are samples."""

    def __init__(self, prefix: str, archive: PlainArchive | PackedArchive, ignored: Counter[str]) -> None:
        self._prefix = prefix
        self._archive = archive
        self._ignored = ignored
        self._by_name: dict[bytes, Member] | None = None

    def visit(self, member: Member) -> Sample | Failure | None:
        if member.kind == "folder":
            return None
        reason = _side_reason(member.name)
        if reason is None and member.kind == "other":
            reason = "special member"
        if reason is not None:
            self._ignored[reason] += 1
            return None
        if member.kind == "link":
            return self._link(member)
        if member.kind == "sparse":
            return self._sparse(member)
        return self._file(member.name, member)

    def _file(self, name: bytes, data: Member) -> Sample | Failure | None:
        """Sample of the member ``name``, whose bytes are those of ``data``."""
        archive = self._archive
        head = b""
        if not has_image_extension(name):
            head = archive.take(data.offset, min(SNIFF_BYTES, data.size))
            if not looks_like_image(head):
                count_not_image(self._ignored, name)
                return None
        if data.size > MAX_BYTES:
            return self._failure(name, "too_large", f"{data.size} bytes, more than the {MAX_BYTES} that are read")
        sample_id = self._prefix + id_from_bytes(name)
        if isinstance(archive, PlainArchive):
            return Sample(sample_id, partial(archive.read, data.offset, data.size))
        content = head + archive.take(data.offset + len(head), data.size - len(head))
        if len(content) < data.size:
            raise TarCutError(archive.position, f"member {shown(name)} is cut")
        return Sample(sample_id, partial(bytes, content))

    def _sparse(self, member: Member) -> Failure | None:
        if has_image_extension(member.name):
            return self._failure(member.name, "sparse_member", "is stored with holes. Repack it without --sparse")
        count_not_image(self._ignored, member.name)
        return None

    def _link(self, member: Member) -> Sample | Failure | None:
        if isinstance(self._archive, PackedArchive):
            what = "is a link, which is not followed in a compressed shard. Repack it uncompressed"
            return self._failure(member.name, "link_member", what)
        data = self._resolved(member)
        if data is None:
            what = f"is a link to {shown(member.target)}, which the shard does not hold"
            return self._failure(member.name, "dead_link", what if member.target else "is a link out of the shard")
        if data.kind == "file":
            return self._file(member.name, data)
        self._ignored[f"link to a {data.kind} member"] += 1
        return None

    def _resolved(self, member: Member) -> Member | None:
        if self._by_name is None:
            self._by_name = self._index()
        found: Member | None = member
        for _ in range(MAX_LINKS):
            if found is None or found.kind != "link":
                return found
            found = self._by_name.get(found.target)
        return None

    def _index(self) -> dict[bytes, Member]:
        """All members by name, since a link may lead forward; made only for shards that hold links."""
        index: dict[bytes, Member] = {}
        try:
            for member in members(self._archive.take):
                index[normal_name(member.name)] = member
        except TarError:  # the pass that reads the members reports it
            return index
        return index

    def _failure(self, name: bytes, kind: str, what: str) -> Failure:
        sample_id = self._prefix + id_from_bytes(name)
        return Failure(sample_id, "source", kind, f"{sample_id.replace(SEPARATOR, ': ', 1)}: {what}")


def _side_reason(name: bytes) -> str | None:
    for part in name.split(b"/"):
        if part not in (b"", b".", b".."):
            reason = side_reason(part)
            if reason is not None:
                return reason
    return None
