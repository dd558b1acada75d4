"""Read WARC files record by record; report every damaged part and still read everything after it.

Reads plain files and gzip, zstd and LZ4 files, compressed record by record or as a whole. FastWARC 2.0.1 (measured)
ends silently at a record that is cut off by the end of the file, stops at the first damaged member, and gives every
record of a file compressed as a whole the same offset; hence this reader. The reader holds one record in memory, and no
more of its content than requested.

A member is a gzip member or a zstd or LZ4 frame.

Formats: WARC 0.17 to 1.1 (ISO 28500), RFC 1952 (gzip), RFC 8878 (zstd), LZ4 frame format 1.6.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import zstandard
from isal import isal_zlib

MAX_HEADER_BYTES = 65_536
INPUT_BYTES = 65_536  # compressed bytes given to a decompressor at a time
LEAST_INPUT_BYTES, MOST_INPUT_BYTES = 16_384, 262_144  # when trying to read a whole member at once
ZSTD_INPUT_BYTES = (
    1024  # zstd's output has no limit; 4 bytes can encode a block of 128 KiB, so a hostile KiB gives at most 32 MiB
)
MOST_DAMAGED_BYTES = 64 << 20  # that are read of a damaged record
CHUNK_BYTES = 1 << 20  # largest output of a decompressor per call, however far a hostile member expands

GZIP_MAGIC = b"\x1f\x8b\x08"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_DICTIONARY_MAGIC = b"\x5d\x2a\x4d\x18"
LZ4_MAGIC = b"\x04\x22\x4d\x18"

VERSION = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n")
# Searched for only after damage, where any bytes may precede a record.
RECORD_START = re.compile(rb"WARC/\d\.\d{1,2}[ \t]*\r?\n(?=[A-Za-z])")
HEADER_END = re.compile(rb"\r?\n\r?\n")
LONGEST_RECORD_START = 32
DOCUMENT_TYPES = frozenset({"response", "resource", "conversion"})  # of records that are pages


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Record:
    """One WARC record. `offset` is the byte in the file at which its member starts.

    In a file that is not compressed, or compressed as a whole, `offset` is the byte in the uncompressed stream at which
    the record starts. `headers` have lower-case names. `buffer[start:end]` is the record's block, cut after
    `max_content_bytes` if `content_length` is larger. The block is not copied out of `buffer`, because pages are large
    and callers often need only a part.
    """

    offset: int
    headers: dict[str, str]
    buffer: bytes
    start: int
    end: int
    content_length: int

    @property
    def content(self) -> bytes:
        """The record's block (its content), up to the number of bytes that the reader was asked for."""
        return self.buffer[self.start : self.end]

    @property
    def type(self) -> str:
        """The record's WARC-Type in lower case, such as "response" or "warcinfo"."""
        return self.headers.get("warc-type", "").lower()

    @property
    def is_cut(self) -> bool:
        """Whether the record's block is longer than the part of it that was read."""
        return self.content_length > self.end - self.start

    @property
    def target_uri(self) -> str:
        """The record's WARC-Target-URI (the page's URL), without the angle brackets that old Wget versions add."""
        return _target_uri(self.headers)


def _target_uri(headers: Mapping[str, str]) -> str:
    uri = headers.get("warc-target-uri", "")
    return uri[1:-1] if uri.startswith("<") and uri.endswith(">") else uri


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """A part of a file, from `offset` to the next readable record, that holds no readable record.

    `url` is the page's URL if the part begins with the readable header of a page's record.
    """

    offset: int
    reason: str
    detail: str
    url: str = ""


class _Damaged(Exception):
    """The stream cannot be read further; `offset` is the compressed offset of the damaged member."""

    def __init__(self, offset: int, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.offset, self.reason, self.detail = offset, reason, detail
        self.is_told = False  # whether a Damage for this member was already yielded, with no record since


def read_warc(path: Path, *, max_content_bytes: int) -> Iterator[Record | Damage]:
    """Yield every record of a file in order, and a Damage for every part that cannot be read. Offsets ascend.

    An empty file yields nothing.
    """
    if path.stat().st_size == 0:
        return
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield from _WarcReader(data, max_content_bytes).records()


def damaged_part(data: mmap.mmap, offset: int) -> tuple[bytes, int]:
    """Return what can be read of a damaged record, and the offset of the next record, or the file's end.

    `offset` is that of its member, or of the record in a file that is not compressed.
    """
    codec = next((one for one in CODECS if data[offset : offset + len(one.magic)] == one.magic), PLAIN)
    if codec is PLAIN:
        found = RECORD_START.search(data, offset + 1)
        stop = found.start() if found else len(data)
        return data[offset : min(stop, offset + MOST_DAMAGED_BYTES)], stop
    plain = bytearray()
    try:
        for event in codec.events(data, offset):
            if event == END or len(plain) >= MOST_DAMAGED_BYTES:
                break
            plain += event[1]
    except _Damaged:
        pass
    return bytes(plain), _next_member(data, codec, offset + 1)


# Decompression of members. Each codec yields (offset, b"") at the start of a member, (None, chunk) for its content, and
# END after a complete member with the right checksum; otherwise it raises _Damaged.

_Event = tuple[int | None, bytes]
END: _Event = (-1, b"")


def _plain(data: mmap.mmap, start: int) -> Iterator[_Event]:
    for at in range(start, len(data), CHUNK_BYTES):
        yield None, data[at : at + CHUNK_BYTES]


def _gzip(data: mmap.mmap, start: int) -> Iterator[_Event]:
    at = start
    while at < len(data):
        if data[at : at + 3] != GZIP_MAGIC:
            if _is_zeros(data, at):
                return  # padding
            raise _Damaged(at, "damaged_compression", "no gzip member where one should begin")
        yield at, b""
        at = yield from _gzip_member(data, at)
        yield END


def _gzip_member(data: mmap.mmap, start: int) -> Iterator[_Event]:
    inflate = isal_zlib.decompressobj(wbits=31)
    at = start
    given = 0
    pending = b""
    while not inflate.eof:
        if not pending:
            pending = data[at : at + INPUT_BYTES]
            at += len(pending)
        try:
            chunk = inflate.decompress(pending, CHUNK_BYTES)
        except isal_zlib.error as error:
            yield from ((None, chunk) for chunk in _before_damage(data, start, at - len(pending), given))
            raise _Damaged(start, "damaged_compression", f"gzip: {error}") from None
        if not pending and not chunk and not inflate.eof:
            raise _Damaged(start, "truncated", "the file ends inside a gzip member")
        pending = inflate.unconsumed_tail
        if chunk:
            given += len(chunk)
            yield None, chunk
    return at - len(inflate.unused_data)


def _before_damage(data: mmap.mmap, start: int, at: int, given: int) -> Iterator[bytes]:
    """Yield the bytes of a damaged gzip member that can be decompressed, without the `given` bytes yielded before.

    A decompression call that fails returns nothing. So the member is decompressed again, byte by byte from the input
    position `at` on. In a file that is one member, many records may lie before the damage.
    """
    inflate = isal_zlib.decompressobj(wbits=31)
    try:
        while True:
            step = min(1024, at - start) or 1
            chunk = inflate.decompress(data[start : start + step])
            start, at = start + step, max(at, start + step)
            if chunk[given:]:
                yield chunk[given:]
            given = max(0, given - len(chunk))
    except isal_zlib.error:
        return


def _is_zeros(data: mmap.mmap, at: int) -> bool:
    return not any(any(data[i : i + CHUNK_BYTES]) for i in range(at, len(data), CHUNK_BYTES))


def _zstd(data: mmap.mmap, start: int) -> Iterator[_Event]:
    decompressor = zstandard.ZstdDecompressor(dict_data=_zstd_dictionary(data), max_window_size=1 << 27)
    at = start
    while at < len(data):
        magic = data[at : at + 4]
        if magic[1:] == b"\x2a\x4d\x18" and 0x50 <= magic[0] <= 0x5F:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")  # a skippable frame
            continue
        if magic != ZSTD_MAGIC:
            raise _Damaged(at, "damaged_compression", "no zstd frame where one should begin")
        yield at, b""
        at = yield from _zstd_frame(decompressor, data, at)
        yield END


def _zstd_dictionary(data: mmap.mmap) -> zstandard.ZstdCompressionDict | None:
    """Return the dictionary in the first frame of a file (WARC with zstd, IIPC draft), which may be compressed too."""
    if data[:4] != ZSTD_DICTIONARY_MAGIC:
        return None
    content = data[8 : 8 + int.from_bytes(data[4:8], "little")]
    if content[:4] == ZSTD_MAGIC:
        content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
    return zstandard.ZstdCompressionDict(content)


def _zstd_frame(decompressor: zstandard.ZstdDecompressor, data: mmap.mmap, start: int) -> Iterator[_Event]:
    frame = decompressor.decompressobj()
    at = start
    while not frame.eof:
        block = data[at : at + ZSTD_INPUT_BYTES]
        at += len(block)
        if not block:
            raise _Damaged(start, "truncated", "the file ends inside a zstd frame")
        try:
            chunk = frame.decompress(block)
        except zstandard.ZstdError as error:
            raise _Damaged(start, "damaged_compression", f"zstd: {error}") from None
        if chunk:
            yield None, chunk
    return at - len(frame.unused_data)


def _lz4(data: mmap.mmap, start: int) -> Iterator[_Event]:
    from fastwarc.stream_io import Lz4Reader

    at = start
    while at < len(data):
        end = _lz4_frame_end(data, at)
        yield at, b""
        try:
            reader = Lz4Reader(BytesIO(data[at:end]))
            while chunk := reader.read(CHUNK_BYTES):
                yield None, chunk
        except OSError as error:
            raise _Damaged(at, "damaged_compression", f"lz4: {error}") from None
        yield END
        at = end


def _lz4_frame_end(data: mmap.mmap, start: int) -> int:
    """Return where the LZ4 frame at `start` ends, by reading its header, block sizes, end mark and checksum."""
    if data[start : start + 4] != LZ4_MAGIC:
        raise _Damaged(start, "damaged_compression", "no LZ4 frame where one should begin")
    flags = data[start + 4] if start + 4 < len(data) else 0
    at = start + 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        at += 4
        if size == 0:
            end = at + (4 if flags & 4 else 0)
            if end <= len(data):
                return end
            break
        at += (size & 0x7FFFFFFF) + (4 if flags & 16 else 0)
    raise _Damaged(start, "truncated", "the file ends inside an LZ4 frame")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Codec:
    magic: bytes
    events: Callable[[mmap.mmap, int], Iterator[_Event]]


CODECS = (
    _Codec(magic=GZIP_MAGIC, events=_gzip),
    _Codec(magic=ZSTD_MAGIC, events=_zstd),
    _Codec(magic=ZSTD_DICTIONARY_MAGIC, events=_zstd),
    _Codec(magic=LZ4_MAGIC, events=_lz4),
)
PLAIN = _Codec(magic=b"", events=_plain)


def _codec_of(data: mmap.mmap) -> _Codec:
    """Return the compression format, recognized by the file's first bytes.

    If these are damaged, the first later magic bytes at which a record begins decide.
    """
    for codec in CODECS:
        if data[: len(codec.magic)] == codec.magic:
            return codec
    if not VERSION.match(data):
        for codec in CODECS:
            if _next_member(data, codec, 1) < len(data):
                return codec
    return PLAIN


def _next_member(data: mmap.mmap, codec: _Codec, at: int) -> int:
    """Offset of the first member at or after `at` that begins with a record; the file's length if there is none."""
    magic = ZSTD_MAGIC if codec.magic == ZSTD_DICTIONARY_MAGIC else codec.magic
    while magic and (at := data.find(magic, at)) >= 0:
        if _begins_with_record(data, codec, at):
            return at
        at += 1
    return len(data)


def _begins_with_record(data: mmap.mmap, codec: _Codec, at: int) -> bool:
    try:
        for offset, chunk in codec.events(data, at):
            if chunk:
                return VERSION.match(chunk) is not None
            if (offset, chunk) == END:
                return False
    except _Damaged:
        pass
    return False


class _Stream:
    """The decompressed bytes of a file from the member at `base` on, with the position of the current member."""

    def __init__(self, data: mmap.mmap, codec: _Codec, base: int, *, position: int) -> None:
        self._events = codec.events(data, base)
        self._damage: _Damaged | None = None  # why the events ended; raised again on every further read
        self.position = position  # position of the buffer's first byte in the plain stream
        self.buffer = bytearray()
        self.member = base
        self.member_position = position  # position of the member's start in the plain stream
        self.at_end = False

    def more(self) -> bool:
        """Decompress the next piece, and return whether it added bytes.

        At the end of a gzip member or of the file nothing is added.
        """
        if self._damage:
            raise self._damage
        try:
            for event in self._events:
                offset, chunk = event
                if chunk:
                    self.buffer += chunk
                    return True
                if offset is None or event == END:
                    return False
                self.member, self.member_position = offset, self.position + len(self.buffer)
        except _Damaged as error:
            self._damage = error
            raise
        self.at_end = True
        return False

    def drop(self, size: int) -> None:
        """Remove the first `size` bytes of the buffer."""
        del self.buffer[:size]
        self.position += size

    def skip(self, size: int) -> None:
        """Advance by `size` bytes, or to the end, without keeping the bytes in memory."""
        while size and not self.at_end:
            step = min(size, len(self.buffer))
            self.drop(step)
            size -= step
            if size:
                self.more()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Start:
    """The start of a record: its position in the plain stream, and the member that contains it."""

    position: int
    member: int
    member_position: int


@dataclass(frozen=True, slots=True)
class _Member:
    """A gzip member that holds exactly one valid WARC record.

    It has the decompressed bytes, where the record's content block begins in them, and the next member's offset in the
    file.
    """

    plain: bytes
    headers: dict[str, str]
    begin: int
    length: int
    following: int


def _whole_member(data: memoryview, at: int, input_bytes: int, max_content: int) -> _Member | None:
    """Return the gzip member at offset `at`, or None if it is not one valid record or is too long.

    It must hold exactly one record that is not much longer than `max_content`. `input_bytes` is a guess at its
    compressed length. If the guess is high enough, one call decompresses the whole member into one buffer.
    """
    most = max_content + MAX_HEADER_BYTES
    inflate = isal_zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    held = 0
    try:
        while not inflate.eof:
            pending = data[at : at + input_bytes]
            if not pending or held >= most or inflate.unconsumed_tail:
                return None  # cut off, or too long: `_records_of` reads it with less memory
            at += len(pending)
            parts.append(inflate.decompress(pending, most))
            held += len(parts[-1])
            input_bytes = INPUT_BYTES
    except isal_zlib.error:
        return None
    plain = parts[0] if len(parts) == 1 else b"".join(parts)
    end = plain.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES)
    if end < 0 or not VERSION.match(plain):
        return None
    try:
        headers = _warc_headers(plain[:end])
        length = _content_length(headers)
    except _Malformed:
        return None
    begin = end + 4
    if len(plain) < begin + length or plain[begin + length :].strip(b"\r\n"):
        return None
    return _Member(plain, headers, begin, length, at - len(inflate.unused_data))


class _WarcReader:
    def __init__(self, data: mmap.mmap, max_content_bytes: int) -> None:
        self._data = data
        self._max_content = max_content_bytes
        self._codec = _codec_of(data)
        # If the first member continues after its first record, the file is compressed as a whole and offsets count
        # plain bytes.
        self._by_member: bool | None = False if self._codec is PLAIN else None
        self._last_offset = -1
        self._start: _Start | None = None  # start of the record being read; None between records
        self._url = ""  # of the page whose record is being read, once its header was read

    def records(self) -> Iterator[Record | Damage]:
        at = position = 0
        while True:
            if self._codec.magic == GZIP_MAGIC:
                at = yield from self._whole_members(at)
            stream = _Stream(self._data, self._codec, at, position=max(at, position))
            try:
                following = yield from self._records_of(stream)
                if following is None:
                    return
                at, position = following, stream.position
            except _Damaged as error:
                where = self._start or _Start(
                    position=self._position, member=error.offset, member_position=self._position
                )
                if not error.is_told:
                    url = self._url if self._start else ""
                    yield Damage(offset=self._offset(where), reason=error.reason, detail=error.detail, url=url)
                following = _next_member(self._data, self._codec, error.offset + 1)
                if following == len(self._data):
                    return
                at, position = following, max(where.position, self._position) + 1

    def _whole_members(self, at: int) -> Generator[Record, None, int]:
        """Yield the records from `at` on as long as each gzip member holds exactly one valid record, as nearly all do.

        Return the offset of the first other member; `_records_of` then finds out what it is. Reading whole members
        takes a fifth of the time.
        """
        if self._by_member is False:
            return at
        size = before = LEAST_INPUT_BYTES
        with memoryview(self._data) as view:
            while at < len(view):
                # Short requests and long responses alternate, so guess from the longer of the last two members.
                guess = min(MOST_INPUT_BYTES, max(LEAST_INPUT_BYTES, 4 * size, 4 * before))
                member = _whole_member(view, at, guess, self._max_content)
                if member is None:
                    return at
                self._by_member = True
                self._last_offset = max(at, self._last_offset + 1)
                yield Record(
                    offset=self._last_offset,
                    headers=member.headers,
                    buffer=member.plain,
                    start=member.begin,
                    end=member.begin + min(member.length, self._max_content),
                    content_length=member.length,
                )
                size, before = member.following - at, size
                at = member.following
        return at

    def _records_of(self, stream: _Stream) -> Generator[Record | Damage, None, int | None]:
        """Yield the records from the stream's position on, reading carefully around damage.

        Return None at the end of the file, or the offset of a gzip member from which whole members can be read again.
        """
        first = stream.member
        while True:
            self._start, self._url, self._position = None, "", stream.position
            while not stream.buffer and not stream.at_end:
                self._skip_blank_lines(stream)
            if not stream.buffer:
                return None
            self._position = stream.position
            is_new = stream.member != first and stream.member_position == stream.position
            if is_new and self._by_member and self._codec.magic == GZIP_MAGIC:
                return stream.member
            start = self._start = _Start(
                position=stream.position, member=stream.member, member_position=stream.member_position
            )
            try:
                yield self._record(stream, start)
            except _Malformed as error:
                self._start = None
                yield Damage(offset=self._offset(start), reason=error.reason, detail=error.detail, url=self._url)
                try:
                    stream = self._resynchronized(start)
                except _Damaged as damage:
                    damage.is_told = damage.offset == start.member
                    raise

    def _record(self, stream: _Stream, start: _Start) -> Record:
        """Return the complete record at the stream's position.

        If the record ends its member, the member's checksum is verified.
        """
        headers, header_bytes = self._headers(stream)
        self._url = _target_uri(headers) if headers.get("warc-type", "").lower() in DOCUMENT_TYPES else ""
        length = _content_length(headers)
        follow = len(self._data) - start.position - header_bytes
        if self._codec is PLAIN and length > follow:
            raise _Malformed("truncated", f"Content-Length is {length}, {follow} bytes follow")
        stream.drop(header_bytes)
        content = self._content(stream, length)
        num_line_ends, ends_member = self._skip_blank_lines(stream, by_member=self._by_member)
        # A blank line after the block also shows that the length was right, whatever follows. But if bytes of the block
        # are missing, this may be the blank line of the next record's header, or the block may contain the next record
        # except for its last line end.
        is_next = VERSION.match(stream.buffer) is not None
        is_odd = not is_next or num_line_ends != 2
        if not ends_member and ((not is_next and num_line_ends < 2) or (is_odd and RECORD_START.search(content))):
            raise _Malformed("wrong_length", f"no record follows after Content-Length {length}")
        if self._by_member is None:
            self._by_member = ends_member
        offset = self._offset(start)
        return Record(offset=offset, headers=headers, buffer=content, start=0, end=len(content), content_length=length)

    def _headers(self, stream: _Stream) -> tuple[dict[str, str], int]:
        """Return the WARC header at the stream's position, and its length in bytes including the blank line."""
        while len(stream.buffer) < LONGEST_RECORD_START:
            self._read_on(stream)
        if not VERSION.match(stream.buffer):
            raise _Malformed("not_a_record", f"expected WARC/1.0 or the like, found {bytes(stream.buffer[:24])!r}")
        while not (end := HEADER_END.search(stream.buffer, 0, MAX_HEADER_BYTES)):
            if len(stream.buffer) >= MAX_HEADER_BYTES:
                raise _Malformed("bad_header", f"no end of the header within {MAX_HEADER_BYTES} bytes")
            self._read_on(stream)
        return _warc_headers(bytes(stream.buffer[: end.start()])), end.end()

    def _content(self, stream: _Stream, length: int) -> bytes:
        """Return the first `max_content_bytes` of a record's block, and advance the stream past the block."""
        kept = min(length, self._max_content)
        content = bytearray()
        left = length
        while left:
            while not stream.buffer:
                self._read_on(stream)
            step = min(left, len(stream.buffer))
            content += stream.buffer[: min(step, kept - len(content))]
            stream.drop(step)
            left -= step
        return bytes(content)

    @staticmethod
    def _read_on(stream: _Stream) -> None:
        """Read more bytes of a record.

        A record may span members, but it does not continue into a member that begins with a record.
        """
        if stream.more():
            return
        before = len(stream.buffer)
        while len(stream.buffer) < before + LONGEST_RECORD_START and not stream.at_end:
            stream.more()
        if len(stream.buffer) == before or VERSION.match(stream.buffer, before):
            raise _Malformed("truncated", "the record is longer than what is there of it")

    @staticmethod
    def _skip_blank_lines(stream: _Stream, *, by_member: bool | None = True) -> tuple[int, bool]:
        """Skip line ends after a record. Return their number, and whether member or file ended before another byte.

        If the file is one member, no record is verified before the end of the file. Damage after the blank line then
        counts as damage of the next record.
        """
        num_line_ends = 0
        while True:
            blank = len(stream.buffer) - len(stream.buffer.lstrip(b"\r\n"))
            num_line_ends += stream.buffer.count(b"\n", 0, blank)
            stream.drop(blank)
            if len(stream.buffer) >= LONGEST_RECORD_START:
                return num_line_ends, False
            try:
                is_more = stream.more()
            except _Damaged:
                is_begun = bool(stream.buffer) and b"WARC/".startswith(bytes(stream.buffer[:5]))
                if by_member or num_line_ends < 2 or (by_member is None and not is_begun):
                    raise
                return num_line_ends, False
            if not is_more:
                if not stream.buffer:
                    return num_line_ends, True
                if stream.at_end:
                    return num_line_ends, False

    def _resynchronized(self, bad: _Start) -> _Stream:
        """Return a stream at the next record after the bad one, searching from the start of the bad record on."""
        base, position = (bad.position, bad.position) if self._codec is PLAIN else (bad.member, bad.member_position)
        stream = _Stream(self._data, self._codec, base, position=position)
        stream.skip(bad.position + 1 - position)  # skip the bad record's first letter, to not find it again
        while True:
            found = RECORD_START.search(stream.buffer)
            if found:
                stream.drop(found.start())
                return stream
            stream.drop(max(0, len(stream.buffer) - LONGEST_RECORD_START))
            member = stream.member
            if not stream.more() and stream.at_end:
                stream.drop(len(stream.buffer))
                return stream
            if stream.member != member and self._record_begins_member(stream):
                return stream

    @staticmethod
    def _record_begins_member(stream: _Stream) -> bool:
        """Whether the gzip member at the stream's position begins with a WARC record; if so, move the stream to it."""
        at = stream.member_position - stream.position
        while len(stream.buffer) < at + LONGEST_RECORD_START and stream.more():
            pass
        if not VERSION.match(stream.buffer, at):
            return False
        stream.drop(at)
        return True

    def _offset(self, start: _Start) -> int:
        """Return the record's offset. Each further record in a member gets the last offset plus one."""
        offset = start.position if self._by_member is False else start.member
        self._last_offset = max(offset, self._last_offset + 1)
        return self._last_offset


class _Malformed(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def _warc_headers(block: bytes) -> dict[str, str]:
    """Return a record's header fields.

    Raise _Malformed for a line that is no field, and for a repeated field that must be unique: both show that two
    records ran together.
    """
    if (fields := _plain_fields(block)) is not None:
        return fields
    lines = block.splitlines()[1:]
    names = [line.partition(b":")[0].strip().lower() for line in lines if line[:1] not in (b" ", b"\t")]
    for name in (b"warc-type", b"warc-record-id", b"content-length"):
        if names.count(name) > 1:
            raise _Malformed("bad_header", f"{name.decode()} occurs {names.count(name)} times")
    if bad := next((line for line in lines if b":" not in line and line[:1] not in (b" ", b"\t")), None):
        raise _Malformed("bad_header", f"no field: {bad[:40]!r}")
    return parse_headers(block)


class _Names(dict[str, str]):
    """Cache that maps the name of a header field to its normalized form.

    It is cleared at LIMIT names, because a hostile crawl may have any number of them.
    """

    LIMIT = 10_000

    def __missing__(self, written: str) -> str:
        if len(self) >= self.LIMIT:
            self.clear()
        name = self[written] = written.strip().lower()
        return name


_NAMES = _Names()


def _plain_fields(block: bytes) -> dict[str, str] | None:
    """Return the fields after the first line if each occurs once, on its own line ending in CRLF; otherwise None."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        return None
    lines = text.split("\r\n")
    ends = len(lines) - 1
    if text.count("\n") != ends or text.count("\r") != ends or "\n " in text or "\n\t" in text:
        return None
    pairs = [line.split(":", 1) for line in lines[1:]]
    try:
        fields = {_NAMES[name]: value.strip() for name, value in pairs}
    except ValueError:  # a line without a colon
        return None
    return fields if len(fields) == len(pairs) and "" not in fields else None


def parse_headers(block: bytes) -> dict[str, str]:
    """Return the header fields after the first line, with lower-case names.

    Continued lines are joined; of repeated fields the first counts. The bytes are decoded as UTF-8, or as Latin-1 if
    they are not valid UTF-8.
    """
    if (fields := _plain_fields(block)) is not None:
        return fields
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        text = block.decode("latin-1")
    headers: dict[str, list[str]] = {}
    last = ""
    for line in text.replace("\r\n", "\n").split("\n")[1:]:
        if line[:1] in (" ", "\t") and last:
            headers[last].append(line.strip())
            continue
        name, colon, value = line.partition(":")
        last = name.strip().lower() if colon else ""
        if last:
            headers.setdefault(last, [value.strip()])
    return {name: " ".join(lines) for name, lines in headers.items()}


def _content_length(headers: dict[str, str]) -> int:
    value = headers.get("content-length", "")
    if not (value.isascii() and value.isdigit() and len(value) < 16):
        raise _Malformed("bad_header", f"Content-Length is {value!r}")
    return int(value)
