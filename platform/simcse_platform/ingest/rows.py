"""Rows of parquet files by their place."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simcse.errors import DataError
from simcse_platform.ingest import readers
from simcse_platform.ingest.parquet import UNREADABLE, open_file, unreadable
from simcse_platform.ingest.plan import Range
from simcse_platform.ingest.source import Corpus


def read_rows(corpus: Corpus, ranges: Sequence[Range], columns: Sequence[str]) -> pa.Table:
    """The rows of all ranges, one range after the other.

    Raises `DataError` naming file and row of a text that cannot be used, or a file that cannot;
    `StorageError` for one that the next attempt may read.
    """
    found: dict[Range, pa.Table] = {}
    for shard in {part.shard for part in ranges}:
        asked = [part for part in ranges if part.shard == shard]
        found |= _read_ranges(corpus, corpus.files[shard], asked, columns)
    return pa.concat_tables([found[part] for part in ranges])


def _read_ranges(
    corpus: Corpus, file: str, ranges: Sequence[Range], columns: Sequence[str]
) -> dict[Range, pa.Table]:
    """The rows of one file that are asked for, from no more than the row groups that hold them."""
    try:
        parquet = open_file(file)
        groups = [parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups)]
        begins = list(accumulate(groups, initial=0))
        needed = [
            group
            for group, (begin, end) in enumerate(pairwise(begins))
            if any(part.start < end and part.stop > begin for part in ranges)
        ]
        table = parquet.read_row_groups(needed, columns=list(columns))
    except UNREADABLE as error:
        raise unreadable(file, error) from error
    # Groups left out move what follows forward: where each needed group begins in the table.
    shifted = dict(zip(needed, accumulate((groups[g] for g in needed), initial=0), strict=False))
    found: dict[Range, pa.Table] = {}
    for part in ranges:
        group = bisect_right(begins, part.start) - 1
        rows = table.slice(shifted[group] + part.start - begins[group], len(part))
        found[part] = rows if corpus.tokenised else _checked(rows, file, part.start)
    return found


def _checked(rows: pa.Table, file: str, first_row: int) -> pa.Table:
    """Texts as plain strings. Raises `DataError` naming the first row that cannot be used."""
    checked: dict[str, pa.Array] = {}
    for name in rows.column_names:
        texts = rows[name].cast(pa.string()).combine_chunks()
        bad = dict.fromkeys(readers.invalid_utf8(texts), readers.NOT_UTF8)
        if not bad:
            blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), True)
            bad = dict.fromkeys(np.flatnonzero(blank).tolist(), "empty")
        # A positive that is the anchor teaches nothing, a negative that is either what is wrong.
        for earlier in [] if bad else checked:
            equal_R = pc.equal(_collapsed(texts), _collapsed(checked[earlier]))
            reason = f"that of column {earlier!r}"
            bad |= dict.fromkeys(np.flatnonzero(equal_R).tolist(), reason)
        for place, reason in bad.items():
            raise DataError(
                f"{file}:{first_row + place + 1}: the text in column {name!r} is {reason}: "
                "`simcse prepare` sorts such rows out"
            )
        checked[name] = texts
    return pa.table(checked)


def _collapsed(texts: pa.Array) -> pa.Array:
    """As `readers.collapse_spaces`, which training applies before it tokenises."""
    return pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, r"\s+", " "))
