"""From what a user names to a source: each INPUT is told by what it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputNotFoundError, UsageError
from .chain import ChainSource
from .files import reason_of
from .folder import FolderSource
from .glob import GlobSource
from .ids import shown
from .interface import Source
from .kind import PARQUET_ENDINGS, TAR_ENDINGS, SourceKind, kind_of_input
from .limit import LimitSource
from .list import ListSource
from .paths import PathsSource
from .pattern import Pattern
from .shard import Shard, ShardSource
from .tar import TarSource
from .unique import UniqueSource
from .url_options import DEFAULT_URL_OPTIONS, UrlOptions

if TYPE_CHECKING:
    from .parquet import ParquetSource


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Columns of lists and Parquet files, the folder that their relative paths start at, bounds of downloads."""

    id_column: str | None = None
    path_column: str | None = None
    image_column: str | None = None
    root: str | os.PathLike[str] | None = None
    url: UrlOptions = DEFAULT_URL_OPTIONS


def open_source(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    kind: SourceKind = SourceKind.AUTO,
    id_column: str | None = None,
    path_column: str | None = None,
    image_column: str | None = None,
    root: str | os.PathLike[str] | None = None,
    shard: Shard | None = None,
    limit: int | None = None,
    url_options: UrlOptions = DEFAULT_URL_OPTIONS,
) -> Source:
    """Source over folders, lists, patterns, tar and Parquet shards, images and URLs, in the order given.

    The ids of one folder are relative to it; with several INPUTs they start with the INPUT as typed.
    ``shard`` keeps its part of the entries, ``limit`` the first of those. Raises InputNotFoundError for
    an INPUT that is missing or cannot be listed, and UsageError for options or columns that do not fit.
    """
    options = SourceOptions(id_column, path_column, image_column, root, url_options)
    typed = [os.fsencode(given) for given in ([inputs] if isinstance(inputs, str | os.PathLike) else inputs)]
    if not typed:
        raise UsageError("No INPUT. Name a folder, a list, a pattern, a tar or Parquet file, or an image.")
    opener = _Opener(options, several=len(typed) > 1)
    for path in typed:
        opener.add(path, kind_of_input(path, kind))
    source = opener.source()
    if shard is not None:
        source = ShardSource(source, shard)
    if opener.may_repeat_ids:
        source = UniqueSource(source)
    return LimitSource(source, limit) if limit is not None else source


class _Opener:
    """Sources of one call, gathered INPUT by INPUT."""

    def __init__(self, options: SourceOptions, *, several: bool) -> None:
        self._options = options
        self._several = several
        self._parts: list[Source] = []
        self._images: list[bytes] = []
        self._tars: set[bytes] = set()
        self._has_columns = False
        self._has_parquet = False
        self.may_repeat_ids = False

    def add(self, path: bytes, kind: SourceKind) -> None:
        """Open one INPUT of a known kind."""
        if kind is SourceKind.IMAGE:
            self._add_image(path)
            return
        self._images = []  # the next image starts a source of its own, in its place
        self.may_repeat_ids |= self._several and (kind is not SourceKind.TAR or path in self._tars)
        if kind is SourceKind.FOLDER:
            self._parts.append(self._folder(path))
        elif kind is SourceKind.TAR:
            self._tars.add(path)
            self._parts.append(UniqueSource(TarSource(path)))
        elif kind is SourceKind.PARQUET:
            self._parts.append(self._parquet(path))
        elif kind is SourceKind.GLOB:
            self._parts.append(self._glob(path))
        else:
            self._parts.append(self._list(path))

    def source(self) -> Source:
        """All parts; raises UsageError when options name columns and nothing has any."""
        options = self._options
        if not self._has_columns and (options.id_column or options.path_column or options.image_column):
            raise UsageError(
                "Columns are named, but no INPUT is a list or a Parquet file. "
                "Leave out --id-column, --path-column and --image-column."
            )
        return self._parts[0] if len(self._parts) == 1 else ChainSource(self._parts)

    def _add_image(self, path: bytes) -> None:
        self.may_repeat_ids |= self._several
        if not self._images:
            # one source for a run of images, since a program may name a million of them
            self._parts.append(PathsSource(self._images, os.getcwdb(), url_options=self._options.url))
        self._images.append(path)

    def _folder(self, path: bytes) -> Source:
        try:
            os.scandir(path).close()
        except OSError as error:
            raise InputNotFoundError(
                f"Cannot list the folder {shown(path)}: {reason_of(error)}. Check its rights."
            ) from error
        prefix = path if path.endswith(b"/") else path + b"/"
        return FolderSource(path, prefix=prefix if self._several else b"")

    def _list(self, path: bytes) -> Source:
        self._has_columns = True
        self.may_repeat_ids = True
        options = self._options
        folder = os.path.dirname(path)
        source = ListSource(
            os.fsdecode(path),
            id_column=options.id_column,
            path_column=options.path_column,
            root=options.root,
            prefix=os.path.join(folder, b"") if self._several and options.root is None else b"",
            url_options=options.url,
        )
        source.check()
        return source

    def _parquet(self, path: bytes) -> Source:
        self._has_columns = True
        source = _parquet_source(path, path, self._options)
        if not self._has_parquet:  # one file speaks for all: opening a thousand would delay the first sample
            self._has_parquet = True
            columns = source.columns()
            self.may_repeat_ids |= columns is None or columns.id is not None or columns.path is not None
        return source

    def _glob(self, path: bytes) -> Source:
        self._has_columns = True
        folder = Pattern(path).folder
        if not os.path.isdir(folder):
            raise InputNotFoundError(f"No INPUT {shown(path)}: there is no folder {shown(folder)}. Check the pattern.")

        def open_shard(file: bytes, name: bytes, seen: set[int]) -> Source | None:
            lower = name.lower()
            if lower.endswith(TAR_ENDINGS):
                return UniqueSource(TarSource(file, name=name))
            if lower.endswith(PARQUET_ENDINGS):
                return UniqueSource(_parquet_source(file, name, self._options), seen=seen)
            return None

        return GlobSource(path, open_shard=open_shard)


def _parquet_source(path: bytes, name: bytes, options: SourceOptions) -> ParquetSource:
    from .parquet import ParquetSource  # pyarrow takes longer to load than all else here

    return ParquetSource(
        path,
        name=name,
        id_column=options.id_column,
        path_column=options.path_column,
        image_column=options.image_column,
        root=options.root,
        url_options=options.url,
    )
